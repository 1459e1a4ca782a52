"""exp, exp2, expm1 and sigmoid, in f32 and f64.

exp(x) = 2**n * exp(r) with n the integer nearest to x / ln 2 and r = x - n ln 2 in two steps: the first part
of ln 2 is short enough for its product with the n that occur to be exact, with fma or without (W. Cody and
W. Waite, "Software Manual for the Elementary Functions", 1980).
"""

from dataclasses import dataclass

from lowc.ir.nodes import Expr
from lowc.scheduler import maths_tables as tables
from lowc.scheduler.maths_emit import ROUND32, Emit


@dataclass(frozen=True, slots=True)
class Format:
    """``least``, ``most``: exp underflows to zero at the one and overflows at the other, in the final scaling.

    ``minus_one``: expm1 is -1 there.  ``tiny``: half a unit of 1.
    """

    least: float
    most: float
    minus_one: float
    tiny: float
    log2_e: float
    ln2: tuple[float, float]
    exp: tuple[float, ...]


FORMATS = {
    "f32": Format(-104.0, 89.0, -18.0, 2.0**-25, tables.LOG2_E, tables.LN2, tables.EXP),
    "f64": Format(-746.0, 710.0, -38.0, 2.0**-54, tables.LOG2_E_WIDE, tables.LN2_DOUBLE, tables.EXP_DOUBLE),
}


def reduced_exp(e: Emit, x: Expr) -> tuple[Expr, Expr, Expr]:
    """(exp(r) - 1, n, t), n and t as ``Emit.nearest`` gives them."""
    f = FORMATS[x.dtype.name]
    n, t = e.nearest(x, f.log2_e)
    high, low = f.ln2
    r = e.let(e.mad(n, -low, e.mad(n, -high, x)))
    return e.mad(e.mul(r, r), e.poly(r, f.exp), r), n, t


def approximate_exp(e: Emit, x: Expr) -> Expr:
    """exp(x) of f32 for x from -151 to 129, or NaN, where the target has powers of two, which it gives exactly.

    The power is halved, since 2**128 is no number; 2**-150 is none either, and no denormal is wrong by more than one unit.
    """
    p, _, t = reduced_exp(e, x)
    return e.mul(e.mad(p, 2.0, 2.0), e.ex2(e.sub(t, ROUND32 + 1.0)))


def _bounded_exp(e: Emit, x: Expr) -> Expr:
    """exp(x) for x from the format's ``least`` to its ``most``, or NaN."""
    p, n, t = reduced_exp(e, x)
    return e.scale(e.add(p, 1.0), n, t)


def is_approximate(e: Emit, x: Expr) -> bool:
    """Whether ``approximate_exp`` is the way to exponentials here."""
    return e.approximate and x.dtype.bits == 32


def exp(e: Emit, x: Expr) -> Expr:
    if is_approximate(e, x):
        return approximate_exp(e, e.let(e.clamp(x, -151.0, 129.0)))
    # what underflows (masked scores are -inf) is set to 0 at the end and goes through as 0: a scaling that
    # underflows takes a processor a hundred cycles
    f = FORMATS[x.dtype.name]
    gone = e.let(e.lt(x, f.least))
    return e.select(gone, 0.0, _bounded_exp(e, e.cap_at(e.select(gone, 0.0, x), f.most)))


def exp2(e: Emit, x: Expr) -> Expr:
    single = x.dtype.bits == 32
    x = e.cap_at(e.floor_at(x, -151.0 if single else -1077.0), 128.0 if single else 1024.0)
    n, t = e.nearest(x, 1.0)
    r = e.let(e.sub(x, n))
    if single:  # 2**r = 1 + r ln 2 + r**2 q(r)
        p = e.mad(r, tables.LN2_NEAREST, e.mul(e.mul(r, r), e.poly(r, tables.EXP2)))
    else:
        r = e.let(e.mul(r, tables.LN2_WIDE))
        p = e.mad(e.mul(r, r), e.poly(r, tables.EXP_DOUBLE), r)
    return e.scale(e.add(p, 1.0), n, t)


def expm1(e: Emit, x: Expr) -> Expr:
    # 2**n * (exp(r) - 1) + (2**n - 1), halved since the largest 2**n is no number
    f = FORMATS[x.dtype.name]
    p, _, t = reduced_exp(e, e.cap_at(e.floor_at(x, f.minus_one), f.most))
    half = e.let(e.power(t, 0.5))
    y = e.let(e.mad(p, half, e.sub(half, 0.5)))
    # the sign of zero and denormals do not survive the halving; the next term is below half a unit here
    return e.select(e.lt(e.abs(x), f.tiny), x, e.add(y, y))


def sigmoid(e: Emit, x: Expr) -> Expr:
    # exp of -|x| cannot overflow, and keeps the tail of negative x down to denormals
    least = FORMATS[x.dtype.name].least
    if is_approximate(e, x):
        z = e.let(approximate_exp(e, e.let(e.clamp(e.neg(e.abs(x)), least, 0.0))))
    else:
        z = e.let(_bounded_exp(e, e.floor_at(e.neg(e.abs(x)), least)))
    return e.quotient(e.select(e.lt(x, 0.0), z, 1.0), e.add(z, 1.0))
