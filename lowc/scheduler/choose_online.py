"""Choosing how attention is done on a CPU: what lanes go along (rows, or the depth if they are few), tiles, keys at a time;
and whose attention is with ``attention="auto"``: lowc's own where it was measured to be faster than ATen's.

Measured (``benchmarks/results/attention_cpu.md``): f32 and bf16 on AVX-512, both called by lowc, numbers of queries and keys
known or not.  Whatever was not measured stays ATen's.
"""

from collections.abc import Sequence

from lowc.ir.index import ONE, Index, constant
from lowc.ir.nodes import PARALLEL, For, Kernel, Kind
from lowc.ir.types import DType, bf16, f32
from lowc.scheduler.attention import Attention, find
from lowc.scheduler.choose import PARALLEL_WORK
from lowc.scheduler.contract import Step
from lowc.scheduler.nest import estimate, iterations
from lowc.scheduler.online import Online
from lowc.scheduler.online_dots import OnlineDots
from lowc.scheduler.tiles import STACK
from lowc.target import Target

FEW = 4  # rows up to which lanes go along the depth
KEYS, DOTS = 64, 256  # keys at a time: with their scores, a block of rows stays in the L1 cache; scores of few rows are no more
HIGH = {1: 8, 2: 8, 3: 8, 4: 4}  # keys (or columns of values) of a tile, by vectors of rows
SUMS = 16  # vectors of sums that few rows have at a time

NARROW, WIDE = 32, 128  # heads that were measured …
WIDEST = 256  # … and, where less than all keys are seen, found faster
TILES = 24  # rows from which on lanes along rows are full enough, whatever the number of keys
NEAR = 128  # keys up to which fewer rows are as well


def why_not(dtype: DType, q: Sequence[Index], k: Sequence[Index], v: Sequence[Index], causal: bool, target: Target) -> str:
    """Why attention of queries [B, H, L, D], keys [B, H, S, D], values [B, H, S, E] is ATen's; "" for lowc's own."""
    if target.vector_bits < 512 or dtype not in (f32, bf16):
        return "a library's: lowc's own was measured for f32 and bf16 on AVX-512 (there is option attention='own')"
    widths = constant(q[-1]), constant(v[-1])
    most = WIDEST if causal else WIDE
    if any(n is None or not NARROW <= n <= most or n % 16 for n in widths):
        return f"a library's: heads of {q[-1]} and {v[-1]} are not known to be faster by lowc's own (option attention='own')"
    rows, keys = constant(q[-2]), constant(k[-2])
    if rows is not None and FEW < rows < TILES and (keys is None or keys > NEAR):
        return f"a library's: {rows} queries of more than {NEAR} keys are slower by lowc's own (option attention='own')"
    return ""


def choices(kernel: Kernel, target: Target, threads: bool) -> tuple[tuple[Step, ...], ...]:
    """Schedules for ``kernel`` if that is attention, best first; none if it is none."""
    if len(kernel.body) != 1 or not isinstance(kernel.body[0], For):
        return ()
    found = find(kernel.body[0])
    if found is None:
        return ()
    lanes = target.vector_bits // found.product.dtype.bits
    work = iterations(found.outer) * estimate(found.keys.extent) * estimate(found.depth.extent)
    known = all(constant(a.extent) is not None for a in (*(f.axis for f in found.outer), found.keys))
    kind = PARALLEL if threads and target.cores > 1 and (work // lanes >= PARALLEL_WORK or not known) else Kind()
    steps = (_few(found, lanes, target, kind), _many(found, lanes, target, kind))
    return tuple([(step,) for step in steps if step is not None])


def _few(found: Attention, lanes: int, target: Target, kind: Kind) -> Step | None:
    rows = 1 if found.rows is None else constant(found.rows.axis.extent)
    across = constant(found.columns.extent)
    if rows is None or across is None or not 1 <= rows <= FEW or across % lanes:
        return None
    most = min(SUMS, target.registers // 2) // rows
    vectors = next(n for n in range(min(most, across // lanes), 0, -1) if across // lanes % n == 0)
    at_once = min(8, 1 << (most.bit_length() - 1))
    return OnlineDots(found.outer[0].axis.name, DOTS, (at_once, vectors * lanes), lanes, kind)


def _many(found: Attention, lanes: int, target: Target, kind: Kind) -> Step | None:
    if found.gathered:
        return None
    extent = ONE if found.rows is None else found.rows.axis.extent
    rows = KEYS if constant(extent) is None else estimate(extent)
    vectors = max(1, min(4 if target.registers >= 32 else 2, -(-rows // lanes)))
    high, wide = HIGH[vectors] if target.registers >= 32 else 4, vectors * lanes
    block = min(-(-KEYS // wide), -(-rows // wide)) * wide
    deep, across = constant(found.depth.extent) or 0, (constant(found.columns.extent) or 0) + high
    scratch = block * (deep + across + KEYS) + KEYS * (deep + across)
    if scratch * found.product.dtype.bytes > STACK:
        return None
    return Online(found.outer[0].axis.name, block, KEYS, (high, wide), lanes, kind)
