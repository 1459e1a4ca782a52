"""asin, acos, atan and atan2, in f32 and f64.

asin by a polynomial up to 1/2, from there on by asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2)); atan by one up to 1, from there on by
atan(x) = pi/2 - atan(1/x) (J.-M. Muller, "Elementary Functions", 3rd ed., 11.2).
"""

from lowc.ir.nodes import Expr
from lowc.scheduler import maths_tables as tables
from lowc.scheduler.maths_emit import Emit
from lowc.scheduler.maths_pairs import fast_sum


def _half_pi(like: Expr) -> tuple[float, float]:
    parts = tables.HALF_PI if like.dtype.bits == 32 else tables.HALF_PI_DOUBLE
    return parts[0], parts[1]


def _pi(like: Expr) -> tuple[float, float]:
    return tables.PI if like.dtype.bits == 32 else tables.PI_DOUBLE


def _asin_parts(e: Emit, x: Expr) -> tuple[Expr, Expr, Expr]:
    """(whether |x| > 1/2, r, p) with asin r = r + r p, for r = |x|, or there for sqrt((1 - |x|) / 2), whose asin is
    (pi/2 - asin |x|) / 2."""
    magnitude = e.let(e.abs(x))
    outer = e.let(e.gt(magnitude, 0.5))
    half = e.let(e.mul(e.sub(1.0, magnitude), 0.5))
    square = e.let(e.select(outer, half, e.mul(magnitude, magnitude)))
    root = e.let(e.select(outer, e.sqrt(half), magnitude))
    coefficients = tables.ASIN if x.dtype.bits == 32 else tables.ASIN_DOUBLE
    return outer, root, e.mul(e.poly(square, coefficients), square)


def asin(e: Emit, x: Expr) -> Expr:
    outer, root, p = _asin_parts(e, x)
    high, low = _half_pi(x)
    if x.dtype.bits == 32:
        y = e.let(e.mad(p, root, root))
        far = e.sub(high, e.sub(e.add(y, y), low))
    else:
        # pi/2 - 2 root first, with what its rounding leaves over: both are near one just above 1/2
        rest = e.let(e.mul(p, root))
        y = e.add(root, rest)
        whole, left = fast_sum(e, e.of(high, x), e.let(e.mul(root, -2.0)))
        far = e.sub(whole, e.sub(e.sub(e.add(rest, rest), low), left))
    return e.copysign(e.select(outer, far, y), x)


def acos(e: Emit, x: Expr) -> Expr:
    outer, root, p = _asin_parts(e, x)
    y = e.let(e.mad(p, root, root))
    high, low = _half_pi(x)
    pi, pi_low = _pi(x)
    double = e.let(e.add(y, y))
    negative = e.let(e.lt(x, 0.0))
    far = e.select(negative, e.sub(pi, e.sub(double, pi_low)), double)
    signed = e.copysign(y, x)
    return e.select(outer, far, e.sub(high, e.sub(signed, low)))


def _atan_core(e: Emit, t: Expr) -> Expr:
    """atan(t) for 0 <= t <= 1."""
    square = e.let(e.mul(t, t))
    coefficients = tables.ATAN if t.dtype.bits == 32 else tables.ATAN_DOUBLE
    return e.mad(e.mul(e.poly(square, coefficients), square), t, t)


def atan(e: Emit, x: Expr) -> Expr:
    magnitude = e.let(e.abs(x))
    outer = e.let(e.gt(magnitude, 1.0))
    y = e.let(_atan_core(e, e.let(e.select(outer, e.div(1.0, magnitude), magnitude))))
    high, low = _half_pi(x)
    return e.copysign(e.select(outer, e.sub(high, e.sub(y, low)), y), x)


def atan2(e: Emit, y: Expr, x: Expr) -> Expr:
    up, along = e.let(e.abs(y)), e.let(e.abs(x))
    steep = e.let(e.gt(up, along))
    less, more = e.let(e.select(steep, along, up)), e.let(e.select(steep, up, along))
    # equal ones are 0/0, inf/inf, or 1
    equal = e.select(e.eq(more, 0.0), e.of(0.0, x), 1.0)
    t = e.let(e.select(e.eq(less, more), equal, e.div(less, more)))
    angle = e.let(_atan_core(e, t))
    left = e.let(e.lt(e.bits(x), 0))  # -0.0 as well
    high, low = _half_pi(x)
    pi, pi_low = _pi(x)
    flat = e.select(left, e.sub(pi, e.sub(angle, pi_low)), angle)
    upright = e.add(e.add(e.select(left, angle, e.neg(angle)), low), high)
    return e.copysign(e.select(steep, upright, flat), y)
