"""sin, cos and tan in f32 and (up to 2**20) f64, their inverses in f32.

The argument of sin, cos and tan is reduced to r = x - n pi/2, |r| <= 0.81, and n mod 4.  Below 2**18 by
pi/2 in three parts with fma, in two parts in f64 without (Cody and Waite); from there on by multiplying the
mantissa with the 96 bits of 2/pi that matter for its exponent (M. Payne and R. Hanek, "Radian reduction for
trigonometric functions", SIGNUM 18, 1983), which is right for every finite x.  In f64 likewise, |r| <=
0.786, with fma by three parts, without by four short ones.
"""

from collections.abc import Callable

from lowc.ir.nodes import Expr, Op
from lowc.ir.types import f32, f64, i32
from lowc.scheduler import maths_tables as tables
from lowc.scheduler.maths_emit import Emit

LARGE = 0x48800000  # the bits of 2**18
INFINITE = 0x7F800000
NAN = float("nan")


def _reduced_small(e: Emit, magnitude: Expr) -> tuple[Expr, Expr]:
    """(r, n) for ``magnitude`` < 2**18 (f64: 2**20), inf and NaN."""
    single = magnitude.dtype.bits == 32
    n, t = e.nearest(magnitude, tables.TWO_OVER_PI if single else tables.TWO_OVER_PI_WIDE)
    r = magnitude
    if single and not e.fused:
        n, r = e.let(e.cast(n, f64)), e.cast(magnitude, f64)
    if e.fused:
        parts = tables.HALF_PI if single else tables.HALF_PI_DOUBLE
    else:
        parts = tables.HALF_PI_WIDE if single else tables.HALF_PI_SHORT
    for part in parts:
        r = e.mad(n, -part, r)
    return e.cast(r, f32) if single and not e.fused else r, e.unsigned_bits(t)


def _reduced_large(e: Emit, bits: Expr) -> tuple[Expr, Expr]:
    """(r, n) of the finite float >= 2**18 that has these bits (u32)."""
    mantissa = e.let(e.bit_or(e.bit_and(bits, 0x7FFFFF), 0x800000))
    skip = e.let(e.sub(e.shr(bits, 23), 145))  # bits of 2/pi whose products are multiples of 4
    by32, by64 = e.let(e.ne(e.bit_and(skip, 32), 0)), e.let(e.ne(e.bit_and(skip, 64), 0))
    words = [e.of(w, skip) for w in tables.TWO_OVER_PI_BITS]
    words = [e.let(e.select(by64, words[k + 2], words[k])) for k in range(5)]
    words = [e.let(e.select(by32, words[k + 1], words[k])) for k in range(4)]
    shift = e.let(e.bit_and(skip, 31))
    back = e.let(e.sub(e.of(32, shift), shift))
    high, middle, low = (e.let(e.bit_or(e.shl(words[k], shift), e.shr(words[k + 1], back))) for k in range(3))
    # the upper 64 of 96 bits of the product modulo 2**96: two bits of integer, then the fraction
    carried = e.let(e.mulhi(mantissa, low))
    under = e.let(e.add(e.mul(mantissa, middle), carried))
    carry = e.select(e.lt(under, carried), e.of(1, under), 0)
    over = e.let(e.add(e.add(e.mul(mantissa, high), e.mulhi(mantissa, middle)), carry))
    n = e.let(e.shr(e.add(over, 1 << 29), 30))
    fraction = e.cast(e.bitcast(e.sub(over, e.shl(n, 30)), i32), f64)
    rest = e.cast(e.bitcast(e.shr(under, 1), i32), f64)
    unit = tables.HALF_PI_NEAREST_WIDE
    return e.cast(e.mad(fraction, unit * 2.0**-30, e.mul(rest, unit * 2.0**-61)), f32), n


def _reduced(e: Emit, x: Expr, finish: Callable[[Emit, Expr, Expr], Expr], name: str) -> Expr:
    """finish(r, n), where |x| - r is n * pi/2 modulo 2 pi; two bits of the unsigned n count; r is NaN for inf and NaN.

    In f64 the op ``name`` itself (of the C library) does the large arguments.
    """
    magnitude = e.let(e.abs(x))
    small, small_n = _reduced_small(e, magnitude)
    if x.dtype.bits == 64:
        return e.rarely(
            e.gt(magnitude, 2.0**20), Op(name, (x,), x.dtype), finish(e, e.let(small), e.let(small_n))
        )
    bits = e.let(e.unsigned_bits(magnitude))
    large = e.let(e.lt(e.sub(bits, LARGE), INFINITE - LARGE))
    if e.branches:
        slow = e.unnamed()
        far = finish(slow, *_reduced_large(slow, bits))
        return e.rarely(large, far, finish(e, e.let(small), e.let(small_n)))
    far, far_n = _reduced_large(e, bits)
    return finish(e, e.let(e.select(large, far, small)), e.let(e.select(large, far_n, small_n)))


def _sin_cos(e: Emit, r: Expr) -> tuple[Expr, Expr]:
    """sin and cos of |r| <= 0.81 (f64: 0.786)."""
    sines, cosines = (
        (tables.SIN, tables.COS) if r.dtype.bits == 32 else (tables.SIN_DOUBLE, tables.COS_DOUBLE)
    )
    square = e.let(e.mul(r, r))
    sine = e.mad(e.mul(e.poly(square, sines), square), r, r)
    return sine, e.mad(e.poly(square, cosines), square, 1.0)


def _sign_bit(x: Expr) -> int:
    return 1 << (x.dtype.bits - 1)


def _flipped(e: Emit, y: Expr, flip: Expr) -> Expr:
    """``y`` with the sign changed where the upper bit of ``flip`` is set."""
    return e.bitcast(e.bit_xor(e.unsigned_bits(y), flip), y.dtype)


def _sign_of(e: Emit, x: Expr) -> Expr:
    return e.bit_and(e.unsigned_bits(x), _sign_bit(x))


def _quadrant(e: Emit, r: Expr, n: Expr, sign: Expr) -> Expr:
    """sin(r + n pi/2), with the other sign if the upper bit of ``sign`` is set."""
    sine, cosine = _sin_cos(e, r)
    y = e.select(e.ne(e.bit_and(n, 1), 0), cosine, sine)
    return _flipped(e, y, e.bit_xor(e.shl(e.bit_and(n, 2), r.dtype.bits - 2), sign))


def sin(e: Emit, x: Expr) -> Expr:
    return _reduced(e, x, lambda f, r, n: _quadrant(f, r, n, _sign_of(f, x)), "sin")


def cos(e: Emit, x: Expr) -> Expr:
    return _reduced(e, x, lambda f, r, n: _quadrant(f, r, f.let(f.add(n, 1)), f.of(0, n)), "cos")


def tan(e: Emit, x: Expr) -> Expr:
    return _reduced(e, x, lambda f, r, n: _tan(f, r, n, _sign_of(f, x)), "tan")


def _tan(e: Emit, r: Expr, n: Expr, sign: Expr) -> Expr:
    sine, cosine = (e.let(v) for v in _sin_cos(e, r))
    odd = e.let(e.bit_and(n, 1))
    swap = e.let(e.ne(odd, 0))
    y = e.div(e.select(swap, cosine, sine), e.select(swap, sine, cosine))
    return _flipped(e, y, e.bit_xor(e.shl(odd, r.dtype.bits - 1), sign))


# ---------------------------------------------------------------- inverses


def _asin_parts(e: Emit, x: Expr) -> tuple[Expr, Expr]:
    """(whether |x| > 1/2, asin of |x|, or there of sqrt((1 - |x|) / 2), which is (pi/2 - asin |x|) / 2)."""
    magnitude = e.let(e.abs(x))
    outer = e.let(e.gt(magnitude, 0.5))
    half = e.let(e.mul(e.sub(1.0, magnitude), 0.5))
    square = e.let(e.select(outer, half, e.mul(magnitude, magnitude)))
    root = e.let(e.select(outer, e.sqrt(half), magnitude))
    return outer, e.let(e.mad(e.mul(e.poly(square, tables.ASIN), square), root, root))


def asin(e: Emit, x: Expr) -> Expr:
    outer, y = _asin_parts(e, x)
    high, low, _ = tables.HALF_PI
    return e.copysign(e.select(outer, e.sub(high, e.sub(e.add(y, y), low)), y), x)


def acos(e: Emit, x: Expr) -> Expr:
    outer, y = _asin_parts(e, x)
    high, low, _ = tables.HALF_PI
    pi, pi_low = tables.PI
    double = e.let(e.add(y, y))
    negative = e.let(e.lt(x, 0.0))
    far = e.select(negative, e.sub(pi, e.sub(double, pi_low)), double)
    signed = e.copysign(y, x)
    return e.select(outer, far, e.sub(high, e.sub(signed, low)))


def _atan_core(e: Emit, t: Expr) -> Expr:
    """atan(t) for 0 <= t <= 1."""
    square = e.let(e.mul(t, t))
    return e.mad(e.mul(e.poly(square, tables.ATAN), square), t, t)


def atan(e: Emit, x: Expr) -> Expr:
    magnitude = e.let(e.abs(x))
    outer = e.let(e.gt(magnitude, 1.0))
    y = e.let(_atan_core(e, e.let(e.select(outer, e.div(1.0, magnitude), magnitude))))
    high, low, _ = tables.HALF_PI
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
    high, low, _ = tables.HALF_PI
    pi, pi_low = tables.PI
    flat = e.select(left, e.sub(pi, e.sub(angle, pi_low)), angle)
    upright = e.add(e.add(e.select(left, angle, e.neg(angle)), low), high)
    return e.copysign(e.select(steep, upright, flat), y)
