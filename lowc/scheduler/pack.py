"""The primitive ``Pack``: one factor of the products under a loop is first copied to scratch memory, in the order of use.

    for k in 256 { for i in 128 { for j in N { s[…] add= product(x[i*K + k], y[k*N + j]) } } }
      →  alloc b_packed: f32[256*N] @local
         for b_panel in … { for b_depth in 256 { for b_lane in 48 { b_packed[b_panel*12288 + b_depth*48 + b_lane] = y[…] } } }
         for k in 256 { … product(x[i*K + k], b_packed[j // 48 * 12288 + k*48 + j % 48]) … }

The whole factor is evaluated there: casts, and what was inlined into it, happen once for each element of the block.  Where the
block ends within a panel (or within ``unit`` rows), the rest of it is set to 0, so that tiles of registers need no masks.
"""

from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir.index import Axis, Index, constant, ix, minimum, mod
from lowc.ir.nodes import Alloc, Buffer, Const, Expr, For, Load, Op, Stmt, Store
from lowc.ir.ops import identity
from lowc.ir.walk import Substitution, free_atoms, has_check
from lowc.scheduler.apply import maximum_size
from lowc.scheduler.contraction import is_product
from lowc.scheduler.nest import chain, nested


@dataclass(frozen=True, slots=True)
class Pack:
    """The factor number ``factor`` of the products in the loop over ``axis``; the new names start with ``name``.

    ``panel``: (along // panel, depth, along % panel) is the order, along the axis that the factor has besides ``axis``; 0:
    (along, depth).  ``unit``: what the length along is rounded up to.  ``room``: elements along, elements deep.
    """

    axis: str
    factor: int
    name: str
    panel: int
    unit: int
    room: tuple[int, int]


def pack(loop: For, step: Pack, taken: set[str]) -> tuple[Stmt, ...]:
    """The copy, and ``loop`` reading it; raises ScheduleError."""
    loops = chain((loop,))
    add = loops[-1].body[0]
    if len(loops[-1].body) != 1 or not isinstance(add, Store) or add.reducer != "add" or not is_product(add.value):
        raise ScheduleError(f"the loop over {step.axis} adds no product to an array")
    value = add.value
    assert isinstance(value, Op)
    factor = value.args[step.factor]
    if has_check(factor):
        raise ScheduleError("a factor that is checked is evaluated where it stands")
    used = free_atoms(factor)
    along = [f.axis for f in loops[1:] if f.axis in used]
    if len(along) != 1 or along[0].name == step.axis:
        raise ScheduleError(f"factor {step.factor} changes with {len(along)} axes besides {step.axis}")
    for axis, room in zip((along[0], loop.axis), step.room, strict=True):
        if (constant(maximum_size(axis.extent)) or 0) > room:
            raise ScheduleError(f"there is room for {room} elements along {axis.name}, which may have more")
    names = [f"{step.name}_{n}" for n in ("packed", "panel", "depth", "lane", "row", "edge", "edge_depth")]
    if not taken.isdisjoint(names):
        raise ScheduleError(f"a name that starts with {step.name}_ is taken")
    taken.update(names)
    width = step.panel or step.unit
    length = -(-step.room[0] // width) * width
    packed = Buffer(names[0], factor.dtype, (ix(length * step.room[1]),), (ix(1),), "local")
    copies = (_panels if step.panel else _rows)(loop.axis, along[0], factor, packed, step)
    args = list(value.args)
    args[step.factor] = _read(loop.axis, along[0], packed, step)
    new = Store(add.buffer, add.index, Op(value.name, tuple(args), value.dtype), add.mask, add.reducer)
    inner = nested([f.axis for f in loops[1:]], (new,))
    return (Alloc(packed), *copies, For(loop.axis, inner, loop.kind))


def _address(step: Pack, panel: Index, lane: Index, row: Index, depth: Index) -> Index:
    if step.panel:
        return panel * (step.room[1] * step.panel) + depth * step.panel + lane
    return row * step.room[1] + depth


def _read(depth: Axis, along: Axis, packed: Buffer, step: Pack) -> Expr:
    a = ix(along)
    panel, lane = (a // step.panel, a % step.panel) if step.panel else (ix(0), ix(0))
    return Load(packed, (_address(step, panel, lane, a, ix(depth)),))


def _panels(depth: Axis, along: Axis, factor: Expr, packed: Buffer, step: Pack) -> list[Stmt]:
    size = step.panel
    panel = Axis(f"{step.name}_panel", (along.extent + (size - 1)) // size)
    down = Axis(f"{step.name}_depth", depth.extent)
    even = not mod(along.extent, ix(size)).terms
    here = ix(size) if even else minimum(size, along.extent - ix(panel) * size)
    lane = Axis(f"{step.name}_lane", here)
    value = Substitution({depth: ix(down), along: ix(panel) * size + lane}).expr(factor)
    place = _address(step, ix(panel), ix(lane), ix(0), ix(down))
    body: list[Stmt] = list(nested([panel, down, lane], (Store(packed, (place,), value),)))
    if not even:
        # only the last panel can have an edge, and has the length modulo ``size`` before it
        edge = Axis(f"{step.name}_edge", (along.extent + (size - 1)) // size * size - along.extent)
        again = Axis(f"{step.name}_edge_depth", depth.extent)
        last = along.extent // size
        beyond = _address(step, last, along.extent % size + edge, ix(0), ix(again))
        body += nested([again, edge], (Store(packed, (beyond,), Const(identity("add", packed.dtype), packed.dtype)),))
    return body


def _rows(depth: Axis, along: Axis, factor: Expr, packed: Buffer, step: Pack) -> list[Stmt]:
    row, down = Axis(f"{step.name}_row", along.extent), Axis(f"{step.name}_depth", depth.extent)
    value = Substitution({depth: ix(down), along: ix(row)}).expr(factor)
    place = _address(step, ix(0), ix(0), ix(row), ix(down))
    body: list[Stmt] = list(nested([row, down], (Store(packed, (place,), value),)))
    unit = step.unit
    if mod(along.extent, ix(unit)).terms:
        missing = (along.extent + (unit - 1)) // unit * unit - along.extent
        edge, again = Axis(f"{step.name}_edge", missing), Axis(f"{step.name}_edge_depth", depth.extent)
        beyond = _address(step, ix(0), ix(0), along.extent + edge, ix(again))
        body += nested([edge, again], (Store(packed, (beyond,), Const(identity("add", packed.dtype), packed.dtype)),))
    return body
