"""tanh in f32: a polynomial near zero, 1 - 2 / (exp(2|x|) + 1) further out; both are evaluated and one is selected."""

from lowc.ir.nodes import Expr
from lowc.scheduler import maths_tables as tables
from lowc.scheduler.maths_emit import Emit
from lowc.scheduler.maths_exp import reduced_exp


def tanh(e: Emit, x: Expr) -> Expr:
    square = e.let(e.mul(x, x))
    small = e.mad(e.mul(e.poly(square, tables.TANH), square), x, x)
    magnitude = e.let(e.abs(x))
    p, _, t = reduced_exp(e, e.cap_at(e.add(magnitude, magnitude), 20.0))  # tanh(10) rounds to 1
    large = e.sub(1.0, e.div(e.of(2.0, x), e.add(e.mul(e.add(p, 1.0), e.power(t)), 1.0)))
    # the sign last, for -0.0 as well
    return e.copysign(e.select(e.gt(magnitude, 0.5625), large, small), x)
