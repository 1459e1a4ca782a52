"""The primitive ``Grid``: directly nested loops become one loop over blocks around loops within a block.

    for i in 1000 { for j in 600 { … } }
      →  for i_g in 40 parallel { i_at = idx(i_g // 5 * 128); j_at = idx(i_g % 5 * 128)
           for i_i in min(128, 1000 - i_at) { for j_i in min(128, 600 - j_at) { … } } }

One loop, since only one is shared among the cores; where a block starts is named, so that it is computed once for each.
"""

from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir.index import Axis, Index, Opaque, constant, ix, minimum
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import For, FromIndex, Kind, Let, Stmt, Var
from lowc.ir.types import i64
from lowc.ir.walk import Substitution
from lowc.scheduler.apply import conflict
from lowc.scheduler.nest import chain, nested
from lowc.scheduler.rename import fresh


@dataclass(frozen=True, slots=True)
class Grid:
    """``sizes`` of a block along ``axes``, which are the outermost loops in this order; the loop over blocks is of ``kind``.

    Along axis ``i`` a block has the loop ``i_i``, and none if its size is 1.
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    kind: Kind


def grid(loop: For, step: Grid, taken: set[str]) -> tuple[Stmt, ...]:
    """``loop`` and those directly inside it by blocks; raises ScheduleError."""
    loops = chain((loop,))[: len(step.axes)]
    if tuple(f.axis.name for f in loops) != step.axes:
        raise ScheduleError(f"loops over {', '.join(step.axes)} are not directly nested")
    axes = {f.axis for f in loops}
    for each in loops:
        if why := conflict(each, step.kind):
            raise ScheduleError(f"blocks of {each.axis.name} meet: {why}")
        if not axes.isdisjoint(index_atoms(each.axis.extent)):
            raise ScheduleError(f"the extent of {each.axis.name} depends on another axis of the grid")
    counts = [(f.axis.extent + (size - 1)) // size for f, size in zip(loops, step.sizes, strict=True)]
    total = ix(1)
    for count in counts:
        total = total * count
    number = Axis(fresh(f"{loop.axis.name}_g", taken), total)
    lets: list[Stmt] = []
    inner: list[Axis] = []
    place = Substitution()
    below = total
    for each, size, count in zip(loops, step.sizes, counts, strict=True):
        below = ix(1) if count == below else below // count
        first = _named(ix(number) // below % count * size, each.axis.name, taken, lets)
        if size == 1:
            place.atoms[each.axis] = first
            continue
        extent = constant(each.axis.extent)
        even = extent is not None and extent % size == 0
        own = Axis(fresh(f"{each.axis.name}_i", taken), ix(size) if even else minimum(size, each.axis.extent - first))
        inner.append(own)
        place.atoms[each.axis] = first + own
    body = (*lets, *nested(inner, place.body(loops[-1].body)))
    if constant(total) == 1:
        return Substitution({number: ix(0)}).body(body)
    return (For(number, body, step.kind),)


def _named(index: Index, axis: str, taken: set[str], lets: list[Stmt]) -> Index:
    """``index`` as the coordinate that a let holds, unless it is a number."""
    if constant(index) is not None:
        return index
    var = Var(fresh(f"{axis}_at", taken), i64)
    lets.append(Let(var, FromIndex(index, i64)))
    return ix(Opaque(var.name))
