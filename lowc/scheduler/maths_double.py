"""erf, erfc and pow in f64, on targets with fma."""

from lowc.ir.nodes import Expr
from lowc.scheduler import maths_tables as tables
from lowc.scheduler.maths_emit import Emit
from lowc.scheduler.maths_exp import reduced_exp
from lowc.scheduler.maths_log import split
from lowc.scheduler.maths_pairs import Pair, fast_sum, product, quotient, ratio
from lowc.scheduler.maths_wide import signed_power

INF = float("inf")


def erf(e: Emit, x: Expr) -> Expr:
    """A polynomial up to 1, from there on 1 - erfc."""
    magnitude = e.let(e.abs(x))
    # 1 - erf(6) is below half a unit of 1
    large = e.copysign(e.sub(1.0, _erfc(e, e.cap_at(magnitude, 6.0))), x)
    return e.select(e.gt(magnitude, 1.0), large, _small_erf(e, x))


def erfc(e: Emit, x: Expr) -> Expr:
    """1 - erf up to 1/2, where what ``_erfc`` divides by has errors that weigh more."""
    magnitude = e.let(e.abs(x))
    y = e.let(_erfc(e, e.cap_at(magnitude, 27.3)))  # erfc(27.3) is below half the least denormal
    far = e.select(e.lt(x, 0.0), e.sub(2.0, y), y)
    return e.select(e.gt(magnitude, 0.5), far, e.sub(1.0, _small_erf(e, x)))


def _small_erf(e: Emit, x: Expr) -> Expr:
    return e.mad(e.poly(e.let(e.mul(x, x)), tables.ERF_DOUBLE), x, x)


def _erfc(e: Emit, a: Expr) -> Expr:
    """erfc of a from 1/2 to 27.3: exp(-a**2) / (1 + 2 a) times a polynomial in (a - 4) / (a + 4).

    M. Shepherd and J. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x < inf", Mathematics of
    Computation 36, 1981.  The square is a pair, since an error in it is one of the exponential.
    """
    t = e.let(e.div(e.sub(a, 4.0), e.add(a, 4.0)))
    upper, lower = product(e, a, a)
    p, n, scaled = reduced_exp(e, e.let(e.neg(upper)))
    p = e.let(p)
    p = e.let(e.sub(p, e.mad(p, lower, lower)))
    top = e.let(e.poly(t, tables.ERFC_DOUBLE))
    below = fast_sum(e, e.let(e.add(a, a)), e.of(1.0, a))
    above = fast_sum(e, top, e.let(e.mul(top, p)))
    return e.scale(e.let(quotient(e, above, below)), n, scaled)


def pow(e: Emit, x: Expr, y: Expr) -> Expr:
    """As C's pow, edges included: exp(y ln |x|), the logarithm and its product with y as pairs."""
    magnitude = e.let(e.abs(x))
    # beyond 2**65 every power but those of 1 is 0 or infinity, and y remains an even integer
    y = e.cap_at(e.floor_at(y, -(2.0**65)), 2.0**65)
    high, low = _log(e, magnitude)
    p, p_low = product(e, y, high)
    p_low = e.mad(y, low, p_low)
    n, t = e.nearest(e.cap_at(e.floor_at(p, -800.0), 800.0), tables.LOG2_E_WIDE)
    size = e.let(_exp(e, p, p_low, n, t))
    # where the logarithm is not finite, NaN in either included
    size = e.select(e.gt(p, 800.0), INF, e.select(e.lt(p, -800.0), 0.0, size))
    falls = e.let(e.lt(y, 0.0))
    size = e.select(e.eq(magnitude, 0.0), e.select(falls, e.of(INF, x), e.mul(y, 0.0)), size)
    vanishes = e.bit_and(falls, e.eq(magnitude, INF))
    size = e.select(e.lt(magnitude, INF), size, e.select(vanishes, 0.0, e.mul(magnitude, y)))
    return signed_power(e, x, y, size)


def _log(e: Emit, x: Expr) -> Pair:
    """ln x of a finite x > 0, to 2**-65 of itself.

    With x = 2**k (1 + f) and s = f / (2 + f): k ln 2 + 2 s + 2 s (s**2 / 3 + s**4 q(s**2)), all but q as pairs.
    """
    k, f = split(e, x)
    below, left = fast_sum(e, e.of(2.0, x), f)
    s = e.let(e.div(f, below))
    minus = e.let(e.neg(s))
    s_low = e.let(ratio(e, e.mad(minus, left, e.mad(minus, below, f)), below))
    z, z_low = product(e, s, s)
    z_low = e.let(e.mad(e.add(s, s), s_low, z_low))
    third, third_low = tables.THIRD_DOUBLE
    c, c_low = fast_sum(e, e.of(third, x), e.let(e.mul(e.poly(z, tables.ATANH_DOUBLE), z)))
    c_low = e.let(e.add(c_low, third_low))
    g, g_low = product(e, z, c)
    g_low = e.let(e.mad(z, c_low, e.mad(z_low, c, g_low)))
    double, double_low = e.let(e.add(s, s)), e.let(e.add(s_low, s_low))
    w, w_low = product(e, double, g)
    w_low = e.mad(double, g_low, e.mad(double_low, g, w_low))
    ln2, ln2_low = tables.LN2_DOUBLE
    first, first_low = fast_sum(e, e.let(e.mul(k, ln2)), double)
    second, second_low = fast_sum(e, first, w)
    rest = e.add(e.add(first_low, second_low), e.add(e.mad(k, ln2_low, double_low), w_low))
    return fast_sum(e, second, e.let(rest))


def _exp(e: Emit, x: Expr, low: Expr, n: Expr, t: Expr) -> Expr:
    """exp(x + low) for |x| <= 800, given n, the integer nearest to x / ln 2."""
    ln2, ln2_low = tables.LN2_DOUBLE
    reduced, left = fast_sum(e, e.let(e.mad(n, -ln2, x)), e.let(e.mad(n, -ln2_low, low)))
    square = e.mul(reduced, reduced)
    p = e.mad(square, e.poly(reduced, tables.EXP_DOUBLE), e.mad(reduced, left, left))
    return e.scale(e.add(e.add(p, reduced), 1.0), n, t)
