"""Average pooling in two and three dimensions and its gradient, both as sums over a window of reads."""

from collections.abc import Callable, Sequence

from lowc.ir.graph import TensorMeta
from lowc.ir.index import ONE, ZERO, Index, ix, maximum, minimum
from lowc.ir.nodes import Expr
from lowc.ir.types import compute_dtype
from lowc.lowering.builder import Builder
from lowc.lowering.reduce import only_floats
from lowc.lowering.scalars import both, cast, op
from lowc.lowering.values import Coords, Value, loop_order

Size = int | Index


def per_dim(sizes: Size | Sequence[Size], rank: int) -> Coords:
    """A size for each pooled dimension; one size stands for all."""
    given = [sizes] if isinstance(sizes, int | Index) else list(sizes)
    return tuple(ix(n) for n in (given * rank if len(given) == 1 else given))


def inside_all(b: Builder, place: Sequence[Index], sizes: Coords) -> Expr | None:
    """Whether ``place`` is a position in ``sizes``; None where that is certain."""
    mask: Expr | None = None
    for position, size in zip(place, sizes, strict=True):
        mask = both(mask, b.inside(position, ZERO, size))
    return mask


def _divisor(
    position: Index, size: Index, pad: Index, kernel: Index, stride: Index, *, padded: bool
) -> Index:
    """How many elements a window covers along a dimension, padding included or not."""
    start = position * stride - pad
    end = minimum(start + kernel, size + pad)
    return end - start if padded else minimum(end, size) - maximum(start, ZERO)


def avg_pool(rank: int) -> Callable[..., Value]:
    """avg_pool2d, avg_pool3d."""

    def lower(
        b: Builder,
        out: TensorMeta,
        self: Value,
        kernel_size: Sequence[Size],
        stride: Sequence[Size] = (),
        padding: Sequence[Size] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:
        kernel, step = per_dim(kernel_size, rank), per_dim(stride or kernel_size, rank)
        pad = per_dim(padding, rank)
        only_floats(self, "average pooling")
        wide = compute_dtype(out.dtype)
        sizes = self.shape[-rank:]
        target = b.result(out)
        with b.kernel(), b.loops(out.shape, loop_order(out.shape, out.strides)) as coords:
            outer, windows = tuple(coords[:-rank]), coords[-rank:]
            acc = b.acc("add", wide)
            with b.loops(kernel, range(rank), "k") as taps:
                place = [w * s - p + k for w, s, p, k in zip(windows, step, pad, taps, strict=True)]
                mask = inside_all(b, place, sizes)
                mask = None if mask is None else b.let(mask)
                b.update(acc, "add", cast(b.load(self, (*outer, *place), mask), wide), mask=mask)
            count = ONE if divisor_override is None else ix(divisor_override)
            for dim in range(rank) if divisor_override is None else ():
                count = count * _divisor(
                    windows[dim], sizes[dim], pad[dim], kernel[dim], step[dim], padded=count_include_pad
                )
            b.store(target, tuple(coords), op("div", acc[0], cast(b.index(count), wide)))
        return target

    return lower


def avg_pool_backward(rank: int) -> Callable[..., Value]:
    """Each element sums what the windows over it give: at most ceil(kernel / stride) of them along a dimension."""

    def lower(
        b: Builder,
        out: TensorMeta,
        grad_output: Value,
        self: Value,
        kernel_size: Sequence[Size],
        stride: Sequence[Size],
        padding: Sequence[Size],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Value:
        kernel, step = per_dim(kernel_size, rank), per_dim(stride or kernel_size, rank)
        pad = per_dim(padding, rank)
        only_floats(self, "average pooling")
        wide = compute_dtype(out.dtype)
        sizes, windows = out.shape[-rank:], grad_output.shape[-rank:]
        backs = tuple((k + s - 1) // s for k, s in zip(kernel, step, strict=True))
        target = b.result(out)
        with b.kernel(), b.loops(out.shape, loop_order(out.shape, out.strides)) as coords:
            acc = b.acc("add", wide)
            with b.loops(backs, range(rank), "k") as back:
                place: list[Index] = []
                mask: Expr | None = None
                count = ONE if divisor_override is None else ix(divisor_override)
                for dim in range(rank):
                    here = coords[len(coords) - rank + dim] + pad[dim]
                    window = here // step[dim] - back[dim]
                    covers = b.inside(here, window * step[dim], window * step[dim] + kernel[dim])
                    mask = both(mask, both(b.inside(window, ZERO, windows[dim]), covers))
                    place.append(window)
                    if divisor_override is None:
                        count = count * _divisor(
                            window, sizes[dim], pad[dim], kernel[dim], step[dim], padded=count_include_pad
                        )
                mask = None if mask is None else b.let(mask)
                grad = cast(b.load(grad_output, (*coords[:-rank], *place), mask), wide)
                b.update(acc, "add", op("div", grad, cast(b.index(count), wide)), mask=mask)
            b.store(target, tuple(coords), acc[0])
        return target

    return lower
