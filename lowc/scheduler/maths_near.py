"""Maths for results that are rounded to f16 or bf16 at once: errors of 2**-15, a third of the instructions.

On targets without approximate instructions they are the exact ones.
"""

from lowc.ir.nodes import Expr
from lowc.scheduler import maths_exp, maths_wide
from lowc.scheduler import maths_tables as tables
from lowc.scheduler.maths_emit import Emit


def _exp(e: Emit, x: Expr, scale: float = 1.0) -> Expr:
    """exp(x * scale): the square of its root, which is a normal number wherever the square is any but 0 or infinity."""
    root = e.let(e.ex2(e.mul(x, scale * tables.LOG2_E / 2), normal=True))
    return e.mul(root, root)


def exp(e: Emit, x: Expr) -> Expr:
    return _exp(e, x) if maths_exp.is_approximate(e, x) else maths_exp.exp(e, x)


def sigmoid(e: Emit, x: Expr) -> Expr:
    if not maths_exp.is_approximate(e, x):
        return maths_exp.sigmoid(e, x)
    # of -|x|, so that the tail of negative x is there down to denormals
    z = e.let(_exp(e, e.abs(x), -1.0))
    return e.quotient(e.select(e.lt(x, 0.0), z, 1.0), e.add(z, 1.0))


def erfc(e: Emit, x: Expr) -> Expr:
    """exp(-x**2) times a polynomial in k = 1 / (1 + 7/16 |x|), as in M. Abramowitz and I. Stegun, "Handbook of Mathematical
    Functions", 7.1.26, but fitted for the relative error; 2 minus that for negative x."""
    if not maths_exp.is_approximate(e, x):
        return maths_wide.erfc(e, x)
    size = e.let(e.abs(x))
    k = e.let(e.quotient(1.0, e.mad(size, 7 / 16, 1.0)))
    tail = e.let(e.mul(e.mul(k, e.poly(k, tables.ERFC_NEAR)), _exp(e, e.mul(size, size), -1.0)))
    return e.select(e.lt(x, 0.0), e.sub(2.0, tail), tail)
