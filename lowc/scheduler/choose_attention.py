"""Choosing whose attention is, and how tensor cores of a GPU do it.

With option ``attention="auto"`` it is lowc's own where that was measured to be faster than the op that is in the graph: on a GPU
``FASTER``, from benchmarks/results/h200_attention.md, on a CPU ``choose_online.why_not`` and, for gradients,
``choose_gradient.why_not``.
"""

from collections.abc import Callable, Sequence

from lowc.errors import ScheduleError
from lowc.ir.index import ONE, Axis, Index, constant
from lowc.ir.nodes import For, Kernel, Load, Op
from lowc.ir.types import DType
from lowc.ir.walk import free_atoms, parts
from lowc.options import Options
from lowc.scheduler import attention_gradient, choose_gradient, choose_online
from lowc.scheduler.attention import is_constant, of_queries, sees
from lowc.scheduler.choose_tensor_cores import ABILITY, SHARED
from lowc.scheduler.nest import estimate, numel
from lowc.scheduler.relay import WIDEST, Relayed
from lowc.scheduler.relay_across import RelayedAcross
from lowc.scheduler.relay_burden import CAPPED, DERIVATIVE, MANY, burden
from lowc.scheduler.relay_gradient import RelayedGradient
from lowc.scheduler.relay_scores import of_tiles
from lowc.scheduler.relay_tiles import PIECE
from lowc.scheduler.relay_weights import CAP, GRADIENT, is_masked, weights_of
from lowc.target import Target

Whose = Callable[[DType, Sequence[Index], Sequence[Index], Sequence[Index], bool, bool, bool, str, str], str]
LONG = 8192  # keys from which blocks of one head are at work at a time, so that its keys and values stay in the L2 cache
WAYS = ((3, 128, 3), (2, 128, 2), (2, 64, 2), (1, 64, 2))  # groups, keys at a time, stages
FEW = ((1, 128, 3), (1, 128, 2))  # of one tile of rows
THIN = 64  # columns up to which three groups have registers enough
APART = (3, 8)  # burdens from which on scores are made turn by turn: groups of pieces, and pieces
APART_BOTH = {64: (12, 16, 20), 128: (5, 12, 16)}  # the same of gradients, by width of a head: of pieces, neighbours, and rows
FEWER = 3  # the same with 64 queries at a time for heads of up to 64
TRIES = 4  # ways that are tried, best first, should one not be legal
FULL = 3  # blocks for each multiprocessor; with fewer nothing was measured
ANY = 1 << 62
EACH = {(wide, causal): (1024, ANY) for wide in (64, 128) for causal in (False, True)}
# By the library whose op is in the graph and what is wanted: from how many rows to how many lowc's own was measured to be faster
# by at least 1.02, by width of a head and whether causal.  Beside cuDNN's op, whose backward pass has not been given sums of
# lowc's, "sums" are where gradients are lowc's own as well.
FASTER = {
    ("flash", "result"): EACH,
    ("flash", "sums"): EACH,
    ("flash", "sums of gradients"): EACH,
    ("cudnn", "result"): {
        (128, True): (1024, ANY), (64, True): (4096, ANY), (128, False): (4096, ANY), (64, False): (16384, ANY),
    },
    ("cudnn", "sums"): {(128, True): (1024, ANY), (64, True): (4096, ANY)},
    ("cudnn", "sums of gradients"): EACH,
}  # fmt: skip
QUERIES, CACHE = 16, 2048  # up to which queries of a head are few, and from which on keys are many, where that was measured
OTHERS = "a library's (lowc's own with option attention='own')"
ROWS = 64  # of queries, for each 128 threads
KEYS = 128  # at a time, as a rule
TOGETHER = ((2048, 8), (8192, 4), (1 << 62, 2))  # rows of queries up to which gradients are best made of so many heads at a time


def ways(kernel: Kernel, target: Target) -> tuple[Relayed | RelayedGradient | RelayedAcross, ...]:
    """Ways to do ``kernel``, attention or a gradient of it, on tensor cores, best first; none if it is neither."""
    return (*choices(kernel, target), *gradients(kernel, target))


def choices(kernel: Kernel, target: Target) -> tuple[Relayed, ...]:
    """Ways to do ``kernel`` if that is attention of 16-bit factors, best first; none if it is none."""
    if ABILITY not in target.ops or len(kernel.body) != 1 or not isinstance(kernel.body[0], For):
        return ()
    found = of_queries(kernel.body[0])
    if found is None:
        return ()
    rows = Axis("row", ONE) if found.rows is None else found.rows.axis
    deep, wide = constant(found.depth.extent) or WIDEST, constant(found.columns.extent) or WIDEST
    limit, begin, score = sees(found)
    late_first = limit is not None and estimate(found.keys.extent) <= LONG
    axis = found.outer[0].axis.name
    # blocks that take tiles in turns begin the next one while results leave, but under a mask some have more to do than others
    blocks = target.cores if limit is None and begin is None else 0
    read = any(isinstance(p, Load) and found.keys in free_atoms(p) for p in parts(score))  # what is loaded takes registers
    read = read or bool(found.lets)
    few = found.rows is None or (constant(found.rows.axis.extent) or ROWS + 1) <= ROWS
    by_tiles = [of_tiles(score, rows, n * ROWS, found.keys, KEYS) for n in (2, 3)]
    told = [condition is not None for condition, _ in by_tiles]  # tiles to be left out
    placed = 0 if max(deep, wide) <= THIN else APART[0]
    weighs = burden([by_tiles[0][1]], found.lets, rows, found.keys, [found.product.name], both=2, cap=0, placed=placed)
    read = read or weighs >= MANY
    apart = sum(weighs >= least for least in APART)
    fitting = [
        Relayed(axis, groups, keys, stages, late_first, strips, blocks, apart)
        for least in (1, 0)
        for groups, keys, stages in (*(FEW if few else ()), *WAYS)
        if groups < 3 or (max(deep, wide) <= THIN and not read and told[0] == told[1])
        for strips in ((2, 1) if least else (0,))
        if shared(deep, wide, groups, keys, stages, strips) <= SHARED
    ]
    return tuple(fitting[:TRIES])


def gradients(kernel: Kernel, target: Target) -> tuple[RelayedGradient | RelayedAcross, ...]:
    """Ways to do ``kernel`` if that is a gradient of attention of 16-bit factors, best first; none if it is none.

    What adds up of rows is in registers, so that wide heads have fewer others at a time.
    """
    if ABILITY not in target.ops or len(kernel.body) != 1 or not isinstance(kernel.body[0], For):
        return ()
    side = attention_gradient.find(kernel.body[0])
    if side is None or side.near is None:
        return ()
    if side.across is not None:
        wide = constant(side.across.columns.extent) or WIDEST
        causal, axis = is_masked(side), side.outer[0].axis.name
        heads = _together(side) if causal else 1
        weighs = _burden_of_both(side, side.near.axis)
        others = 128 if wide <= THIN and weighs < FEWER else 64
        apart = sum(weighs >= least for least in APART_BOTH[64 if wide <= THIN else 128])
        return tuple([RelayedAcross(axis, others, 2, heads, not causal, strips, apart) for strips in (2, 0)])
    columns = sum(constant(m.columns.extent) or WIDEST + 1 for m in side.mixes)
    if columns > WIDEST:
        return ()
    spans = sum(-(-(constant(p.depth.extent) or WIDEST) // 64) * 64 for p in side.products)
    most = 48 if len(side.mixes) > 1 and columns > WIDEST // 2 else 64
    fitting = [n for n in (64, 48, 32) if n <= most and 2 * spans * (2 * ROWS + 2 * n) + 1024 <= SHARED]
    return tuple([RelayedGradient(side.outer[0].axis.name, 2, n, 2) for n in fitting])


def _burden_of_both(side: attention_gradient.Side, near: Axis) -> int:
    """Of weights and slopes."""
    try:
        made = weights_of(side, 2 * ROWS, KEYS)
    except ScheduleError:  # which the way raises as well, and says why
        return 0
    slope = made.slope
    while isinstance(slope, Op) and slope.name == "select" and is_constant(slope.args[2], 0.0):
        slope = slope.args[1]  # hidden under conditions that hide scores
    values = [made.score, *(e for e in (slope, made.capped) if e is not None)]
    varying = [side.products[0].total.name, GRADIENT, CAP]
    found = burden(values, made.lets, near, side.others[0], varying)
    return found + (0 if made.slope is None else DERIVATIVE if made.capped is None else CAPPED)


def _together(side: attention_gradient.Side) -> int:
    """Heads whose blocks are at work at a time under a mask: few enough for what they read and add to to stay in the L2 cache."""
    rows, heads = estimate(side.others[0].extent), constant(numel([a.extent for a in side.batch])) or 1
    most = next((n for longest, n in TOGETHER if rows <= longest), 1)
    return next(n for n in range(most, 0, -1) if heads % n == 0)


def shared(deep: int, wide: int, groups: int, keys: int, stages: int, strips: int) -> int:
    """Bytes of shared memory that a way takes."""
    rows = 2 * ROWS * groups
    spans = [-(-n // 64) * 64 for n in (deep, wide)]
    return rows * spans[0] + stages * 2 * keys * sum(spans) + strips * rows * 64 + 1024


def library(target: Target, options: Options) -> Whose:
    """For ``lowering``: why attention of a dtype and of queries, keys and values of these shapes is ATen's; "" for lowc's own.

    Told also whether there is a bias, whether it is causal, whether all lie as the copying engine wants them, what is wanted: the
    "result", "sums" for a backward pass as well, "gradients", or "sums of gradients": those of queries added up in memory; and
    whose the op is in ATen, which is what would be called: "flash", "efficient", "cudnn" or "cpu"; "flex": scores by a function.
    """

    def why(
        dtype: DType, q: Sequence[Index], k: Sequence[Index], v: Sequence[Index],
        biased: bool, causal: bool, in_lines: bool, wanted: str, other: str,
    ) -> str:  # fmt: skip
        if options.attention == "library":
            return "option attention='library'"
        if options.numerics == "strict" and options.attention != "own":
            return "option numerics='strict'"
        if other == "flex" and target.kind != "nvptx":  # which torch has by whole matrices of scores
            return ""
        if wanted == "sums of gradients" and (why_not := _not_across(q, k, v, biased, target)):
            return why_not
        if target.kind != "nvptx":
            if options.attention == "own":
                return ""
            if wanted == "gradients":
                return choose_gradient.why_not(dtype, q, v, target)
            return choose_online.why_not(dtype, q, k, v, causal, target)
        if ABILITY not in target.ops:
            return f"lowc's own is for compute capability 9.0, not {target.cpu}"
        if dtype.bits != 16:
            return f"lowc's own is of f16 and bf16, not {dtype}"
        if any((n := constant(size)) is None or n % PIECE or n > WIDEST for size in (q[-1], v[-1])):
            return f"heads of {q[-1]} and {v[-1]}; lowc's own has multiples of {PIECE} up to {WIDEST}"
        if not in_lines:
            return "rows of a factor begin at no multiple of 16 bytes"
        fewest = 1 if wanted in ("result", "sums") else 2
        if constant(k[-2]) in (0, 1) or constant(q[-2]) in range(fewest):
            return "one query, or one key"
        if wanted == "gradients" and other == "flex":
            return "lowc's own gradients by functions are all three, added up in memory, of heads of up to 128"
        if wanted == "gradients" and (q[1] != k[1] or (constant(q[-1]) or 0) + (constant(v[-1]) or 0) > WIDEST):
            return f"heads that share keys, or of {q[-1]} and {v[-1]}; lowc's own gradients have {WIDEST} columns together"
        if options.attention == "own" or other == "flex":
            return ""
        other = "flash" if other == "cpu" else other  # captured there, for this target
        if wanted == "result" and not biased and not causal and _few(q, k, v, other, target.cores):
            return ""
        measured = FASTER.get((other, wanted))
        if biased or measured is None or not _faster(q, k, v, measured.get((constant(q[-1]) or 0, causal)), target.cores):
            return OTHERS
        return ""

    return why


def _not_across(q: Sequence[Index], k: Sequence[Index], v: Sequence[Index], biased: bool, target: Target) -> str:
    """Why gradients of queries are made by a kernel of their own; "" if those of keys and values make them as well."""
    if ABILITY not in target.ops or biased:
        return "rows of keys do not add to gradients of queries"
    deep, wide = constant(q[-1]) or WIDEST, constant(v[-1]) or WIDEST
    if max(deep, wide) > 2 * THIN or -(-deep // THIN) != -(-wide // THIN):
        return f"heads of {q[-1]} and {v[-1]}"
    return ""


def _few(q: Sequence[Index], k: Sequence[Index], v: Sequence[Index], other: str, processors: int) -> bool:
    """Whether few queries were measured to be faster than the op: of heads of 128, with many keys.

    Flash and memory-efficient attention took at least 1.02 of the time.  cuDNN's has a kernel of its own for one query, which is
    as fast where keys are very many; it reads keys that heads share for each of those if queries are several.
    """
    known = [constant(n) for n in (*q, *k[1:3], v[3])]
    if None in known or other not in ("flash", "efficient", "cudnn"):
        return False
    batch, heads, rows, deep, shared, keys, wide = (n or 0 for n in known)
    if not 1 <= rows <= QUERIES or keys < CACHE or (deep, wide) != (128, 128):
        return False
    if other != "cudnn":
        return True
    free = batch * shared < processors
    return free and keys <= 4 * CACHE if rows == 1 else free or shared < heads


def _faster(
    q: Sequence[Index], k: Sequence[Index], v: Sequence[Index], measured: tuple[int, int] | None, processors: int
) -> bool:
    """Whether rows are among those ``measured``, and blocks enough for the GPU; what is not is ATen's."""
    known = [constant(n) for n in (*q, v[-1])]
    if measured is None or None in known or tuple(q) != tuple(k):
        return False
    batch, heads, rows, deep, wide = (n or 0 for n in known)
    blocks = batch * heads * -(-rows // (2 * ROWS))
    return deep == wide and measured[0] <= rows <= measured[1] and blocks >= FULL * processors
