"""Adaptive average pooling: window ``o`` of ``O`` over ``n`` elements is ``floor(o n / O) .. ceil((o+1) n / O) - 1``."""

from collections.abc import Callable, Sequence

from lowc.ir.graph import TensorMeta
from lowc.ir.index import ONE, ZERO, Index, constant
from lowc.ir.nodes import Expr
from lowc.ir.types import compute_dtype
from lowc.lowering.builder import Builder
from lowc.lowering.pool import Size, per_dim
from lowc.lowering.reduce import needs_elements, only_floats
from lowc.lowering.scalars import both, cast, op
from lowc.lowering.values import Coords, Value, loop_order


def first_tap(window: Index, size: Index, windows: Index) -> Index:
    return window * size // windows


def window_end(window: Index, size: Index, windows: Index) -> Index:
    return ((window + 1) * size + windows - 1) // windows


def most_taps(size: Index, windows: Index) -> Index:
    """A bound on how many elements a window has: what all have if they are alike."""
    if constant(size % windows) == 0:
        return size // windows
    return (size + windows - 1) // windows + 1


def adaptive_avg_pool(rank: int) -> Callable[..., Value]:
    """_adaptive_avg_pool2d, _adaptive_avg_pool3d: the sum, divided by the window's extents one after the other."""

    def lower(b: Builder, out: TensorMeta, self: Value, output_size: Sequence[Size]) -> Value:
        only_floats(self, "average pooling")
        needs_elements(self, range(len(self.shape) - rank, len(self.shape)))
        wide = compute_dtype(out.dtype)
        sizes, counts = self.shape[-rank:], per_dim(output_size, rank)
        most = tuple(most_taps(n, o) for n, o in zip(sizes, counts, strict=True))
        target = b.result(out)
        with b.kernel(), b.loops(out.shape, loop_order(out.shape, out.strides)) as coords:
            windows = coords[-rank:]
            starts = [first_tap(w, n, o) for w, n, o in zip(windows, sizes, counts, strict=True)]
            ends = [window_end(w, n, o) for w, n, o in zip(windows, sizes, counts, strict=True)]
            acc = b.acc("add", wide)
            with b.loops(most, range(rank), "k") as taps:
                mask: Expr | None = None
                for start, end, tap in zip(starts, ends, taps, strict=True):
                    mask = both(mask, b.inside(start + tap, start, end))
                mask = None if mask is None else b.let(mask)
                place = tuple(s + k for s, k in zip(starts, taps, strict=True))
                b.update(acc, "add", cast(b.load(self, (*coords[:-rank], *place), mask), wide), mask=mask)
            b.store(target, tuple(coords), _over_extents(b, acc[0], starts, ends))
        return target

    return lower


def _over_extents(b: Builder, value: Expr, starts: Sequence[Index], ends: Sequence[Index]) -> Expr:
    for start, end in zip(starts, ends, strict=True):
        if end - start != ONE:
            value = op("div", value, cast(b.index(end - start), value.dtype))
    return value


def adaptive_avg_pool_backward(rank: int) -> Callable[..., Value]:
    """Each element sums what the windows over it give; the first of them is ``floor(i O / n)``."""

    def lower(b: Builder, out: TensorMeta, grad_output: Value, self: Value) -> Value:
        only_floats(self, "average pooling")
        wide = compute_dtype(out.dtype)
        sizes, counts = out.shape[-rank:], grad_output.shape[-rank:]
        most = tuple(most_taps(o, n) for n, o in zip(sizes, counts, strict=True))
        target = b.result(out)
        with b.kernel(), b.loops(out.shape, loop_order(out.shape, out.strides)) as coords:
            here = coords[-rank:]
            acc = b.acc("add", wide)
            with b.loops(most, range(rank), "k") as taps:
                place, mask = _covering(b, here, tuple(taps), sizes, counts)
                mask = None if mask is None else b.let(mask)
                grad = cast(b.load(grad_output, (*coords[:-rank], *place), mask), wide)
                starts = [first_tap(w, n, o) for w, n, o in zip(place, sizes, counts, strict=True)]
                ends = [window_end(w, n, o) for w, n, o in zip(place, sizes, counts, strict=True)]
                b.update(acc, "add", _over_extents(b, grad, starts, ends), mask=mask)
            b.store(target, tuple(coords), acc[0])
        return target

    return lower


def _covering(
    b: Builder, here: Sequence[Index], taps: Coords, sizes: Coords, counts: Coords
) -> tuple[Coords, Expr | None]:
    """Window number ``taps`` of those over the element ``here``, and whether it is one."""
    place: list[Index] = []
    mask: Expr | None = None
    for i, k, n, o in zip(here, taps, sizes, counts, strict=True):
        window = i * o // n + k
        place.append(window)
        mask = both(mask, b.inside(window, ZERO, o))
        mask = both(mask, b.inside(i, first_tap(window, n, o), window_end(window, n, o)))
    return tuple(place), mask
