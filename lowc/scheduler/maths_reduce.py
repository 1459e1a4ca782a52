"""Reduction of arguments of sin, cos and tan: x = r + n pi/2, with |r| <= 0.81 in f32, 0.786 in f64, and n modulo 4.

Small ones subtract pi/2 in three parts with fma, in two parts in f64 or four short ones without (Cody and Waite).
Large ones multiply the mantissa with the bits of 2/pi that matter for its exponent, 96 in f32 and 192 in f64 (M. Payne and R.
Hanek, "Radian reduction for trigonometric functions", SIGNUM 18, 1983), which is right for every finite x.
"""

from lowc.ir.nodes import Expr
from lowc.ir.types import f32, f64, i32, i64
from lowc.scheduler import maths_tables as tables
from lowc.scheduler.maths_emit import Emit
from lowc.scheduler.maths_pairs import product

Reduced = tuple[Expr, Expr | None, Expr]
"""(r, what is to be added to r or None, n)."""


def small(e: Emit, magnitude: Expr, as_pair: bool = False) -> Reduced:
    """Of ``magnitude`` < 2**18 (f64: 2**20), inf and NaN; ``as_pair``: in f64 with fma, where r alone has an error of a unit."""
    if as_pair and magnitude.dtype.bits == 64 and e.fused:
        return _small_pair(e, magnitude)
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
    return e.cast(r, f32) if single and not e.fused else r, None, e.unsigned_bits(t)


def _small_pair(e: Emit, magnitude: Expr) -> Reduced:
    n, t = e.nearest(magnitude, tables.TWO_OVER_PI_WIDE)
    first, second, third = tables.HALF_PI_DOUBLE
    rest = e.let(e.mad(n, -first, magnitude))  # exact: a multiple of 2**-53 below 1
    taken, left = product(e, n, second)
    r = e.let(e.sub(rest, taken))
    low = e.sub(e.sub(e.sub(rest, r), taken), e.mad(n, third, left))
    return r, e.let(low), e.unsigned_bits(t)


def large(e: Emit, bits: Expr) -> Reduced:
    """Of the finite f32 >= 2**18 (f64: 2**20) that has these bits (u32, u64)."""
    return _large_single(e, bits) if bits.dtype.bits == 32 else _large_double(e, bits)


def _window(e: Emit, words: tuple[int, ...], at: Expr, count: int) -> list[Expr]:
    """``count`` consecutive ones of ``words``, from the bit ``at`` on, the words counted from the left."""
    width = at.dtype.bits
    found: list[Expr] = [e.of(w, at) for w in words]
    step = 1
    while count + 4 * step <= len(words):
        step *= 2
    while step:
        chosen = e.let(e.ne(e.bit_and(at, step * width), 0))
        found = [e.let(e.select(chosen, found[k + step], found[k])) for k in range(count + step)]
        step //= 2
    shift = e.let(e.bit_and(at, width - 1))
    back = e.let(e.sub(e.of(width, shift), shift))
    return [e.let(e.bit_or(e.shl(found[k], shift), e.shr(found[k + 1], back))) for k in range(count)]


def _upper(e: Emit, mantissa: Expr, window: list[Expr]) -> tuple[Expr, Expr]:
    """The two upper words of three of ``mantissa`` times the window, modulo the window's size."""
    high, middle, low = window
    carried = e.let(e.mulhi(mantissa, low))
    under = e.let(e.add(e.mul(mantissa, middle), carried))
    carry = e.select(e.lt(under, carried), e.of(1, under), 0)
    return e.let(e.add(e.add(e.mul(mantissa, high), e.mulhi(mantissa, middle)), carry)), under


def _large_single(e: Emit, bits: Expr) -> Reduced:
    mantissa = e.let(e.bit_or(e.bit_and(bits, 0x7FFFFF), 0x800000))
    skip = e.let(e.sub(e.shr(bits, 23), 145))  # bits of 2/pi whose products are multiples of 4
    # two bits of integer, then the fraction
    over, under = _upper(e, mantissa, _window(e, tables.TWO_OVER_PI_BITS, skip, 3))
    n = e.let(e.shr(e.add(over, 1 << 29), 30))
    fraction = e.cast(e.bitcast(e.sub(over, e.shl(n, 30)), i32), f64)
    rest = e.cast(e.bitcast(e.shr(under, 1), i32), f64)
    unit = tables.HALF_PI_NEAREST_WIDE
    return e.cast(e.mad(fraction, unit * 2.0**-30, e.mul(rest, unit * 2.0**-61)), f32), None, n


def _large_double(e: Emit, bits: Expr) -> Reduced:
    mantissa = e.let(e.bit_or(e.bit_and(bits, 2**52 - 1), 2**52))
    skip = e.let(e.sub(e.shr(bits, 52), 1043))
    over, under = _upper(e, mantissa, _window(e, tables.TWO_OVER_PI_WORDS, skip, 3))
    n = e.let(e.shr(e.add(over, 1 << 61), 62))
    fraction = e.let(e.bitcast(e.sub(over, e.shl(n, 62)), i64))
    # in two floats: the upper bits, exactly, and the rest with what is under it
    top = e.let(e.bit_and(fraction, -1 << 10))
    high = e.let(e.mul(e.cast(top, f64), 2.0**-62))
    under_it = e.mul(e.cast(e.bitcast(e.shr(under, 1), i64), f64), 2.0**-125)
    low = e.let(e.mad(e.cast(e.sub(fraction, top), f64), 2.0**-62, under_it))
    first, second, _ = tables.HALF_PI_DOUBLE
    whole, left = product(e, high, first)
    tail = e.let(e.mad(low, first, e.mad(high, second, left)))
    r = e.let(e.add(whole, tail))
    return r, e.let(e.add(e.sub(whole, r), tail)), n
