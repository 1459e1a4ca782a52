"""Choosing how products of bytes are summed four at a time, and which factor loses its sign for that.

The instruction takes one factor without sign, so of two that have one, one is flipped and the other summed in front (``Quads``).
What flips costs least where it happens once an element, as a factor is packed; what is summed is read once more.  So with weights
in panels, which are flipped as they are packed, sums are of the input's rows; where the input is packed and weights are read as
they lie, sums are the weights'.  Which of both is better the costs of what follows tell.  Few rows are dots: their sums are
cheapest, and weights are flipped in registers.
"""

from collections.abc import Callable

from lowc.ir.index import constant
from lowc.ir.matrices import SIDE
from lowc.ir.nodes import PARALLEL, For, Kernel, Kind
from lowc.ir.types import i8
from lowc.ir.walk import free_atoms
from lowc.scheduler import choose_amx, contract
from lowc.scheduler.apply import Bind
from lowc.scheduler.choose import PARALLEL_WORK
from lowc.scheduler.contract import Step
from lowc.scheduler.contraction import Contraction, contiguous, find, is_fixed
from lowc.scheduler.nest import estimate, iterations
from lowc.scheduler.quads import BEFORE, SIZE, Quads, fits, narrow
from lowc.target import Target

SUM = 0.3  # cycles for 32 bits that are summed in front, from the L3 cache
LEAST = 8  # quads deep that sums must be

Ranked = tuple[tuple[int, float], tuple[Step, ...]]
Rank = Callable[[Contraction, Target, bool, bool | None], list[Ranked]]


def choices(kernel: Kernel, found: Contraction, target: Target, threads: bool, ranked: Rank) -> tuple[tuple[Step, ...], ...]:
    """Schedules for the contraction ``found`` in ``kernel`` by quads, best first; none if its factors are no bytes.

    ``ranked``: schedules for what is left to do then; dots, and blocks that pack, with the right factor flipped."""
    elements = [narrow(f) for f in (found.left, found.right)]
    if None in elements or estimate(found.depth.axis.extent) < LEAST * SIZE:
        return ()
    if any(constant(f.axis.extent) == 0 for f in found.outer):
        return ()  # no result needs a sum, and a factor of no elements, which no longer changes with any axis, has no memory
    if not fits(found.left, found.right, found.depth.axis.extent):
        return ()
    by_tiles: tuple[tuple[Step, ...], ...] = ()
    if "amx-int8" in target.ops:  # which takes bytes with or without a sign
        by_tiles = choose_amx.choices(kernel, found, Quads(found.depth.axis.name, -1, SIDE), target, threads)
    signed = all(e is not None and e.dtype == i8 for e in elements)
    ways: list[tuple[int, bool | None]] = [(-1, None)]
    if signed and not target.ops.isdisjoint(("avx512vnni", "avxvnni")):
        right = 1 - found.swapped
        ways = [(right, False), (1 - right, True)]
    plans: list[Ranked] = []
    for flipped, turned in ways:
        first = Quads(found.depth.axis.name, flipped)
        packed = contract.apply(kernel, first)
        loop = packed.body[-1]
        new = find(loop, found.fixed) if isinstance(loop, For) else None
        assert new is not None
        steps, cost = ((), 0.0) if flipped < 0 else _in_front(found, new, flipped, target, threads)
        for (rank, each), plan in ranked(new, target, threads, turned):
            plans.append(((rank, each + cost), (first, *steps, *plan)))
    plans.sort(key=lambda p: p[0])
    return (*by_tiles, *(plan for _, plan in plans))


def _in_front(
    found: Contraction, new: Contraction, flipped: int, target: Target, threads: bool
) -> tuple[tuple[Step, ...], float]:
    """Lanes and cores for the sums, and what they cost."""
    factor = new.left if flipped == 1 - new.swapped else new.right
    own = [f for f in found.outer if f.axis in free_atoms(factor)]
    lanes = target.vector_bits // 32
    count = iterations((*own, new.depth))
    depth = new.depth.axis
    steps: list[Step] = []
    cores = 1
    if contiguous(factor, depth):
        steps.append(Bind(f"{BEFORE}{depth.name}", Kind("vector", lanes, "", 4)))
        if own and threads and target.cores > 1 and count // lanes >= PARALLEL_WORK:
            steps.append(Bind(f"{BEFORE}{own[0].axis.name}", PARALLEL))
            cores = target.cores
    elif own and contiguous(factor, own[-1].axis):
        steps.append(Bind(f"{BEFORE}{own[-1].axis.name}", Kind("vector", lanes)))
    return tuple(steps), 0.0 if is_fixed(new, factor) else SUM * count / cores
