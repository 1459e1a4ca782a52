"""asinh, acosh and atanh in f64, on targets with fma: the logarithm of a pair of numbers.

The argument of the logarithm is rounded, and what the rounding left over divided by it is added to the logarithm's small terms.
"""

from lowc.ir.nodes import Expr
from lowc.scheduler import maths_tables as tables
from lowc.scheduler.maths_emit import Emit
from lowc.scheduler.maths_log import natural, split, split_plus_one
from lowc.scheduler.maths_pairs import fast_sum, full_sum, product, ratio

INF = float("inf")
NAN = float("nan")
HUGE = 2.0**28  # x**2 + 1 and x**2 are the same


def asinh(e: Emit, x: Expr) -> Expr:
    """A polynomial up to 1/2, then ln(a + sqrt(a**2 + 1)), ln(2 a) where the square is so large that the 1 is lost."""
    a = e.let(e.abs(x))
    square = e.let(e.mul(a, a))
    near = e.mad(e.mul(e.poly(square, tables.ASINH_DOUBLE), square), a, a)
    huge = e.let(e.gt(a, HUGE))
    bounded = e.let(e.select(huge, 1.0, a))
    upper, lower = product(e, bounded, bounded)
    total, left = full_sum(e, upper, e.of(1.0, x))
    root = e.let(e.sqrt(total))
    z, rest = fast_sum(e, root, bounded)
    k, f = split(e, e.let(e.select(huge, a, z)))
    k = e.let(e.add(k, e.select(huge, e.of(1.0, x), 0.0)))
    far = natural(e, k, f, _rest(e, root, total, e.add(left, lower), rest, z, huge))
    y = e.select(e.gt(a, 0.5), far, near)
    return e.copysign(e.select(e.lt(a, INF), y, a), x)


def _rest(e: Emit, root: Expr, total: Expr, left: Expr, rest: Expr, z: Expr, void: Expr) -> Expr:
    """(what ``root`` lacks to the root of total + left, plus ``rest``) / z; 0 where ``void``."""
    lack = e.add(e.mad(e.neg(root), root, total), left)
    double = e.let(e.add(root, root))
    return e.select(void, 0.0, ratio(e, e.mad(double, rest, lack), e.mul(double, z)))


def acosh(e: Emit, x: Expr) -> Expr:
    """log1p(t + sqrt(2 t + t**2)) with t = x - 1, ln(2 x) where the square is so large that the 1 is lost."""
    huge = e.let(e.gt(x, HUGE))
    t = e.let(e.select(huge, 1.0, e.sub(x, 1.0)))
    upper, lower = product(e, t, t)
    total, left = full_sum(e, upper, e.let(e.add(t, t)))
    root = e.let(e.sqrt(total))
    z, rest = fast_sum(e, root, t)
    whole = e.let(e.add(z, 1.0))
    k, f = split_plus_one(e, z, whole)
    other_k, other_f = split(e, x)
    k = e.let(e.select(huge, e.add(other_k, 1.0), k))
    f = e.let(e.select(huge, other_f, f))
    void = e.let(e.bit_or(huge, e.eq(t, 0.0)))
    y = natural(e, k, f, _rest(e, root, total, e.add(left, lower), rest, whole, void))
    return e.select(e.ge(x, 1.0), e.select(e.lt(x, INF), y, x), e.of(NAN, x))


def atanh(e: Emit, x: Expr) -> Expr:
    """log1p(2 a / (1 - a)) / 2."""
    a = e.let(e.abs(x))
    double = e.let(e.add(a, a))
    below, left = fast_sum(e, e.of(1.0, x), e.let(e.neg(a)))
    z = e.let(e.div(double, below))
    lack = e.mad(e.neg(z), left, e.mad(e.neg(z), below, double))
    # over (1 - a) (1 + z), which is 1 + a
    k, f = split_plus_one(e, z, e.let(e.add(z, 1.0)))
    y = e.mul(natural(e, k, f, ratio(e, lack, e.add(a, 1.0))), 0.5)
    y = e.select(e.lt(a, 2.0**-28), a, y)
    edge = e.select(e.eq(a, 1.0), e.of(INF, x), NAN)
    return e.copysign(e.select(e.lt(a, 1.0), y, edge), x)
