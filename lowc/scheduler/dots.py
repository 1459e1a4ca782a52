"""The primitive ``Dots``: products added to an array in memory are summed in registers whose lanes go along the depth.

    for k in K { for i in 4 { for j in 96 { s[i*96 + j] add= product(x, y) } } }
      →  for j_t in 24 { for i_t in 1 {
           alloc tile: f32[256] @local = add
           for k_v in K // 16 { for i_r in 4 unroll(4) { for j_r in 4 unroll(4) { for k_l in 16 vector(16) {
             tile[i_r*64 + j_r*16 + k_l] add= product(x, y)
           } } } }
           for i_s in 4 unroll(4) { for j_s in 4 unroll(4) {
             acc dot = add
             for k_m in 16 vector(16) { dot add= tile[i_s*64 + j_s*16 + k_m] }
             for k_r in K % 16 { dot add= product(x, y) }
             s[…] add= dot
           } } } }

For factors that both lie along the depth, and so few rows that packing the columns' factor would not pay.
"""

from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir.index import Axis, Index, ix, mod
from lowc.ir.nodes import Acc, Alloc, Buffer, For, Kind, Load, Op, Stmt, Store, Update, Var
from lowc.ir.walk import Substitution
from lowc.scheduler.contraction import is_product
from lowc.scheduler.nest import chain
from lowc.scheduler.rename import fresh


@dataclass(frozen=True, slots=True)
class Dots:
    """The loop over ``axis``, the depth, is around loops of which a tile has so many iterations each (``sizes``, outermost
    first; they must divide the loops)."""

    axis: str
    sizes: tuple[int, ...]
    lanes: int


def dots(loop: For, step: Dots, taken: set[str]) -> tuple[Stmt, ...]:
    """``loop`` as loops over tiles; raises ScheduleError."""
    loops = chain((loop,))
    add = loops[-1].body[0]
    if len(loops) != 1 + len(step.sizes) or len(loops[-1].body) != 1 or not isinstance(add, Store):
        raise ScheduleError(f"the loop over {step.axis} is not around {len(step.sizes)} loops and one store")
    value = add.value
    if not is_product(value) or not isinstance(value, Op) or add.reducer != "add" or add.mask is not None:
        raise ScheduleError(f"the loop over {step.axis} adds no product to an array")
    own = [f.axis for f in loops[1:]]
    for axis, size in zip(own, step.sizes, strict=True):
        if mod(axis.extent, ix(size)).terms:
            raise ScheduleError(f"{size} does not divide {axis.name}")
    depth, lanes = loop.axis, step.lanes

    def new(of: Axis, suffix: str, extent: Index | int) -> Axis:
        return Axis(fresh(f"{of.name}_{suffix}", taken), ix(extent))

    tiles = [new(a, "t", a.extent // size) for a, size in zip(own, step.sizes, strict=True)]

    def inside(suffix: str) -> tuple[list[Axis], Substitution, Index]:
        """Axes within a tile, what they make of the old ones, and the number of a dot in the tile."""
        axes = [new(a, suffix, size) for a, size in zip(own, step.sizes, strict=True)]
        place, number = Substitution(), ix(0)
        for old, tile, axis, size in zip(own, tiles, axes, step.sizes, strict=True):
            place.atoms[old] = ix(tile) * size + axis
            number = number * size + axis
        return axes, place, number

    def unrolled(axes: list[Axis], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        for axis, size in zip(reversed(axes), reversed(step.sizes), strict=True):
            body = (For(axis, body, Kind("unroll", size)),)
        return body

    count = 1
    for size in step.sizes:
        count *= size
    tile = Buffer(fresh("tile", taken), add.buffer.dtype, (ix(count * lanes),), (ix(1),), "local")
    vector = Kind("vector", lanes)
    strips, lane, again = new(depth, "v", depth.extent // lanes), new(depth, "l", lanes), new(depth, "m", lanes)
    axes, place, number = inside("r")
    place.atoms[depth] = ix(strips) * lanes + lane
    update = Store(tile, (number * lanes + lane,), place.expr(value), None, "add")
    body: list[Stmt] = [Alloc(tile, "add"), For(strips, unrolled(axes, (For(lane, (update,), vector),)))]
    axes, place, number = inside("s")
    dot = Var(fresh("dot", taken), add.buffer.dtype)
    end: list[Stmt] = [
        Acc((dot,), "add"),
        For(again, (Update((dot,), "add", (Load(tile, (number * lanes + again,)),)),), vector),
    ]
    if mod(depth.extent, ix(lanes)).terms:
        rest = new(depth, "r", depth.extent % lanes)
        place.atoms[depth] = depth.extent // lanes * lanes + rest
        end.append(For(rest, (Update((dot,), "add", (place.expr(value),)),)))
    end.append(Store(add.buffer, (place.index(add.index[0]),), dot, None, "add"))
    body += unrolled(axes, tuple(end))
    out = tuple(body)
    for axis in tiles:
        out = (For(axis, out),)
    return out

