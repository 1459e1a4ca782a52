"""The table of expansions: each maths row of ``ops.OPS`` as primitive ops, with errors up to the row's ``ulp`` and ``double``.

The functions take and give names or expressions of one dtype, hold for every float (NaN, infinities, both zeros, denormals), and
have no branches but ``rarely``: where two formulas are needed, both are evaluated and one is selected.  In f64 some need fma:
without it, the C library is called.
"""

from collections.abc import Callable

from lowc.ir.nodes import Expr
from lowc.ir.types import f32, f64
from lowc.scheduler import (
    maths_arc,
    maths_area,
    maths_double,
    maths_erf,
    maths_exp,
    maths_hyperbolic,
    maths_log,
    maths_near,
    maths_trig,
    maths_wide,
)
from lowc.scheduler.maths_emit import Emit


def _rsqrt(e: Emit, x: Expr) -> Expr:
    return e.div(1.0, e.sqrt(x))


UNARY: dict[str, Callable[[Emit, Expr], Expr]] = {
    "exp": maths_exp.exp,
    "exp2": maths_exp.exp2,
    "expm1": maths_exp.expm1,
    "sigmoid": maths_exp.sigmoid,
    "log": maths_log.log,
    "log2": maths_log.log2,
    "log10": maths_log.log10,
    "log1p": maths_log.log1p,
    "sin": maths_trig.sin,
    "cos": maths_trig.cos,
    "tan": maths_trig.tan,
    "asin": maths_arc.asin,
    "acos": maths_arc.acos,
    "atan": maths_arc.atan,
    "sinh": maths_hyperbolic.sinh,
    "cosh": maths_hyperbolic.cosh,
    "tanh": maths_hyperbolic.tanh,
    "asinh": maths_hyperbolic.asinh,
    "acosh": maths_hyperbolic.acosh,
    "atanh": maths_hyperbolic.atanh,
    "erf": maths_erf.erf,
    "erfc": maths_wide.erfc,
    "rsqrt": _rsqrt,
    "near_exp": maths_near.exp,
    "near_sigmoid": maths_near.sigmoid,
    "near_erfc": maths_near.erfc,
}
BINARY: dict[str, Callable[[Emit, Expr, Expr], Expr]] = {
    "atan2": maths_arc.atan2,
    "pow": maths_wide.pow,
}


def expand(name: str, args: tuple[Expr, ...], emit: Emit) -> Expr:
    """``name`` applied to ``args`` of f32; shared values go to ``emit.statements``.  Raises KeyError for what is no maths op."""
    named = [emit.let(a) for a in args]
    return UNARY[name](emit, *named) if name in UNARY else BINARY[name](emit, *named)


# those of UNARY that do f64 as well, without fma, too
DOUBLE = frozenset({"exp", "exp2", "expm1", "sigmoid", "log", "log2", "log10", "log1p", "sinh", "cosh", "tanh", "rsqrt"})
# of f64 on targets with fma
DOUBLE_FUSED: dict[str, Callable[..., Expr]] = {
    "sin": maths_trig.sin,
    "cos": maths_trig.cos,
    "tan": maths_trig.tan,
    "asin": maths_arc.asin,
    "acos": maths_arc.acos,
    "atan": maths_arc.atan,
    "atan2": maths_arc.atan2,
    "asinh": maths_area.asinh,
    "acosh": maths_area.acosh,
    "atanh": maths_area.atanh,
    "erf": maths_double.erf,
    "erfc": maths_double.erfc,
    "pow": maths_double.pow,
}
# without fma, on targets with branches, which leave large arguments to the C library
DOUBLE_WITH_BRANCHES = frozenset({"sin", "cos", "tan"})


def expand_f64(name: str, args: tuple[Expr, ...], emit: Emit) -> Expr | None:
    """The same for f64; None where the op stays, for the backend to call the C library."""
    if emit.fused and name in DOUBLE_FUSED:
        return DOUBLE_FUSED[name](emit, *[emit.let(a) for a in args])
    if name in DOUBLE or (emit.branches and name in DOUBLE_WITH_BRANCHES):
        return UNARY[name](emit, emit.let(args[0]))
    return None


def ldexp(e: Emit, x: Expr, n: Expr) -> Expr:
    """x * 2**n in f32, rounded once: the product in f64 is exact."""
    n = e.cap_at(e.floor_at(e.cast(n, f64), -300.0), 300.0)
    _, t = e.nearest(n, 1.0)
    return e.cast(e.mul(e.cast(x, f64), e.power(t)), f32)
