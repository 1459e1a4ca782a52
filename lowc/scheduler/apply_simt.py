"""Primitives of a Schedule that bind axes to the blocks and threads of a GPU.  Each checks that the meaning stays.

What they make is the form of docs/design.md, section 6: block loops around block-level statements around thread loops.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lowc.errors import ScheduleError
from lowc.ir.index import Axis, Index, constant, floordiv, ix, minimum, mod, multiple_of, upper_bound
from lowc.ir.nodes import (
    PARALLEL,
    Alloc,
    Barrier,
    Buffer,
    For,
    If,
    Kernel,
    Kind,
    Let,
    Stmt,
    Store,
    Update,
)
from lowc.ir.scan import in_order, outer_updates, running
from lowc.ir.walk import (
    Substitution,
    loads,
    make_kernel,
    map_statements,
    names,
    statements,
    stores,
)
from lowc.scheduler import apply as common
from lowc.scheduler.apply import at_loop
from lowc.scheduler.conflict import conflict
from lowc.scheduler.nest import depends, one_loop
from lowc.scheduler.rename import fresh

BLOCK = Kind("block")
UNROLLED = 16  # steps of a thread loop that are unrolled; more make a loop


@dataclass(frozen=True, slots=True)
class Flatten:
    """Directly nested loops over ``axes``, outermost first, become one loop over ``name``, in the same order.

    It is marked ``parallel`` if its iterations are independent, which its addresses do not show any more.
    """

    axes: tuple[str, ...]
    name: str


@dataclass(frozen=True, slots=True)
class Sink:
    """The lets in the loop over ``axis`` move into the one loop behind them: what is directly nested can be flattened."""

    axis: str


@dataclass(frozen=True, slots=True)
class Spread:
    """The loop over ``axis`` is shared among ``threads`` of dimension ``dim`` (x, y), each taking ``lanes`` neighbours at a time.

    With ``grid`` each block takes one turn of its threads; else one block takes all turns.
    """

    axis: str
    threads: int
    dim: str = "x"
    lanes: int = 1
    grid: bool = False


@dataclass(frozen=True, slots=True)
class OneThread:
    """The whole kernel is left to one thread: iterations depend on one another."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The local row ``buffer`` lies across threads as loops that are ``Spread`` over ``threads`` and ``lanes`` use it."""

    buffer: str
    threads: int
    lanes: int


@dataclass(frozen=True, slots=True)
class ToShared:
    """The local row ``buffer`` becomes memory of the block."""

    buffer: str


@dataclass(frozen=True, slots=True)
class Transpose:
    """The two innermost loops of a map, over ``rows`` and ``columns``, in square tiles of ``size``: loads that are contiguous
    along ``rows`` are brought to shared memory along that axis, ``lanes`` elements a thread.  Loops over tiles go outermost."""

    rows: str
    columns: str
    size: int
    lanes: int


@dataclass(frozen=True, slots=True)
class Barriers:
    """Barriers wherever threads see what others wrote."""


GpuPrimitive = Flatten | Sink | Spread | OneThread | Hold | ToShared | Transpose | Barriers
Primitive = GpuPrimitive | common.Primitive


def apply(kernel: Kernel, step: Primitive) -> Kernel:
    """``kernel`` with ``step`` carried out; raises ScheduleError."""
    if isinstance(step, common.Primitive):
        return common.apply(kernel, (step,))
    return make_kernel(kernel.name, _apply(kernel.body, step), kernel.params)


def _apply(body: tuple[Stmt, ...], step: GpuPrimitive) -> tuple[Stmt, ...]:
    if isinstance(step, Flatten):
        return at_loop(body, step.axes[0], lambda loop: (_flatten(loop, step, names(body)),))
    if isinstance(step, Sink):
        return at_loop(body, step.axis, lambda loop: (_sink(loop),))
    if isinstance(step, Spread):
        return at_loop(body, step.axis, lambda loop: (_spread(loop, step, names(body)),))
    if isinstance(step, OneThread):
        return (For(Axis(fresh("one", names(body)), ix(1)), body, Kind("thread", 1)),)
    if isinstance(step, Hold):
        return _relaid(body, step.buffer, lambda b: _held(b, step))
    if isinstance(step, ToShared):
        return _relaid(body, step.buffer, lambda b: replace(b, space="shared"))
    if isinstance(step, Transpose):
        return at_loop(body, step.rows, lambda loop: (_transpose(loop, step, names(body)),))
    return _barriers(body)


# ---------------------------------------------------------------- loops


def _flatten(loop: For, step: Flatten, taken: set[str]) -> For:
    nest = [loop]
    while len(nest) < len(step.axes) and len(nest[-1].body) == 1 and isinstance(inner := nest[-1].body[0], For):
        nest.append(inner)
    if [f.axis.name for f in nest] != list(step.axes):
        raise ScheduleError(f"loops over {', '.join(step.axes)} are not directly nested")
    for each in nest:
        if depends(each, nest):
            raise ScheduleError(f"the extent of {each.axis.name} depends on another axis")
    flat = one_loop(nest, step.name, taken)
    independent = not any(conflict_of_threads(each) for each in nest)
    return For(flat.axis, flat.body, PARALLEL) if independent else flat


def _sink(loop: For) -> For:
    *lets, inner = loop.body
    if not isinstance(inner, For) or not all(isinstance(s, Let) for s in lets):
        raise ScheduleError(f"the loop over {loop.axis.name} has more than lets before its inner loop")
    return For(loop.axis, sunk(inner, lets), loop.kind)


def sunk(nest: For, lets: Sequence[Stmt]) -> tuple[For, ...]:
    """``nest`` with ``lets`` at the start of its innermost directly nested loop."""
    if len(nest.body) == 1 and isinstance(nest.body[0], For):
        return (For(nest.axis, sunk(nest.body[0], lets), nest.kind),)
    return (For(nest.axis, (*lets, *nest.body), nest.kind),)


def _spread(loop: For, step: Spread, taken: set[str]) -> For:
    """axis = (turn * threads + thread) * lanes + lane."""
    if loop.kind.name != "parallel" and (why := conflict_of_threads(loop)) and (step.dim != "x" or not is_scan(loop)):
        raise ScheduleError(f"the loop over {loop.axis.name} cannot be spread: {why}")
    if step.grid and outer_updates(loop):
        raise ScheduleError(f"blocks cannot share {outer_updates(loop)[0].vars[0].name}")
    extent, name = loop.axis.extent, loop.axis.name
    known = constant(extent)
    most = upper_bound(extent)
    chunk = step.threads * step.lanes
    if known is not None or most is None or step.grid:
        turns, exact = (extent + (chunk - 1)) // chunk, True
    else:
        turns, exact = ix(-(-most // chunk)), False  # as many as there may be, so that rows lie in registers
    turn = Axis(fresh(f"{name}_o", taken), turns)
    single = constant(turns) == 1
    at: Index = ix(0) if single else ix(turn)
    whole = exact and multiple_of(extent, chunk)
    left = (extent - at * chunk + (step.lanes - 1)) // step.lanes
    thread = Axis(fresh(f"{name}_t", taken), ix(step.threads) if whole else minimum(step.threads, left))
    position = at * step.threads + thread
    body: tuple[Stmt, ...]
    if step.lanes > 1:
        even = multiple_of(extent, step.lanes)
        over = extent - position * step.lanes
        lane = Axis(fresh(f"{name}_v", taken), ix(step.lanes) if even else minimum(step.lanes, over))
        inner = Substitution({loop.axis: position * step.lanes + lane}).body(loop.body)
        body = (For(lane, inner, Kind("vector", step.lanes)),)
    else:
        body = Substitution({loop.axis: position}).body(loop.body)
    spread = For(thread, body, Kind("thread", step.threads, "" if step.dim == "x" else step.dim))
    if step.grid:
        return For(turn, (spread,), BLOCK)
    if single:
        return spread
    count = constant(turns)
    return For(turn, (spread,), Kind("unroll", count) if count and count <= UNROLLED else Kind())


def conflict_of_threads(loop: For) -> str:
    """Why iterations of ``loop`` may not run at once on a GPU, where reducing stores are atomic; empty if they may."""
    plain = {id(a.buffer) for a in loads(loop.body)} | {id(s.buffer) for s in stores(loop.body) if not s.reducer}
    kinds: dict[int, set[str]] = {}
    for store in stores(loop.body):
        kinds.setdefault(id(store.buffer), set()).add(store.reducer)
    inside = {id(s.buffer) for s in statements(loop.body) if isinstance(s, Alloc)}
    atomic = {b for b, found in kinds.items() if len(found) == 1 and b not in plain and b not in inside}

    def without(stmt: Stmt) -> tuple[Stmt, ...]:
        return () if isinstance(stmt, Store) and id(stmt.buffer) in atomic else (stmt,)

    return conflict(For(loop.axis, map_statements(loop.body, without)) if atomic else loop, Kind("vector"))


def is_scan(loop: For) -> bool:
    """Whether threads x can share ``loop`` if each holds prefixes: what keeps its iterations in order is only that accumulators
    are read, after their one update."""
    updates = running(loop)
    if not updates or not all(in_order(loop.body, u) for u in updates):
        return False

    def as_lets(stmt: Stmt) -> tuple[Stmt, ...]:
        if not any(stmt is u for u in updates):
            return (stmt,)
        assert isinstance(stmt, Update)
        return tuple([Let(v, e) for v, e in zip(stmt.vars, stmt.values, strict=True)])

    return not conflict_of_threads(For(loop.axis, map_statements(loop.body, as_lets), loop.kind))


# ---------------------------------------------------------------- memory of a block


def _relaid(body: tuple[Stmt, ...], name: str, change: Callable[[Buffer], Buffer]) -> tuple[Stmt, ...]:
    """``body`` with the allocated buffer ``name`` changed; a buffer of two dimensions is indexed by ``_across``."""
    old = next((s.buffer for s in statements(body) if isinstance(s, Alloc) and s.buffer.name == name), None)
    if old is None or len(old.shape) != 1:
        raise ScheduleError(f"no local row {name}")
    new = change(old)

    def access(buffer: Buffer, index: tuple[Index, ...]) -> tuple[Buffer, tuple[Index, ...]]:
        if buffer is not old:
            return buffer, index
        return new, index if len(new.shape) == 1 else _across(index[0], new)

    body = Substitution(access=access).body(body)
    return map_statements(body, lambda s: (Alloc(new, s.reducer),) if isinstance(s, Alloc) and s.buffer is old else (s,))


def _held(row: Buffer, step: Hold) -> Buffer:
    size = constant(row.shape[0])
    if size is None:
        raise ScheduleError(f"the size of {row.name} is not known")
    turns = -(-size // (step.threads * step.lanes))
    shape = (ix(step.threads), ix(turns), ix(step.lanes))
    return Buffer(row.name, row.dtype, shape, (ix(turns * step.lanes), ix(step.lanes), ix(1)), "local")


def _across(index: Index, held: Buffer) -> tuple[Index, Index, Index]:
    threads, _, lanes = held.shape
    return mod(floordiv(index, lanes), threads), floordiv(index, threads * lanes), mod(index, lanes)


def _transpose(loop: For, step: Transpose, taken: set[str]) -> For:
    columns = loop.body[0] if len(loop.body) == 1 else None
    if not isinstance(columns, For) or loop.axis.name != step.rows or columns.axis.name != step.columns:
        raise ScheduleError(f"loops over {step.rows} and {step.columns} are not directly nested")
    for each in (loop, columns):
        if why := conflict_of_threads(each):
            raise ScheduleError(f"the loop over {each.axis.name} cannot be tiled: {why}")
    size = step.size
    row_tile, row, row_at = common.split_axes(loop.axis, size, taken)
    column_tile, column, column_at = common.split_axes(columns.axis, size, taken)
    body = Substitution({loop.axis: row_at, columns.axis: column_at}).body(columns.body)
    # a square with a column more, so that a warp that reads down a column meets each bank once
    staged = common.staged_loads(body, row, column, size * (size + 1), "shared", taken)
    if not staged:
        raise ScheduleError("nothing to transpose")
    fills: list[Stmt] = []
    for tile, load in {id(b): (b, x) for b, x in staged.values()}.values():
        fill_row, fill_column = Axis(fresh(row.name, taken), row.extent), Axis(fresh(column.name, taken), column.extent)
        source = Substitution({row: ix(fill_row), column: ix(fill_column)}).expr(load)
        store = Store(tile, (ix(fill_column) * (size + 1) + fill_row,), source)
        fills.append(Alloc(tile))
        fills.append(_tile_loops(fill_column, fill_row, step, (store,), taken))
    compute = common.from_tiles(body, staged, ix(column) * (size + 1) + row)
    inner = (*fills, _tile_loops(row, column, step, compute, taken))
    return For(row_tile, (For(column_tile, inner, BLOCK),), BLOCK)


TILE_ROWS = 8  # rows of a tile that the threads of a block walk through at a time


def _tile_loops(outer: Axis, inner: Axis, step: Transpose, body: Sequence[Stmt], taken: set[str]) -> For:
    """``inner`` over threads x, ``outer`` over threads y in turns."""
    along = _spread(For(inner, tuple(body)), Spread(inner.name, step.size // step.lanes, "x", step.lanes), taken)
    return _spread(For(outer, (along,)), Spread(outer.name, TILE_ROWS, "y"), taken)


# ---------------------------------------------------------------- barriers


def _barriers(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """``body``, of block-level statements, with a barrier before each that touches what others wrote since the last one."""
    out: list[Stmt] = []
    written: set[int] = set()
    read: set[int] = set()
    for stmt in body:
        if isinstance(stmt, For) and stmt.kind.name != "thread":
            stmt = For(stmt.axis, _barriers(stmt.body), stmt.kind)
            if stmt.kind.name != "block" and _carries(stmt.body):
                stmt = For(stmt.axis, (*stmt.body, Barrier()), stmt.kind)
        elif isinstance(stmt, If):
            stmt = If(stmt.cond, _barriers(stmt.body))
        reads, writes = common_memory((stmt,))
        if not written.isdisjoint(reads | writes) or not read.isdisjoint(writes):
            out.append(Barrier())
            written, read = set(), set()
        written |= writes
        read |= reads
        out.append(stmt)
    return tuple(out)


def common_memory(body: Sequence[Stmt]) -> tuple[set[int], set[int]]:
    """``id`` of the buffers that ``body`` reads, and of those that it writes, which threads have in common."""
    reads = {id(a.buffer) for a in loads(body) if a.buffer.space != "local"}
    return reads, {id(s.buffer) for s in stores(body) if s.buffer.space != "local"}


def _carries(body: Sequence[Stmt]) -> bool:
    """Whether one turn of a loop may meet what another has written."""
    return len([s for s in body if isinstance(s, For)]) > 1 and bool(common_memory(body)[1])
