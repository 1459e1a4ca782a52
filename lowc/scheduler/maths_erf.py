"""erf in f32: a polynomial near zero, 1 - exp(polynomial) further out; both are evaluated and one is selected."""

from lowc.ir.nodes import Expr
from lowc.scheduler import maths_tables as tables
from lowc.scheduler.maths_emit import Emit
from lowc.scheduler.maths_exp import approximate_exp, is_approximate, reduced_exp


def erf(e: Emit, x: Expr) -> Expr:
    small = e.mad(e.poly(e.let(e.mul(x, x)), tables.ERF_SMALL), x, x)
    magnitude = e.let(e.abs(x))
    t = e.cap_at(magnitude, 4.0)  # 1 - erf(4) is below half a unit of 1
    exponent = e.let(e.mad(e.poly(t, tables.ERF_LARGE), t, e.neg(t)))
    if is_approximate(e, x):
        large = e.sub(1.0, approximate_exp(e, exponent))
    else:
        p, _, scaled = reduced_exp(e, exponent)
        large = e.mad(e.add(p, 1.0), e.power(scaled, -1.0), 1.0)
    return e.select(e.gt(magnitude, 0.921875), e.copysign(large, x), small)
