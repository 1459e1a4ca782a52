"""Gradients of grid_sampler: what each place sends back to the elements it read, and how its value moves with the grid.

The gradient of the input is a scatter, sums of f16 and bf16 in f32; that of the grid is a sum over channels.  Nearest sampling
has none of the grid: zeros.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce

from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index, ix
from lowc.ir.nodes import Expr
from lowc.ir.types import compute_dtype
from lowc.ir.walk import both
from lowc.lowering.builder import Builder
from lowc.lowering.grid_place import Side
from lowc.lowering.grid_sample import (
    BILINEAR,
    CUBIC,
    NEAREST,
    Between,
    Tap,
    between,
    corners,
    cubic_taps,
    cubic_weights,
    nearest,
    sides,
)
from lowc.lowering.scalars import cast, const, op, select
from lowc.lowering.scatter import gathering
from lowc.lowering.values import Coords, Value, loop_order


def grid_sampler_backward(
    b: Builder,
    outs: Sequence[TensorMeta | None],
    grad_output: Value,
    input: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Value, ...]:
    """The gradients of ``input`` (if ``output_mask`` says so) and of ``grid``."""
    axes = sides(b, input, grid, padding_mode, align_corners)
    found = []
    if outs[0] is not None:
        found.append(_of_input(b, outs[0], grad_output, grid, axes, interpolation_mode))
    if outs[1] is not None:
        if interpolation_mode == NEAREST:
            found.append(b.map(outs[1], lambda _: axes[0].number(0)))
        else:
            found.append(_of_grid(b, outs[1], grad_output, input, grid, axes, interpolation_mode))
    return tuple(found)


def _of_input(
    b: Builder, out: TensorMeta, grad: Value, grid: Value, axes: Sequence[Side], mode: int
) -> Value:
    """Rows in the order (n, c, place): no two channels meet, so cores share them."""
    target = gathering(b, out, "add")
    zero = const(0, target.dtype)
    with b.kernel():
        with b.loops(out.shape, loop_order(out.shape, out.strides)) as c:
            b.store(target, tuple(c), zero)
        with b.loops(grad.shape, range(len(grad.shape)), "j") as place:
            n, c, *at = place
            given = _given(b, grid, (n, *at), axes)
            arrived = b.let(b.load(grad, tuple(place)))
            for coords, mask, weight in _reads(b, axes, given, mode):
                value = arrived if weight is None else op("mul", weight, arrived)
                b.store(target, (n, c, *coords), value, mask, "add")
    return target if target.dtype == out.dtype else b.map(out, lambda c: b.load(target, c))


def _given(b: Builder, grid: Value, place: Coords, axes: Sequence[Side]) -> list[Expr]:
    return [b.let(b.load(grid, (*place, ix(n)))) for n in range(len(axes))]


def _reads(
    b: Builder, axes: Sequence[Side], given: Sequence[Expr], mode: int
) -> Iterator[tuple[Coords, Expr, Expr | None]]:
    """The elements read: coordinates behind (n, c), whether there is one, and what it counts (None: all)."""
    if mode == NEAREST:
        yield *nearest(b, axes, given), None
    elif mode == BILINEAR:
        places = [s.padded_with_slope(s.unnormalized(x))[0] for s, x in zip(axes, given, strict=True)]
        for corner in corners(b, [between(side, x) for side, x in zip(axes, places, strict=True)]):
            yield corner.coords, corner.mask, corner.weight
    else:
        (taps_x, x), (taps_y, y) = (_cubic(side, g, cubic_weights) for side, g in zip(axes, given, strict=True))
        for (at_x, there_x), weight_x in zip(taps_x, x, strict=True):
            for (at_y, there_y), weight_y in zip(taps_y, y, strict=True):
                yield (at_y, at_x), both(there_x, there_y), op("mul", weight_x, weight_y)


def _cubic(side: Side, x: Expr, *formulas: Callable[[Side, Expr], list[Expr]]) -> tuple[list[Tap], *tuple[list[Expr], ...]]:
    x = side.unnormalized(x)
    low = side.b.let(op("floor", x))
    t = side.b.let(op("sub", x, low))
    return cubic_taps(side, low), *(f(side, t) for f in formulas)


def _of_grid(
    b: Builder, out: TensorMeta, grad: Value, input: Value, grid: Value, axes: Sequence[Side], mode: int
) -> Value:
    """For each place the slopes of its value along the sides, summed over channels."""
    target = b.result(out)
    wide = compute_dtype(out.dtype)
    shape = out.shape[:-1]
    with b.kernel(), b.loops(shape, range(len(shape))) as place:
        given = _given(b, grid, tuple(place), axes)
        accs = [b.acc("add", wide) for _ in axes]
        slopes, steps = (_bilinear if mode == BILINEAR else _bicubic)(b, axes, given)
        with b.loop(grad.shape[1], "c") as c:
            arrived = b.let(b.load(grad, (place[0], c, *place[1:])))
            for acc, value in zip(accs, slopes(input, (place[0], c), arrived), strict=True):
                b.update(acc, "add", cast(value, wide))
        for number, (acc, step) in enumerate(zip(accs, steps, strict=True)):
            b.store(target, (*place, ix(number)), op("mul", cast(acc[0], out.dtype), step))
    return target


Slopes = Callable[[Value, tuple[Index, Index], Expr], list[Expr]]


def _bilinear(b: Builder, axes: Sequence[Side], given: Sequence[Expr]) -> tuple[Slopes, list[Expr]]:
    placed = [s.padded_with_slope(s.unnormalized(x)) for s, x in zip(axes, given, strict=True)]
    around = [between(side, x) for side, (x, _) in zip(axes, placed, strict=True)]
    found = corners(b, around)

    def slopes(input: Value, row: tuple[Index, Index], arrived: Expr) -> list[Expr]:
        values = {k.picks: b.let(b.load(input, (*row, *k.coords), k.mask)) for k in found}
        if axes[0].vector:
            return [op("mul", _difference(values, around, d), arrived) for d in range(len(axes))]
        parts = []
        for along in range(len(axes)):
            terms = []
            for k in found:
                others = (around[d].weights[p] for d, p in enumerate(k.picks) if d != along)
                term = op("mul", reduce(lambda v, w: op("mul", v, w), others, values[k.picks]), arrived)
                term = term if k.picks[along] else op("neg", term)
                terms.append(select(k.mask, term, axes[0].number(0)))
            parts.append(reduce(lambda v, w: op("add", v, w), terms))
        return parts

    return slopes, [slope for _, slope in placed]


def _difference(values: dict[tuple[int, ...], Expr], around: Sequence[Between], along: int) -> Expr:
    """Of four elements: (far - near) along one side, weighed along the other."""
    other = around[1 - along]

    def at(near: int, across: int) -> Expr:
        return values[(near, across) if along == 0 else (across, near)]

    return op(
        "add",
        op("mul", op("sub", at(1, 0), at(0, 0)), other.weights[0]),
        op("mul", op("sub", at(1, 1), at(0, 1)), other.weights[1]),
    )


def _bicubic(b: Builder, axes: Sequence[Side], given: Sequence[Expr]) -> tuple[Slopes, list[Expr]]:
    (taps_x, x, slope_x), (taps_y, y, slope_y) = (
        _cubic(side, g, cubic_weights, _cubic_slopes) for side, g in zip(axes, given, strict=True)
    )

    def slopes(input: Value, row: tuple[Index, Index], arrived: Expr) -> list[Expr]:
        along_x: list[Expr] = []
        along_y: list[Expr] = []
        for i, (at_x, there_x) in enumerate(taps_x):
            for j, (at_y, there_y) in enumerate(taps_y):
                value = b.load(input, (*row, at_y, at_x), both(there_x, there_y))
                value = b.let(op("mul", value, arrived))
                along_x.append(op("mul", op("mul", value, slope_x[i]), y[j]))
                along_y.append(op("mul", op("mul", value, slope_y[j]), x[i]))
        return [op("neg", reduce(lambda v, w: op("add", v, w), terms)) for terms in (along_x, along_y)]

    return slopes, [side.scale for side in axes]


def _cubic_slopes(side: Side, t: Expr) -> list[Expr]:
    """The derivatives of ``cubic_weights``, with the other sign."""
    number, b = side.number, side.b

    def outer(x: Expr, sign: int) -> Expr:
        first = op("sub", op("mul", number(sign * 3 * CUBIC), x), number(10 * CUBIC))
        return op("add", op("mul", first, x), number(sign * 8 * CUBIC))

    def inner(x: Expr, sign: int) -> Expr:
        return op("mul", op("sub", op("mul", number(sign * 3 * (CUBIC + 2)), x), number(2 * (CUBIC + 3))), x)

    places = op("sub", number(-1), t), op("neg", t), op("sub", number(1), t), op("sub", number(2), t)
    formulas = (outer, -1), (inner, -1), (inner, 1), (outer, 1)
    return [b.let(f(b.let(x), sign)) for (f, sign), x in zip(formulas, places, strict=True)]
