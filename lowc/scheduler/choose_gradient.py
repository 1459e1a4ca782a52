"""Choosing how gradients of attention are made on a CPU: tiles, others at a time, and whether both nests are one; and whose they
are with ``attention="auto"``: lowc's own where they were measured to be faster than ATen's.

Measured (``benchmarks/results/attention_cpu.md``): f32 and bf16 on AVX-512.  Whatever was not measured stays ATen's.
"""

from collections.abc import Sequence
from dataclasses import replace

from lowc.ir.index import ONE, Index, constant
from lowc.ir.nodes import PARALLEL, Buffer, For, Kernel, Kind, Launch, Module, Step
from lowc.ir.types import DType, bf16, f32
from lowc.ir.walk import Substitution, make_kernel, names
from lowc.scheduler.attention_gradient import Side, find, gradient
from lowc.scheduler.choose import PARALLEL_WORK
from lowc.scheduler.choose_online import FEW, HIGH, KEYS
from lowc.scheduler.gradient_blocks import GradientBlocks
from lowc.scheduler.nest import estimate, iterations, numel, step_reads, step_writes
from lowc.scheduler.rename import apart
from lowc.scheduler.tiles import STACK
from lowc.target import Target

APART, TOGETHER = 7, 5  # products of a block with a nest for queries and one for keys, and with one for both
VECTORS = (4, 5, 3, 2, 1)  # of columns in a tile of sums across, best first
NARROW, WIDE = 16, 256  # heads that were measured
PARTNERS = 4  # steps between the two nests of an attention, at most


def why_not(dtype: DType, q: Sequence[Index], v: Sequence[Index], target: Target) -> str:
    """Why gradients of attention of queries [B, H, L, D] and values [B, H, S, E] are ATen's; "" for lowc's own."""
    if target.vector_bits < 512 or dtype not in (f32, bf16):
        return "a library's: lowc's own gradients were measured for f32 and bf16 on AVX-512 (there is option attention='own')"
    if any((n := constant(size)) is None or not NARROW <= n <= WIDE or n % 16 for size in (q[-1], v[-1])):
        return f"a library's: gradients for heads of {q[-1]} and {v[-1]} were not measured (there is option attention='own')"
    rows = constant(q[-2])
    if rows is not None and rows <= FEW:
        return f"a library's: gradients for {rows} queries are slower by lowc's own (option attention='own')"
    if dtype == f32 and constant(q[0]) == 1 and constant(q[1]) == 1:
        return "a library's: gradients of one head of f32 are slower by lowc's own (option attention='own')"
    return ""


def choices(kernel: Kernel, target: Target, threads: bool) -> tuple[tuple[GradientBlocks, ...], ...]:
    """Schedules for ``kernel`` if that is a gradient of attention, or both, best first; none if it is none."""
    side = gradient(kernel.body)
    step = None if side is None else _step(side, target, threads)
    return () if step is None else ((step,),)


def together(module: Module, target: Target, threads: bool) -> Module:
    """``module`` with both nests of an attention in one kernel where that is less work for each core."""
    steps: list[Step | None] = list(module.steps)
    for first, one in enumerate(module.steps):
        if steps[first] is None or not isinstance(one, Launch) or not _is_side(one):
            continue
        for second in range(first + 1, min(first + 1 + PARTNERS, len(steps))):
            other = steps[second]
            if not isinstance(other, Launch) or not _is_side(other):
                continue
            if not _earlier(other, [s for s in steps[first:second] if s is not None]):
                continue
            both = _both(one, other, target, threads)
            if both is not None:
                steps[first], steps[second] = both, None
                break
    return replace(module, steps=tuple([s for s in steps if s is not None]))


def _earlier(step: Launch, before: Sequence[Step]) -> bool:
    """Whether ``step`` may run before, or beside, all of ``before``."""
    reads, writes = _touched(step)
    for other in before:
        their_reads, their_writes = _touched(other)
        if their_writes & (reads | writes) or writes & their_reads:
            return False
    return True


def _touched(step: Step) -> tuple[set[int], set[int]]:
    """What of the module's memory ``step`` reads, and what it writes: by ``id``."""
    params = zip(step.kernel.params, step.args, strict=True) if isinstance(step, Launch) else ()
    arg = {id(p): id(a) for p, a in params}  # kernels in linear addresses have params of their own
    reads, writes = ({arg.get(id(b), id(b)) for b in found} for found in (step_reads(step), step_writes(step)))
    return reads, writes


def _is_side(step: Launch) -> bool:
    body = step.kernel.body
    return len(body) == 1 and isinstance(body[0], For) and find(body[0]) is not None


def _both(one: Launch, other: Launch, target: Target, threads: bool) -> Launch | None:
    """A launch of both, in the order in which they are the nests of queries and of keys; None if they are not, or if apart they
    are faster."""
    for queries, keys in ((one, other), (other, one)):
        params = {id(a): p for a, p in zip(queries.args, queries.kernel.params, strict=True)}
        args = list(queries.args)
        new: dict[int, Buffer] = {}
        taken = names(queries.kernel.body) | {p.name for p in queries.kernel.params}
        for arg, param in zip(keys.args, keys.kernel.params, strict=True):
            if id(arg) not in params:
                params[id(arg)] = param
                args.append(arg)
            new[id(param)] = params[id(arg)]
        if len({p.name for p in params.values()}) < len(params):
            return None
        body = Substitution(access=lambda b, i, new=new: (new.get(id(b), b), i)).body(keys.kernel.body)
        body = (*queries.kernel.body, *apart(body, taken | {p.name for p in params.values()}))
        if (side := gradient(body)) is None:
            continue
        cores = target.cores if threads else 1
        heads = numel([a.extent for a in side.batch])
        if -(-estimate(heads) // cores) * cores * TOGETHER > estimate(heads) * APART or _step(side, target, threads) is None:
            return None
        kernel = make_kernel(queries.kernel.name, body, [params[id(a)] for a in args])
        return Launch(kernel, tuple(args), (*queries.origin, *(o for o in keys.origin if o not in queries.origin)))
    return None


def _step(side: Side, target: Target, threads: bool) -> GradientBlocks | None:
    dtype = side.products[0].total.dtype
    lanes = target.vector_bits // dtype.bits
    many = target.registers >= 32
    extent = ONE if side.near is None else side.near.axis.extent
    rows = KEYS if constant(extent) is None else estimate(extent)
    vectors = max(1, min(4 if many else 2, -(-rows // lanes)))
    high, wide = HIGH[vectors] if many else 4, vectors * lanes
    widths = [constant(a.extent) for a in (*(p.depth for p in side.products), *(m.columns for m in side.mixes))]
    across, columns = (high, lanes), 0
    if side.across is not None:
        columns = constant(side.across.columns.extent) or 0
        size = min((v for v in VECTORS if many or v <= 2), key=lambda v: -(-columns // (v * lanes)) * v)
        across = (HIGH[min(size, 4)] if many else 4, size * lanes)
        columns = -(-columns // across[1]) * across[1]
    if None in widths:
        return None
    scratch = wide * (sum(w or 0 for w in widths) + 2 * KEYS + columns) + KEYS * sum(w or 0 for w in widths) + KEYS * wide
    if scratch * dtype.bytes > STACK:
        return None
    work = iterations(side.outer) * estimate(numel([a.extent for a in side.others])) * sum(w or 0 for w in widths)
    axes = (*(f.axis for f in side.outer), *side.others)
    known = all(constant(a.extent) is not None for a in axes)
    kind = PARALLEL if threads and target.cores > 1 and (work // lanes >= PARALLEL_WORK or not known) else Kind()
    return GradientBlocks(KEYS, (high, wide), across, lanes, kind)
