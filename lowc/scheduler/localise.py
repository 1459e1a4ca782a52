"""localise: LOOPS → LOOPS.  A temp that lives within one iteration of some outer loops becomes scratch memory of that iteration.

Before:  for i in N {                           after:   for i in N {
           for k in K { e[i, k] = exp(…) }                 alloc e: f32[K] @local
           for k in K { out[i, k] = e[i, k] / s } }        for k in K { e[k] = exp(…) }
                                                           for k in K { out[i, k] = e[k] / s } }

For temps that one kernel alone touches, if what is left has a static size that fits into half of a core's L2: each
thread then reuses one row in cache instead of streaming the whole tensor through memory.
"""

from collections.abc import Sequence

from lowc.ir.index import Axis, Index, constant, contiguous_strides
from lowc.ir.nodes import Alloc, Buffer, For, If, Launch, Module, Stmt
from lowc.ir.walk import Substitution, buffers, make_kernel
from lowc.options import Options
from lowc.scheduler.merge import Cache, effects
from lowc.scheduler.nest import numel, plain_axis, private, prune
from lowc.target import Target


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with private temps made local where they fit."""
    own = private(module)
    room = (target.l1 if target.kind == "nvptx" else target.l2) // 2
    steps = [
        _localise(s, own.get(number, ()), room) if isinstance(s, Launch) else s for number, s in enumerate(module.steps)
    ]
    return prune(module, steps)


def _localise(step: Launch, own: Sequence[Buffer], limit: int) -> Launch:
    body = step.kernel.body
    room = limit
    cache: Cache = {}
    for buffer in own:
        placed = _place(body, buffer, room, cache)
        if placed is not None:
            body, size = placed
            room -= size
    if body is step.kernel.body:
        return step
    params = buffers(body)
    params = [b for b in params if b.space == "global"]
    return Launch(make_kernel(step.kernel.name, body, params), tuple(params), step.origin)


def _place(
    body: tuple[Stmt, ...], buffer: Buffer, room: int, cache: Cache
) -> tuple[tuple[Stmt, ...], int] | None:
    """``body`` with ``buffer`` allocated in the innermost block that holds all its accesses; None if it does not fit there."""
    fixed: list[Axis] = []
    dimensions: list[int] = []
    block = body
    while True:
        inside = [s for s in block if _touches(s, buffer, cache)]
        if len(inside) != 1 or not isinstance(inside[0], For):
            break
        loop = inside[0]
        dimension = _dimension(loop, buffer, cache)
        if dimension is None:
            break
        fixed.append(loop.axis)
        dimensions.append(dimension)
        block = loop.body
    gone = set(dimensions)
    kept = [d for d in range(len(buffer.shape)) if d not in gone]
    shape = tuple([buffer.shape[d] for d in kept])
    count = constant(numel(shape))
    # each size must be known: an unknown one times 0 counts as 0, but cannot be allocated
    if not fixed or count is None or any(constant(n) is None for n in shape) or count * buffer.dtype.bytes > room:
        return None
    local = Buffer(buffer.name, buffer.dtype, shape, contiguous_strides(shape), "local")

    def access(b: Buffer, index: tuple[Index, ...]) -> tuple[Buffer, tuple[Index, ...]]:
        return (local, tuple([index[d] for d in kept])) if b is buffer else (b, index)

    return _insert(body, fixed[-1], Alloc(local), Substitution(access=access)), count * buffer.dtype.bytes


def _touches(stmt: Stmt, buffer: Buffer, cache: Cache) -> bool:
    found = effects(stmt, cache)
    return id(buffer) in found.reads or id(buffer) in found.writes


def _dimension(loop: For, buffer: Buffer, cache: Cache) -> int | None:
    """The dimension that every access to ``buffer`` in ``loop`` indexes with its axis itself."""
    found = effects(loop, cache)
    common = set(range(len(buffer.shape)))
    for index in (*found.reads.get(id(buffer), ()), *found.writes.get(id(buffer), ())):
        common &= {d for d, i in enumerate(index) if plain_axis(i) == loop.axis}
    return min(common) if common else None


def _insert(body: Sequence[Stmt], axis: Axis, alloc: Alloc, replace: Substitution) -> tuple[Stmt, ...]:
    """``body`` with ``alloc`` first in the loop over ``axis`` and ``replace`` applied to that loop's body."""
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For) and stmt.axis == axis:
            stmt = For(stmt.axis, (alloc, *replace.body(stmt.body)), stmt.kind)
        elif isinstance(stmt, For):
            stmt = For(stmt.axis, _insert(stmt.body, axis, alloc, replace), stmt.kind)
        elif isinstance(stmt, If):
            stmt = If(stmt.cond, _insert(stmt.body, axis, alloc, replace))
        out.append(stmt)
    return tuple(out)
