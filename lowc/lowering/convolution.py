"""Convolutions.  Those for which the scheduler has forms of their own are a loop for each dimension of the result, and in it one
for each of the sum:

    for n { for c { for h { for w {
      acc s = add; for i { for j { s add= product(x[n, c, h*stride - padding + i*dilation, …], w[c, i, j]) } }
      out[n, c, h, w] = s + bias
    } } } }

Transposed ones, in which places a step apart see the same taps, are such a nest for each place of a step: those of step 1, and
those of one channel in a group, which makes one.

Others, in artifacts that run without ATen: a matrix product whose right factor is the input, seen through the kernel.

    for n, g { for o in O/G { for p in positions {
      acc s = add; for k in C/G * taps { s add= product(w[g, o, k], column[n, g, k, p]) }; out[n, g*O/G + o, p] = s + bias
    } } }

``column[n, g, (c, tap), p]`` is x[n, g*C/G + c, p*stride - padding + tap*dilation], 0 outside, in a buffer that ``inline`` may
then bring into the product.  Transposed, x is read at (p + padding - tap*dilation) / stride where that is whole and inside.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import gcd, prod

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index, constant, contiguous_strides, ix
from lowc.ir.nodes import Expr
from lowc.ir.types import accumulate_dtype
from lowc.lowering.builder import Builder
from lowc.lowering.scalars import cast, const, op
from lowc.lowering.values import Coords, Value, loop_order, product, remap, reshape_coords, unravel
from lowc.lowering.views import permuted

UNROLLED = 49  # taps of which the sum is one expression, on a GPU
SPAN = 64  # of the input, along a dimension, and taps; lowc's own for more is not worth it
Window = tuple[Coords, Coords, Coords]


def convolution(
    b: Builder,
    out: TensorMeta,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[Index | int],
    padding: Sequence[Index | int],
    dilation: Sequence[Index | int],
    transposed: bool,
    output_padding: Sequence[Index | int],
    groups: Index | int,
) -> Value:
    """aten.convolution of [N, C, spatial…]; sums are taken in f32, or f64, and rounded once."""
    spatial = len(input.shape) - 2
    if len(out.shape) != len(input.shape) or spatial < 1 or input.dtype != weight.dtype or input.dtype.kind != "f":
        raise NotLowered(f"a convolution of {input.dtype}{list(input.shape)} and {weight.dtype}{list(weight.shape)}")
    window = window_of(spatial, stride, padding, dilation)
    groups = ix(groups)
    wanted = "gradient of input" if transposed else "result"
    why = "a library's: it is transposed" if transposed and b.gpu else ""
    why = why or unfit(out, input, weight, window, groups, transposed, b.gpu)
    if not why and not (why := b.convolution(input, weight, out, window[0], groups, wanted)):
        return by_places(b, out, input, weight, bias, window, groups, transposed)
    if not b.alone:
        raise NotLowered(why)
    return as_product(b, out, input, weight, bias, window, groups, transposed)


def window_of(
    spatial: int, stride: Sequence[Index | int], padding: Sequence[Index | int], dilation: Sequence[Index | int]
) -> Window:
    """Steps, pads and gaps, one for each dimension; one alone is for all."""
    steps, pads, gaps = (
        tuple([ix(n) for n in (values if len(values) > 1 else [values[0]] * spatial)]) for values in (stride, padding, dilation)
    )
    return steps, pads, gaps


def as_product(
    b: Builder,
    out: TensorMeta,
    input: Value,
    weight: Value,
    bias: Value | None,
    window: Window,
    groups: Index,
    transposed: bool,
) -> Value:
    """A matrix product whose right factor is the input, seen through the kernel."""
    steps, pads, gaps = window
    taps = weight.shape[2:]
    inside, outside = input.shape[1] // groups, out.shape[1] // groups
    depth = (inside, *taps)
    places = out.shape[2:]

    def column(c: Coords) -> Expr:
        """Of coordinates (n, g, k, p)."""
        channel, *tap = unravel(c[2], depth)
        where: list[Index] = []
        mask: Expr | None = None
        for d, place in enumerate(unravel(c[3], places)):
            extent = input.shape[2 + d]
            if transposed:
                ahead = place + pads[d] - tap[d] * gaps[d]
                whole = b.inside(ahead % steps[d], ix(0), ix(1))
                position = ahead // steps[d]
                mask = both(mask, whole)
            else:
                position = place * steps[d] - pads[d] + tap[d] * gaps[d]
            mask = both(mask, b.inside(position, ix(0), extent))
            where.append(position)
        return b.load(input, (c[0], c[1] * inside + channel, *where), mask)

    total = accumulate_dtype(input.dtype)
    columns = b.temp(input.dtype, (input.shape[0], groups, product(depth), product(places)), name="columns")
    b.fill(columns, column)
    result = b.temp(out.dtype, (out.shape[0], groups, outside, product(places)), name="convolved")
    with b.kernel(), b.loops(result.shape, range(4)) as coords:
        n, g, o, p = coords
        acc = b.acc("add", total)
        with b.loop(product(depth), "k") as k:
            channel, *tap = unravel(k, depth)
            if transposed:  # the weight is [C, O/G, taps…]
                factor = b.load(weight, (g * inside + channel, o, *tap))
            else:
                factor = b.load(weight, (g * outside + o, channel, *tap))
            right = b.load(columns, (n, g, k, p))
            b.update(acc, "add", op("product", cast(factor, total), cast(right, total)))
        value: Expr = acc[0]
        if bias is not None:
            value = op("add", value, cast(b.load(bias, (g * outside + o,)), total))
        b.store(result, (n, g, o, p), value)
    return as_it_lies(b, result, out)


def as_it_lies(b: Builder, result: Value, out: TensorMeta) -> Value:
    """``result``, which is contiguous, with the shape and the strides of ``out``."""
    dense = remap(result, out.shape, reshape_coords(result.shape, out.shape), contiguous_strides(out.shape))
    if out.strides == contiguous_strides(out.shape):
        return dense
    target = b.result(out)
    b.fill(target, lambda c: b.load(dense, c))
    return target


def _meet(step: int, taps: int, gap: int, pad: int, places: int) -> bool:
    """Whether there is a window that can be told from images and channels: places share elements, or see beyond the edge."""
    if taps == 1:
        return True
    common = gcd(step, gap)
    return places > 1 and (pad > 0 or (step // common < taps and gap // common < places))


def very_far_apart(window: Window) -> bool:
    """Whether there would be very many nests of a transposed convolution, one for each step (``by_places``)."""
    return prod(constant(n) or 1 for n in window[0]) > SPAN


def unfit(
    out: TensorMeta, input: Value, weight: Value, window: Window, groups: Index, transposed: bool, gpu: bool = False
) -> str:
    """Why no schedule would find its form in a convolution, "" if one does: all sizes but the number of images must be known."""
    if transposed:
        if any(constant(n) != 1 for n in window[0]) and not (constant(weight.shape[1]) == 1 and groups == input.shape[1]):
            return "a library's: it is transposed, and places are apart"
        if very_far_apart(window):
            return "a library's: it is transposed, and places are very far apart"
        ahead = tuple([(tap - 1) * gap - pad for tap, gap, pad in zip(weight.shape[2:], window[2], window[1], strict=True)])
        if any((constant(n) or 0) < 0 for n in ahead):
            return "a library's: it is transposed, and sees less than there is"
        window = (tuple([ix(1)] * len(ahead)), ahead, window[2])
    channels, made, count = (constant(n) for n in (input.shape[1], out.shape[1], groups))
    steps, pads, gaps = ([constant(n) or 0 for n in numbers] for numbers in window)
    sizes = [constant(n) for n in (*input.shape[1:], *weight.shape, *out.shape[1:], *window[0], *window[1], *window[2])]
    if any(n is None for n in sizes) or channels is None or made is None:
        return "a library's: a size of it only the call tells"
    if 0 in (*sizes[: -2 * len(pads)], *gaps) or constant(out.shape[0]) == 0:
        return "a library's: it is of no elements"
    taps = [constant(n) or 0 for n in weight.shape[2:]]
    spans = [(tap - 1) * gap + 1 for tap, gap in zip(taps, gaps, strict=True)]
    lies = [constant(s) for s in out.strides]
    across = lies[-1] == 1
    if gpu and count == 1 and lies[1] == 1 and channels > 1 and made > 1:  # a product of what a window sees, on tensor cores
        if len(taps) > 3 or max(spans) > SPAN:
            return f"a library's: its {'x'.join(map(str, taps))} taps span {'x'.join(map(str, spans))} elements"
        if any(tap > 1 and constant(n) == 1 for tap, n in zip(taps, out.shape[2:], strict=True)):
            return "a library's: there is one place along a dimension of several taps"
        beside = input.strides is not None and constant(input.strides[1]) == 1
        return "" if beside else "a library's: the input's channels do not lie side by side"
    if len(taps) > 2 or max(spans) > SPAN or prod(taps) > SPAN:
        return f"a library's: its {'x'.join(map(str, taps))} taps span {'x'.join(map(str, spans))} elements"
    places = [constant(n) or 0 for n in out.shape[2:]]
    if any(not _meet(*numbers) for numbers in zip(steps, taps, gaps, pads, places, strict=True)):
        return "a library's: no two places see the same element"
    if not across and lies[1] != 1:
        return "a library's: results are contiguous along no channel and no row"
    if count == 1 and prod(taps) == 1:
        plain = all(n == 1 for n in steps) and not any(pads)
        return "" if plain and channels > 1 and made > 1 else "a library's: a product of matrices that do not lie as such"
    if count == 1 and channels > 1:
        fits = across and made > 1 and taps[-1] > 1
        return "" if fits else f"a library's: {made} channels of {channels}, {'x'.join(map(str, taps))} taps"
    if count != channels or prod(taps) < 2:
        return f"a library's: {count} groups of {channels} channels"
    if made != channels and not across:
        return f"a library's: {made} channels, which lie side by side, of {channels}"
    return ""


def by_places(
    b: Builder,
    out: TensorMeta,
    input: Value,
    weight: Value,
    bias: Value | None,
    window: Window,
    groups: Index,
    transposed: bool,
) -> Value:
    """A loop for each dimension of the result, as it lies, and in it one for each of the sum; what scheduling looks for.

    Transposed, places that lie ``steps`` apart see the same taps, which are numbers of a window of their own: a nest for each."""
    target = b.result(out)
    if not transposed:
        steps, pads, gaps = window
        extents = [constant(n) or 0 for n in weight.shape[2:]]
        if b.gpu and constant(groups) == 1:
            weight = _channels_beside(b, weight)
        elif b.gpu and constant(out.strides[-1]) != 1 and prod(extents) <= UNROLLED:
            weight = _taps_apart(b, weight)
        seen = [Seen(step, -pad, gap, tuple(range(n))) for step, pad, gap, n in zip(steps, pads, gaps, extents, strict=True)]
        strips = [Strip(ix(0), ix(1), extent) for extent in out.shape[2:]]
        _places(b, target, input, weight, bias, groups, False, strips, seen)
        return target
    numbers = [[constant(n) or 0 for n in each] for each in (*window, weight.shape[2:], out.shape[2:])]
    for phase in itertools.product(*map(range, numbers[0])):
        strips, seen = [], []
        for first, step, pad, gap, count, extent in zip(phase, *numbers, strict=True):
            taps = tuple([t for t in reversed(range(count)) if (first + pad - t * gap) % step == 0])
            apart = step // gcd(step, gap) * gap // step
            start = (first + pad - taps[0] * gap) // step if taps else 0
            strips.append(Strip(ix(first), ix(step), ix(max(0, -(-(extent - first) // step)))))
            seen.append(Seen(ix(1), ix(start), ix(apart), taps))
        if all(constant(s.count) for s in strips):
            _places(b, target, input, weight, bias, groups, True, strips, seen)
    return target


@dataclass(frozen=True, slots=True)
class Strip:
    """Places first, first + step, …, so many of them."""

    first: Index
    step: Index
    count: Index


@dataclass(frozen=True, slots=True)
class Seen:
    """Place number i sees the input at i*step + start + m*gap through the tap ``taps[m]``: numbers the same distance apart."""

    step: Index
    start: Index
    gap: Index
    taps: tuple[int, ...]

    def tap(self, number: Index) -> Index:
        return ix(self.taps[0]) + number * ((self.taps[1] - self.taps[0]) if len(self.taps) > 1 else 0)


def _places(
    b: Builder,
    target: Value,
    input: Value,
    weight: Value,
    bias: Value | None,
    groups: Index,
    transposed: bool,
    strips: Sequence[Strip],
    seen: Sequence[Seen],
) -> None:
    """One nest.  On a GPU a sum over few taps is one expression, so that the nest is a map, of which a thread makes what fills
    16 bytes."""
    total = accumulate_dtype(input.dtype)
    inside, outside = input.shape[1] // groups, target.shape[1] // groups
    counts = tuple([ix(len(s.taps)) for s in seen])
    every = [tuple([ix(n) for n in tap]) for tap in itertools.product(*(range(len(s.taps)) for s in seen))]
    shape = (*target.shape[:2], *(s.count for s in strips))
    with b.kernel(), b.loops(shape, loop_order(target.shape, target.strides or ())) as place:

        def term(channel: Index, taps: Sequence[Index]) -> Expr:
            where: list[Index] = []
            mask: Expr | None = None
            for d, each in enumerate(seen):
                where.append(place[2 + d] * each.step + each.start + taps[d] * each.gap)
                mask = both(mask, b.inside(where[d], ix(0), input.shape[2 + d]))
            group = place[1] // outside if constant(groups) != 1 else ix(0)
            left = b.load(input, (place[0], group * inside + channel, *where), mask)
            number = [each.tap(tap) for each, tap in zip(seen, taps, strict=True)]
            if transposed:  # the weight is [C, O/G, taps…]
                right = b.load(weight, (group * inside + channel, place[1] - group * outside, *number))
            else:
                right = b.load(weight, (place[1], channel, *number))
            return op("product", cast(left, total), cast(right, total))

        if constant(inside) == 1 and (len(every) < 2 or (b.gpu and len(every) <= UNROLLED)):
            value = reduce(partial(op, "add"), [term(ix(0), tap) for tap in every]) if every else const(0.0, total)
        else:
            acc = b.acc("add", total)
            with b.loops((inside, *counts), range(1 + len(counts)), "k") as (channel, *taps):
                b.update(acc, "add", term(channel, taps))
            value = acc[0]
        if bias is not None:
            value = op("add", value, cast(b.load(bias, (place[1],)), total))
        where = [s.first + place[2 + d] * s.step for d, s in enumerate(strips)]
        b.store(target, (place[0], place[1], *where), value)


def _channels_beside(b: Builder, weight: Value) -> Value:
    """``weight``, or a copy whose channels are neighbours."""
    rank = len(weight.shape)
    taps = product(weight.shape[2:])
    if constant(taps) == 1 or (weight.strides is not None and constant(weight.strides[1]) == 1):
        return weight
    copied = b.temp(weight.dtype, (weight.shape[0], *weight.shape[2:], weight.shape[1]), name="weight")
    source = permuted(weight, [0, *range(2, rank), 1])
    b.fill(copied, lambda c: b.load(source, c))
    return permuted(copied, [0, rank - 1, *range(1, rank - 1)])


def _taps_apart(b: Builder, weight: Value) -> Value:
    """A copy of ``weight``, of one channel in each group, in which those of one tap are neighbours, as the channels are that a
    thread reads of a place."""
    rank = len(weight.shape)
    copied = b.temp(weight.dtype, (*weight.shape[2:], weight.shape[0], weight.shape[1]), name="weight")
    source = permuted(weight, [*range(2, rank), 0, 1])
    b.fill(copied, lambda c: b.load(source, c))
    return permuted(copied, [rank - 2, rank - 1, *range(rank - 2)])


def both(a: Expr | None, b: Expr | None) -> Expr | None:
    """Where both masks hold; None holds everywhere."""
    return a if b is None else b if a is None else op("and", a, b)
