"""Choosing how tensor cores do a contraction, and whether a library would be faster.

The cost of a product is the rounds of blocks over the multiprocessors, each as long as its tile is wide over how well tiles of
that width use the tensor cores (measured on an H200; docs/design.md section 10).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir import tiles
from lowc.ir.index import Index, constant, lower_bound
from lowc.ir.nodes import For, Kernel
from lowc.ir.types import DType
from lowc.options import Options
from lowc.scheduler.contraction import Contraction, find
from lowc.scheduler.nest import estimate
from lowc.scheduler.tensor_cores import TensorCores, narrow
from lowc.target import Target

ABILITY = "wgmma"
SHARED = 192 << 10  # bytes for the ring of tiles, of the 227 KB that a block may have
ROWS = 128
EFFICIENCY = {256: 1.0, 128: 0.95, 64: 0.57}
SLOW = 128  # columns of a tile at most where threads copy: they need registers
ROUND = 1.5  # what a round costs besides, in spans of the depth: filling the ring, storing the results


@dataclass(frozen=True, slots=True)
class Size:
    """Of a product: how many there are (``batch``), and ``rows``, ``columns``, ``depth`` of each."""

    batch: int
    rows: int
    columns: int
    depth: int


def choices(kernel: Kernel, target: Target) -> tuple[TensorCores, ...]:
    """Ways to do ``kernel`` if that is one contraction of 16-bit factors, best first; none if it is none."""
    found = contraction(kernel, target)
    if found is None or found.rows is None:
        return ()
    size = _size(found)
    out: list[TensorCores] = []
    for copies in ((tiles.TMA, tiles.TMA), (tiles.COPY, tiles.TMA), (tiles.TMA, tiles.COPY), (tiles.COPY, tiles.COPY)):
        widths = [w for w in EFFICIENCY if w <= SLOW or tiles.COPY not in copies]
        wide = min(widths, key=lambda w: cost(size, w, target.cores))
        stages = SHARED // (2 * tiles.SPAN * (ROWS + wide))
        out.append(TensorCores(found.outer[0].axis.name, (ROWS, wide), stages, copies, target.cores))
    return tuple(out)


def contraction(kernel: Kernel, target: Target) -> Contraction | None:
    """The contraction that ``kernel`` is, if ``target`` has tensor cores for it."""
    if ABILITY not in target.ops or len(kernel.body) != 1 or not isinstance(kernel.body[0], For):
        return None
    found = find(kernel.body[0])
    if found is None or found.rows is None:
        return None
    try:
        return found if narrow(found.left).dtype == narrow(found.right).dtype else None
    except ScheduleError:
        return None


def cost(size: Size, wide: int, processors: int) -> float:
    """About how long products take with tiles of ``ROWS`` x ``wide``, in the time that a span of a tile 256 wide takes."""
    blocks = size.batch * -(-size.rows // ROWS) * -(-size.columns // wide)
    spans = -(-size.depth // tiles.SPAN)
    return -(-blocks // processors) * wide / 256 * (spans / EFFICIENCY[wide] + ROUND)


def _size(found: Contraction) -> Size:
    assert found.rows is not None
    count = 1
    for loop in found.outer:
        if loop is not found.rows and loop is not found.columns:
            count *= max(1, estimate(loop.axis.extent))
    rows, columns, depth = (estimate(f.axis.extent) for f in (found.rows, found.columns, found.depth))
    return Size(count, rows, columns, depth)


# ---------------------------------------------------------------- whose a product is


def library(target: Target, options: Options) -> Callable[[DType, Sequence[Index], Sequence[Index]], str]:
    """For ``lowering``: why a product of tensors of a dtype and of these shapes is the library's; "" for one of lowc's own."""

    def why(dtype: DType, x: Sequence[Index], y: Sequence[Index]) -> str:
        if options.matmul != "own":
            return "lowc's own with option matmul='own'"
        if ABILITY not in target.ops:
            return f"lowc's own are for compute capability 9.0, not {target.cpu}"
        if dtype.bits != 16:
            return f"lowc's own are of f16 and bf16, not {dtype}"
        if len(x) < 2 or len(y) < 2 or any(constant(n) in (0, 1) for n in (*x[-2:], y[-1])):
            return "no product of two matrices"
        if (lower_bound(x[-1]) or 0) < 1:
            return "its depth may be 0"
        return ""

    return why
