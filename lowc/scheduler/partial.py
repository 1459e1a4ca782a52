"""The primitive ``Partial``: a reduction at the top of a kernel in parts that run in parallel and meet in memory.

    for k in 8192 { s add= x[k] }         →  alloc s_parts: f32[16]
                                             for k_c in 16 parallel {
                                               acc s_p = add; for k_i in 512 { s_p add= … }; s_parts[k_c] = s_p }
                                             for c in 16 { s add= s_parts[c] }

    for k in 8192 {                       →  alloc row_parts: f32[512]
      for j in 32 { row[j] add= … } }        for k_c in 16 parallel {
                                               alloc row_p: f32[32] = add; for k_i in 512 { for j in 32 { row_p[j] add= … } }
                                               for j in 32 { row_parts[k_c*32 + j] = row_p[j] } }
                                             for c in 16 { for j in 32 { row[j] add= row_parts[c*32 + j] } }
"""

from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir.index import Axis, constant, ix, minimum
from lowc.ir.nodes import PARALLEL, Alloc, Buffer, For, Kind, Load, Stmt, Store, Update
from lowc.ir.scan import outer_updates, running
from lowc.ir.walk import names
from lowc.scheduler.conflict import meeting
from lowc.scheduler.rename import fresh
from lowc.scheduler.sums import own_accumulators, own_rows, reduced_rows, row_loop


@dataclass(frozen=True, slots=True)
class Partial:
    """The reduction over ``axis`` in ``chunks`` parts that run in parallel and meet in memory, where ``lanes`` combine them
    (pairwise, so that the last additions do not add to the error)."""

    axis: str
    chunks: int
    lanes: int


def partial(body: tuple[Stmt, ...], step: Partial) -> tuple[Stmt, ...]:
    """Only for a loop at the top of a kernel, so that the arrays of partial results are shared by all cores."""
    taken = names(body)
    out: list[Stmt] = []
    for stmt in body:
        out.extend(_in_parts(stmt, step, taken) if isinstance(stmt, For) and stmt.axis.name == step.axis else (stmt,))
    return tuple(out)


def _in_parts(loop: For, step: Partial, taken: set[str]) -> list[Stmt]:
    extent = loop.axis.extent
    updates, rows = outer_updates(loop), reduced_rows(loop)
    if not updates and not rows:
        raise ScheduleError(f"the loop over {step.axis} updates no accumulator from outside")
    if running(loop):
        raise ScheduleError(f"the loop over {step.axis} is a scan")
    if why := meeting(loop, [row for row, _ in rows]):
        raise ScheduleError(f"the loop over {step.axis} cannot be parallel: {why}")
    accs, rename = own_accumulators(updates, taken)
    size = (extent + (step.chunks - 1)) // step.chunks
    chunk = Axis(fresh(f"{step.axis}_c", taken), ix(step.chunks))
    inner = Axis(fresh(f"{step.axis}_i", taken), minimum(size, extent - ix(chunk) * size))
    if constant(extent) is not None and constant(extent) == (constant(size) or 0) * step.chunks:
        inner = Axis(inner.name, size)
    rename.atoms[loop.axis] = ix(chunk) * size + inner
    again = Axis(fresh(f"{step.axis}_c", taken), ix(step.chunks))
    before: list[Stmt] = []
    keep: list[Stmt] = []
    combine: list[Stmt] = []
    for update, acc in zip(updates, accs, strict=True):
        arrays = [Buffer(fresh(f"{v.name}_parts", taken), v.dtype, (ix(step.chunks),), (ix(1),), "local") for v in update.vars]
        before += map(Alloc, arrays)
        keep += [Store(b, (ix(chunk),), v) for b, v in zip(arrays, acc.vars, strict=True)]
        combine.append(Update(update.vars, update.reducer, tuple([Load(b, (ix(again),)) for b in arrays])))
    lanes = Kind("vector", step.lanes) if step.chunks >= step.lanes > 1 and not rows else Kind()
    own = own_rows([row for row, _ in rows], rename, taken)
    for row, reducer in rows:
        along = row_loop(loop, row)
        assert along is not None
        width, kind = row.shape[0], along.kind
        parts = Buffer(fresh(f"{row.name}_parts", taken), row.dtype, (width * step.chunks,), (ix(1),), "local")
        there, back = Axis(fresh(along.axis.name, taken), width), Axis(fresh(along.axis.name, taken), width)
        before.append(Alloc(parts))
        move = Store(parts, (ix(chunk) * width + there,), Load(own[id(row)], (ix(there),)))
        keep.append(For(there, (move,), kind))
        join = Store(row, (ix(back),), Load(parts, (ix(again) * width + back,)), None, reducer)
        combine.append(For(back, (join,), kind))
    allocs = [Alloc(own[id(row)], reducer) for row, reducer in rows]
    parallel = For(chunk, (*accs, *allocs, For(inner, rename.body(loop.body), loop.kind), *keep), PARALLEL)
    return [*before, parallel, For(again, tuple(combine), lanes)]
