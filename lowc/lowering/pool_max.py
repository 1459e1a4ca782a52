"""Maximum pooling with the places of the maxima, over fixed and over adaptive windows, and its gradients.

A place is a row-major position in the pooled dimensions.  Of equal elements the first one counts, of NaNs the last, as in
ATen's loops (``ATen/native/cpu/MaxPoolKernel.cpp``: ``(val > maxval) || isnan(val)``).
"""

import itertools
import math
from collections.abc import Callable, Sequence

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index, constant
from lowc.ir.nodes import Expr
from lowc.ir.types import bool_, compute_dtype, i64
from lowc.lowering.builder import Builder
from lowc.lowering.indexing import integers
from lowc.lowering.pool import Size, inside_all, per_dim
from lowc.lowering.pool_adaptive import first_tap, most_taps, window_end
from lowc.lowering.reduce import needs_elements
from lowc.lowering.scalars import both, cast, const, is_nan, op, select
from lowc.lowering.scatter import combine
from lowc.lowering.values import Coords, Value, is_one, loop_order, product, ravel, unravel

Taps = Callable[[Builder, Coords, Coords], tuple[Coords, Expr | None]]


def max_pool(rank: int) -> Callable[..., tuple[Value, ...]]:
    """max_pool2d_with_indices, max_pool3d_with_indices."""

    def lower(
        b: Builder,
        outs: Sequence[TensorMeta | None],
        self: Value,
        kernel_size: Sequence[Size],
        stride: Sequence[Size] = (),
        padding: Sequence[Size] = (0,),
        dilation: Sequence[Size] = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Value, ...]:
        kernel, step = per_dim(kernel_size, rank), per_dim(stride or kernel_size, rank)
        pad, apart = per_dim(padding, rank), per_dim(dilation, rank)
        sizes = self.shape[-rank:]

        def tap(b: Builder, windows: Coords, taps: Coords) -> tuple[Coords, Expr | None]:
            place = tuple(
                w * s - p + k * d for w, s, p, k, d in zip(windows, step, pad, taps, apart, strict=True)
            )
            return place, inside_all(b, place, sizes)

        return _pooled(b, outs, self, rank, kernel, tap)

    return lower


def adaptive_max_pool(rank: int) -> Callable[..., tuple[Value, ...]]:
    """adaptive_max_pool2d, adaptive_max_pool3d."""

    def lower(
        b: Builder, outs: Sequence[TensorMeta | None], self: Value, output_size: Sequence[Size]
    ) -> tuple[Value, ...]:
        sizes = self.shape[-rank:]
        windows_of = per_dim(output_size, rank)
        most = tuple(most_taps(n, o) for n, o in zip(sizes, windows_of, strict=True))

        def tap(b: Builder, windows: Coords, taps: Coords) -> tuple[Coords, Expr | None]:
            place: list[Index] = []
            mask: Expr | None = None
            for w, k, n, o in zip(windows, taps, sizes, windows_of, strict=True):
                place.append(first_tap(w, n, o) + k)
                mask = both(mask, b.inside(place[-1], first_tap(w, n, o), window_end(w, n, o)))
            return tuple(place), mask

        return _pooled(b, outs, self, rank, most, tap)

    return lower


def _pooled(
    b: Builder, outs: Sequence[TensorMeta | None], self: Value, rank: int, most: Coords, tap: Taps
) -> tuple[Value, ...]:
    """``tap(b, window, number)``: where a window's element of that number lies, and whether it is one."""
    if self.dtype == bool_:
        raise NotLowered("maximum pooling of bool")
    needs_elements(self, range(len(self.shape) - rank, len(self.shape)))
    sizes = self.shape[-rank:]
    values, places = outs
    known = values or places
    if known is None:
        raise NotLowered("no result is used")
    targets = [None if o is None else b.result(o, f"{b.stem}_{n}") for n, o in enumerate(outs)]
    with b.kernel(), b.loops(known.shape, loop_order(known.shape, known.strides)) as coords:
        best = b.acc("argmax" if places else "max", self.dtype)
        broken = b.acc("max", i64) if places and self.dtype.kind == "f" else None
        with b.loops(most, range(rank), "k") as taps:
            place, mask = tap(b, tuple(coords[-rank:]), tuple(taps))
            mask = None if mask is None else b.let(mask)
            value = b.load(self, (*coords[:-rank], *place), mask)
            if places is None:
                b.update(best, "max", value, mask=mask)
            else:
                value, position = b.let(value), b.index(ravel(place, sizes))
                b.update(best, "argmax", value, position, mask=mask)
                if broken is not None:
                    found = both(mask, is_nan(value))
                    assert found is not None
                    b.update(broken, "max", select(found, position, const(-1, i64)))
        if targets[0] is not None:
            b.store(targets[0], tuple(coords), best[0])
        if targets[1] is not None:
            where = best[1]
            if broken is not None:
                where = select(op("ge", broken[0], const(0, i64)), broken[0], where)
            b.store(targets[1], tuple(coords), where)
    return tuple(t for t in targets if t is not None)


def max_pool_backward(rank: int) -> Callable[..., Value]:
    """max_pool2d_with_indices_backward, max_pool3d_with_indices_backward: each element takes what the windows over it send, in
    their order, if their maximum is there.  Nothing is stored at places that data tells, and the result joins what reads it.
    """

    def lower(
        b: Builder,
        out: TensorMeta,
        grad_output: Value,
        self: Value,
        kernel_size: Sequence[Size],
        stride: Sequence[Size],
        padding: Sequence[Size],
        dilation: Sequence[Size],
        ceil_mode: bool,
        indices: Value,
    ) -> Value:
        integers(indices)
        step, pad = per_dim(stride or kernel_size, rank), per_dim(padding, rank)
        spans = [(k - 1) * d + 1 for k, d in zip(per_dim(kernel_size, rank), per_dim(dilation, rank), strict=True)]
        over = [constant(-(-span // s)) for span, s in zip(spans, step, strict=True)]
        if None in over or math.prod(n or 0 for n in over) > FEW:
            raise NotLowered(f"more than {FEW} windows over an element")
        inner = loop_order(out.shape, out.strides)[-1] - (len(out.shape) - rank)
        if inner >= 0 and not is_one(step[inner]) and not b.choose_parts:
            # A scatter is as fast as ATen's, but a kernel of its own among others whose temps then live at the same time.
            raise NotLowered("windows apart from one another along the innermost dimension: lanes would read far apart")
        sizes, counts = out.shape[-rank:], grad_output.shape[-rank:]
        wide = compute_dtype(out.dtype)

        def element(c: Coords) -> Expr:
            here = b.index(ravel(c[-rank:], sizes))
            total: Expr = const(0, wide)
            for back in itertools.product(*(range((n or 0) - 1, -1, -1) for n in over)):
                windows = tuple((x + p) // s - t for x, p, s, t in zip(c[-rank:], pad, step, back, strict=True))
                mask = inside_all(b, windows, counts)
                place = (*c[:-rank], *windows)
                hit = both(mask, op("eq", cast(b.load(indices, place, mask), i64), here))
                assert hit is not None
                sent = cast(b.load(grad_output, place, mask), wide)
                total = op("add", total, select(hit, sent, const(0, wide)))
            return cast(total, out.dtype)

        return b.map(out, element)

    return lower


FEW = 16  # windows over an element that it looks at


def adaptive_max_pool_backward(rank: int) -> Callable[..., Value]:
    def lower(b: Builder, out: TensorMeta, grad_output: Value, self: Value, indices: Value) -> Value:
        return _scattered(b, out, grad_output, indices, rank)

    return lower


def _scattered(b: Builder, out: TensorMeta, grad_output: Value, indices: Value, rank: int) -> Value:
    integers(indices)
    sizes = out.shape[-rank:]

    def element(c: Coords) -> tuple[Coords, Expr, Expr | None]:
        where, mask = b.checked(cast(b.load(indices, c), i64), product(sizes))
        return (*c[:-rank], *unravel(where, sizes)), b.load(grad_output, c), mask

    return combine(b, out, None, grad_output.shape, element)
