"""grid_sampler_2d and grid_sampler_3d: an input read at places that a grid gives, bilinearly, nearest, or bicubically.

One kernel: for each place of the grid what is needed of it, then all channels.  With ``padding`` 0 elements outside are 0.  In
ATen's vector code (two dimensions on a CPU) they are weighed as others are, so that a NaN in the grid is a NaN in the result; its
scalar code leaves them out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product as choices

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index, ix
from lowc.ir.nodes import Expr
from lowc.ir.walk import both
from lowc.lowering.builder import Builder
from lowc.lowering.grid_place import Side
from lowc.lowering.reduce import only_floats
from lowc.lowering.scalars import like, op, select
from lowc.lowering.values import Coords, Value

BILINEAR, NEAREST, BICUBIC = range(3)
Tap = tuple[Index, Expr]  # a coordinate, and whether there is an element
Read = Callable[[Value, Coords], Expr]  # the value of a channel, which (input, (n, c)) say


def sides(b: Builder, input: Value, grid: Value, padding: int, align: bool) -> list[Side]:
    """The dimensions of ``input`` in the order of the grid's coordinates: the last one first."""
    only_floats(input, "grid samples")
    if input.dtype != grid.dtype:
        raise NotLowered("a grid of another dtype than the input")
    rank = len(input.shape) - 2
    vector = rank == 2 and not b.atomic
    return [Side(b, n, input.dtype, padding, align, vector, b.atomic) for n in reversed(input.shape[2:])]


def grid_sampler(
    b: Builder, out: TensorMeta, input: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Value:
    """``input`` (N, C, sizes…) at ``grid`` (N, places…, rank): (N, C, places…)."""
    axes = sides(b, input, grid, padding_mode, align_corners)
    target = b.result(out)
    shape = (out.shape[0], *out.shape[2:])
    with b.kernel(), b.loops(shape, range(len(shape))) as place:
        given = [b.let(b.load(grid, (*place, ix(n)))) for n in range(len(axes))]
        read = READERS[interpolation_mode](b, axes, given)
        with b.loop(out.shape[1], "c") as c:
            b.store(target, (place[0], c, *place[1:]), read(input, (place[0], c)))
    return target


def weighted(total: Expr | None, value: Expr, weight: Expr, mask: Expr, axes: Sequence[Side]) -> Expr:
    """``total + value * weight``: vector code weighs the 0 that stands for what lies outside, scalar code leaves it out."""
    part = op("mul", value, weight)
    if axes[0].vector:
        return part if total is None else op("add", total, part)
    part = select(mask, part, axes[0].number(0))
    return op("add", axes[0].number(0) if total is None else total, part)


@dataclass(frozen=True, slots=True)
class Between:
    """The two elements around a place in one dimension: ``taps``, and how much each counts."""

    taps: tuple[Tap, Tap]
    weights: tuple[Expr, Expr]


def between(side: Side, x: Expr) -> Between:
    b = side.b
    low = b.let(op("floor", x))
    after = b.let(op("sub", x, low))
    before = op("sub", side.number(1), after) if side.vector else op("sub", op("add", low, side.number(1)), x)
    position = side.position(low)
    following = b.let(op("add", position, like(1, position)))
    return Between((side.element(position), side.element(following)), (b.let(before), after))


@dataclass(frozen=True, slots=True)
class Corner:
    """One of the elements around a place: coordinates in the input behind (n, c), whether it is there, how much it counts.
    ``picks``: for each side 1 if it is the second of its two."""

    picks: tuple[int, ...]
    coords: Coords
    mask: Expr
    weight: Expr


def corners(b: Builder, around: Sequence[Between]) -> list[Corner]:
    """In the order of memory."""
    found = []
    for reverse in choices((0, 1), repeat=len(around)):
        picks = reverse[::-1]
        taps = [one.taps[k] for one, k in zip(around, picks, strict=True)]
        weights = [one.weights[k] for one, k in zip(around, picks, strict=True)]
        mask = reduce(both, (m for _, m in taps))
        weight = reduce(lambda v, w: op("mul", v, w), weights)
        found.append(Corner(picks, tuple(c for c, _ in reversed(taps)), b.let(mask), b.let(weight)))
    return found


def _bilinear(b: Builder, axes: Sequence[Side], given: Sequence[Expr]) -> Read:
    around = [between(side, side.padded(side.unnormalized(x))) for side, x in zip(axes, given, strict=True)]
    found = corners(b, around)

    def read(input: Value, row: Coords) -> Expr:
        total: Expr | None = None
        for corner in found:
            value = b.load(input, (*row, *corner.coords), corner.mask)
            total = weighted(total, value, corner.weight, corner.mask, axes)
        assert total is not None
        return total

    return read


def nearest(b: Builder, axes: Sequence[Side], given: Sequence[Expr]) -> tuple[Coords, Expr]:
    """Coordinates of the nearest element (of two equally near the even one), and whether there is one."""
    taps = [
        side.element(side.position(op("round", side.padded(side.unnormalized(x)))))
        for side, x in zip(axes, given, strict=True)
    ]
    return tuple(c for c, _ in reversed(taps)), b.let(reduce(both, (m for _, m in taps)))


def _nearest(b: Builder, axes: Sequence[Side], given: Sequence[Expr]) -> Read:
    coords, mask = nearest(b, axes, given)
    return lambda input, row: b.load(input, (*row, *coords), mask)


# ---------------------------------------------------------------- bicubic


CUBIC = -0.75


def cubic_weights(side: Side, t: Expr) -> list[Expr]:
    """What the elements at -1, 0, 1 and 2 count for a place ``t`` of 0 .. 1 between the second and the third."""
    number, b = side.number, side.b

    def outer(x: Expr) -> Expr:
        first = op("sub", op("mul", number(CUBIC), x), number(5 * CUBIC))
        return op("sub", op("mul", op("add", op("mul", first, x), number(8 * CUBIC)), x), number(4 * CUBIC))

    def inner(x: Expr) -> Expr:
        first = op("sub", op("mul", number(CUBIC + 2), x), number(CUBIC + 3))
        return op("add", op("mul", op("mul", first, x), x), number(1))

    places = op("add", t, number(1)), t, op("sub", number(1), t), op("sub", number(2), t)
    return [b.let(f(b.let(x))) for f, x in zip((outer, inner, inner, outer), places, strict=True)]


def cubic_taps(side: Side, low: Expr) -> list[Tap]:
    """The elements at -1, 0, 1 and 2 from ``low``, each brought back into the input by itself."""
    found = []
    for step in (-1, 0, 1, 2):
        moved = side.b.let(op("add", low, side.number(step)))
        found.append(side.element(side.position(op("trunc", side.padded(moved)))))
    return found


def _bicubic(b: Builder, axes: Sequence[Side], given: Sequence[Expr]) -> Read:
    weights, taps = [], []
    for side, x in zip(axes, given, strict=True):
        x = side.unnormalized(x)
        low = b.let(op("floor", x))
        weights.append(cubic_weights(side, b.let(op("sub", x, low))))
        taps.append(cubic_taps(side, low))

    def read(input: Value, row: Coords) -> Expr:
        lines = []
        for y, there_y in taps[1]:
            values = [b.load(input, (*row, y, x), both(there_x, there_y)) for x, there_x in taps[0]]
            lines.append(_dot(weights[0], values))
        return _dot(weights[1], lines)

    return read


def _dot(weights: Sequence[Expr], values: Sequence[Expr]) -> Expr:
    return reduce(lambda x, y: op("add", x, y), (op("mul", w, v) for w, v in zip(weights, values, strict=True)))


READERS = {BILINEAR: _bilinear, NEAREST: _nearest, BICUBIC: _bicubic}
