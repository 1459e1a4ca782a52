"""Choosing how a convolution is done on a CPU, and on any device whose it is with ``convolution="auto"``: lowc's own where that
was measured to be faster than ATen's."""

from collections.abc import Callable, Sequence
from math import prod

from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index, constant
from lowc.ir.nodes import PARALLEL, Kernel, Kind
from lowc.ir.types import DType, bf16, f32
from lowc.ir.walk import free_atoms
from lowc.options import Options
from lowc.scheduler.choose import PARALLEL_WORK
from lowc.scheduler.contract import Step
from lowc.scheduler.convolution import Convolution, find, results_along
from lowc.scheduler.depthwise import UNROLLED, Depthwise
from lowc.scheduler.direct import Direct
from lowc.scheduler.nest import estimate, iterations
from lowc.scheduler.tiles import STACK
from lowc.target import Target

Whose = Callable[[DType, Sequence[Index], Sequence[Index], TensorMeta, Sequence[Index], Index, bool, str], str]
OTHERS = "a library's (lowc's own with option convolution='own')"
SCRATCH = 24 << 10  # bytes of a block's input, which stay in the L1 cache
ROWS, MANY = (4, 7, 5, 3), (8, 7, 6, 5)  # places whose sums are in registers, for few taps and for many, by preference
NARROW = 7  # places along lanes below which most of a vector is idle
LINE = 8  # elements of 16 bits in the 16 bytes that the engine copies at least
DEEP, WIDE, MANY_PLACES = 64, 128, 4096  # of products on a GPU: channels, results and places from which on its own is faster
DEEPER = 256  # channels from which on results may be as few as channels
SOME_PLACES = 49  # the fewest with which convolutions of several taps, or by steps, were measured
FEW, FEWER = 25, 9  # taps up to which on a GPU its own was measured to be faster, of one channel: in rows, and side by side
LARGE = 1 << 23  # results, of the latter
CHANNELS = 16  # likewise channels
SHALLOW = 4  # channels of the input up to which steps do no harm
GROWING, FLAT = 160, 64  # channels that products sum over at most, where results lie along rows, or along channels
ZEN = "znver"  # how LLVM's names of AMD's processors begin; where gradients were measured, and those of one tap
MANY_TAPS, WIDE_ROWS = 25, 28  # of one channel in a group, from which on gradients of weights along rows were faster
WEIGHTS, PLACES = 1 << 20, 256  # of more weights than stay in the caches while images are read, and many places


def library(target: Target, options: Options) -> Whose:
    """For ``lowering``: why a convolution, of sizes that are known but for the number of images, is ATen's; "" for lowc's own.

    Told are the dtype, the shapes of input and weights, what is made of them, steps, groups, whether pointwise ops follow, and
    what is wanted (``lowering/asked.py``).
    """

    def why(
        dtype: DType, x: Sequence[Index], w: Sequence[Index], out: TensorMeta,
        steps: Sequence[Index], groups: Index, followed: bool, wanted: str = "result",
    ) -> str:  # fmt: skip
        if options.convolution == "library":
            return "option convolution='library'"
        if target.kind != "x86":
            return _on_a_gpu(target, options, dtype, x, w, out, steps, followed)
        if options.convolution == "own":
            return ""
        if options.numerics == "strict":
            return "option numerics='strict'"
        if target.vector_bits < 512 or dtype not in (f32, bf16):
            return "a library's: lowc's own was measured for f32 and bf16 on AVX-512 (there is option convolution='own')"
        if wanted != "result":
            return _gradient_slower(target, dtype, wanted, x, w, out, steps, groups)
        if constant(w[1]) == 1:
            return _depthwise_slower(out, followed)
        if prod(constant(n) or 0 for n in w[2:]) == 1:
            return "" if _on_zen(target, dtype, w, out) else _product_slower(dtype, w, out, followed)
        return _direct_slower(dtype, constant(x[0]) == 1, w, out, steps, followed)

    return why


def _on_a_gpu(
    target: Target, options: Options, dtype: DType, x: Sequence[Index], w: Sequence[Index], out: TensorMeta,
    steps: Sequence[Index], followed: bool,
) -> str:  # fmt: skip
    """Why a convolution on a GPU is ATen's.

    Lowc's own are those of one channel in a group, and those of all channels on tensor cores, where channels lie side by side, as
    the engine copies them; of those, the ones that were measured to be faster (benchmarks/results/h200_convolution.md).
    """
    own = options.convolution == "own"
    made, channels, *taps = (constant(n) or 0 for n in w)
    apart = any(constant(n) != 1 for n in steps)
    if channels != 1:
        if "wgmma" not in target.ops or dtype.bytes != 2:
            return f"a library's: a product of {dtype}"
        if constant(out.strides[1]) != 1 or made % LINE or channels % LINE:
            return "a library's: channels do not lie as the engine copies them"
        places = prod(constant(n) or 1 for n in (x[0], *out.shape[2:]))
        if not own and (prod(taps) != 1 or apart):
            if len(taps) != 2 or min(channels, made) < DEEP or places < SOME_PLACES:
                return f"{OTHERS}: {'x'.join(map(str, taps))} taps, {places} places, {made} channels of {channels}"
        elif not own and (channels < DEEP or made < (WIDE if channels < DEEPER else DEEP) or places < MANY_PLACES):
            return f"{OTHERS}: a product of {places}x{channels} and {channels}x{made}"
    elif not own and constant(out.strides[-1]) == 1 and prod(taps) > FEW:
        return f"{OTHERS}: {'x'.join(map(str, taps))} taps"
    elif not own and constant(out.strides[-1]) != 1:
        size = prod(constant(n) or 1 for n in out.shape)
        if prod(taps) > FEWER or apart or dtype.bytes != 2 or made % LINE or size < LARGE:
            return f"{OTHERS}: {'x'.join(map(str, taps))} taps of {size} results, channels side by side"
    if options.numerics == "strict" and not own:
        return "option numerics='strict'"
    return "" if followed or own else f"{OTHERS}: no pointwise op follows"


def _gradient_slower(
    target: Target, dtype: DType, wanted: str, x: Sequence[Index], w: Sequence[Index], out: TensorMeta, steps: Sequence[Index],
    groups: Index,
) -> str:  # fmt: skip
    """Why a gradient is not known to be faster by lowc's own: of the input (which ``out`` is), or of weights, where ``out`` is
    the gradient that is given."""
    made, channels, *taps = (constant(n) or 0 for n in w)
    unknown = any(constant(n) is None for n in (*x[1:], *w, *out.shape[1:]))
    if not target.cpu.startswith(ZEN) or len(taps) > 2 or unknown:
        return f"{OTHERS}: a {wanted}"
    along_rows, apart = constant(out.strides[-1]) == 1, any(constant(n) != 1 for n in steps)
    if constant(groups) == made and channels == 1:
        if wanted == "gradient of input":
            return f"{OTHERS}: a {wanted}, places are {'x'.join(map(str, steps))} apart" if apart and dtype == f32 else ""
        few = prod(taps) < MANY_TAPS and (constant(out.shape[-1]) or 0) < WIDE_ROWS
        return f"{OTHERS}: a {wanted}, rows of {out.shape[-1]}" if along_rows and few else ""
    plain = constant(groups) == prod(taps) == 1 and not apart and x[2:] == out.shape[2:]
    if not plain or not _on_zen(target, dtype, w, out):
        return f"{OTHERS}: a {wanted} of {made} channels of {channels}, {'x'.join(map(str, taps))} taps"
    if wanted == "gradient of weight" and (along_rows or dtype == f32):  # of few sums, which two cores do not share well
        return f"{OTHERS}: a {wanted}, {dtype}"
    return ""


def _depthwise_slower(out: TensorMeta, followed: bool) -> str:
    """Why a convolution of one channel in a group is not known to be faster by lowc's own."""
    if constant(out.strides[-1]) == 1:
        return "" if (constant(out.shape[-1]) or 0) >= NARROW else f"{OTHERS}: rows of {out.shape[-1]}"
    if (constant(out.shape[1]) or 0) < CHANNELS:
        return f"{OTHERS}: {out.shape[1]} channels"
    return "" if followed else f"{OTHERS}: channels lie side by side, and no pointwise op follows"


def _direct_slower(
    dtype: DType, single: bool, w: Sequence[Index], out: TensorMeta, steps: Sequence[Index], followed: bool
) -> str:
    """Why a convolution of all channels, the results of which lie along rows, is not known to be faster by lowc's own: of a
    ``single`` image most are, of several those of which the library makes little."""
    if dtype != f32:
        return f"{OTHERS}: it is of {dtype}"
    if (constant(out.shape[-1]) or 0) < NARROW or (constant(out.shape[1]) or 0) < CHANNELS:
        return f"{OTHERS}: rows of {out.shape[-1]}, {out.shape[1]} channels"
    if not single and any(constant(n) != 1 for n in steps) and (constant(w[1]) or 0) > SHALLOW:
        return f"{OTHERS}: places are {'x'.join(map(str, steps))} apart"
    if not single and prod(constant(n) or 0 for n in w) > WEIGHTS and prod(constant(n) or 0 for n in out.shape[2:]) > PLACES:
        return f"{OTHERS}: {'x'.join(map(str, w))} weights"
    return "" if followed else f"{OTHERS}: no pointwise op follows"


def _on_zen(target: Target, dtype: DType, w: Sequence[Index], out: TensorMeta) -> bool:
    """Whether a convolution of one tap is one of those that were measured to be faster on Zen 5: by one thread in f32, where ATen
    calls MKL, in half the time; by two, and bf16 in pairs where channels lie side by side, as fast as oneDNN's or faster."""
    made, channels = (constant(n) or 0 for n in w[:2])
    lies = dtype == f32 or (constant(out.strides[-1]) != 1 and made % 2 == channels % 2 == 0)
    return target.cpu.startswith(ZEN) and lies and min(made, channels) >= CHANNELS


def _product_slower(dtype: DType, w: Sequence[Index], out: TensorMeta, followed: bool) -> str:
    """Why a convolution of one tap, a product of matrices, is not known to be faster by lowc's own: where there are few channels
    to sum over, what follows takes as long as the product."""
    made, channels = (constant(n) or 0 for n in w[:2])
    along_rows = constant(out.strides[-1]) == 1
    few = 2 * channels <= made and channels <= GROWING if along_rows else channels <= FLAT
    if dtype != f32 or not few or not followed:
        return f"{OTHERS}: a product of {dtype}, {made} channels of {channels}"
    return ""


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
    if found.depth:
        return tuple([(step,) for step in _direct(found, lanes, target, kind)])
    step = _depthwise(found, lanes, target, kind)
    return () if step is None else ((step,),)


def _depthwise(found: Convolution, lanes: int, target: Target, kind: Kind) -> Step | None:
    axes = [f.axis for f in found.outer]
    along = results_along(found)
    windows = {w.place: w for w in found.windows}
    down = next((a for a in reversed(axes) if a in windows and a != along), None)
    taps = prod(constant(w.tap.extent) or 0 for w in found.windows)
    likely, rows = ROWS if taps <= UNROLLED else MANY, 1
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
        rows = min(next((n for n in likely if high % n == 0), likely[0]), high)
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
        axes[0].name, along.name, "" if down is None else down.name, tuple(tile), rows, lanes,
        4 if down is None else 1, kind,
    )  # fmt: skip


TILES = ((8, 3), (8, 2), (6, 4), (12, 2))  # channels, and vectors of places, of a tile of registers
NARROW_TILES = ((4, 3), (6, 2))  # with 16 registers
SLICE = 512  # products in a sum before it is added to others
COPY = 0.25  # cycles for an element of the input
WEIGHT = 2.0  # for a weight that is copied,
NEAR, FAR = 0.15, 0.5  # and for one that comes from the L2 cache, or from farther away
RESULT = 0.5  # and for one of the output
START = 30.0  # and for a tile


def _direct(found: Convolution, lanes: int, target: Target, kind: Kind) -> list[Step]:
    """Rows and channels of the least cost for each tile, in cycles of a core that starts two multiply-adds; best first."""
    axes = [f.axis for f in found.outer]
    windows = {w.place: w for w in found.windows}
    along = results_along(found)
    used = free_atoms(found.data)
    channels = next((a for a in reversed(axes) if a not in used and a in free_atoms(found.weight)), None)
    if channels is None or len(found.depth) != 1 or (found.windows and along not in windows):
        return []
    down = next((a for a in axes if a in windows and a != along), None)
    extent, deep, made = (constant(a.extent) or 0 for a in (along, found.depth[0], channels))
    high = 1 if down is None else constant(down.extent) or 0
    if not (extent and deep and made and high):  # of none, or as many as the call tells
        return []
    taps = prod(constant(w.tap.extent) or 0 for w in found.windows)
    batch = prod(estimate(a.extent) for a in axes if a not in (along, down, channels))
    across, beside = windows.get(along), 0
    if across is not None:
        beside = ((constant(across.tap.extent) or 0) - 1) * across.gap // across.step
    cores = target.cores if kind == PARALLEL else 1
    best: dict[tuple[int, int], tuple[float, Direct]] = {}
    shares = [(rows, extent) for rows in _shares(high)] if across is not None else [(1, n) for n in _shares(extent)]
    for rows, wide in shares:
        seen, pitch = rows, wide + beside
        if down is not None:
            window = windows[down]
            seen = (rows + ((constant(window.tap.extent) or 0) - 1) * window.gap // window.step) * window.step
        room = deep * seen * pitch * (1 if across is None else across.step)
        for tall, vectors in TILES if target.registers >= 32 else NARROW_TILES:
            if room * found.data.dtype.bytes > min(target.l2 * 3 // 10, STACK // 2):
                continue
            places = -(-((rows - 1) * pitch + wide) // (vectors * lanes))
            scratch = room + tall * (places * vectors * lanes + SLICE + taps)
            if scratch * found.data.dtype.bytes > STACK * 9 // 10:
                continue
            for split_ in (1, 2, 4, 8):
                count = -(-made // (tall * split_)) * tall
                if split_ > 1 and count * (split_ - 1) >= made:
                    continue
                cycles = max(tall * vectors / 2, (2 * vectors + tall) / 1.4) * deep * taps + START
                work = room * COPY + count // tall * places * cycles + count * rows * wide * RESULT
                near = made * deep * taps * found.data.dtype.bytes <= target.l2 // 2
                work += count * deep * taps * (WEIGHT if made % tall else NEAR if near else FAR)
                blocks = batch * -(-high // rows) * -(-extent // wide) * split_
                total = -(-blocks // cores) * work
                if (tall, vectors) not in best or total < best[tall, vectors][0]:
                    size = max(1, SLICE // taps)
                    slices = -(-deep // size)
                    step = Direct(
                        axes[0].name, along.name, wide, "" if down is None else down.name, rows, (channels.name, count),
                        (tall, vectors * lanes), -(-deep // slices), lanes, kind,
                    )  # fmt: skip
                    best[tall, vectors] = total, step
    return [step for _, step in sorted(best.values(), key=lambda each: each[0])]


def _shares(extent: int) -> list[int]:
    """Numbers of rows that share ``extent`` evenly."""
    return sorted({-(-extent // n) for n in range(1, extent + 1)}) or [1]


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
