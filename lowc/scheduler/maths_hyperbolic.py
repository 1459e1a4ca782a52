"""tanh, sinh and cosh in f32 and f64, their inverses in f32: a polynomial or log1p near zero, exponentials and
logarithms further out.

Where two formulas are needed both are evaluated and one is selected.
"""

from lowc.ir.nodes import Expr
from lowc.scheduler import maths_tables as tables
from lowc.scheduler.maths_emit import Emit
from lowc.scheduler.maths_exp import approximate_exp, is_approximate, reduced_exp
from lowc.scheduler.maths_log import finite_log1p, natural, split

INF = float("inf")
NAN = float("nan")


def tanh(e: Emit, x: Expr) -> Expr:
    # 1 - 2 / (exp(2|x|) + 1) away from zero; tanh(10) rounds to 1, in f64 tanh(22)
    coefficients, most = (tables.TANH, 20.0) if x.dtype.bits == 32 else (tables.TANH_DOUBLE, 44.0)
    square = e.let(e.mul(x, x))
    small = e.mad(e.mul(e.poly(square, coefficients), square), x, x)
    magnitude = e.let(e.abs(x))
    double = e.cap_at(e.add(magnitude, magnitude), most)
    if is_approximate(e, x):
        power = approximate_exp(e, e.let(double))
    else:
        p, _, t = reduced_exp(e, double)
        power = e.mul(e.add(p, 1.0), e.power(t))
    large = e.sub(1.0, e.quotient(e.of(2.0, x), e.add(power, 1.0)))
    # the sign last, for -0.0 as well
    return e.copysign(e.select(e.gt(magnitude, 0.5625), large, small), x)


def _half_exp(e: Emit, magnitude: Expr) -> Expr:
    """exp(magnitude) / 2 for magnitude >= 0, whose range is that of sinh and cosh."""
    p, _, t = reduced_exp(e, e.cap_at(magnitude, 90.0 if magnitude.dtype.bits == 32 else 711.0))
    # n reaches 130 (1026), which is too large for a power of two: half of 2**n in two factors
    return e.mul(e.mul(e.add(p, 1.0), e.power(t, 0.125)), 4.0)


def sinh(e: Emit, x: Expr) -> Expr:
    square = e.let(e.mul(x, x))
    coefficients = tables.SINH if x.dtype.bits == 32 else tables.SINH_DOUBLE
    small = e.mad(e.mul(e.poly(square, coefficients), square), x, x)
    magnitude = e.let(e.abs(x))
    half = e.let(_half_exp(e, magnitude))
    large = e.sub(half, e.div(e.of(0.25, x), half))
    return e.copysign(e.select(e.gt(magnitude, 1.0), large, small), x)


def cosh(e: Emit, x: Expr) -> Expr:
    half = e.let(_half_exp(e, e.abs(x)))
    return e.add(half, e.div(e.of(0.25, x), half))


def _log_of_double(e: Emit, x: Expr) -> Expr:
    """ln(2x) for a finite normal x > 0."""
    k, f = split(e, x)
    return natural(e, e.let(e.add(k, 1.0)), f)


def asinh(e: Emit, x: Expr) -> Expr:
    # log1p(a + a**2 / (1 + sqrt(1 + a**2))), ln(2a) where the square would overflow
    a = e.let(e.abs(x))
    bounded = e.cap_at(a, 2.0**13)
    square = e.let(e.mul(bounded, bounded))
    z = e.let(e.add(bounded, e.div(square, e.add(e.sqrt(e.add(square, 1.0)), 1.0))))
    near = finite_log1p(e, z, e.let(e.add(z, 1.0)))
    y = e.select(e.gt(a, 2.0**12), _log_of_double(e, a), near)
    y = e.select(e.lt(a, 2.0**-12), a, e.select(e.lt(a, INF), y, a))
    return e.copysign(y, x)


def acosh(e: Emit, x: Expr) -> Expr:
    # log1p(t + sqrt(2t + t**2)) with t = x - 1, ln(2x) where the square would overflow
    t = e.cap_at(e.sub(x, 1.0), 2.0**13)
    z = e.let(e.add(t, e.sqrt(e.mad(t, t, e.add(t, t)))))
    near = finite_log1p(e, z, e.let(e.add(z, 1.0)))
    y = e.select(e.gt(x, 2.0**12), _log_of_double(e, x), near)
    return e.select(e.ge(x, 1.0), e.select(e.lt(x, INF), y, x), e.of(NAN, x))


def atanh(e: Emit, x: Expr) -> Expr:
    # log1p(2a / (1 - a)) / 2
    a = e.let(e.abs(x))
    z = e.let(e.div(e.add(a, a), e.sub(1.0, a)))
    y = e.mul(finite_log1p(e, z, e.let(e.add(z, 1.0))), 0.5)
    y = e.select(e.lt(a, 2.0**-12), a, y)
    edge = e.select(e.eq(a, 1.0), e.of(INF, x), NAN)
    return e.copysign(e.select(e.lt(a, 1.0), y, edge), x)
