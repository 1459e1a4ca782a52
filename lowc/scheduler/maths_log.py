"""log, log2, log10 and log1p, in f32 and f64.

log_b(x) = k log_b(2) + log_b(1 + f) with x = 2**k (1 + f) and 1 + f in [2/3, 4/3), cut out of the bits of x.
In f32, log_b(1 + f) is a polynomial in f; in f64, ln(1 + f) is one in s = f / (2 + f), the large terms
being added last (as in FDLIBM's log of 1993), and other logarithms are multiples of it.
"""

from dataclasses import dataclass

from lowc.ir.nodes import Expr
from lowc.ir.types import u64
from lowc.scheduler import maths_tables as tables
from lowc.scheduler.maths_emit import ROUND64, ROUND64_BITS, Emit

INF = float("inf")
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Format:
    """``least``: the smallest normal number.  ``lift``: exponent of the power of two that makes denormals normal.

    As bits: ``two_thirds``; ``exponent``, the mask of sign and exponent; ``four``.  ``tiny``: half a unit
    of 1.
    """

    least: float
    lift: int
    two_thirds: int
    exponent: int
    four: int
    tiny: float


FORMATS = {
    "f32": Format(2.0**-126, 23, 0x3F2AAAAB, -1 << 23, 0x40800000, 2.0**-25),
    "f64": Format(2.0**-1022, 54, 0x3FE5555555555555, -1 << 52, 0x401 << 52, 2.0**-54),
}


def _exponent_number(e: Emit, exponent: Expr, plus: Expr) -> Expr:
    """k + plus, for the k whose ``exponent`` bits these are, as a float."""
    if plus.dtype.bits == 32:
        return e.mad(e.cast(exponent, plus.dtype), 2.0**-23, plus)
    # an integer added to the bits of 1.5 * 2**52 makes that number plus it; a shift of i64 is dear, of u64 is not
    shifted = e.shr(e.bitcast(e.add(exponent, 1 << 62), u64), 52)
    return e.add(e.sub(e.bitcast(e.add(shifted, ROUND64_BITS), plus.dtype), ROUND64 + 1024.0), plus)


def split(e: Emit, x: Expr) -> tuple[Expr, Expr]:
    """(k, f) of a finite x > 0, denormals included; anything for other x."""
    c = FORMATS[x.dtype.name]
    small = e.let(e.lt(x, c.least))
    bits = e.let(e.bits(e.select(small, e.mul(x, 2.0**c.lift), x)))
    exponent = e.let(e.bit_and(e.sub(bits, c.two_thirds), c.exponent))
    f = e.let(e.sub(e.bitcast(e.sub(bits, exponent), x.dtype), 1.0))
    lifted = e.select(small, e.of(-float(c.lift), x), 0.0)
    return e.let(_exponent_number(e, exponent, lifted)), f


def natural(e: Emit, k: Expr, f: Expr, rest: Expr | None = None) -> Expr:
    """k ln 2 + ln(1 + f), in f64 plus a small ``rest``."""
    if f.dtype.bits == 32:
        return e.mad(k, tables.LN2_NEAREST, e.mad(e.mul(f, f), e.poly(f, tables.LOG), f))
    high, low = tables.LN2_DOUBLE
    half, product = _double_parts(e, f)
    small = e.mad(k, low, product)
    return e.mad(k, high, e.sub(f, e.sub(half, small if rest is None else e.add(small, rest))))


def _double_parts(e: Emit, f: Expr) -> tuple[Expr, Expr]:
    """(h, p) with ln(1 + f) = f - (h - p), in f64; h = f**2 / 2."""
    s = e.let(e.div(f, e.add(f, 2.0)))
    z = e.let(e.mul(s, s))
    half = e.let(e.mul(e.mul(f, 0.5), f))
    return half, e.mul(s, e.mad(z, e.poly(z, tables.LOG_DOUBLE), half))


def _double_log1p(e: Emit, f: Expr) -> Expr:
    half, product = _double_parts(e, f)
    return e.sub(f, e.sub(half, product))


def with_edges(e: Emit, x: Expr, y: Expr) -> Expr:
    """``y`` where 0 < x < inf; the logarithm of x elsewhere."""
    edge = e.select(e.eq(x, 0.0), e.of(-INF, x), NAN)
    return e.select(e.gt(x, 0.0), e.select(e.lt(x, INF), y, x), edge)


def log(e: Emit, x: Expr) -> Expr:
    k, f = split(e, x)
    return with_edges(e, x, natural(e, k, f))


def log2(e: Emit, x: Expr) -> Expr:
    k, f = split(e, x)
    if x.dtype.bits == 32:
        rest = e.mul(e.mul(f, f), e.poly(f, tables.LOG2))
        if not e.fused:
            return with_edges(e, x, _sum(e, k, f, tables.LOG2_E_SHORT, rest))
        high, low = tables.LOG2_E_PARTS
        return with_edges(e, x, e.add(e.mad(f, high, e.mad(f, low, rest)), k))
    high, low = tables.LOG2_E_DOUBLE
    y = e.let(_double_log1p(e, f))
    return with_edges(e, x, e.add(e.mad(y, high, e.mul(y, low)), k))


def _sum(e: Emit, k: Expr, f: Expr, parts: tuple[float, float], rest: Expr) -> Expr:
    """k + f * (parts) + rest in f32 without fma.

    Just above 4/3, k and f cancel in part, so that a rounding of their product would weigh twice: f is cut to 12
    bits, whose product with the first of ``parts``, of 12 bits as well, is exact (Dekker's splitting, 1971).
    """
    high, low = parts
    top = e.let(e.bitcast(e.bit_and(e.bits(f), -1 << 12), f.dtype))
    tail = e.mad(f, low, e.mad(e.sub(f, top), high, rest))
    return e.add(e.mad(top, high, k), tail)


def log10(e: Emit, x: Expr) -> Expr:
    k, f = split(e, x)
    if x.dtype.bits == 32:
        (high, low), (high2, low2) = tables.LOG10_E, tables.LOG10_2
        rest = e.mad(k, low2, e.mul(e.mul(f, f), e.poly(f, tables.LOG10)))
        if not e.fused:
            return with_edges(e, x, _sum(e, e.mul(k, high2), f, tables.LOG10_E_SHORT, rest))
        return with_edges(e, x, e.mad(k, high2, e.mad(f, high, e.mad(f, low, rest))))
    (high, low), (high2, low2) = tables.LOG10_E_DOUBLE, tables.LOG10_2_DOUBLE
    y = e.let(_double_log1p(e, f))
    return with_edges(e, x, e.mad(k, high2, e.mad(y, high, e.mad(y, low, e.mul(k, low2)))))


def log1p(e: Emit, x: Expr) -> Expr:
    u = e.let(e.add(x, 1.0))
    y = with_edges(e, u, finite_log1p(e, x, u))
    # ln 2 * 0 would turn -0.0 into +0.0
    return e.select(e.lt(e.abs(x), FORMATS[x.dtype.name].tiny), x, y)


def finite_log1p(e: Emit, x: Expr, u: Expr) -> Expr:
    """log1p(x) for a finite x > -1, given the rounded u = 1 + x; zeros come out positive."""
    return natural(e, *split_plus_one(e, x, u))


def split_plus_one(e: Emit, x: Expr, u: Expr) -> tuple[Expr, Expr]:
    """(k, f) of 1 + x for a finite x > -1, given the rounded u = 1 + x."""
    # k from 1 + x as rounded, f = x / 2**k + (1 / 2**k - 1) from x itself; the quotients are exact for all
    # k that matter.  k can be that of the format's infinity, hence 4 / 2**k and x / 4
    c = FORMATS[x.dtype.name]
    exponent = e.let(e.bit_and(e.sub(e.bits(u), c.two_thirds), c.exponent))
    inverse = e.let(e.bitcast(e.sub(e.of(c.four, exponent), exponent), x.dtype))
    f = e.let(e.mad(e.mul(x, 0.25), inverse, e.mad(inverse, 0.25, -1.0)))
    return e.let(_exponent_number(e, exponent, e.of(0.0, x))), f
