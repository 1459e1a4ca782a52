"""The primitive ``Registers``: products added to an array in memory are first summed in a tile of registers.

    for k in 256 { for i in 128 { for j in 96 { s[i*96 + j] add= product(x, y) } } }
      →  for j_t in 2 { for i_t in 16 {
           alloc tile: f32[384] @local = add
           for k in 256 {
             alloc line: f32[48] @local
             for j_l in 48 vector(16, 3) { line[j_l] = y }
             for i_r in 8 unroll(8) { x_r = x; for j_r in 48 vector(16, 3) { tile[i_r*48 + j_r] add= product(x_r, line[j_r]) } }
           }
           for i_s in 8 unroll(8) { for j_s in 48 vector(16, 3) { s[…] add= tile[i_s*48 + j_s] } } } }

A backend keeps ``tile`` and ``line`` in registers, as all places in them are known once loops are unrolled.  Tiles are always
whole: where one hangs over the edge of the loops, memory must go on (what is packed, and the array, have room).
"""

from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir.index import (
    Axis,
    Index,
    Opaque,
    constant,
    ix,
    lower_bound,
    minimum,
    mod,
    substitute,
    upper_bound,
)
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import Alloc, Buffer, Expr, For, FromIndex, Kind, Let, Load, Op, Stmt, Store, Var
from lowc.ir.pairs import neighbours, packed
from lowc.ir.types import i64
from lowc.ir.walk import Substitution, free_atoms, parts, rewrite
from lowc.scheduler.contraction import is_product
from lowc.scheduler.nest import chain, nested
from lowc.scheduler.rename import fresh


@dataclass(frozen=True, slots=True)
class Registers:
    """The loop over ``axis`` is around loops over rows and columns; a tile has ``rows`` and ``columns`` of them, in vectors of
    ``lanes``.

    ``roomy``: names of memory that has room for whole tiles, which never reach beyond it.  ``soon``: while a panel is used, the
    next one is asked for.
    """

    axis: str
    rows: int
    columns: int
    lanes: int
    roomy: tuple[str, ...] = ()
    soon: "Soon | None" = None


@dataclass(frozen=True, slots=True)
class Soon:
    """The panel behind one starts ``distance`` elements further on.  It is used for ``turns`` tiles below one another, each of
    which asks for its share; ``turn``: the axis that numbers them (if there is none such, the new one)."""

    distance: int
    turns: int
    turn: str = ""


def registers(loop: For, step: Registers, taken: set[str]) -> tuple[Stmt, ...]:
    """``loop`` as loops over tiles; raises ScheduleError."""
    i, j, add, value = added(loop)
    used = [free_atoms(a) for a in value.args]
    left = 0 if j not in used[0] else 1
    if j in used[left] or i in used[1 - left] or add.reducer != "add" or add.mask is not None:
        raise ScheduleError("each factor must belong to the rows or to the columns")
    vectors = Kind("vector", step.lanes, "", step.columns // step.lanes)
    unroll = Kind("unroll", step.rows)

    def axis(of: Axis, suffix: str, extent: Index | int) -> Axis:
        return Axis(fresh(f"{of.name}_{suffix}", taken), ix(extent))

    above = axis(i, "t", count_tiles(i, step.rows))
    beside = axis(j, "t", count_tiles(j, step.columns))

    def at(row: Axis | None, column: Axis | None) -> Substitution:
        place = Substitution()
        if row is not None:
            place.atoms[i] = ix(above) * step.rows + row
        if column is not None:
            place.atoms[j] = ix(beside) * step.columns + column
        return place

    tile = Buffer(fresh("tile", taken), add.buffer.dtype, (ix(step.rows * step.columns),), (ix(1),), "local")
    line = Buffer(fresh("line", taken), value.args[1 - left].dtype, (ix(step.columns),), (ix(1),), "local")
    filled, row, column = axis(j, "l", step.columns), axis(i, "r", step.rows), axis(j, "r", step.columns)
    filled_y = at(None, filled).expr(value.args[1 - left])
    one = Var(fresh(f"{i.name}_x", taken), value.args[left].dtype)
    x = at(row, None).expr(value.args[left])
    if mod(i.extent, ix(step.rows)).terms:
        loads_inside(x, step.roomy)
    if mod(j.extent, ix(step.columns)).terms:
        loads_inside(filled_y, step.roomy)
    starts: list[Stmt] = []
    x, filled_y = (_from_start(e, {loop.axis, row, filled}, taken, starts) for e in (x, filled_y))
    asked = () if step.soon is None else _ask(step.soon, step, loop.axis, (value.args[left], filled_y), filled, above, taken)
    product = Op(value.name, (one, Load(line, (ix(column),))), value.dtype)
    add_row = Store(tile, (ix(row) * step.columns + column,), product, None, "add")
    deep = (
        *asked,
        Alloc(line),
        For(filled, (Store(line, (ix(filled),), filled_y),), vectors),
        For(row, (Let(one, x), For(column, (add_row,), vectors)), unroll),
    )
    down, across = axis(i, "s", step.rows), axis(j, "s", step.columns)
    place = at(down, across).index(add.index[0])
    done = Store(add.buffer, (place,), Load(tile, (ix(down) * step.columns + across,)), None, "add")
    inside(add.buffer, place)
    body: tuple[Stmt, ...] = (
        Alloc(tile, "add"),
        *starts,
        For(loop.axis, deep, loop.kind),
        For(down, (For(across, (done,), vectors),), unroll),
    )
    known = Substitution({a: ix(0) for a in (beside, above) if constant(a.extent) == 1})
    return nested([a for a in (beside, above) if a not in known.atoms], known.body(body))


def added(loop: For) -> tuple[Axis, Axis, Store, Op]:
    """(rows, columns, the store, the product that it adds) of products added to an array in ``loop``; raises ScheduleError."""
    loops = chain((loop,))
    add = loops[-1].body[0]
    if len(loops) != 3 or len(loops[-1].body) != 1 or not isinstance(add, Store) or not is_product(add.value):
        raise ScheduleError(f"the loop over {loop.axis.name} adds no product to an array along two axes")
    assert isinstance(add.value, Op)
    return loops[1].axis, loops[2].axis, add, add.value


def count_tiles(axis: Axis, size: int) -> Index:
    """How many tiles of ``size`` a loop over ``axis`` is."""
    low, high = lower_bound(axis.extent), upper_bound(axis.extent)
    one = low is not None and high is not None and low >= 1 and high <= size
    return ix(1) if one else (axis.extent + (size - 1)) // size


def _from_start(expr: Expr, axes: set[Axis], taken: set[str], starts: list[Stmt]) -> Expr:
    """``expr``, if it is a load, or neighbours (with bits changed), from an address that is named outside of the loops over
    ``axes``: where strides are symbols it takes several multiplications, which nobody would move out of them."""
    wrapped = packed(expr)
    first = expr if wrapped is None else neighbours(wrapped)
    if not isinstance(first, Load) or first.mask is not None:
        return expr
    terms = first.index[0].terms
    fixed = Index(tuple([t for t in terms if axes.isdisjoint(index_atoms(Index((t,))))]))
    if constant(fixed) is not None:
        return expr
    start = Var(fresh(f"{first.buffer.name}_at", taken), i64)
    starts.append(Let(start, FromIndex(fixed, i64)))
    place = first.index[0] - fixed + Opaque(start.name)
    if wrapped is None:
        return Load(first.buffer, (place,))
    new = Op(wrapped.name, tuple([Load(first.buffer, (place + n,)) for n in range(len(wrapped.args))]), wrapped.dtype)
    return rewrite(expr, lambda e: e, {id(wrapped): new})


def _ask(
    soon: Soon, step: Registers, depth: Axis, factors: tuple[Expr, Expr], filled: Axis, above: Axis, taken: set[str]
) -> tuple[Stmt, ...]:
    """A let of no use but that it asks for a part of the next panel: in each iteration of the depth, that of this tile."""
    x, y = factors
    if not isinstance(y, Load):
        return ()
    start = substitute(y.index[0], {depth: ix(0), filled: ix(0)})
    around = next((a for a in free_atoms(x) if isinstance(a, Axis) and a.name == soon.turn), above)
    place = start + soon.distance + (ix(around) * depth.extent + depth) * -(-step.columns // soon.turns)
    here = substitute(y.index[0], {filled: ix(0)})
    wanted = Load(y.buffer, (minimum(place, y.buffer.shape[0] - 1),))
    return (Let(Var(fresh("asked", taken), y.dtype), Op("soon", (Load(y.buffer, (here,)), wanted), y.dtype)),)


def loads_inside(expr: Expr, roomy: tuple[str, ...]) -> None:
    for part in parts(expr):
        if isinstance(part, Load) and part.buffer.name not in roomy:
            inside(part.buffer, part.index[0])


def inside(buffer: Buffer, place: Index) -> None:
    """Raises ScheduleError unless ``place`` is surely one of the buffer's."""
    size, low, high = constant(buffer.shape[0]), lower_bound(place), upper_bound(place)
    if size is None or low is None or high is None or low < 0 or high >= size:
        raise ScheduleError(f"tiles of registers reach beyond {buffer.name}")
