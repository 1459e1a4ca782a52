"""Choosing a Schedule for a kernel: heuristics over its accesses and the Target.

For each nest at the top of the kernel: which axis runs over lanes (the one that most accesses are contiguous along), which
axis runs over cores, and what must be tiled or interchanged to allow that.  Long sums are then ``cascade``'s.
"""

from collections.abc import Sequence

from lowc.ir.index import Axis, Symbol, constant, split
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import PARALLEL, Acc, Alloc, For, If, Kernel, Kind, Let, Load, Op, Stmt, Store, Update
from lowc.ir.ops import REDUCERS
from lowc.ir.scan import outer_updates, running
from lowc.ir.walk import exprs, parts, statements
from lowc.scheduler.apply import (
    Bind,
    Interchange,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Tile,
)
from lowc.scheduler.conflict import conflict, meeting
from lowc.scheduler.distribute import STRIP, few_columns
from lowc.scheduler.nest import chain, estimate, touched, weight
from lowc.scheduler.partial import Partial
from lowc.scheduler.tiles import STACK
from lowc.target import Target

PARALLEL_WORK = 24_000  # cheap vector-element operations below which starting the cores costs more than it saves
GRAIN = 4096  # elements of a flat chunk that a core takes at least
TILE_MIN = 16
LINE = 64  # bytes of a line of cache
LARGE = 1024  # a size that may be above this one may well be worth cores
REGISTERS = 8  # vectors of sums that a loop over rows keeps in registers
UNROLLED = 12  # work for an element (``weight``) up to which the rows of a tile are unrolled


def choose(kernel: Kernel, target: Target, threads: bool) -> Schedule:
    """The Schedule for ``kernel``, which is SCHEDULED-level and serial."""
    plan: list[Primitive] = []
    lanes = _lanes(kernel, target)
    loops = [s for s in kernel.body if isinstance(s, For)]
    for loop in loops:
        plan.extend(_nest(loop, lanes, target, threads, STACK // 2 // len(loops)))
    return tuple(plan)


def _lanes(kernel: Kernel, target: Target) -> int:
    """Lanes of a vector: as many as f32 values fit a register, half of that if the kernel's data is 64 bits wide throughout."""
    bits = [a.buffer.dtype.bits for a in touched(kernel.body)]
    wide = bool(bits) and min(bits) == 64
    return target.vector_bits // (64 if wide else 32)


# ---------------------------------------------------------------- one nest


def _nest(loop: For, lanes: int, target: Target, threads: bool, room: int) -> list[Primitive]:
    """``room``: bytes of scratch memory that the cores may share."""
    plan: list[Primitive] = []
    nest = chain((loop,))
    tile = _tile_axes(nest)
    parallel = threads and target.cores > 1 and (_work(loop) >= PARALLEL_WORK or _open(loop))
    if tile is not None:
        return _transpose(nest, tile, lanes, target, parallel)
    if outer_updates(loop):
        return _reduction(loop, lanes, target, parallel)
    vectors: list[Primitive] = []
    if _column(loop, lanes):
        return _column_reduction(loop, lanes, target, parallel, room)
    bound = _vectorise(loop, lanes, vectors)
    if parallel and (columns := _scatter_columns(nest, bound, target)) is not None:
        return _scatter(nest, columns, lanes, target)
    if parallel:
        best = _parallel_axis(nest, bound, target)
        if best is not None and best.axis.name in bound:  # then it is the outermost: chunks over cores, lanes within
            chunk = _chunk(best, lanes, target)
            if (constant(best.axis.extent) or chunk + 1) <= chunk:
                return vectors  # one core has all
            plan.append(Split(best.axis.name, chunk))
            vectors = [_renamed(v, best.axis.name, f"{best.axis.name}_i") for v in vectors]
            plan.append(Bind(f"{best.axis.name}_o", PARALLEL))
        elif best is not None:
            if best is not nest[0]:
                plan.append(Reorder((best.axis.name, *(f.axis.name for f in nest if f is not best))))
            plan.append(Bind(best.axis.name, _parallel(best, _work(loop))))
    return [*plan, *vectors]


def _renamed(step: Primitive, old: str, new: str) -> Primitive:
    """``step`` for the axis ``new`` that a split has put in the place of ``old``."""
    return Bind(new, step.kind) if isinstance(step, Bind) and step.axis == old else step


def _work(loop: For) -> int:
    """Iterations times the cost of each."""
    inner = 0
    for stmt in loop.body:
        if isinstance(stmt, For):
            inner += _work(stmt)
        elif isinstance(stmt, If):
            inner += 4
        else:
            inner += 1 + sum(weight(e) for e in exprs(stmt)) // 2
    return max(0, estimate(loop.axis.extent)) * inner


def _open(loop: For) -> bool:
    """Whether how much work ``loop`` is hangs on a size that may be large, whatever it was in the traced call."""
    axes = [loop.axis, *(s.axis for s in statements(loop.body) if isinstance(s, For))]
    return any(isinstance(a, Symbol) and (a.hi is None or a.hi > LARGE) for axis in axes for a in index_atoms(axis.extent))


def _parallel(loop: For, work: int) -> Kind:
    """Cores for ``loop``, which is part of ``work``: where its extent is known only when it is called, from so many iterations on
    as are worth starting the cores."""
    if constant(loop.axis.extent) is not None:
        return PARALLEL
    each = max(1, work // max(1, estimate(loop.axis.extent)))
    return Kind("parallel", max(2, PARALLEL_WORK // each))


def _parallel_axis(nest: list[For], bound: set[str], target: Target) -> For | None:
    """The loop to share among cores: the outermost with enough iterations; an inner one only of a reorderable map."""
    first = nest[0]
    is_map = not any(isinstance(s, Acc | Update | For) for s in nest[-1].body)
    for loop in nest if is_map else nest[:1]:
        if estimate(loop.axis.extent) >= 2 * target.cores and not conflict(loop, PARALLEL):
            if loop.axis.name in bound and loop is not first:
                continue
            return loop
    if constant(first.axis.extent) not in (0, 1) and not conflict(first, PARALLEL):
        return first
    return None


def _scatter_columns(nest: list[For], bound: set[str], target: Target) -> For | None:
    """The innermost loop, over lanes, of a nest whose outer iterations meet in memory (rows added at places that data tells)."""
    inner = nest[-1]
    if len(nest) < 2 or inner.axis.name not in bound or not conflict(nest[0], PARALLEL):
        return None
    if estimate(inner.axis.extent) < 2 * target.cores * TILE_MIN or conflict(inner, PARALLEL):
        return None
    return inner


def _scatter(nest: list[For], columns: For, lanes: int, target: Target) -> list[Primitive]:
    """Columns shared among the cores, each of which takes all rows in order: no two cores meet, and the result is always
    the same."""
    name = columns.axis.name
    width = estimate(columns.axis.extent) // (2 * target.cores)
    size = max(lanes, width // lanes * lanes)
    order = [f"{name}_o", *(f.axis.name for f in nest[:-1]), f"{name}_i"]
    return [
        Split(name, size),
        Reorder(tuple(order)),
        Bind(f"{name}_o", PARALLEL),
        Bind(f"{name}_i", Kind("vector", lanes)),
    ]


def _chunk(loop: For, lanes: int, target: Target) -> int:
    """Elements of a chunk: a multiple of the lanes, about eight chunks a core, but not too small."""
    extent = estimate(loop.axis.extent)
    inner = any(isinstance(s, For) for s in loop.body)
    least = 4 * lanes if inner else GRAIN
    size = max(least, extent // (8 * target.cores))
    if constant(loop.axis.extent) is not None and inner and size < extent:
        return _whole_part(extent, size, lanes)
    if constant(loop.axis.extent) is not None and not inner:
        for parts_ in range(max(1, extent // size), max(1, extent // (2 * size)), -1):
            if extent % parts_ == 0 and (extent // parts_) % lanes == 0:
                return extent // parts_
    return -(-size // lanes) * lanes


def _whole_part(extent: int, size: int, lanes: int) -> int:
    """About ``size``, such that chunks are equal, as it can be proved of those alone that they do not meet; ``extent`` if there
    is no such number."""
    sizes = [n for n in range(size // 2, 2 * size + 1) if n and extent % n == 0]
    return min(sizes, key=lambda n: (n % lanes > 0, abs(n - size)), default=extent)


# ---------------------------------------------------------------- lanes


def _vectorise(loop: For, lanes: int, out: list[Primitive]) -> set[str]:
    """Binds axes under ``loop`` to lanes, innermost first; the names of the axes bound."""
    bound: set[str] = set()
    for stmt in loop.body:
        if isinstance(stmt, For):
            bound |= _vectorise(stmt, lanes, out)
        elif isinstance(stmt, If):
            for inner in stmt.body:
                if isinstance(inner, For):
                    bound |= _vectorise(inner, lanes, out)
    if bound or not _suits_lanes(loop, lanes):
        return bound
    kind = Kind("vector", lanes, "", _interleave(loop))
    if conflict(loop, kind):
        return bound
    out.append(Bind(loop.axis.name, kind))
    return {loop.axis.name}


def _interleave(loop: For) -> int:
    """Strips in flight: enough to hide the latency of accumulators, or to spread the cost of a short loop's turns."""
    if any(isinstance(s, For | If | Alloc) for s in loop.body):
        return 1
    updates = [s for s in loop.body if isinstance(s, Update)]
    if any(REDUCERS[u.reducer].arity > 1 for u in updates):
        return 1
    work = sum(weight(e) for s in loop.body for e in exprs(s))
    if not updates:
        return 4 if work <= 8 else 2 if work <= 24 else 1
    return 8 if len(updates) == 1 and work <= 2 else 4 if len(updates) <= 2 else 2


def _suits_lanes(loop: For, lanes: int) -> bool:
    """Whether the lanes of a vector over ``loop.axis`` mostly touch neighbouring elements."""
    axis = loop.axis
    extent = constant(axis.extent)
    if extent is not None and extent < max(2, lanes // 2):
        return False
    score = 0
    for stmt in statements(loop.body):
        if isinstance(stmt, For) and axis in index_atoms(stmt.axis.extent):
            return False
        if isinstance(stmt, If):
            return False
    for access in touched(loop.body):
        score += _score(access, axis)
    return score >= 0 and not _uniform_store(loop)


def _uniform_store(loop: For) -> bool:
    """A reducing store whose lanes may meet in one element."""
    for stmt in statements(loop.body):
        if isinstance(stmt, Store) and stmt.reducer:
            coefficient, _ = split(stmt.index[0], loop.axis)
            if not coefficient.terms:
                return True
    return False


def _score(access: Load | Store, axis: Axis) -> int:
    index = access.index[0]
    if access.buffer.space == "local":
        return 0
    coefficient, rest = split(index, axis)
    if axis in index_atoms(rest):
        return -4 if isinstance(access, Store) else -2
    step = constant(coefficient)
    if step == 0:
        return 0
    if step == 1:
        return 3 if isinstance(access, Store) else 2
    return -4 if isinstance(access, Store) else -2


# ---------------------------------------------------------------- reductions


def _reduction(loop: For, lanes: int, target: Target, parallel: bool) -> list[Primitive]:
    """A loop at the top of the kernel whose accumulators outlive it: a full reduction."""
    plan: list[Primitive] = []
    if running(loop):
        return plan
    name = loop.axis.name
    if parallel and not meeting(loop):  # its accumulators can be told apart by chunks, memory that they write cannot
        extent = estimate(loop.axis.extent)
        flat = not any(isinstance(s, For) for s in loop.body)
        chunks = max(2, min(64, 8 * target.cores, extent // GRAIN if flat else extent))
        if extent >= chunks:
            plan.append(Partial(name, chunks, lanes))
            name = f"{name}_i"
    vectors: list[Primitive] = []
    _vectorise(loop, lanes, vectors)
    return [*plan, *(_renamed(v, loop.axis.name, name) for v in vectors)]


def _column(loop: For, lanes: int) -> bool:
    """Whether ``loop`` has one reduction in it and lanes suit only the outer axis: sums down the columns of a matrix."""
    inner = [s for s in loop.body if isinstance(s, For)]
    if len(inner) != 1 or any(isinstance(s, For | If | Acc) for s in inner[0].body):
        return False
    if not any(isinstance(s, Acc) for s in loop.body):
        return False
    if not outer_updates(inner[0]) or running(inner[0]):
        return False
    if any(isinstance(s, Store) for s in inner[0].body):
        return False
    before = loop.body[: loop.body.index(inner[0])]
    if not all(isinstance(s, Acc) and len(s.vars) == 1 for s in before):
        return False
    if _suits_lanes(inner[0], lanes) or not _suits_lanes(loop, lanes):
        return False
    return True


def _column_reduction(loop: For, lanes: int, target: Target, parallel: bool, room: int) -> list[Primitive]:
    """Strips of columns over cores; within a strip row after row, into an array of accumulators that stays in L1.  Where there
    are too few strips, rows in chunks over cores, if ``room`` has such arrays for as many chunks as there are cores."""
    plan: list[Primitive] = []
    columns, known = estimate(loop.axis.extent), constant(loop.axis.extent) is not None
    name = loop.axis.name
    (rows,) = [s.axis for s in loop.body if isinstance(s, For)]
    chunks = min(64, 8 * target.cores, estimate(rows.extent) * columns // GRAIN)
    fitting = room // max(1, columns * sum(v.dtype.bytes for s in loop.body if isinstance(s, Acc) for v in s.vars))
    strips = columns // lanes if known and columns % lanes == 0 else 0
    in_registers = 1 < strips * sum(isinstance(s, Acc) for s in loop.body) <= REGISTERS
    kind = Kind("vector", lanes, "", strips if in_registers else 1)
    if parallel and known and few_columns(columns, target) and min(chunks, fitting) >= 2 and fitting >= min(chunks, target.cores):
        return [Interchange(name, kind), Partial(rows.name, min(chunks, fitting), lanes)]
    strip = max(4 * lanes, min(STRIP * 4, -(-columns // (2 * target.cores))) if parallel else STRIP * 4)
    strip = -(-strip // lanes) * lanes
    if known and columns % strip and columns > strip:
        for width in range(strip, 4 * lanes - 1, -lanes):
            if columns % width == 0:
                strip = width
                break
        else:
            return [Bind(name, kind)] if not conflict(loop, kind) else []
    if columns > strip or not known:
        plan.append(Split(name, strip))
        if parallel:
            plan.append(Bind(f"{name}_o", PARALLEL))
        name = f"{name}_i"
    return [*plan, Interchange(name, kind)]


# ---------------------------------------------------------------- transposes


def _transpose(nest: list[For], tile: tuple[For, For], lanes: int, target: Target, parallel: bool) -> list[Primitive]:
    """Tiles over the two axes, innermost; cores share an outer axis or, if that is too short, the rows."""
    plan: list[Primitive] = []
    rows, columns = tile
    outer = [f for f in nest if f not in tile]
    order = [f.axis.name for f in (*outer, *tile)]
    if order != [f.axis.name for f in nest]:
        plan.append(Reorder(tuple(order)))
    tiles = estimate(rows.axis.extent) // lanes
    if parallel:
        shared = next((f for f in outer if estimate(f.axis.extent) >= 2 * target.cores and not conflict(f, PARALLEL)), rows)
        plan.append(Bind(shared.axis.name, PARALLEL))
        if shared is rows:
            tiles //= 2 * target.cores
    strip = max(1, min(_strip(nest[-1].body, tile, lanes), tiles))
    work = sum(weight(e) for s in nest[-1].body for e in exprs(s))
    return [*plan, Tile(rows.axis.name, columns.axis.name, lanes, lanes, strip, work <= UNROLLED)]


def _strip(body: Sequence[Stmt], tile: tuple[For, For], lanes: int) -> int:
    """Tiles below one another, before those beside them: as many as use up the lines that are read transposed.

    Such lines come from memory in pairs, so two are better; but then more of the other operands' rows are walked at a time.
    """
    rows, columns = tile
    across: list[int] = []  # bytes of an element of what is contiguous along ``rows``
    along = 0
    for access in touched(body):
        if constant(split(access.index[0], columns.axis)[0]) == 1:
            along += 1
        elif constant(split(access.index[0], rows.axis)[0]) == 1:
            across.append(access.buffer.dtype.bytes)
    lines = 2 if along <= len(across) else 1
    return max(1, lines * LINE // (lanes * min(across)))


def _tile_axes(nest: list[For]) -> tuple[For, For] | None:
    """(rows, columns) if a map's stores are contiguous along its last axis and some loads along another: both long enough."""
    columns = nest[-1].axis
    body = nest[-1].body
    if not all(isinstance(s, Let | Store) for s in body) or len(nest) < 2:
        return None
    if estimate(columns.extent) < TILE_MIN:
        return None
    rows: For | None = None
    for access in touched(body):
        index = access.index[0]
        if constant(split(index, columns)[0]) in (0, 1):
            continue
        if isinstance(access, Store):
            return None
        for loop in nest[:-1]:
            if constant(split(index, loop.axis)[0]) == 1 and columns not in index_atoms(split(index, columns)[1]):
                if rows is not None and rows is not loop:
                    return None
                rows = loop
    if rows is None or estimate(rows.axis.extent) < TILE_MIN:
        return None
    if any(isinstance(p, Op) and p.name.startswith("check") for s in body for e in exprs(s) for p in parts(e)):
        return None
    return rows, nest[-1]
