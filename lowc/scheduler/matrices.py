"""The primitive ``Matrices``: products added to an array in memory become products of tiles by the matrix unit.

    for k in 512 { for i in 256 { for j in 96 { s[i*96 + j] add= dot2(x, y) } } }
      →  for j_t in 3 { for i_t in 8 {
           for i_r in 32 instr(amx) { for j_r in 32 { for k in 512 { s[(i_t*32 + i_r)*96 + j_t*32 + j_r] add= dot2(x, y) } } }
         } }

``ir/matrices.py`` says what the instruction is.  Tiles are always whole: where one hangs over the edge of the loops, memory must
go on (what is packed, and the array, have room).
"""

from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir.index import Axis, Index, constant, ix, mod
from lowc.ir.matrices import AMX, matrix_product
from lowc.ir.nodes import For, Kind, Op, Stmt, Store
from lowc.ir.walk import Substitution, free_atoms
from lowc.scheduler.nest import nested
from lowc.scheduler.registers import added, count_tiles, inside, loads_inside
from lowc.scheduler.rename import fresh


@dataclass(frozen=True, slots=True)
class Matrices:
    """The loop over ``axis`` is around loops over rows and columns; a product has ``rows`` and ``columns`` of them.

    ``roomy``: names of memory that has room for whole tiles, which never reach beyond it."""

    axis: str
    rows: int
    columns: int
    roomy: tuple[str, ...] = ()


def matrices(loop: For, step: Matrices, taken: set[str]) -> tuple[Stmt, ...]:
    """``loop`` as loops over products of tiles; raises ScheduleError."""
    i, j, add, product = added(loop)

    def axis(of: Axis, suffix: str, extent: Index | int) -> Axis:
        return Axis(fresh(f"{of.name}_{suffix}", taken), ix(extent))

    above, beside = axis(i, "t", count_tiles(i, step.rows)), axis(j, "t", count_tiles(j, step.columns))
    row, column = axis(i, "r", step.rows), axis(j, "r", step.columns)
    place = Substitution({i: ix(above) * step.rows + row, j: ix(beside) * step.columns + column})
    where = place.index(add.index[0])
    inside(add.buffer, where)
    value = place.expr(product)
    assert isinstance(value, Op)
    for factor in value.args:
        used = free_atoms(factor)
        if any(a in used and mod(b.extent, ix(n)).terms for a, b, n in ((row, i, step.rows), (column, j, step.columns))):
            loads_inside(factor, step.roomy)
    one = For(loop.axis, (Store(add.buffer, (where,), value, add.mask, add.reducer),), loop.kind)
    nest = For(row, (For(column, (one,)),), Kind("instr", 0, AMX))
    if matrix_product(nest) is None:
        raise ScheduleError(f"the matrix unit cannot do the loop over {step.axis}")
    known = Substitution({a: ix(0) for a in (beside, above) if constant(a.extent) == 1})
    return nested([a for a in (beside, above) if a not in known.atoms], known.body((nest,)))
