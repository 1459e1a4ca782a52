"""Choosing whose a matrix product on a GPU is: a kernel of lowc's own on tensor cores, or a library's.

With option ``matmul="auto"`` it is lowc's own where that was measured to be faster (``FASTER``), and where the model of costs
(``choose_tensor_cores``) says that it saves time: where pointwise ops follow, which then need no kernel and no memory of their
own, and where rows begin at no multiple of 16 bytes, which the library does at a sixth of its speed.  Other products by
themselves are the library's, which takes what the best way would, less a little, or what large tiles would if all multiprocessors
shared the last round of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lowc.ir import tiles
from lowc.ir.index import Index, constant, lower_bound
from lowc.ir.types import DType, f32, i8
from lowc.options import Options
from lowc.scheduler import choose_mma
from lowc.scheduler.choose_tensor_cores import ABILITY, START, WAYS, Size, best
from lowc.target import Target

Whose = Callable[[DType, Sequence[Index], Sequence[Index], bool, bool, bool, int, bool], str]
SPAN = 0.65  # microseconds that a span of the model takes under load
SPEED = 0.97  # the library's time over that of the best way …
EVEN = 1.12  # … or over that of large tiles in equal parts for all multiprocessors, whichever is less
BROKEN = 5.9  # and where rows begin at no multiple of 16 bytes
POINTWISE = 2.0  # microseconds that a kernel of its own takes besides moving memory …
MEMORY = 4.2e6  # … and bytes that are moved in a microsecond
COPIED = 1.5e6  # bytes in a microsecond where a factor is copied so that its rows begin elsewhere
WORK = 15  # cheap instructions that pointwise ops take for an element
LEAST = 256  # rows, columns, depth below which the model of the library is wrong
GAIN = 1.02  # what the library must take of lowc's own time, at least

INTEGERS = "lowc's own of i8 are for option matmul='own', of factors that lie along the depth, from compute capability 8.0 on"
EIGHTHS = "lowc's own of float8 are for compute capability 9.0, of factors that begin at multiples of 16 bytes"
Range = tuple[int, int]
ANY = 1 << 40


@dataclass(frozen=True, slots=True)
class Faster:
    """Products of sizes between measured ones (first and last included), at all of which lowc's own were faster than the library,
    ``gain`` times at least (benchmarks/results/h200_matmul.md); batches may be larger.  ``along``: with both factors along the
    depth."""

    gain: float
    batch: Range
    rows: Range
    columns: Range
    depth: Range
    along: bool = False

    def has(self, size: Size) -> bool:
        sizes = (size.batch, size.rows, size.columns, size.depth)
        ranges = (self.batch, self.rows, self.columns, self.depth)
        return all(low <= n <= high for n, (low, high) in zip(sizes, ranges, strict=True)) and not (self.along and size.turned)


FASTER = (
    Faster(1.19, (1, 1), (1, 1), (4096, 11008), (4096, 4096), along=True),  # a row: the library's kernel for it reads slower
    Faster(1.20, (1, 1), (64, 512), (64, 512), (64, 512)),  # small: the time from the start of a kernel to its end
    Faster(1.06, (1, 1), (512, 1024), (512, 1024), (512, 1024)),
    Faster(1.42, (1, 1), (128, 128), (4096, 4096), (4096, 4096), along=True),  # 128 tiles of 64 x 64 on 132 multiprocessors
    Faster(1.12, (1, 1), (64, 64), (4096, 4096), (11008, 11008), along=True),  # of 64 x 32; at a depth of 4096 by 1.03 only
    Faster(1.06, (1, 1), (256, 768), (256, 768), (16384, 16384)),  # deep: slices
    Faster(1.03, (12, ANY), (64, 1024), (64, 1024), (64, 1024)),  # batches
    Faster(1.36, (12, ANY), (64, 64), (64, 64), (64, 4096)),
)

ACCURATE = 1.06  # times as long as its products of float8 of fewer bits, relative to lowc's own, the library's accurate ones take
FASTER_EIGHTHS = (Faster(1.5, (1, 1), (16, 128), (4096, 4096), (4096, 14336)),)
"""The same of float8 (benchmarks/results/h200_fp8.md)."""


def library(target: Target, options: Options) -> Whose:
    """For ``lowering``: why a product of tensors of a dtype and of these shapes is the library's; "" for one of lowc's own.

    Told are the dtype, the shapes, whether pointwise ops follow, whether both factors lie as the copying engine wants them,
    whether both lie along the depth, the bytes of the smallest pieces in which threads would copy a factor, 16 if large ones
    that lie otherwise are brought into lines first, and whether sums of float8 may be of fewer bits than f32 has.
    """

    def why(
        dtype: DType, x: Sequence[Index], y: Sequence[Index], followed: bool, in_lines: bool, along: bool, pieces: int = 16,
        loose: bool = False,
    ) -> str:  # fmt: skip
        if options.matmul == "library":
            return "option matmul='library'"
        if options.numerics == "strict" and options.matmul != "own":
            return "option numerics='strict'"
        if ABILITY not in target.ops and not (choose_mma.ABILITY in target.ops and options.matmul == "own"):
            return f"lowc's own are for compute capability 9.0, from 8.0 on with option matmul='own', not {target.cpu}"
        if dtype == i8 and not (along and options.matmul == "own" and choose_mma.ABILITY in target.ops):
            return INTEGERS
        if dtype in tiles.EIGHTHS and not (in_lines and along and ABILITY in target.ops):
            return EIGHTHS
        if dtype.bits != 16 and dtype not in (f32, i8, *tiles.EIGHTHS):
            return f"lowc's own are of f16, bf16 and f32, not {dtype}"
        if dtype == f32 and options.matmul != "own":
            return "lowc's own of f32 are for option matmul='own'"
        vector = len(x) < 2 or len(y) < 2 or constant(x[-2]) == 1 or constant(y[-1]) == 1
        if any(constant(n) == 0 for n in (*x, *y)) or (vector and dtype.bits != 16 and dtype not in tiles.EIGHTHS):
            return "no product of two matrices"
        if (lower_bound(x[-1]) or 0) < 1:
            return "its depth may be 0"
        if options.matmul == "own":
            return ""
        if vector and (len(x) != 2 or len(y) != 2 or constant(y[-1]) == 1):
            return "no product of two matrices"
        if dtype in tiles.EIGHTHS:
            return _slower_of_eighths(x, y, followed, loose, target.cores)
        return _slower(x, y, followed, in_lines, along, target.cores, pieces)

    return why


def _slower(
    x: Sequence[Index], y: Sequence[Index], followed: bool, in_lines: bool, along: bool, processors: int, pieces: int
) -> str:
    """Why a product is not worth a kernel of lowc's own."""
    extents = [constant(n) for n in (*x, y[-1])]
    known = [n for n in extents if n is not None]
    if len(known) < len(extents):
        return "how large it is only the call tells; lowc's own with option matmul='own'"
    *batch, rows, depth, columns = known
    count = 1
    for n in batch:
        count *= n
    if len(y) < 3:
        rows, count = rows * count, 1
    size = Size(count, rows, columns, depth, turned=not along)
    if in_lines and any(f.has(size) for f in FASTER):
        return ""
    if min(rows, columns, depth) < LEAST:
        return "it is small, and not among those that were measured; lowc's own with option matmul='own'"
    gain = gain_of(size, followed, in_lines, processors, pieces)
    if gain >= GAIN:
        return ""
    return f"which takes {gain:.2f} of what lowc's own would; with option matmul='own' it is lowc's"


def _slower_of_eighths(x: Sequence[Index], y: Sequence[Index], followed: bool, loose: bool, processors: int) -> str:
    """The same for a product of float8."""
    rows, depth, columns = (constant(n) for n in (*x, y[-1]))
    if rows is None or depth is None or columns is None:
        return "how large it is only the call tells; lowc's own with option matmul='own'"
    size = Size(1, rows, columns, depth, width=1, apart=not loose)
    if any(f.has(size) for f in FASTER_EIGHTHS):
        return ""
    if min(rows, columns, depth) < LEAST:
        return "it is small, and not among those that were measured; lowc's own with option matmul='own'"
    if depth % tiles.LINE:
        return "rows begin at no multiple of 128 bytes, which the library does faster; lowc's own with option matmul='own'"
    gain = gain_of(size, followed, True, processors) * (1 if loose else ACCURATE)
    return "" if gain >= GAIN else f"which takes {gain:.2f} of what lowc's own would; with option matmul='own' it is lowc's"


def gain_of(size: Size, followed: bool, in_lines: bool, processors: int, pieces: int = 16) -> float:
    """About how many times as long as lowc's own the library takes, with the pointwise kernel after it; ``pieces``: bytes of the
    smallest in which a factor is copied, by warps if they are fewer than 16."""
    elements = size.batch * size.rows * size.columns
    whole = best(size, processors)[0]
    theirs = SPAN * (whole * SPEED if in_lines else START + (whole - START) * BROKEN)
    if in_lines:
        theirs = min(theirs, SPAN * EVEN * _shared(size, processors))
    if followed:
        theirs += POINTWISE + 4 * elements / MEMORY
    if pieces < 16:
        return theirs / choose_mma.time(size, processors, pieces)
    ours = SPAN * best(replace(size, work=WORK if followed else 0), processors)[0]
    if not in_lines:
        ours += 2 * POINTWISE + 4 * size.batch * size.depth * (size.rows + size.columns) / COPIED
    return theirs / ours


def _shared(size: Size, processors: int) -> float:
    """Spans that the largest tiles take where no multiprocessor waits for others."""
    high, wide = WAYS[0].tile
    each = size.batch * size.rows * size.columns / (high * wide * processors)
    return START + each * (size.depth * size.width / tiles.LINE * WAYS[0].span + WAYS[0].end)
