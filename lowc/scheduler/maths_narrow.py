"""Float8 to and from f32 by integer arithmetic; what targets without F16C or FMA need: the same for f16, and fma of f32 by way of
f64."""

from lowc.ir.nodes import Expr, Op
from lowc.ir.types import DType, f8e4m3, f16, f32, f64, u8, u16, u32
from lowc.scheduler.maths_emit import Emit

SIGN = 0x8000
INFINITE = 0x7C00
NAN = 0x7E00


def eighth_to_single(e: Emit, x: Expr) -> Expr:
    """float8 as f32, exactly; no step has a denormal number."""
    short = x.dtype == f8e4m3
    # bits of the mantissa, f32's bias less that of the exponent, and the first size that is no number
    digits, further, special = (3, 120, 0x7F) if short else (2, 112, 0x7C)
    word = e.let(e.cast(e.bitcast(x, u8), u32))
    size = e.let(e.bit_and(word, 0x7F))
    bits = e.let(e.shl(size, 23 - digits))
    normal = e.add(bits, further << 23)
    # with one more exponent a denormal number is a normal one, plus what its exponent stands for
    small = e.sub(e.bitcast(e.add(bits, further + 1 << 23), f32), 2.0 ** (further + 1 - 127))
    finite = e.select(e.lt(size, 1 << digits), e.unsigned_bits(small), normal)
    infinite = e.of(0x7FC00000, bits) if short else e.bit_or(bits, 0x7F800000)
    unsigned = e.select(e.lt(size, special), finite, infinite)
    return e.bitcast(e.bit_or(unsigned, e.shl(e.bit_and(word, 0x80), 24)), f32)


def single_to_eighth(e: Emit, x: Expr, dtype: DType) -> Expr:
    """f32 as float8, rounded to nearest even.  What is too large becomes the largest e4m3fn, or infinite in e5m2."""
    short = dtype == f8e4m3
    digits, further = (3, 120) if short else (2, 112)
    x = e.let(x)
    size = e.let(Op("min", (e.abs(x), e.of(448.0, x)), f32) if short else e.abs(x))
    bits = e.let(e.unsigned_bits(size))
    odd = e.bit_and(e.shr(bits, 23 - digits), 1)
    less = 2**32 - (further << 23) + (1 << 22 - digits) - 1
    normal = e.shr(e.add(e.add(bits, less), odd), 23 - digits)
    # a sum with a number whose unit is that of denormal ones
    least, unit = 2.0 ** (further - 126), 2.0 ** (further - 103 - digits)
    small = e.sub(e.unsigned_bits(e.add(size, unit)), e.unsigned_bits(e.of(unit, size)))
    finite = e.select(e.lt(size, least), small, normal)
    special = e.of(0x7F, bits) if short else e.select(e.ge(size, 65536.0), e.of(0x7C, bits), 0x7F)  # NaN
    rounded = e.select(e.lt(size, 65536.0), finite, special)
    sign = e.bit_and(e.shr(e.unsigned_bits(x), 24), 0x80)
    return e.bitcast(e.cast(e.bit_or(rounded, sign), u8), dtype)


def half_to_single(e: Emit, x: Expr) -> Expr:
    """f16 as f32, exactly."""
    word = e.let(e.cast(e.bitcast(x, u16), u32))
    # the exponent's bias is off by 112, which a product puts right, denormals included
    size = e.let(e.mul(e.bitcast(e.shl(e.bit_and(word, SIGN - 1), 13), f32), 2.0**112))
    bits = e.let(e.unsigned_bits(size))
    finite = e.select(e.lt(size, 65536.0), bits, e.bit_or(bits, 0x7F800000))
    return e.bitcast(e.bit_or(finite, e.shl(e.bit_and(word, SIGN), 16)), f32)


def single_to_half(e: Emit, x: Expr) -> Expr:
    """f32 as f16, rounded to nearest even."""
    x = e.let(x)
    size = e.let(e.abs(x))
    bits = e.let(e.unsigned_bits(size))
    odd = e.bit_and(e.shr(bits, 13), 1)
    normal = e.shr(e.add(e.add(bits, 0xFFF - (112 << 23) + 2**32), odd), 13)
    # the units of 0.5 in f32 are those of denormals in f16
    small = e.sub(e.unsigned_bits(e.add(size, 0.5)), 0x3F000000)
    finite = e.select(e.lt(size, 2.0**-14), small, normal)
    edge = e.select(e.ge(size, 65536.0), e.of(INFINITE, bits), NAN)
    rounded = e.select(e.lt(size, 65536.0), finite, edge)
    sign = e.bit_and(e.shr(e.unsigned_bits(x), 16), SIGN)
    return e.bitcast(e.cast(e.bit_or(rounded, sign), u16), f16)


def fma(e: Emit, a: Expr, b: Expr, c: Expr) -> Expr:
    """a * b + c in f32, rounded once.

    The product is exact in f64; the sum is rounded to odd there, so that rounding it again does no harm (S.
    Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE Transactions on Computers
    57, 2008).
    """
    product = e.let(e.mul(e.cast(a, f64), e.cast(b, f64)))
    c = e.let(e.cast(c, f64))
    total = e.let(e.add(product, c))
    back = e.let(e.sub(total, product))
    rest = e.let(e.add(e.sub(product, e.sub(total, back)), e.sub(c, back)))
    bits = e.let(e.bits(total))
    # an inexact even sum moves by one unit to where the rest is; inf and NaN have a NaN rest
    inexact = e.bit_or(e.lt(rest, 0.0), e.gt(rest, 0.0))
    moves = e.bit_and(inexact, e.eq(e.bit_and(bits, 1), 0))
    apart = e.bit_xor(bits, e.bits(rest))
    step = e.select(e.lt(apart, 0), e.of(-1, bits), 1)
    return e.cast(e.bitcast(e.add(bits, e.select(moves, step, 0)), f64), f32)
