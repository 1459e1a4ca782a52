"""uniform: SCHEDULED → SCHEDULED, for GPUs.  What all lanes of a vector decide alike is decided once.

Before:  for v in 8 vector(8) { y[t*8 + v] = x[t*8 + v if idx(t*8 + v) < idx(64)] }
After:   for v in 8 vector(8) { y[t*8 + v] = x[t*8 + v if idx(t*8) < idx(64)] }

``t*8 + v < 64`` is ``t*8 < 64`` for each v below 8, since 64 is a multiple of 8.  The mask then leaves the loop (``hoist``):
one branch serves an access of 16 bytes.
"""

from lowc.ir.index import Axis, Index, constant, depends_on, ix, split, substitute
from lowc.ir.nodes import Const, Expr, For, FromIndex, Kernel, Module, Op, Stmt
from lowc.ir.walk import make_kernel, map_exprs, map_statements, rewrite
from lowc.options import Options
from lowc.scheduler.nest import map_kernels
from lowc.target import Target

COMPARISONS = ("lt", "ge")


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with comparisons that do not differ from lane to lane free of the lane's axis."""
    return map_kernels(module, _uniform)


def _uniform(kernel: Kernel) -> Kernel:
    body = map_statements(kernel.body, lambda s: (_in_loop(s),) if isinstance(s, For) else (s,))
    return make_kernel(kernel.name, body, kernel.params)


def _in_loop(loop: For) -> Stmt:
    width = constant(loop.axis.extent)
    if loop.kind.name != "vector" or width is None or width < 2:
        return loop
    memo: dict[int, Expr] = {}

    def decide(expr: Expr) -> Expr:
        if not isinstance(expr, Op) or expr.name not in COMPARISONS:
            return expr
        a, b = expr.args
        if not isinstance(a, FromIndex) or not isinstance(b, FromIndex | Const):
            return expr
        limit = b.index if isinstance(b, FromIndex) else ix(int(b.value))
        if not _steps(a.index - limit, loop.axis, width):
            return expr
        first = FromIndex(substitute(a.index, {loop.axis: ix(0)}), a.dtype)
        return Op(expr.name, (first, b), expr.dtype)

    def each(stmt: Stmt) -> tuple[Stmt, ...]:
        return (map_exprs(stmt, lambda e: rewrite(e, decide, memo)),)

    return For(loop.axis, map_statements(loop.body, each), loop.kind)


def _steps(distance: Index, lane: Axis, width: int) -> bool:
    """Whether ``distance`` is the lane's number plus a multiple of ``width``: then all lanes are on one side of 0."""
    step, rest = split(distance, lane)
    return constant(step) == 1 and not depends_on(rest, lane) and all(c % width == 0 for _, c in rest.terms)
