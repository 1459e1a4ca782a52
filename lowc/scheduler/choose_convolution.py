"""Choosing how a convolution is done on a CPU, and whose it is with ``convolution="auto"``: lowc's own where that was measured to
be faster than ATen's."""

from collections.abc import Callable, Sequence

from lowc.ir.graph import TensorMeta
from lowc.ir.index import Axis, Index, constant, split
from lowc.ir.nodes import PARALLEL, For, Kernel, Kind
from lowc.ir.types import DType, bf16, f32
from lowc.ir.walk import stores
from lowc.options import Options
from lowc.scheduler.choose import PARALLEL_WORK
from lowc.scheduler.contract import Step
from lowc.scheduler.convolution import Convolution, find
from lowc.scheduler.depthwise import Depthwise
from lowc.scheduler.nest import estimate, iterations
from lowc.target import Target

Whose = Callable[[DType, Sequence[Index], Sequence[Index], TensorMeta, Sequence[Index], Index, bool], str]
OTHERS = "a library's (lowc's own with option convolution='own')"
NARROW = 7  # places along lanes below which most of a vector is idle
CHANNELS = 16  # likewise channels


def library(target: Target, options: Options) -> Whose:
    """For ``lowering``: why a convolution, of sizes that are known but for the number of images, is ATen's; "" for lowc's own.

    Told are the dtype, the shapes of input and weights, what is made of them, steps, groups, and whether pointwise ops follow.
    """

    def why(
        dtype: DType, x: Sequence[Index], w: Sequence[Index], out: TensorMeta, steps: Sequence[Index], groups: Index, followed: bool
    ) -> str:
        if options.convolution == "library":
            return "option convolution='library'"
        if target.kind != "x86":
            return "a library's: lowc's own is for CPUs"
        if options.convolution == "own":
            return ""
        if options.numerics == "strict":
            return "option numerics='strict'"
        if target.vector_bits < 512 or dtype not in (f32, bf16):
            return "a library's: lowc's own was measured for f32 and bf16 on AVX-512 (there is option convolution='own')"
        return _depthwise_slower(out, followed)

    return why


def _depthwise_slower(out: TensorMeta, followed: bool) -> str:
    """Why a convolution of one channel in a group is not known to be faster by lowc's own."""
    if constant(out.strides[-1]) == 1:
        return "" if (constant(out.shape[-1]) or 0) >= NARROW else f"{OTHERS}: rows of {out.shape[-1]}"
    if (constant(out.shape[1]) or 0) < CHANNELS:
        return f"{OTHERS}: {out.shape[1]} channels"
    return "" if followed else f"{OTHERS}: channels lie side by side, and no pointwise op follows"


def choices(kernel: Kernel, target: Target, threads: bool) -> tuple[tuple[Step, ...], ...]:
    """Schedules for ``kernel`` if that is a convolution, best first; none if it is none."""
    if len(kernel.body) != 1:
        return ()
    found = find(kernel.body[0])
    if found is None:
        return ()
    lanes = target.vector_bits // found.data.dtype.bits
    work = iterations(found.outer)
    for tap in (*(w.tap for w in found.windows), *found.depth):
        work *= max(1, estimate(tap.extent))
    parallel = threads and target.cores > 1 and work // lanes >= PARALLEL_WORK
    kind = PARALLEL if parallel else Kind()
    steps = (_depthwise(found, lanes, target, kind),) if not found.depth else ()
    return tuple([(step,) for step in steps if step is not None])


SCRATCH = 24 << 10


def _depthwise(found: Convolution, lanes: int, target: Target, kind: Kind) -> Step | None:
    axes = [f.axis for f in found.outer]
    along = _along(found)
    windows = {w.place: w for w in found.windows}
    down = next((a for a in reversed(axes) if a in windows and a != along), None)
    taps = 1
    for w in found.windows:
        taps *= constant(w.tap.extent) or 0
    rows = 4 if taps <= 30 else 8
    tile: list[tuple[str, int]] = []
    across = 1
    if along in windows:
        wide = constant(along.extent)
        if wide is None:
            return None
        tile.append((along.name, min(wide, 1024)))
        across = min(wide, 1024) * windows[along].step
    else:
        known = constant(along.extent)
        tile.append((along.name, 64 if known is None else _share(known, 128, lanes)))
        across = tile[-1][1]
    if down is not None:
        high = constant(down.extent)
        if high is None:
            return None
        rows = min(rows, high)
        window = windows[down]
        span = (constant(window.tap.extent) or 0) * window.gap
        room = max(rows, (SCRATCH // 4 // across - span) // window.step)
        tile.append((down.name, _share(high, room, rows)))
    for axis in axes:
        if axis in windows and axis not in (along, down):
            high = constant(axis.extent)
            if high is None:
                return None
            tile.append((axis.name, _share(high, 8, 1)))
    return Depthwise(
        axes[0].name, along.name, "" if down is None else down.name, tuple(tile), 1 if down is None else rows, lanes,
        4 if down is None else 1, kind,
    )  # fmt: skip


def _share(extent: int, most: int, unit: int) -> int:
    if extent <= most:
        return extent
    for size in range(most, most // 2, -1):
        if extent % size == 0 and size % unit == 0:
            return size
    for size in range(most, most // 3, -1):
        if extent % size == 0:
            return size
    return max(unit, most // unit * unit)


def _along(found: Convolution) -> Axis:
    """The axis along which most results are contiguous."""

    def score(loop: For) -> int:
        return sum(constant(split(s.index[-1], loop.axis)[0]) == 1 for s in stores(found.rest))

    return max(reversed(found.outer), key=score).axis
