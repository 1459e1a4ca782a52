"""The primitive ``Outward``: the sum inside a nest moves outside of it, into an array of accumulators.

    for i in 128 { for j in 96 { acc s = add; for k in K { s add= product(x, y) }; out[…] = f(s) } }
      →  alloc s_block: f32[12288] @local = add
         for k in K { for i_a in 128 { for j_a in 96 { s_block[i_a*96 + j_a] add= product(x, y) } } }
         for i in 128 { for j in 96 { out[…] = f(s_block[i*96 + j]) } }

The array has room for ``room`` elements along each axis, which may be more than the loops want (a tile of registers that hangs
over the edge then has a place for what nobody reads).
"""

from dataclasses import dataclass
from math import prod

from lowc.errors import ScheduleError
from lowc.ir.index import Axis, Index, constant, ix
from lowc.ir.nodes import Alloc, Buffer, For, Load, Stmt, Store, Update
from lowc.ir.walk import Substitution
from lowc.scheduler.apply import maximum_size
from lowc.scheduler.contraction import folded, innermost
from lowc.scheduler.nest import chain, nested
from lowc.scheduler.rename import fresh


@dataclass(frozen=True, slots=True)
class Outward:
    axes: tuple[str, ...]
    room: tuple[int, ...]


def outward(loop: For, step: Outward, taken: set[str]) -> tuple[Stmt, ...]:
    """``loop`` and those directly inside it with their sum outside; raises ScheduleError."""
    loops = chain((loop,))
    if tuple(f.axis.name for f in loops) != step.axes:
        raise ScheduleError(f"loops over {', '.join(step.axes)} are not directly nested")
    found = innermost(loops[-1].body)
    if found is None:
        raise ScheduleError(f"the loops over {', '.join(step.axes)} are around no sum of products")
    acc, depth, rest = found
    for each, room in zip(loops, step.room, strict=True):
        if (constant(maximum_size(each.axis.extent)) or 0) > room:
            raise ScheduleError(f"{room} elements are too few for {each.axis.name}")
    update = depth.body[-1]
    assert isinstance(update, Update)
    total = acc.vars[0]
    block = Buffer(fresh(f"{total.name}_block", taken), total.dtype, (ix(prod(step.room)),), (ix(1),), "local")
    own = [Axis(fresh(f"{f.axis.name}_a", taken), f.axis.extent) for f in loops]
    rename = Substitution({f.axis: ix(a) for f, a in zip(loops, own, strict=True)})
    value = rename.expr(folded(depth.body[:-1], update.values[0]))
    add = Store(block, (_place(own, step.room),), value, None, acc.reducer)
    accumulate = For(depth.axis, nested(own, (add,)), depth.kind)
    read = Substitution(variables={total.name: Load(block, (_place([f.axis for f in loops], step.room),))})
    return (
        Alloc(block, acc.reducer),
        accumulate,
        *nested([f.axis for f in loops], read.body(rest)),
    )


def _place(axes: list[Axis], room: tuple[int, ...]) -> Index:
    place = ix(0)
    for axis, size in zip(axes, room, strict=True):
        place = place * size + axis
    return place

