"""exp, exp2, expm1 and sigmoid in f32.

exp(x) = 2**n * exp(r) with n the integer nearest to x / ln 2 and r = x - n ln 2 in two steps: the first
part of ln 2 has 15 bits, so that its product with the n that occur is exact, with fma or without (W. Cody
and W. Waite, "Software Manual for the Elementary Functions", 1980).
"""

from lowc.ir.nodes import Expr
from lowc.scheduler import maths_tables as tables
from lowc.scheduler.maths_emit import Emit


def reduced_exp(e: Emit, x: Expr) -> tuple[Expr, Expr, Expr]:
    """(exp(r) - 1, n, t), n and t as ``Emit.nearest`` gives them."""
    n, t = e.nearest(x, tables.LOG2_E)
    high, low = tables.LN2
    r = e.let(e.mad(n, -low, e.mad(n, -high, x)))
    return e.mad(e.mul(r, r), e.poly(r, tables.EXP), r), n, t


def bounded_exp(e: Emit, x: Expr) -> Expr:
    """exp(x) for -104 <= x <= 89 or NaN."""
    p, n, t = reduced_exp(e, x)
    return e.scale(e.add(p, 1.0), n, t)


def exp(e: Emit, x: Expr) -> Expr:
    # exp(89) overflows and exp(-104) underflows in the final scaling
    return bounded_exp(e, e.cap_at(e.floor_at(x, -104.0), 89.0))


def exp2(e: Emit, x: Expr) -> Expr:
    x = e.cap_at(e.floor_at(x, -151.0), 128.0)
    n, t = e.nearest(x, 1.0)
    r = e.let(e.sub(x, n))
    p = e.mad(r, tables.LN2_NEAREST, e.mul(e.mul(r, r), e.poly(r, tables.EXP2)))
    return e.scale(e.add(p, 1.0), n, t)


def expm1(e: Emit, x: Expr) -> Expr:
    # 2**n * (exp(r) - 1) + (2**n - 1), halved so that n = 128 needs no 2**128
    p, _, t = reduced_exp(e, e.cap_at(e.floor_at(x, -18.0), 89.0))
    half = e.let(e.power(t, 0.5))
    y = e.let(e.mad(p, half, e.sub(half, 0.5)))
    # the sign of zero and denormals do not survive the halving; the next term is below half a unit here
    return e.select(e.lt(e.abs(x), 2.0**-25), x, e.add(y, y))


def positive_expm1(e: Emit, x: Expr) -> Expr:
    """exp(x) - 1 for 0 <= x <= 88 or NaN."""
    p, _, t = reduced_exp(e, x)
    power = e.let(e.power(t))
    return e.mad(p, power, e.sub(power, 1.0))


def sigmoid(e: Emit, x: Expr) -> Expr:
    # exp of -|x| cannot overflow, and keeps the tail of negative x down to denormals
    z = e.let(bounded_exp(e, e.floor_at(e.neg(e.abs(x)), -104.0)))
    return e.div(e.select(e.lt(x, 0.0), z, 1.0), e.add(z, 1.0))
