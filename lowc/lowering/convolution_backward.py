"""Gradients of convolutions, each by itself lowc's own or a call of ATen.

    input    a transposed convolution of the gradient with the same weights (of a transposed one: a convolution)
    weight   of one channel in a group, up to 64 taps, all of them at once: sums of what lies below the gradient of each place

        for n { for c {
          acc t0, t1, t2 = add
          for h in rows that see a row of the input {
            acc s0, s1, s2 = add
            s1 add= product(grad[n, c, h, 0], x[n, c, h, 0]); s2 add= …          # places at the edges, by their taps
            for w in places whose taps all see something {
              s0 add= product(grad[n, c, h, w + 1], x[n, c, h, w]); s1 add= …; s2 add= …
            }
            …; t0 add= s0; t1 add= s1; t2 add= s2
          }
          part[n, i, 0, c] = t0; …
        } }
        for c, i, j { acc s = add; for n { s add= part[n, i, j, c] }; weight[c, i, j] = s }

             others: a matrix product, of which the input, seen through the kernel, is a factor
    bias     a sum over images and places

No mask is left in such a nest: which places a tap has something to see from is known.  That takes code that grows with the square
of the taps in a row, so that more taps are a library's.  Sums are of rows, and of sums of rows, so that none is of more than some
hundred numbers.
"""

import itertools
from collections.abc import Iterator, Sequence
from math import prod

from lowc.errors import NotLowered
from lowc.ir.graph import Meta, TensorMeta
from lowc.ir.index import Index, constant, ix
from lowc.ir.nodes import Expr, Extern, Var
from lowc.ir.types import DType, accumulate_dtype
from lowc.lowering.builder import Builder
from lowc.lowering.convolution import (
    SPAN,
    Window,
    as_it_lies,
    as_product,
    both,
    by_places,
    unfit,
    very_far_apart,
    window_of,
)
from lowc.lowering.scalars import cast, op
from lowc.lowering.values import Coords, Value, loop_order, product, unravel

TARGET = "aten.convolution_backward.default"
AT_ONCE = 25  # taps whose sums are formed at once, in registers; of more, those of one row
ROW = 64  # places that one sum goes over, if there are more
WANTED = ("gradient of input", "gradient of weight", "gradient of bias")


def convolution_backward(
    b: Builder,
    outs: Sequence[Meta],
    grad: Value,
    input: Value,
    weight: Value,
    bias_sizes: Sequence[Index | int] | None,
    stride: Sequence[Index | int],
    padding: Sequence[Index | int],
    dilation: Sequence[Index | int],
    transposed: bool,
    output_padding: Sequence[Index | int],
    groups: Index | int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    """aten.convolution_backward: gradients of input, weight and bias, None for what is not asked for, or not used."""
    spatial = len(input.shape) - 2
    if spatial < 1 or len({v.dtype for v in (grad, input, weight)}) > 1 or input.dtype.kind != "f":
        raise NotLowered(f"gradients of a convolution of {input.dtype}{list(input.shape)} and {weight.dtype}{list(weight.shape)}")
    window, count = window_of(spatial, stride, padding, dilation), ix(groups)
    asked = {n: meta for n, meta in enumerate(outs) if output_mask[n] and b.needs(n) and isinstance(meta, TensorMeta)}
    if b.gpu and not b.alone:
        raise NotLowered("a library's: gradients on a GPU")
    if any(constant(n) == 0 for v in (grad, input, weight) for n in v.shape):
        raise NotLowered("a library's: it is of no elements")
    results: list[Value | None] = [None] * len(outs)
    left: dict[int, str] = {}
    for number, meta in asked.items():
        if number == 2 and 1 in asked:
            why = left.get(1, "")  # ATen forms both at once
        else:
            lying = meta_of(grad, meta) if number else meta
            why = b.convolution(input if number else grad, weight, lying, window[0], count, WANTED[number])
        if number == 1 and not why and _is_of_single(meta, grad, input, count) and _taps(meta) > SPAN:
            why = f"a library's: the gradient of {_taps(meta)} taps"
        if why and not b.alone:
            left[number] = why
        elif number == 0:
            fits = not unfit(meta, grad, weight, window, count, not transposed) or _single(meta, grad, weight, window, count)
            fits = fits and not b.gpu
            made = by_places if fits else as_product
            results[0] = made(b, meta, grad, weight, None, window, count, not transposed)
        elif number == 1:
            one, other = (input, grad) if transposed else (grad, input)
            results[1] = _of_weight(b, meta, one, other, window, count)
        else:
            results[2] = _of_bias(b, meta, grad)
    if left and len(left) == len(asked):
        raise NotLowered(left[min(left)])
    if left:
        metas = [outs[n] if n in left else None for n in range(len(outs))]
        rest = (bias_sizes, stride, padding, dilation, transposed, output_padding, groups)
        theirs = _called(b, metas, (grad, input, weight), rest, left[min(left)])
        results = [mine or other for mine, other in zip(results, theirs, strict=True)]
    return tuple(results)


def _single(out: TensorMeta, grad: Value, weight: Value, window: Window, groups: Index) -> bool:
    """Whether there is one channel in a group, which makes one, of sizes that are known, and no very many nests."""
    sizes = [constant(n) for n in (*out.shape[1:], *grad.shape[1:], *weight.shape, *window[0], *window[1], *window[2])]
    if None in sizes or very_far_apart(window):
        return False
    return constant(weight.shape[1]) == 1 and groups == grad.shape[1] == out.shape[1]


def meta_of(value: Value, like: TensorMeta) -> TensorMeta:
    """How ``value`` lies, on the device of ``like``; what is no strided window has strides of 0."""
    strides = value.strides if value.strides is not None else tuple([ix(0)] * len(value.shape))
    return TensorMeta(value.dtype, value.shape, strides, ix(0), like.device)


def _called(b: Builder, metas: Sequence[Meta], values: Sequence[Value], rest: Sequence[object], why: str) -> list[Value | None]:
    """A call of ATen for those results that have ``metas``."""
    results: list[Value | None] = []
    for number, meta in enumerate(metas):
        results.append(b.result(meta, f"{b.stem}_{number}") if isinstance(meta, TensorMeta) else None)
    mask = tuple([r is not None for r in results])
    buffers = tuple([None if r is None else r.buffer for r in results])
    args = (*(b.view(v) for v in values), *rest, mask)
    b.steps.append(Extern(TARGET, args, (), buffers, (), why, b.origin))  # type: ignore[arg-type]
    return results


# ---------------------------------------------------------------- the bias


def _of_bias(b: Builder, out: TensorMeta, grad: Value) -> Value:
    total = accumulate_dtype(grad.dtype)
    dims = [d for d in range(len(grad.shape)) if d != 1]
    (result,) = b.reduce([out], grad, dims, lambda row: row.fold("add", total, lambda _, value: (cast(value, total),)))
    return result


# ---------------------------------------------------------------- weights


def _of_weight(b: Builder, out: TensorMeta, grad: Value, input: Value, window: Window, groups: Index) -> Value:
    """The gradient of weights [O, C/G, taps…], for what is given for [N, O, places…], of the input [N, C, spatial…]."""
    sizes = (*grad.shape[1:], *input.shape[1:], *out.shape, *window[0], *window[1], *window[2])
    lies = [_along(v) for v in (grad, input)]
    single = _is_of_single(out, grad, input, groups) and _taps(out) <= SPAN
    if single and lies[0] == lies[1] != 0 and not b.gpu and all(constant(n) is not None for n in sizes):
        return _by_taps(b, out, grad, input, window, lies[0])
    return _by_product(b, out, grad, input, window, groups)


def _is_of_single(out: TensorMeta, grad: Value, input: Value, groups: Index) -> bool:
    """Whether weights are of one channel in a group, which makes one."""
    return constant(out.shape[0]) == constant(groups) == constant(input.shape[1]) == constant(grad.shape[1]) is not None


def _taps(out: TensorMeta) -> int:
    return prod(constant(n) or 1 for n in out.shape[2:])


def _along(value: Value) -> int:
    """The dimension along which it is contiguous: 1 (channels), -1 (places), 0 if it is along neither."""
    strides = [constant(s) for s in value.strides or ()]
    return 0 if not strides else -1 if strides[-1] == 1 and constant(value.shape[-1]) != 1 else 1 if strides[1] == 1 else 0


def _by_product(b: Builder, out: TensorMeta, grad: Value, input: Value, window: Window, groups: Index) -> Value:
    steps, pads, gaps = window
    taps, places = out.shape[2:], grad.shape[2:]
    inside, outside = out.shape[1], out.shape[0] // groups
    shape = (groups, inside * product(taps), grad.shape[0] * product(places))

    def column(c: Coords) -> Expr:
        """Of coordinates (g, k, m)."""
        channel, *tap = unravel(c[1], (inside, *taps))
        image, *place = unravel(c[2], (grad.shape[0], *places))
        where = [p * step - pad + t * gap for p, t, step, pad, gap in zip(place, tap, steps, pads, gaps, strict=True)]
        mask: Expr | None = None
        for position, extent in zip(where, input.shape[2:], strict=True):
            mask = both(mask, b.inside(position, ix(0), extent))
        return b.load(input, (image, c[0] * inside + channel, *where), mask)

    total = accumulate_dtype(input.dtype)
    columns, rows = b.temp(input.dtype, shape, name="columns"), b.temp(input.dtype, (groups, outside, shape[2]), name="rows")
    b.fill(columns, column)

    def row(c: Coords) -> Expr:
        image, *place = unravel(c[2], (grad.shape[0], *places))
        return b.load(grad, (image, c[0] * outside + c[1], *place))

    b.fill(rows, row)
    result = b.temp(out.dtype, (groups, outside, shape[1]), name="weights")
    with b.kernel(), b.loops(result.shape, range(3)) as (g, o, k):
        acc = b.acc("add", total)
        with b.loop(shape[2], "k") as m:
            left, right = b.load(rows, (g, o, m)), b.load(columns, (g, k, m))
            b.update(acc, "add", op("product", cast(left, total), cast(right, total)))
        b.store(result, (g, o, k), acc[0])
    return as_it_lies(b, result, out)


def _by_taps(b: Builder, out: TensorMeta, grad: Value, input: Value, window: Window, along: int) -> Value:
    """Of one channel in a group and as many results, both of which are contiguous along the same dimension."""
    total = accumulate_dtype(input.dtype)
    images, channels, taps = grad.shape[0], out.shape[0], tuple([constant(n) or 0 for n in out.shape[2:]])
    several = constant(images) != 1
    if several:
        shape = (images, channels, *out.shape[2:])
        order = [0, 1, *range(2, len(shape))] if along < 0 else [0, *range(2, len(shape)), 1]
        strides, below = [ix(0)] * len(shape), ix(1)
        for dim in reversed(order):
            strides[dim], below = below, below * shape[dim]
        target = b.temp(total, shape, tuple(strides), name="parts")
    else:
        target = b.result(out)
    work = _Taps(b, grad, input, window, total)
    every = list(itertools.product(*map(range, taps)))
    with b.kernel(), b.loop(images) as n, b.loop(channels) as c:
        groups = [every] if len(every) <= AT_ONCE else [list(g) for _, g in itertools.groupby(every, lambda tap: tap[:-1])]
        for group in groups:
            for tap, value in zip(group, work.sums(n, c, group), strict=True):
                where = tuple([ix(t) for t in tap])
                b.store(target, (n, c, *where) if several else (c, ix(0), *where), value)
    if not several:
        return target
    result = b.result(out)
    with b.kernel(), b.loops(out.shape, loop_order(out.shape, out.strides)) as (c, _, *tap):
        acc = b.acc("add", total)
        with b.loop(images, "k") as n:
            b.update(acc, "add", b.load(target, (n, c, *tap)))
        b.store(result, (c, ix(0), *tap), acc[0])
    return result


class _Taps:
    """Sums of products of the gradient with what each of some taps sees, of one channel of one image."""

    def __init__(self, b: Builder, grad: Value, input: Value, window: Window, total: DType) -> None:
        self.b, self.grad, self.input, self.total = b, grad, input, total
        self.window = [tuple([constant(n) or 0 for n in numbers]) for numbers in zip(*window, strict=True)]
        self.places = [constant(n) or 0 for n in grad.shape[2:]]
        self.extents = [constant(n) or 0 for n in input.shape[2:]]

    def sums(self, n: Index, c: Index, taps: Sequence[tuple[int, ...]]) -> list[Expr]:
        accs = {tap: self.b.acc("add", self.total)[0] for tap in taps}
        self.dimension(0, (n, c), accs)
        return list(accs.values())

    def dimension(self, d: int, place: Coords, accs: dict[tuple[int, ...], Var]) -> None:
        """Adds to ``accs`` what there is at ``place``, coordinates of the gradient up to those of dimension ``d``."""
        if not accs:
            return
        last = d == len(self.places) - 1
        for first, count, seeing in self.segments(d, {tap[d] for tap in accs}):
            seen = {tap: acc for tap, acc in accs.items() if tap[d] in seeing}
            if last:
                self.row(place, first, count, seen)
                continue
            with self.b.loop(count, "k") as number:
                inner = {tap: self.b.acc("add", self.total)[0] for tap in seen}
                self.dimension(d + 1, (*place, first + number), inner)
                for tap, acc in seen.items():
                    self.b.update((acc,), "add", inner[tap])

    def row(self, place: Coords, first: int, count: int, accs: dict[tuple[int, ...], Var]) -> None:
        """Places first, first + 1, … of the last dimension, at which all taps of ``accs`` see something."""
        whole_ = count // ROW if count > 2 * ROW else 0
        if whole_:
            with self.b.loop(whole_, "k") as block:
                inner = {tap: self.b.acc("add", self.total)[0] for tap in accs}
                self.strip(place, first + block * ROW, ROW, inner)
                for tap, acc in accs.items():
                    self.b.update((acc,), "add", inner[tap])
        if count > whole_ * ROW:
            self.strip(place, ix(first + whole_ * ROW), count - whole_ * ROW, accs)

    def strip(self, place: Coords, first: Index, count: int, accs: dict[tuple[int, ...], Var]) -> None:
        with self.b.loop(count, "k") as number:
            here = (*place, first + number)
            given = self.b.let(cast(self.b.load(self.grad, here), self.total))
            for tap, acc in accs.items():
                where = [
                    here[2 + d] * step - pad + tap[d] * gap for d, (step, pad, gap) in enumerate(self.window)
                ]
                seen = cast(self.b.load(self.input, (*place[:2], *where)), self.total)
                self.b.update((acc,), "add", op("product", given, seen))

    def segments(self, d: int, taps: set[int]) -> Iterator[tuple[int, int, set[int]]]:
        """(first, count, the taps that see something from there) of places of dimension ``d``."""
        step, pad, gap = self.window[d]
        limits = {}
        for tap in taps:
            ahead = pad - tap * gap
            low = max(0, -(-ahead // step))
            limits[tap] = low, max(low, min(self.places[d], (self.extents[d] - 1 + ahead) // step + 1))
        edges = sorted({edge for pair in limits.values() for edge in pair})
        for first, end in itertools.pairwise(edges):
            seeing = {tap for tap, (low, high) in limits.items() if low <= first and end <= high}
            if seeing:
                yield first, end - first, seeing
