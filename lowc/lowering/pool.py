"""Average pooling and its gradient, both as sums over a window of reads."""

from collections.abc import Sequence

from lowc.ir.graph import TensorMeta
from lowc.ir.index import ONE, ZERO, Index, ix, maximum, minimum
from lowc.ir.nodes import Expr
from lowc.ir.types import compute_dtype
from lowc.lowering.builder import Builder
from lowc.lowering.reduce import only_floats
from lowc.lowering.scalars import both, cast, op
from lowc.lowering.values import Value, loop_order

Size = int | Index


def _pair(sizes: Sequence[Size]) -> tuple[Index, Index]:
    return ix(sizes[0]), ix(sizes[-1])


def _divisor(
    position: Index, size: Index, pad: Index, kernel: Index, stride: Index, *, padded: bool
) -> Index:
    """How many elements a window covers along a dimension, padding included or not."""
    start = position * stride - pad
    end = minimum(start + kernel, size + pad)
    return end - start if padded else minimum(end, size) - maximum(start, ZERO)


def avg_pool2d(
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
    kernel, step, pad = _pair(kernel_size), _pair(stride or kernel_size), _pair(padding)
    only_floats(self, "average pooling")
    wide = compute_dtype(out.dtype)
    sizes = self.shape[-2:]
    target = b.result(out)
    with b.kernel(), b.loops(out.shape, loop_order(out.shape, out.strides)) as coords:
        acc = b.acc("add", wide)
        with b.loop(kernel[0], "k") as down, b.loop(kernel[1], "k") as right:
            inner = [coords[-2] * step[0] - pad[0] + down, coords[-1] * step[1] - pad[1] + right]
            mask = both(b.inside(inner[0], ZERO, sizes[0]), b.inside(inner[1], ZERO, sizes[1]))
            mask = None if mask is None else b.let(mask)
            b.update(acc, "add", cast(b.load(self, (*coords[:-2], *inner), mask), wide), mask=mask)
        count = ONE if divisor_override is None else ix(divisor_override)
        for dim in range(2) if divisor_override is None else ():
            where = coords[len(coords) - 2 + dim]
            count = count * _divisor(
                where, sizes[dim], pad[dim], kernel[dim], step[dim], padded=count_include_pad
            )
        b.store(target, tuple(coords), op("div", acc[0], cast(b.index(count), wide)))
    return target


def avg_pool2d_backward(
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
    """Each element sums what the windows over it give: at most ceil(kernel / stride) of them along a dimension."""
    kernel, step, pad = _pair(kernel_size), _pair(stride or kernel_size), _pair(padding)
    only_floats(self, "average pooling")
    wide = compute_dtype(out.dtype)
    sizes, windows = out.shape[-2:], grad_output.shape[-2:]
    target = b.result(out)
    with b.kernel(), b.loops(out.shape, loop_order(out.shape, out.strides)) as coords:
        acc = b.acc("add", wide)
        with (
            b.loop((kernel[0] + step[0] - 1) // step[0], "k") as up,
            b.loop((kernel[1] + step[1] - 1) // step[1], "k") as left,
        ):
            place: list[Index] = []
            mask: Expr | None = None
            count = ONE if divisor_override is None else ix(divisor_override)
            for dim, back in enumerate((up, left)):
                here = coords[len(coords) - 2 + dim] + pad[dim]
                window = here // step[dim] - back
                covers = b.inside(here, window * step[dim], window * step[dim] + kernel[dim])
                mask = both(mask, both(b.inside(window, ZERO, windows[dim]), covers))
                place.append(window)
                if divisor_override is None:
                    count = count * _divisor(
                        window, sizes[dim], pad[dim], kernel[dim], step[dim], padded=count_include_pad
                    )
            mask = None if mask is None else b.let(mask)
            grad = cast(b.load(grad_output, (*coords[:-2], *place), mask), wide)
            b.update(acc, "add", op("div", grad, cast(b.index(count), wide)), mask=mask)
        b.store(target, tuple(coords), acc[0])
    return target
