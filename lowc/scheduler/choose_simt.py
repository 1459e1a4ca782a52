"""Choosing a Schedule for a GPU: which of the shapes of docs/design.md, section 6, a kernel has.

flat     a map: neighbouring threads take neighbouring runs of 16 bytes
tile     a map whose loads and stores are contiguous along different axes: square tiles through shared memory
row      stages that walk the contiguous axis: a row a block, or a row a warp; rows that several stages read stay in registers;
         scans too, if they are all that keeps the order
column   stages that walk another axis: neighbouring threads take neighbouring columns, threads y share the rows
alone    anything else: a thread an iteration of the outer loops
block    small kernels of several nests: one block runs them all
"""

from collections.abc import Iterator, Sequence
from math import prod

from lowc.ir.index import ONE, Axis, Index, Opaque, constant, depends_on, ix, multiple_of, split
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import Acc, Alloc, For, If, Kernel, Kind, Let, Load, Op, Stmt, Store, Update
from lowc.ir.scan import outer_updates, running
from lowc.ir.walk import exprs, indices, loads, names, parts, statements, stores
from lowc.scheduler.apply import Bind, Interchange, Reorder, Split
from lowc.scheduler.apply_simt import (
    BLOCK,
    Barriers,
    Flatten,
    Hold,
    OneThread,
    Primitive,
    Sink,
    Spread,
    ToShared,
    Transpose,
    common_memory,
    conflict_of_threads,
    is_scan,
    sunk,
)
from lowc.scheduler.nest import chain, depends, estimate, iterations, touched
from lowc.scheduler.rename import fresh
from lowc.target import Target

FLAT_THREADS = 256
MOST_IDLE = 8  # a part of the threads in the last block of a row, and what is saved is worth it: one in 8
GATHER_TURNS = 4  # of a thread whose addresses come from memory: it waits twice, but for all turns together
ALONE_THREADS = 128
WARP = 32
ROW_LEAST = 32  # elements of a row that are worth a warp
ROW_ELEMENTS = 16  # of a thread, at least
MAX_THREADS = 1024
WIDE_ROW = 16384  # up to which half of the threads a block may have are enough, so that two blocks fit
HELD = 64  # elements of held rows that a thread has registers for
COLUMN_Y = 8
COLUMN_BYTES = 8  # that a thread takes of each row
TILE = 32
VECTOR_BYTES = 16
MAX_LANES = 8


def choices(kernel: Kernel, target: Target) -> Iterator[tuple[Primitive, ...]]:
    """Schedules for ``kernel``, which is SCHEDULED-level and serial: the best first, the last one always legal."""
    body = kernel.body
    taken = names(body)
    if len(body) == 1 and isinstance(body[0], For) and not outer_updates(body[0]):
        free = _free(chain((body[0],)))
        for plan in (_grid(body[0], free, target, taken), _alone(free, taken)) if free else ():
            if plan is not None:
                yield (*plan, Barriers())
    yield (*_one_block(body, taken), Barriers())
    yield (OneThread(),)


# ---------------------------------------------------------------- the whole grid


def _free(nest: Sequence[For]) -> list[For]:
    """The outer loops of ``nest`` whose iterations blocks can share."""
    free: list[For] = []
    for each in nest:
        if conflict_of_threads(each) or outer_updates(each) or depends(each, free):
            break
        free.append(each)
    return free


def _grid(loop: For, free: list[For], target: Target, taken: set[str]) -> list[Primitive] | None:
    nest = chain((loop,))
    if len(free) == len(nest) and not any(isinstance(s, For | If) for s in nest[-1].body):
        return _tile(nest, taken) or _flat(nest, target, taken)
    body = free[-1].body
    stages = [s for s in body if isinstance(s, For)]
    if any(isinstance(s, If) for s in body) or not stages or not all(_spreads(s) or _scans(s, body) for s in stages):
        return _alone(free, taken)
    if len(stages) == 1 and body[-1] is stages[0] and not outer_updates(stages[0]) and _is_map(body):
        return _sunk_map(free, stages[0], target, taken)
    if max(_count(s) for s in stages) < ROW_LEAST:
        return _alone(free, taken)
    if is_column(free, stages):
        if not all(_spreads(s) for s in stages):
            return _alone(free, taken)
        return _column(free, stages, target, taken)
    return _row(free, stages, target, taken) or _alone(free, taken)


def _is_map(body: Sequence[Stmt]) -> bool:
    """Whether ``body`` is lets and one nest of lets and stores."""
    *lets, last = body
    if not all(isinstance(s, Let) for s in lets) or not isinstance(last, For):
        return False
    return all(isinstance(s, Let | Store) for s in chain((last,))[-1].body)


def _sunk_map(free: list[For], stage: For, target: Target, taken: set[str]) -> list[Primitive]:
    """A map that computes something for each row first: every thread does, so that all loops are one grid."""
    lets = free[-1].body[:-1]
    nest = [*free, *chain(sunk(stage, lets))]
    return [Sink(free[-1].axis.name), *_flat(nest, target, taken)]


def _spreads(stage: For) -> bool:
    """Whether the threads of a block can share the outer loop of ``stage``."""
    return not conflict_of_threads(stage) and not running(stage)


def _scans(stage: For, body: Sequence[Stmt]) -> bool:
    """Whether the threads of a block can share ``stage``, a statement of ``body``, each holding prefixes of accumulators that no
    other loop updates."""
    if not is_scan(stage):
        return False
    names = {u.vars[0].name for u in running(stage)}
    others = [s for s in body if s is not stage and not isinstance(s, Update)]
    return not any(isinstance(s, Update) and s.vars[0].name in names for s in statements(others))


def _count(stage: For) -> int:
    return iterations(_perfect(stage))


def _perfect(stage: For) -> list[For]:
    """The directly nested loops of ``stage`` that threads can share."""
    out: list[For] = []
    for each in chain((stage,)):
        if depends(each, out) or (out and not _spreads(each)):
            break
        out.append(each)
    return out


def _flattened(axes: Sequence[str], plan: list[Primitive], taken: set[str]) -> str:
    """The name of one loop for those over ``axes``, which ``plan`` then makes."""
    if len(axes) == 1:
        return axes[0]
    name = fresh(f"{axes[0]}_f", taken)
    taken.discard(name)
    plan.append(Flatten(tuple(axes), name))
    return name


def _axes(loops: Sequence[For]) -> list[str]:
    return [f.axis.name for f in loops]


def _in_lanes(axes: list[str], lanes: int, plan: list[Primitive]) -> list[str]:
    """``axes``, the last of them without ``lanes`` neighbours, which ``plan`` makes lanes."""
    if lanes == 1:
        return axes
    plan += [Split(axes[-1], lanes), Bind(f"{axes[-1]}_i", Kind("vector", lanes))]
    return [*axes[:-1], f"{axes[-1]}_o"]


def _dividing(lanes: int, extent: Index, times: int = 1) -> int:
    """The most lanes up to ``lanes`` of which ``times`` as many divide ``extent``."""
    while lanes > 1 and not multiple_of(extent, lanes * times):
        lanes //= 2
    return lanes


# ---------------------------------------------------------------- maps


def _flat(nest: list[For], target: Target, taken: set[str]) -> list[Primitive]:
    plan: list[Primitive] = []
    best = max(nest, key=lambda f: (_contiguous(nest[-1].body, f.axis), f is nest[-1]))
    if best is not nest[-1]:
        nest = [*(f for f in nest if f is not best), best]
        plan.append(Reorder(tuple([f.axis.name for f in nest])))
    lanes = _lanes(nest[-1].body, best.axis)
    if len(nest) == 1:
        return [*plan, Spread(best.axis.name, FLAT_THREADS, "x", lanes, grid=True)]
    lanes = _dividing(lanes, best.axis.extent)
    gathers = any(isinstance(a, Opaque) for s in touched(nest[-1].body) for a in index_atoms(s.index[0]))
    turns = GATHER_TURNS if gathers else 1
    if turns > 1 and iterations(nest) // lanes < FLAT_THREADS * turns * 2 * target.cores:
        turns = 1
    if turns > 1:
        return [*plan, *_grid_of(nest, lanes, FLAT_THREADS, taken, turns)]
    axes = _in_lanes(_axes(nest), lanes, plan)
    return [*plan, *_over_grid(nest, axes, lanes, FLAT_THREADS, taken)]


def _over_grid(nest: Sequence[For], axes: list[str], lanes: int, threads: int, taken: set[str]) -> list[Primitive]:
    """The loops over ``axes``, which are those of ``nest`` with ``lanes`` taken off, shared among blocks of ``threads``."""
    plan: list[Primitive] = []
    rows = _rows_of_blocks(nest, lanes, threads)
    outer: list[list[str]] = []
    for position in range(rows):
        if position and _walks_on(nest, position):
            outer[-1].append(axes[position])
        else:
            outer.append([axes[position]])
    inner = _flattened(axes[rows:], plan, taken)
    plan += [Bind(_flattened(names, plan, taken), BLOCK) for names in outer]
    return [*plan, Spread(inner, threads, "x", 1, grid=True)]


def _rows_of_blocks(nest: Sequence[For], lanes: int, threads: int) -> int:
    """How many outer loops blocks count by themselves, each a row of blocks: each thread would divide by a symbolic size if all
    loops were one.  0 if there is no such division, or if rows are short, so that threads were idle at their ends."""
    for position in range(len(nest) - 1, 0, -1):
        extent = prod((f.axis.extent for f in nest[position:]), start=ONE)
        if constant(extent) is not None or _walks_on(nest, position):
            continue
        count = iterations(nest[position:]) // lanes
        if -count % threads * MOST_IDLE <= count:
            return position
    return 0


def _walks_on(nest: Sequence[For], position: int) -> bool:
    """Whether what the loop at ``position`` walks along goes on where it ends when the loop around it takes a step."""
    outer, inner = nest[position - 1].axis, nest[position].axis
    for index in indices(nest[-1].body):
        step, rest = split(index, outer)
        inner_step, rest = split(rest, inner)
        if step != inner_step * inner.extent or depends_on(rest, outer) or depends_on(rest, inner):
            return False
    return True


def _grid_of(nest: Sequence[For], lanes: int, threads: int, taken: set[str], turns: int = 1) -> list[Primitive]:
    """``turns`` iterations of ``nest`` a thread, each of ``lanes`` neighbours of the innermost loop, whose extent they divide."""
    plan: list[Primitive] = []
    name = _flattened(_in_lanes(_axes(nest), lanes, plan), plan, taken)
    if turns == 1:
        return [*plan, Spread(name, threads, "x", 1, grid=True)]
    return [*plan, Split(name, threads * turns), Bind(f"{name}_o", BLOCK), Spread(f"{name}_i", threads)]


def _contiguous(body: Sequence[Stmt], axis: Axis) -> tuple[int, int]:
    """How many stores, and how many loads, are contiguous along ``axis``: stores come first, since caches help loads."""
    written = read = 0
    for access in touched(body):
        if access.buffer.space == "global" and constant(split(access.index[0], axis)[0]) == 1:
            written += isinstance(access, Store)
            read += isinstance(access, Load)
    return written, read


def _lanes(body: Sequence[Stmt], axis: Axis) -> int:
    """Elements of a thread: as many of the smallest that is accessed contiguously along ``axis`` as 16 bytes hold."""
    sizes: list[int] = []
    for access in touched(body):
        if access.buffer.space == "global":
            coefficient, rest = split(access.index[0], axis)
            if constant(coefficient) == 1 and axis not in index_atoms(rest):
                sizes.append(access.buffer.dtype.bytes)
    return min(MAX_LANES, VECTOR_BYTES // min(sizes)) if sizes else 1


def _tile(nest: list[For], taken: set[str]) -> list[Primitive] | None:
    """Tiles, if stores are contiguous along one axis, some loads along another, and both are long."""
    if len(nest) < 2:
        return None
    body = nest[-1].body
    columns = max(nest, key=lambda f: sum(constant(split(s.index[0], f.axis)[0]) == 1 for s in stores(body)))
    rows: For | None = None
    for access in touched(body):
        if constant(split(access.index[0], columns.axis)[0]) in (0, 1):
            continue
        if isinstance(access, Store):
            return None
        for loop in nest:
            if loop is columns or constant(split(access.index[0], loop.axis)[0]) != 1:
                continue
            if depends_on(split(access.index[0], columns.axis)[1], columns.axis):
                continue
            if rows is not None and rows is not loop:
                return None
            rows = loop
    if rows is None or min(estimate(rows.axis.extent), estimate(columns.axis.extent)) < TILE // 2:
        return None
    if any(isinstance(p, Op) and p.name.startswith("check") for s in body for e in exprs(s) for p in parts(e)):
        return None
    outer = [f for f in nest if f is not rows and f is not columns]
    plan: list[Primitive] = [Reorder(tuple([f.axis.name for f in (*outer, rows, columns)]))]
    plan += [Bind(f.axis.name, BLOCK) for f in outer]
    lanes = max(1, 4 // min(a.buffer.dtype.bytes for a in touched(body)))  # a warp walks along 128 bytes
    return [*plan, Transpose(rows.axis.name, columns.axis.name, TILE * lanes, lanes)]


# ---------------------------------------------------------------- stages


def _alone(free: list[For], taken: set[str]) -> list[Primitive] | None:
    """A thread an iteration; its local rows must be small."""
    body = free[-1].body
    scratch = sum((constant(s.buffer.shape[0]) or 0) * s.buffer.dtype.bytes for s in statements(body) if isinstance(s, Alloc))
    if scratch > 4096:
        return None
    return _grid_of(free, 1, ALONE_THREADS, taken)


def is_column(free: Sequence[For], stages: Sequence[For]) -> bool:
    """Whether most loads of ``stages`` are contiguous along an outer axis, not along that of the stage."""
    along = across = 0
    for stage in stages:
        axes = {s.axis for s in statements((stage,)) if isinstance(s, For)}
        inner = _perfect(stage)[-1].axis
        for load in loads(stage.body):
            if load.buffer.space != "global" or axes.isdisjoint(index_atoms(load.index[0])):
                continue  # a value of the row
            along += constant(split(load.index[0], inner)[0]) == 1
            across += any(constant(split(load.index[0], f.axis)[0]) == 1 for f in free)
    return across > along


def _column(free: list[For], stages: list[For], target: Target, taken: set[str]) -> list[Primitive]:
    plan: list[Primitive] = []
    body = free[-1].body
    best = max(free, key=lambda f: _contiguous(body, f.axis))
    if best is not free[-1] and not any(isinstance(s, Update | Acc | Alloc) for s in statements(body)):
        free = [*(f for f in free if f is not best), best]
        plan.append(Reorder(tuple([f.axis.name for f in free])))
    if any(isinstance(s, Alloc) for s in statements(body)) or _shared_by_stages(body):
        return [*plan, *_grid_of(free, 1, ALONE_THREADS, taken)]
    threads = COLUMN_Y if blocks_of_columns(free, stages) >= target.cores else 4 * COLUMN_Y
    axes = _axes(free)
    lanes = _column_lanes(free, stages)
    if lanes > 1:
        plan += [Split(axes[-1], lanes), Interchange(f"{axes[-1]}_i", Kind("vector", lanes))]
        axes[-1] = f"{axes[-1]}_o"
    for stage in stages:
        plan.append(Spread(_flattened(_axes(_perfect(stage)), plan, taken), threads, "y"))
    return [*plan, *_over_grid(free, axes, lanes, WARP, taken)]


def _column_lanes(free: Sequence[For], stages: Sequence[For]) -> int:
    """Columns of a thread, of 8 bytes together, if there is one reduction that can be done for all of them at once."""
    body = free[-1].body
    axis = free[-1].axis
    if len(stages) != 1 or len(_perfect(stages[0])) != 1 or not _is_leaf(stages[0]):
        return 1
    before = body[: [s is stages[0] for s in body].index(True)]
    if not all(isinstance(s, Acc) and len(s.vars) == 1 for s in before):
        return 1
    if not all(isinstance(s, Let | Update) for s in stages[0].body):
        return 1
    sizes = [a.buffer.dtype.bytes for a in loads(stages[0].body) if constant(split(a.index[0], axis)[0]) == 1]
    lanes = COLUMN_BYTES // max(sizes, default=COLUMN_BYTES)
    return max(1, _dividing(lanes, axis.extent, WARP))


def blocks_of_columns(free: Sequence[For], stages: Sequence[For]) -> int:
    """Blocks that a column kernel makes."""
    return max(1, iterations(free) // (WARP * _column_lanes(free, stages)))


def _row(free: list[For], stages: list[For], target: Target, taken: set[str]) -> list[Primitive] | None:
    plan: list[Primitive] = []
    body = free[-1].body
    lanes = _row_lanes(stages)
    longest = max(_count(s) for s in stages)
    threads = WARP
    scans = any(running(s) for s in stages)
    each = lanes if scans else max(ROW_ELEMENTS, lanes)  # a turn of a scan is long: few turns
    while threads * each < longest and threads < (MAX_THREADS if longest > WIDE_ROW else MAX_THREADS // 2):
        threads *= 2
    memory = _scratch(body, stages, threads, lanes, target.l1)
    if memory is None:
        return None
    shared = any(isinstance(p, ToShared) for p in memory) or _shared_by_stages(body)
    outer = _flattened(_axes(free), plan, taken)
    for stage in stages:
        plan += _stage(stage, threads, lanes, taken)
    plan += memory
    if threads == WARP and not shared and iterations(free) >= 16 * target.cores:
        return [*plan, Spread(outer, 4, "y", 1, grid=True)]
    return [*plan, Bind(outer, BLOCK)]


def _stage(stage: For, threads: int, lanes: int, taken: set[str]) -> list[Primitive]:
    """``stage`` over the threads of a block."""
    plan: list[Primitive] = []
    loops = _perfect(stage)
    if len(loops) == 1:
        return [Spread(loops[0].axis.name, threads, "x", lanes if _is_leaf(loops[0]) else 1)]
    axes = _in_lanes(_axes(loops), lanes if _is_leaf(loops[-1]) else 1, plan)
    name = _flattened(axes, plan, taken)
    return [*plan, Spread(name, threads, "x")]


def _is_leaf(loop: For) -> bool:
    return not any(isinstance(s, For | If | Alloc) for s in loop.body)


def _row_lanes(stages: Sequence[For]) -> int:
    """Lanes that divide every stage's innermost extent, so that no run of a thread is cut short."""
    lanes = MAX_LANES
    found = False
    for stage in stages:
        inner = _perfect(stage)[-1]
        if not _is_leaf(inner):
            continue
        own = _lanes(inner.body, inner.axis)
        if own > 1:
            lanes, found = min(lanes, own), True
        lanes = _dividing(lanes, inner.axis.extent)
    return lanes if found else 1


def _scratch(
    body: Sequence[Stmt], stages: Sequence[For], threads: int, lanes: int, room: int
) -> list[Primitive] | None:
    """Where the local rows of ``body`` go: into registers if every stage uses them in step, else into ``room`` bytes of shared
    memory; None if they do not fit."""
    plan: list[Primitive] = []
    held = shared = 0
    for stmt in body:
        if not isinstance(stmt, Alloc):
            continue
        row = stmt.buffer
        size = constant(row.shape[0]) or 0
        if not stmt.reducer and _in_step(row.name, body, stages):
            held += -(-size // (threads * lanes)) * lanes
            plan.append(Hold(row.name, threads, lanes))
        else:
            shared += size * row.dtype.bytes
            plan.append(ToShared(row.name))
    return plan if held <= HELD and shared <= room else None


def _in_step(row: str, body: Sequence[Stmt], stages: Sequence[For]) -> bool:
    """Whether each access to ``row`` is at the axis of a stage that is one loop: then one thread makes and uses an element."""
    leaves = {id(s): s.axis for s in stages if _is_leaf(s)}
    for stmt in body:
        for access in touched((stmt,)):
            if access.buffer.name == row and (id(stmt) not in leaves or access.index[0] != ix(leaves[id(stmt)])):
                return False
    extents = {s.axis.extent for s in stages if any(a.buffer.name == row for a in touched((s,)))}
    return len(extents) == 1


def _shared_by_stages(body: Sequence[Stmt]) -> bool:
    """Whether one statement touches what another has written to global memory."""
    written: set[int] = set()
    seen: set[int] = set()
    for stmt in body:
        reads, writes = common_memory((stmt,))
        if not written.isdisjoint(reads | writes) or not seen.isdisjoint(writes):
            return True
        written |= writes
        seen |= reads
    return False


# ---------------------------------------------------------------- one block


def _one_block(body: Sequence[Stmt], taken: set[str]) -> list[Primitive]:
    plan: list[Primitive] = []
    long = any(isinstance(s, For) and running(s) and estimate(s.axis.extent) > MAX_THREADS for s in body)
    threads = MAX_THREADS if long else FLAT_THREADS  # turns of a scan wait for one another
    for stmt in body:
        if not isinstance(stmt, For):
            continue
        if not _spreads(stmt):
            if not _scans(stmt, body):
                return [OneThread()]
            lanes = _lanes(stmt.body, stmt.axis) if _is_leaf(stmt) else 1
            plan.append(Spread(stmt.axis.name, threads, "x", _dividing(lanes, stmt.axis.extent)))
            continue
        plan.append(Spread(_flattened(_axes(_perfect(stmt)), plan, taken), threads))
    return plan
