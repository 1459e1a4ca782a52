"""log, log2, log10 and log1p in f32.

log_b(x) = k log_b(2) + log_b(1 + f) with x = 2**k (1 + f) and 1 + f in [2/3, 4/3), cut out of the bits of x.
"""

from lowc.ir.nodes import Expr
from lowc.ir.types import f32
from lowc.scheduler import maths_tables as tables
from lowc.scheduler.maths_emit import Emit

TWO_THIRDS = 0x3F2AAAAB  # the bits of 2/3
EXPONENT = -0x800000  # the mask of sign and exponent
TINY = 2.0**-126
INF = float("inf")
NAN = float("nan")


def split(e: Emit, x: Expr) -> tuple[Expr, Expr]:
    """(k, f) of a finite x > 0, denormals included; anything for other x."""
    small = e.let(e.lt(x, TINY))
    bits = e.let(e.bits(e.select(small, e.mul(x, 2.0**23), x)))
    exponent = e.let(e.bit_and(e.sub(bits, TWO_THIRDS), EXPONENT))
    f = e.let(e.sub(e.bitcast(e.sub(bits, exponent), f32), 1.0))
    k = e.let(e.mad(e.cast(exponent, f32), 2.0**-23, e.select(small, e.of(-23.0, x), 0.0)))
    return k, f


def natural(e: Emit, k: Expr, f: Expr) -> Expr:
    """k ln 2 + ln(1 + f)."""
    return e.mad(k, tables.LN2_NEAREST, e.mad(e.mul(f, f), e.poly(f, tables.LOG), f))


def with_edges(e: Emit, x: Expr, y: Expr) -> Expr:
    """``y`` where 0 < x < inf; the logarithm of x elsewhere."""
    edge = e.select(e.eq(x, 0.0), e.of(-INF, x), NAN)
    return e.select(e.gt(x, 0.0), e.select(e.lt(x, INF), y, x), edge)


def log(e: Emit, x: Expr) -> Expr:
    k, f = split(e, x)
    return with_edges(e, x, natural(e, k, f))


def log2(e: Emit, x: Expr) -> Expr:
    k, f = split(e, x)
    y = e.add(e.mad(f, tables.LOG2_E, e.mul(e.mul(f, f), e.poly(f, tables.LOG2))), k)
    return with_edges(e, x, y)


def log10(e: Emit, x: Expr) -> Expr:
    k, f = split(e, x)
    high, low = tables.LOG10_E
    high2, low2 = tables.LOG10_2
    y = e.mad(f, low, e.mad(k, low2, e.mul(e.mul(f, f), e.poly(f, tables.LOG10))))
    return with_edges(e, x, e.mad(k, high2, e.mad(f, high, y)))


def log1p(e: Emit, x: Expr) -> Expr:
    u = e.let(e.add(x, 1.0))
    y = finite_log1p(e, x, u)
    # ln 2 * 0 would turn -0.0 into +0.0
    return e.select(e.lt(e.abs(x), 2.0**-25), x, with_edges(e, u, y))


def finite_log1p(e: Emit, x: Expr, u: Expr) -> Expr:
    """log1p(x) for a finite x > -1, given the rounded u = 1 + x; zeros come out positive."""
    # k from 1 + x as rounded, f = x / 2**k + (1 / 2**k - 1) from x itself; the quotients are exact for all k that matter.
    # k can be 128, hence 4 / 2**k and x / 4
    exponent = e.let(e.bit_and(e.sub(e.bits(u), TWO_THIRDS), EXPONENT))
    inverse = e.let(e.bitcast(e.sub(e.int_of(0x40800000), exponent), f32))
    f = e.let(e.mad(e.mul(x, 0.25), inverse, e.mad(inverse, 0.25, -1.0)))
    return natural(e, e.mul(e.cast(exponent, f32), 2.0**-23), f)
