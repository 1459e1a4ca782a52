"""The primitive ``Gather``: a few products are summed in a register before they are added to an array in memory.

    for k in K { for j in 512 { s[j] add= product(x, y) } }
      →  for k_o in K // 8 { for j in 512 { acc few = add; for k_f in 8 unroll(8) { few add= product(x, y) }; s[j] add= few } }
         for k_r in K % 8 { for j_r in 512 { s[j_r] add= product(x, y) } }

Eight rows of ``y`` are then read at a time, which caches fetch ahead, and ``s`` is read and written an eighth as often.
"""

from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir.index import Axis, Index, ix, mod
from lowc.ir.nodes import Acc, For, Kind, Stmt, Store, Update, Var
from lowc.ir.walk import Substitution
from lowc.scheduler.contraction import is_product
from lowc.scheduler.nest import chain
from lowc.scheduler.rename import fresh


@dataclass(frozen=True, slots=True)
class Gather:
    """``size`` products at a time, of those that the loop over ``axis`` adds to an array."""

    axis: str
    size: int


def gather(loop: For, step: Gather, taken: set[str]) -> tuple[Stmt, ...]:
    """The two nests for ``loop``; raises ScheduleError."""
    loops = chain((loop,))
    add = loops[-1].body[0]
    if len(loops) < 2 or len(loops[-1].body) != 1 or not isinstance(add, Store) or not is_product(add.value):
        raise ScheduleError(f"the loop over {step.axis} adds no product to an array")
    if add.reducer != "add" or add.mask is not None:
        raise ScheduleError(f"the loop over {step.axis} does more than add to {add.buffer.name}")
    depth, size = loop.axis, step.size

    def new(of: Axis, suffix: str, extent: Index | int) -> Axis:
        return Axis(fresh(f"{of.name}_{suffix}", taken), ix(extent))

    outer, inner = new(depth, "o", depth.extent // size), new(depth, "f", size)
    place = Substitution({depth: ix(outer) * size + inner})
    few = Var(fresh("few", taken), add.buffer.dtype)
    body: tuple[Stmt, ...] = (
        Acc((few,), "add"),
        For(inner, (Update((few,), "add", (place.expr(add.value),)),), Kind("unroll", size)),
        Store(add.buffer, add.index, few, None, "add"),
    )
    for each in reversed(loops[1:]):
        body = (For(each.axis, body, each.kind),)
    out: list[Stmt] = [For(outer, body)]
    if mod(depth.extent, ix(size)).terms:
        rest = new(depth, "r", depth.extent % size)
        again = [new(f.axis, "r", f.axis.extent) for f in loops[1:]]
        place = Substitution({depth: depth.extent // size * size + rest})
        place.atoms.update({f.axis: ix(a) for f, a in zip(loops[1:], again, strict=True)})
        body = (Store(add.buffer, (place.index(add.index[0]),), place.expr(add.value), None, "add"),)
        for axis, each in zip(reversed(again), reversed(loops[1:]), strict=True):
            body = (For(axis, body, each.kind),)
        out.append(For(rest, body))
    return tuple(out)
