"""pow and erfc of f32, computed in f64: exact enough there without care for single roundings."""

from lowc.ir.nodes import Expr
from lowc.ir.types import f32, f64
from lowc.scheduler import maths_tables as tables
from lowc.scheduler.maths_emit import ROUND64, ROUND64_BITS, Emit

TWO_THIRDS = 0x3FE5555555555555  # the bits of 2/3
EXPONENT = -(1 << 52)  # the mask of sign and exponent
INF = float("inf")
NAN = float("nan")


def _exp(e: Emit, r: Expr, t: Expr) -> Expr:
    """2**n * exp(r) in f64 for |r| <= ln 2 / 2 and the n of the t of ``Emit.nearest``; relative error 2**-34."""
    y = e.add(e.mad(e.mul(r, r), e.poly(r, tables.EXP_WIDE), r), 1.0)
    return e.mul(y, e.power(t))


def _log2(e: Emit, x: Expr) -> Expr:
    """log2 in f64 of a normal x > 0; relative error 2**-35."""
    bits = e.let(e.bits(x))
    exponent = e.let(e.bit_and(e.sub(bits, TWO_THIRDS), EXPONENT))
    m = e.let(e.bitcast(e.sub(bits, exponent), f64))
    s = e.let(e.div(e.sub(m, 1.0), e.add(m, 1.0)))
    # an integer to a float: added to the bits of 1.5 * 2**52 it makes that number plus it
    k = e.sub(e.bitcast(e.add(e.shr(exponent, 52), ROUND64_BITS), f64), ROUND64)
    return e.mad(e.poly(e.let(e.mul(s, s)), tables.LOG2_WIDE), s, k)


def pow(e: Emit, x: Expr, y: Expr) -> Expr:
    """As C's powf, edges included."""
    magnitude = e.let(e.cast(e.abs(x), f64))
    log = e.select(e.lt(magnitude, INF), _log2(e, magnitude), magnitude)
    log = e.select(e.eq(magnitude, 0.0), e.of(-INF, magnitude), log)
    # an infinite y as a large even integer, so that (-1)**inf is 1
    y = e.cap_at(e.floor_at(y, -(2.0**100)), 2.0**100)
    # 2**200 and 2**-200 overflow and underflow in the cast
    p = e.cap_at(e.floor_at(e.mul(e.cast(y, f64), log), -200.0), 200.0)
    n, t = e.nearest(p, 1.0)
    size = e.cast(_exp(e, e.let(e.mul(e.sub(p, n), tables.LN2_WIDE)), t), f32)
    return signed_power(e, x, y, size)


def signed_power(e: Emit, x: Expr, y: Expr, size: Expr) -> Expr:
    """x**y of f32 or f64 from ``size``, |x|**y but where y is 0 or x is 1; NaN for x < 0 and a y that is no integer."""
    # whatever the other is
    size = e.let(e.select(e.bit_or(e.eq(y, 0.0), e.eq(x, 1.0)), e.of(1.0, x), size))
    whole = e.let(e.eq(e.floor(y), y))
    half = e.let(e.mul(y, 0.5))
    odd = e.bit_and(whole, e.ne(e.floor(half), half))
    signed = e.select(e.bit_and(odd, e.lt(e.bits(x), 0)), e.neg(size), size)
    undefined = e.bit_and(e.invert(whole), e.bit_and(e.lt(x, 0.0), e.gt(x, -INF)))
    return e.select(undefined, e.of(NAN, x), signed)


def erfc(e: Emit, x: Expr) -> Expr:
    """exp(-x**2) times a polynomial in (x - 3) / (x + 3), for |x|; 2 minus that for negative x."""
    wide = e.let(e.cast(e.cap_at(e.abs(x), 10.5), f64))  # erfc(10.5) is below the least denormal
    t = e.let(e.div(e.sub(wide, 3.0), e.add(wide, 3.0)))
    power = e.let(e.neg(e.mul(wide, wide)))
    n, scaled = e.nearest(power, tables.LOG2_E_WIDE)
    r = e.let(e.mad(n, -tables.LN2_WIDE, power))
    y = e.let(e.mul(_exp(e, r, scaled), e.poly(t, tables.ERFC_WIDE)))
    return e.cast(e.select(e.lt(x, 0.0), e.sub(2.0, y), y), f32)
