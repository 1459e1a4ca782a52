"""The primitive ``Grid``: directly nested loops become one loop over blocks around loops within a block.

    for i in 1000 { for j in 600 { … } }
      →  for i_g in 40 parallel { i_b = idx(i_g // 5); j_b = idx(i_g % 5)
           for i_i in min(128, 1000 - i_b*128) { for j_i in min(128, 600 - j_b*128) { … } } }

One loop, since only one is shared among the cores; the numbers of a block are named, so that they are computed once for each.
Blocks that one core runs (``kind`` is serial) have a loop for each axis instead.
"""

from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir.index import Axis, Index, constant, ix, minimum
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import For, Kind, Stmt
from lowc.ir.walk import Substitution
from lowc.scheduler.conflict import conflict
from lowc.scheduler.nest import chain, nested
from lowc.scheduler.rename import coordinate, fresh


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
    if step.kind.name == "serial":
        numbers = [Axis(fresh(f"{f.axis.name}_g", taken), count) for f, count in zip(loops, counts, strict=True)]
        inside = _block(loops, step.sizes, [ix(n) for n in numbers], taken)
        known = Substitution({n: ix(0) for n in numbers if constant(n.extent) == 1})
        return nested([n for n in numbers if n not in known.atoms], known.body(inside))
    total = ix(1)
    for count in counts:
        total = total * count
    number = Axis(fresh(f"{loop.axis.name}_g", taken), total)
    lets: list[Stmt] = []
    firsts: list[Index] = []
    below = total
    for each, count in zip(loops, counts, strict=True):
        below = ix(1) if count == below else below // count
        firsts.append(coordinate(f"{each.axis.name}_b", ix(number) // below % count, taken, lets))
    body = (*lets, *_block(loops, step.sizes, firsts, taken))
    if constant(total) == 1:
        return Substitution({number: ix(0)}).body(body)
    return (For(number, body, step.kind),)


def _block(loops: list[For], sizes: tuple[int, ...], numbers: list[Index], taken: set[str]) -> tuple[Stmt, ...]:
    """The loops within the block of these ``numbers``."""
    inner: list[Axis] = []
    place = Substitution()
    for each, size, number in zip(loops, sizes, numbers, strict=True):
        if size == 1:
            place.atoms[each.axis] = number
            continue
        extent = constant(each.axis.extent)
        even = extent is not None and extent % size == 0
        own = Axis(
            fresh(f"{each.axis.name}_i", taken), ix(size) if even else minimum(size, each.axis.extent - number * size)
        )
        inner.append(own)
        place.atoms[each.axis] = number * size + own
    return nested(inner, place.body(loops[-1].body))
