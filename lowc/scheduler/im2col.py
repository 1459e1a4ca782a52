"""im2col: SCHEDULED → SCHEDULED, for GPUs whose engine copies places.  A convolution becomes a product of matrices.

    for n { for h { for w { for o in O {                      for p in N*H*W { for o in O {
      acc s = add                                               acc s = add
      for c in C { for a in 3 { for b in 3 {             →      for k in 9*C {                     # tap, then channel
        s add= product(f32(x[n, h+a-1, w+b-1, c if …]),           s add= product(f32(x[… if …]), f32(y[o, k // C, k % C]))
                       f32(y[o, a, b, c])) } } }                }
      out[n, h, w, o] = f(s)                                    out[p, o] = f(s)
    } } } }                                                   } }

x is read at ``n = p // (H*W)``, ``h = p // W % H``, ``w = p % W``, tap and channel of ``k``.  Its mask also says what always
holds, ``w < W`` and so on, by which ``ir/places.py`` tells the dimensions apart.  Nothing is copied: the engine gathers what a
tile of the product needs.  Where the channels do not fill spans of a tile (64 elements), each tap gets as many as do; beyond the
last one both factors are 0.

What this takes: sums of products of 16 bits, whose channels are neighbours in both factors, over taps, or over channels alone at
places that do not follow on one another; a product of two matrices stays what it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from lowc.ir import tiles
from lowc.ir.index import Atom, Axis, Index, constant, depends_on, ix, split, upper_bound
from lowc.ir.nodes import Acc, Expr, For, FromIndex, Kernel, Let, Load, Module, Op, Update
from lowc.ir.types import f32
from lowc.ir.walk import Substitution, both, free_atoms, make_kernel, names, with_mask
from lowc.options import Options
from lowc.scheduler.contraction import folded
from lowc.scheduler.nest import chain, map_kernels, nested, numel
from lowc.scheduler.rename import fresh
from lowc.scheduler.tile_epilogue import less
from lowc.target import Target

ABILITY = "wgmma"


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with convolutions as products."""
    return map_kernels(module, im2col) if ABILITY in target.ops else module


def im2col(kernel: Kernel) -> Kernel:
    """``kernel`` as a product of matrices if it is a convolution, else ``kernel``."""
    if len(kernel.body) != 1 or not isinstance(kernel.body[0], For):
        return kernel
    outer = chain(kernel.body)
    body = outer[-1].body
    if len(body) < 3 or not isinstance(body[0], Acc) or not isinstance(body[1], For) or body[0].reducer != "add":
        return kernel
    summed = chain((body[1],))
    inner = summed[-1].body
    update = inner[-1]
    if not isinstance(update, Update) or update.mask is not None or not all(isinstance(s, Let) for s in inner[:-1]):
        return kernel
    product = folded(inner[:-1], update.values[0])
    if not isinstance(product, Op) or product.name != "product":
        return kernel
    found = _find([f.axis for f in outer], [f.axis for f in summed], product)
    if found is None:
        return kernel
    taken = names(kernel.body)
    count, padded = numel([a.extent for a in found.taps]), found.padded
    place = Axis(fresh("p", taken), numel([a.extent for a in found.places]))
    depth = Axis(fresh("k", taken), count * padded)
    at: dict[Atom, Index] = {found.channel: ix(depth) % padded}
    at |= _digits(ix(place), found.places) | _digits(ix(depth) // padded, found.taps)
    put = Substitution(at)
    inside: Expr = less(at[found.channel], found.channel.extent)
    beyond = None if found.channel.extent == padded else inside
    if beyond is not None and found.taps:
        beyond = both(beyond, less(ix(depth) // padded, count))
    for axis in found.places:
        inside = both(inside, less(at[axis], axis.extent))
    factors = _factor(put.expr(found.data), inside), _factor(put.expr(found.weight), beyond)
    value = Op("product", factors if product.args[1] is found.second else factors[::-1], product.dtype)
    add = For(depth, (Update(update.vars, "add", (value,)),))
    return make_kernel(kernel.name, nested([place, outer[-1].axis], (body[0], add, *put.body(body[2:]))), kernel.params)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """``places`` and ``taps``, outermost first; of each tap ``padded`` channels; ``second``: the factor that is ``weight``,
    widened."""

    places: Sequence[Axis]
    taps: Sequence[Axis]
    channel: Axis
    padded: int
    data: Load
    weight: Load
    second: Expr


def _find(outer: Sequence[Axis], summed: Sequence[Axis], product: Op) -> _Found | None:
    """What is convolved in a sum of ``product`` over the axes ``summed``, in loops over ``outer``; None if nothing is."""
    columns, places = outer[-1], outer[:-1]
    for data, weight in (product.args, product.args[::-1]):
        used, fixed = free_atoms(data), free_atoms(weight)
        x, y = _narrow(data), _narrow(weight)
        if x is None or y is None or y.mask is not None or x.dtype != y.dtype or columns not in fixed or columns in used:
            continue
        if any(a not in used or a in fixed for a in places) or any(a not in used or a not in fixed for a in summed):
            continue
        deep = [a for a in summed if all(constant(split(v.index[0], a)[0]) == 1 for v in (x, y))]
        taps = [a for a in summed if a not in deep]
        if len(deep) != 1 or not places or (not taps and len(places) < 2):
            continue
        if any(constant(a.extent) is None for a in (*places[1:], *summed)) or depends_on(places[0].extent, columns):
            continue
        whole = tiles.span(x.dtype)
        padded = -(-(constant(deep[0].extent) or 0) // whole) * whole
        return _Found(places, taps, deep[0], padded, _bounded(x, places, taps), y, weight)
    return None


def _bounded(x: Load, places: Sequence[Axis], taps: Sequence[Axis]) -> Load:
    """``x``, whose mask compares the coordinate that is read from each place with a size: where it always holds, with what is
    read."""
    alone = [t for t in taps if not any(depends_on(i, t) for name in ("lt", "ge") for i in _compared(x.mask, name))]
    seen = {_place_of(x, places, t): t for t in alone}
    for place in places:
        below, least = ([i for i in _compared(x.mask, name) if depends_on(i, place)] for name in ("lt", "ge"))
        if below:
            continue
        coordinate = ix(place)
        if least:
            coordinate = least[0]
        elif place in seen:
            step, gap = (constant(split(x.index[0], a)[0]) or 1 for a in (place, seen[place]))
            coordinate = coordinate * (step // gcd(step, gap)) + ix(seen[place]) * (gap // gcd(step, gap))
        last = upper_bound(coordinate)
        if last is None and coordinate != place:
            continue  # nobody knows what always holds
        x = Load(x.buffer, x.index, both(x.mask, less(coordinate, place.extent if last is None else ix(last + 1))))
    return x


def _place_of(x: Load, places: Sequence[Axis], tap: Axis) -> Axis:
    """The place along whose dimension ``tap`` looks: that which is apart by about as many elements."""
    gap = constant(split(x.index[0], tap)[0]) or 1

    def ratio(place: Axis) -> int:
        step = constant(split(x.index[0], place)[0]) or 0
        return max(step, gap) // gcd(step, gap) if step > 0 else 1 << 62

    return min(places, key=ratio)


def _factor(value: Expr, inside: Expr | None) -> Expr:
    return Op("cast", (value if inside is None else with_mask(value, inside, {}),), f32)


def _digits(number: Index, axes: Sequence[Axis]) -> dict[Atom, Index]:
    """What each of ``axes``, outermost first, is where the iterations of all have ``number``."""
    found: dict[Atom, Index] = {}
    for position, axis in reversed(list(enumerate(axes))):
        found[axis] = number % axis.extent if position else number
        number = number // axis.extent
    return found


def _compared(mask: Expr | None, name: str) -> list[Index]:
    """The coordinates that comparisons ``name`` in a conjunction are of."""
    if not isinstance(mask, Op):
        return []
    if mask.name == "and":
        return [i for a in mask.args for i in _compared(a, name)]
    first = mask.args[0] if mask.name == name else None
    return [first.index] if isinstance(first, FromIndex) else []


def _narrow(factor: Expr) -> Load | None:
    """The load of 16 bits that ``factor`` is the widening of."""
    value = factor.args[0] if isinstance(factor, Op) and factor.name == "cast" else None
    return value if isinstance(value, Load) and value.dtype.kind == "f" and value.dtype.bits == 16 else None

