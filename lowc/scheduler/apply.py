"""Carrying out a Schedule: primitives that each check that the meaning stays, and raise ScheduleError if it would not.

Works on SCHEDULED kernels (linear addresses).  Loops are named by their axis; names are unique in a kernel.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir.index import (
    Axis,
    Index,
    constant,
    ix,
    minimum,
    mod,
    multiple_of,
    split,
    upper_bound,
)
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import (
    Acc,
    Alloc,
    Buffer,
    Expr,
    For,
    If,
    Kernel,
    Kind,
    Let,
    Load,
    Stmt,
    Store,
    Update,
    Var,
)
from lowc.ir.pairs import neighbours
from lowc.ir.scan import running
from lowc.ir.types import DType
from lowc.ir.walk import (
    Substitution,
    exprs,
    make_kernel,
    map_exprs,
    names,
    parts,
    rewrite,
    statements,
)
from lowc.scheduler.conflict import bind
from lowc.scheduler.partial import Partial, partial
from lowc.scheduler.rename import fresh
from lowc.scheduler.sums import outer_rows, outer_sums, own_accumulators, own_rows, row_loop


@dataclass(frozen=True, slots=True)
class Split:
    """``axis`` becomes ``axis_o`` over chunks of ``size`` and ``axis`` within a chunk."""

    axis: str
    size: int


@dataclass(frozen=True, slots=True)
class Reorder:
    """Directly nested loops in the order of ``axes``, outermost first.

    Precondition, which is not checked: of the nest's iterations no two touch one element if either writes it.
    """

    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """The sums over ``axis`` in blocks of ``sizes[0]`` iterations, ``sizes[1]`` of which make a block of the next level …: each
    block has accumulators of its own, which are then added to those of the next level.  Sums that the loop reads (scans) stay."""

    axis: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Interchange:
    """The reduction inside the loop over ``axis`` moves outside: its accumulators become arrays over ``axis``.

    The loops over ``axis`` are bound to ``kind``.
    """

    axis: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Tile:
    """Square tiles of ``size`` over the two innermost axes of a map; loads that are contiguous along ``rows`` are
    transposed in tiles.

    ``strip`` tiles below one another come before those beside them.  ``unroll``: the rows of a tile are unrolled, which lets
    it stay in registers.
    """

    rows: str
    columns: str
    size: int
    lanes: int
    strip: int
    unroll: bool


@dataclass(frozen=True, slots=True)
class Bind:
    axis: str
    kind: Kind


Primitive = Split | Reorder | Block | Partial | Interchange | Tile | Bind
Schedule = tuple[Primitive, ...]


def apply(kernel: Kernel, schedule: Schedule) -> Kernel:
    """``kernel`` with each primitive of ``schedule`` carried out in turn; raises ScheduleError."""
    body = kernel.body
    for step in schedule:
        body = _apply(body, step)
    return make_kernel(kernel.name, body, kernel.params) if schedule else kernel


def _apply(body: tuple[Stmt, ...], step: Primitive) -> tuple[Stmt, ...]:
    if isinstance(step, Split):
        return at_loop(body, step.axis, lambda loop: _split(loop, step.size, names(body)))
    if isinstance(step, Reorder):
        return at_loop(body, _outermost(body, step.axes), lambda loop: _reorder(loop, step.axes))
    if isinstance(step, Block):
        return at_loop(body, step.axis, lambda loop: _block(loop, step.sizes, names(body)))
    if isinstance(step, Partial):
        return partial(body, step)
    if isinstance(step, Interchange):
        return at_loop(body, step.axis, lambda loop: _interchange(loop, step, names(body)))
    if isinstance(step, Tile):
        return at_loop(body, step.rows, lambda loop: tiled(loop, step, names(body)))
    return at_loop(body, step.axis, lambda loop: (bind(loop, step.kind),))


def at_loop(body: Sequence[Stmt], axis: str, change: Callable[[For], Sequence[Stmt]]) -> tuple[Stmt, ...]:
    """``body`` with the loop over ``axis`` replaced."""
    out, found = _replace(body, axis, change)
    if not found:
        raise ScheduleError(f"no loop over {axis}")
    return out


def _replace(body: Sequence[Stmt], axis: str, change: Callable[[For], Sequence[Stmt]]) -> tuple[tuple[Stmt, ...], bool]:
    out: list[Stmt] = []
    found = False
    for stmt in body:
        if not found and isinstance(stmt, For | If):
            if isinstance(stmt, For) and stmt.axis.name == axis:
                out.extend(change(stmt))
                found = True
                continue
            inner, found = _replace(stmt.body, axis, change)
            if found:
                stmt = For(stmt.axis, inner, stmt.kind) if isinstance(stmt, For) else If(stmt.cond, inner)
        out.append(stmt)
    return tuple(out), found


# ---------------------------------------------------------------- primitives


def _split(loop: For, size: int, taken: set[str]) -> tuple[Stmt, ...]:
    outer, inner, position = split_axes(loop.axis, size, taken)
    body = Substitution({loop.axis: position}).body(loop.body)
    return (For(outer, (For(inner, body, loop.kind),)),)


def split_axes(axis: Axis, size: int, taken: set[str]) -> tuple[Axis, Axis, Index]:
    """(outer axis, inner axis, what the old axis is in terms of them)."""
    outer = Axis(fresh(f"{axis.name}_o", taken), (axis.extent + (size - 1)) // size)
    left = axis.extent - ix(outer) * size
    whole = multiple_of(axis.extent, size)
    inner = Axis(fresh(f"{axis.name}_i", taken), ix(size) if whole else minimum(size, left))
    return outer, inner, ix(outer) * size + inner


def _outermost(body: Sequence[Stmt], axes: Sequence[str]) -> str:
    for stmt in statements(body):
        if isinstance(stmt, For) and stmt.axis.name in axes:
            return stmt.axis.name
    raise ScheduleError(f"no loop over any of {', '.join(axes)}")


def _reorder(loop: For, axes: tuple[str, ...]) -> tuple[Stmt, ...]:
    chain: dict[str, For] = {}
    inner: tuple[Stmt, ...] = (loop,)
    while len(chain) < len(axes) and len(inner) == 1 and isinstance(inner[0], For):
        chain[inner[0].axis.name] = inner[0]
        inner = inner[0].body
    if set(chain) != set(axes):
        raise ScheduleError(f"loops over {', '.join(axes)} are not directly nested")
    own = {s.vars[0].name for s in statements(inner) if isinstance(s, Acc)}
    for stmt in statements(inner):
        if isinstance(stmt, Update) and stmt.vars[0].name not in own:
            raise ScheduleError(f"reordering would change the order in which {stmt.vars[0].name} is updated")
    for name in reversed(axes):
        inner = (For(chain[name].axis, inner, chain[name].kind),)
    return inner


def _block(loop: For, sizes: tuple[int, ...], taken: set[str]) -> tuple[Stmt, ...]:
    updates, rows = outer_sums(loop), outer_rows(loop)
    if not updates and not rows:
        raise ScheduleError(f"the loop over {loop.axis.name} updates no sum from outside, or is a scan")
    outer, inner, position = split_axes(loop.axis, sizes[0], taken)
    accs, rename = own_accumulators(updates, taken)
    rename.atoms[loop.axis] = position
    own = own_rows(rows, rename, taken)
    body = For(inner, rename.body(loop.body), loop.kind)
    allocs = [Alloc(own[id(r)], "add") for r in rows]
    combine: list[Stmt] = [Update(u.vars, u.reducer, a.vars) for u, a in zip(updates, accs, strict=True)]
    for row in rows:
        along = row_loop(loop, row)
        assert along is not None
        axis = Axis(fresh(along.axis.name, taken), row.shape[0])
        add = Store(row, (ix(axis),), Load(own[id(row)], (ix(axis),)), None, "add")
        combine.append(For(axis, (add,), along.kind))
    out = For(outer, (*accs, *allocs, body, *combine))
    return _block(out, sizes[1:], taken) if sizes[1:] else (out,)


def _interchange(loop: For, step: Interchange, taken: set[str]) -> tuple[Stmt, ...]:
    """for j { acc s; for k { s add= e }; out[j] = s }  →  alloc s[J] = add; for k { for j { s[j] add= e } }; for j { out[j]
    = s[j] }"""
    size = loop.axis.extent
    inner = [s for s in loop.body if isinstance(s, For)]
    if len(inner) != 1:
        raise ScheduleError(f"the loop over {loop.axis.name} has not one reduction but {len(inner)}")
    reduction = inner[0]
    if running(reduction):
        raise ScheduleError(f"the loop over {reduction.axis.name} is a scan")
    before = loop.body[: loop.body.index(reduction)]
    after = loop.body[len(before) + 1 :]
    accs = [s for s in before if isinstance(s, Acc) and len(s.vars) == 1]
    if len(accs) != len(before) or not all(isinstance(s, Let | Update) for s in reduction.body):
        raise ScheduleError(f"the loop over {loop.axis.name} does more than reduce")
    limit = maximum_size(size)
    totals = {a.vars[0].name: _row(a, limit, taken) for a in accs}
    out: list[Stmt] = [Alloc(totals[a.vars[0].name], a.reducer) for a in accs]
    out.append(For(reduction.axis, (_accumulate(loop, reduction.body, totals, step.kind, taken),)))
    last = Substitution(variables={})
    last.variables = {name: Load(row, (ix(loop.axis),)) for name, row in totals.items()}
    out.append(bind(For(loop.axis, last.body(after)), step.kind))
    return tuple(out)


def maximum_size(size: Index) -> Index:
    """The largest value of ``size``, a number; raises ScheduleError if it has none."""
    top = upper_bound(size)
    if top is None:
        raise ScheduleError(f"no array can be allocated for {size} accumulators")
    return ix(top)


def _row(acc: Acc, size: Index, taken: set[str]) -> Buffer:
    return Buffer(fresh(f"{acc.vars[0].name}_row", taken), acc.vars[0].dtype, (size,), (ix(1),), "local")


def _accumulate(
    loop: For, body: Sequence[Stmt], rows: dict[str, Buffer], kind: Kind, taken: set[str]
) -> For:
    """The loop over the columns that adds one row of the reduction to ``rows``."""
    axis = Axis(fresh(loop.axis.name, taken), loop.axis.extent)
    rename = Substitution({loop.axis: ix(axis)})
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Let):
            var = Var(fresh(stmt.var.name, taken), stmt.var.dtype)
            out.append(Let(var, rename.expr(stmt.value)))
            rename.rename(stmt.var.name, var)
            rename.memo.clear()
        elif isinstance(stmt, Update):
            mask = None if stmt.mask is None else rename.expr(stmt.mask)
            out.append(Store(rows[stmt.vars[0].name], (ix(axis),), rename.expr(stmt.values[0]), mask, stmt.reducer))
    return bind(For(axis, tuple(out)), kind)


def tiled(loop: For, step: Tile, taken: set[str]) -> tuple[Stmt, ...]:
    """for i { for j { y[i*J + j] = x[j*I + i] } } in tiles: x is read along i into a buffer that is then read along j.

    Full tiles are an ``instr(transpose)`` nest (the backend may shuffle in registers); what is left over at the edges is done by
    plain loops.  The loop over strips has the kind of the loop over rows.
    """
    columns = loop.body[0] if len(loop.body) == 1 else None
    if not isinstance(columns, For) or loop.axis.name != step.rows or columns.axis.name != step.columns:
        raise ScheduleError(f"loops over {step.rows} and {step.columns} are not directly nested")
    height, width = loop.axis.extent, columns.axis.extent
    size = step.size
    full_rows, full_columns = height // size, width // size
    if not full_rows.terms or not full_columns.terms:
        raise ScheduleError(f"no tile of {size} fits into {height} x {width}")
    if loop.axis in index_atoms(width):
        raise ScheduleError(f"the extent of {columns.axis.name} depends on {loop.axis.name}")
    out: list[Stmt] = []
    high = min(step.strip, constant(full_rows) or step.strip)
    row_block = Axis(fresh(f"{step.rows}_o", taken), (full_rows + (high - 1)) // high)
    even = constant(full_rows) is not None and not (full_rows % high).terms
    row_tile = Axis(fresh(f"{step.rows}_t", taken), ix(high) if even else minimum(high, full_rows - ix(row_block) * high))
    column_tile = Axis(fresh(f"{step.columns}_o", taken), full_columns)
    row, column = Axis(fresh(step.rows, taken), ix(size)), Axis(fresh(step.columns, taken), ix(size))
    row_position = (ix(row_block) * high + (row_tile if high > 1 else 0)) * size + row
    place = Substitution({loop.axis: row_position, columns.axis: ix(column_tile) * size + column})
    body = place.body(columns.body)
    staged = staged_loads(body, row, column, size * size, "local", taken)
    fills: list[Stmt] = []
    for buffer, part in {id(b): (b, p) for b, p in staged.values()}.values():
        fill_row, fill_column = Axis(fresh(step.rows, taken), ix(size)), Axis(fresh(step.columns, taken), ix(size))
        source = Substitution({row: ix(fill_row), column: ix(fill_column)}).expr(part)
        store = Store(buffer, (ix(fill_row) * size + fill_column,), source)
        fills.append(Alloc(buffer))
        fills.append(For(fill_column, (For(fill_row, (store,)),), Kind("instr", 0, "transpose")))
    inner = from_tiles(body, staged, ix(row) * size + column)
    rows_kind = Kind("unroll", size) if step.unroll else Kind()
    tile = (*fills, For(row, (bind(For(column, inner), Kind("vector", step.lanes)),), rows_kind))
    strip = (For(row_tile, tile),) if high > 1 else tile
    out.append(For(row_block, (For(column_tile, strip),), loop.kind))
    below, beside = mod(height, ix(size)), mod(width, ix(size))
    if beside.terms:
        out.append(_rest(loop, columns, (ix(0), full_rows * size), (full_columns * size, beside), taken))
    if below.terms:
        out.append(_rest(loop, columns, (full_rows * size, below), (ix(0), width), taken))
    return tuple(out)


def staged_loads(
    body: Sequence[Stmt], row: Axis, column: Axis, count: int, space: str, taken: set[str]
) -> dict[int, tuple[Buffer, Expr]]:
    """By ``id``, the loads of ``body`` (and pairs of neighbours) that ``_transposed`` tells, each with the tile of ``count``
    elements that it shall come from: one for equal loads."""
    staged: dict[int, tuple[Buffer, Expr]] = {}
    tiles: dict[tuple[int, tuple[Index, ...], DType], Buffer] = {}
    for part in {id(p): p for s in statements(body) for e in exprs(s) for p in parts(e)}.values():
        first = neighbours(part) or part
        step = 1 if first is part else part.dtype.bits // first.dtype.bits
        if isinstance(first, Load) and first.mask is None and _transposed(first, row, column, step):
            key = id(first.buffer), first.index, part.dtype
            if key not in tiles:
                name = fresh(f"{first.buffer.name}_tile", taken)
                tiles[key] = Buffer(name, part.dtype, (ix(count),), (ix(1),), space)
            staged[id(part)] = (tiles[key], part)
    return staged


def from_tiles(body: Sequence[Stmt], staged: dict[int, tuple[Buffer, Expr]], place: Index) -> tuple[Stmt, ...]:
    """``body`` with the staged loads read from their tiles, at ``place``."""
    memo: dict[int, Expr] = {key: Load(tile, (place,)) for key, (tile, _) in staged.items()}
    return tuple([map_exprs(s, lambda e: rewrite(e, lambda p: p, memo)) for s in body])


def _transposed(load: Load, row: Axis, column: Axis, step: int) -> bool:
    """Whether ``load`` is contiguous along ``row``, every ``step``-th element, and strided along ``column``."""
    along, rest = split(load.index[0], row)
    across, rest = split(rest, column)
    return (
        constant(along) == step
        and constant(across) not in (0, 1)
        and row not in index_atoms(rest)
        and column not in index_atoms(rest)
        and row not in index_atoms(across)
    )


def _rest(rows: For, columns: For, height: tuple[Index, Index], width: tuple[Index, Index], taken: set[str]) -> For:
    """The loops over a rectangle of (first row, rows) and (first column, columns), without tiles; names in the body
    made fresh."""
    row, column = Axis(fresh(rows.axis.name, taken), height[1]), Axis(fresh(columns.axis.name, taken), width[1])
    place = Substitution({rows.axis: ix(row) + height[0], columns.axis: ix(column) + width[0]})
    for stmt in columns.body:
        if isinstance(stmt, Let):
            place.rename(stmt.var.name, Var(fresh(stmt.var.name, taken), stmt.var.dtype))
    return For(row, (For(column, place.body(columns.body)),))
