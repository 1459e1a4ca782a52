"""Choosing the Schedule of a contraction on a CPU: blocks for the cores, packed factors, tiles of registers.

    Pairs       factors of bf16 two at a time, where the processor multiplies them so
    Matrices    the same by a matrix unit, where there is one and rows are many (``choose_amx``)
    Quads       factors of 8 bits four at a time (``choose_quads``)
    Grid        blocks of rows x columns over the cores; a block's sums, and its packed factors, fit into half of the L2 cache
    Outward     the sums of a block in an array
    Split       the depth in slices, so that a panel of the packed factors stays near
    Pack        a slice of each factor, in panels; but rows that are read along the depth stay where they are, if they fill tiles
    Registers   tiles of as many sums as there are registers for

What a block costs is estimated in cycles of a core that starts two multiply-adds in each.
"""

from dataclasses import dataclass

from lowc.ir.index import Axis, constant
from lowc.ir.matrices import SIDE
from lowc.ir.nodes import PARALLEL, Expr, For, Kernel, Kind, Load
from lowc.ir.types import u32
from lowc.scheduler import choose_ahead, choose_amx, choose_quads, choose_thin, contract
from lowc.scheduler.apply import Bind, Reorder, Split, Tile
from lowc.scheduler.choose import PARALLEL_WORK
from lowc.scheduler.choose_quads import Ranked
from lowc.scheduler.choose_thin import Thin
from lowc.scheduler.contract import Step
from lowc.scheduler.contraction import Contraction, as_it_lies, contiguous, find, is_fixed
from lowc.scheduler.grid import Grid
from lowc.scheduler.nest import estimate
from lowc.scheduler.outward import Outward
from lowc.scheduler.pack import Pack
from lowc.scheduler.pairs import Pairs, narrow
from lowc.scheduler.registers import Registers
from lowc.scheduler.tiles import STACK, flight, lengths, slices, tiles
from lowc.target import Target

COPY, TURN = 0.6, 0.9  # cycles for an element that is packed as it lies, or transposed
STREAM = 0.05  # and for one that is read where it lies, while sums are formed
START = 60.0  # and for each row that is packed, before memory follows
SUM = 1.0  # and for a block's sum that is read and written
FEW = 12  # rows (or columns) up to which dots are faster than tiles with a copy
KEPT, KEPT_PAIRS = 1, 4  # and rows up to which they are where panels of the other factor are kept from call to call
LEAST = 8  # rows, and elements deep, below which packing does not pay


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a tile of registers and of a block: ``tile`` and ``block`` (rows, columns), and how deep a slice is.

    ``direct``: rows are read where they are.
    """

    tile: tuple[int, int]
    block: tuple[int, int]
    depth: int
    direct: bool


def choices(
    kernel: Kernel, target: Target, threads: bool, fixed: frozenset[str] = frozenset()
) -> tuple[tuple[Step, ...], ...]:
    """Schedules for ``kernel`` if that is one contraction, best first; none if it is none or so small that none pays.  ``fixed``:
    params that are constants."""
    if len(kernel.body) != 1 or not isinstance(kernel.body[0], For):
        return ()
    found = find(kernel.body[0], fixed)
    if found is None:
        return ()
    if plans := choose_quads.choices(kernel, found, target, threads, _ranked):
        return plans
    of_bf16 = None not in (narrow(found.left), narrow(found.right)) and not _widened(found)
    by_tiles: tuple[tuple[Step, ...], ...] = ()
    if of_bf16 and "amx-bf16" in target.ops:
        by_tiles = choose_amx.choices(kernel, found, Pairs(found.depth.axis.name, SIDE), target, threads)
    if of_bf16 and "avx512bf16" in target.ops:
        first = Pairs(found.depth.axis.name)
        paired = contract.apply(kernel, first)
        if plans := choices(paired, target, threads, fixed):
            return (*by_tiles, *((first, *plan) for plan in plans))
    return (*by_tiles, *(plan for _, plan in _ranked(found, target, threads, None)))


def _widened(found: Contraction) -> bool:
    """Whether few rows meet weights that are computed, say from 8 bits: each is used so seldom that rounding it, and making pairs
    of it, would take more than a product of f32 does."""
    element = narrow(found.right)
    high = 1 if found.rows is None else estimate(found.rows.axis.extent)
    return high <= FEW and not isinstance(element, Load)


def _ranked(found: Contraction, target: Target, threads: bool, turned: bool | None) -> list[Ranked]:
    """Schedules for ``found``, best first, each with its rank among all schedules of the same contraction (lower is better).

    ``turned``: as in ``choose_ahead.choose``; if it is true, only schedules with panels for all blocks are asked for."""
    rows = 1 if found.rows is None else estimate(found.rows.axis.extent)
    columns, depth = estimate(found.columns.axis.extent), estimate(found.depth.axis.extent)
    lanes = target.vector_bits // found.left.dtype.bits
    batch = [f for f in found.outer if f is not found.rows and f is not found.columns]
    count = 1
    for loop in batch:
        count *= max(1, estimate(loop.axis.extent))
    parallel = threads and target.cores > 1 and count * rows * columns * depth // lanes >= PARALLEL_WORK
    kind, cores = (PARALLEL, target.cores) if parallel else (Kind(), 1)
    if turned:
        ahead = choose_ahead.choose(found, tuple(batch), lanes, cores, kind, target, True)
        return [((1, cost), plan) for cost, plan in ahead]
    plans: list[Ranked] = []
    few, least = FEW, LEAST
    if is_fixed(found, found.right):
        few = KEPT_PAIRS if found.left.dtype == found.right.dtype == u32 else KEPT
        least = few + 1
    if depth >= LEAST:
        plan = choose_thin.choose(Thin(found, tuple(batch), lanes, cores, kind), target)
        plans.append(((0 if min(rows, columns) <= few else 2, 0.0), plan))
    if rows >= least and columns >= lanes // 2 and depth >= LEAST:
        ahead = choose_ahead.choose(found, tuple(batch), lanes, cores, kind, target, turned)
        plans += [((1, cost), plan) for cost, plan in ahead]
        plans.append(((3, 0.0), _plan(found, batch, _sizes(found, lanes, target, count, cores), lanes, kind)))
    return sorted([p for p in plans if p[1]], key=lambda p: p[0])


# ---------------------------------------------------------------- sizes


def _sizes(found: Contraction, lanes: int, target: Target, batch: int, cores: int) -> Sizes:
    """The tile, block and slice of the least cost."""
    assert found.rows is not None
    rows, columns, depth = (estimate(f.axis.extent) for f in (found.rows, found.columns, found.depth))
    room = min(target.l2 * 7 // 10, STACK) // found.left.dtype.bytes
    left = _packing(found.left, found.depth.axis, found.rows.axis)
    right = _packing(found.right, found.columns.axis, found.depth.axis)
    across_rows = _across_rows(found)
    deeps = slices(found.depth)
    best: tuple[float, Sizes] | None = None
    for cycles, tile in tiles(rows, columns, found.left.dtype, target):
        if across_rows and tile[0] & (tile[0] - 1):
            continue  # as many lanes of a row are copied at a time
        widths = lengths(columns, tile[1])
        for high in lengths(rows, tile[0]):
            direct = _direct(found, tile[0], high)
            for wide in widths:
                blocks = batch * -(-rows // high) * -(-columns // wide)
                packing = wide * right + START + (high * STREAM if direct else high * left + START)
                for deep in deeps:
                    if high * wide + (high * (not direct) + wide) * deep > room:
                        continue
                    work = high * wide * (depth * cycles + SUM * (1 + -(-depth // deep))) + depth * packing
                    total = -(-blocks // cores) * work
                    if best is None or total < best[0]:
                        best = total, Sizes(tile, (high, wide), deep, direct)
    assert best is not None
    return best[1]


def _across_rows(found: Contraction) -> bool:
    """Whether ``left`` lies along the rows, as in the gradient of a weight."""
    assert found.rows is not None
    return not contiguous(found.left, found.depth.axis) and contiguous(found.left, found.rows.axis)


def _direct(found: Contraction, tile: int, block: int) -> bool:
    """Whether the rows of ``left`` can be read where they are: as they lie in memory, and no tile hangs over their end."""
    assert found.rows is not None
    rows = constant(found.rows.axis.extent)
    whole = rows is not None and rows % block == 0 and block % tile == 0
    return whole and as_it_lies(found.left, found.depth.axis)


def _packing(factor: Expr, axis: Axis, other: Axis) -> float:
    return COPY if contiguous(factor, axis) or not contiguous(factor, other) else TURN


# ---------------------------------------------------------------- the plan


def _plan(found: Contraction, batch: list[For], sizes: Sizes, lanes: int, kind: Kind) -> tuple[Step, ...]:
    assert found.rows is not None
    rows, columns, depth = found.rows.axis.name, found.columns.axis.name, found.depth.axis.name
    order = (*(f.axis.name for f in batch), rows, columns)
    plan: list[Step] = []
    if order != tuple(f.axis.name for f in found.outer):
        plan.append(Reorder(order))
    plan.append(Grid(order, (*([1] * len(batch)), *sizes.block), kind))
    plan.append(Outward((f"{rows}_i", f"{columns}_i"), sizes.block))
    plan.append(Bind(f"{columns}_i", Kind("vector", lanes, "", flight(found))))
    deep = constant(found.depth.axis.extent)
    if deep is None or deep > sizes.depth:
        plan.append(Split(depth, sizes.depth))
        depth = f"{depth}_i"
    (tall, wide), (high, across) = sizes.tile, sizes.block
    across_rows = _across_rows(found)
    if not sizes.direct:
        plan.append(Pack(depth, int(found.swapped), "a", tall if across_rows else 0, tall, (high, sizes.depth)))
    plan.append(Pack(depth, int(not found.swapped), "b", wide, wide, (across, sizes.depth)))
    plan.append(Registers(depth, tall, wide, lanes))
    if across_rows:
        plan.append(Reorder(("a_depth", "a_panel", "a_lane")))
        plan.append(Bind("a_lane", Kind("vector", min(lanes, tall))))
    elif not sizes.direct:
        plan.append(Bind("a_depth", Kind("vector", lanes, "", 4)))
    if contiguous(found.right, found.columns.axis):
        plan.append(Reorder(("b_depth", "b_panel", "b_lane")))
        plan.append(Bind("b_lane", Kind("vector", lanes, "", wide // lanes)))
    elif contiguous(found.right, found.depth.axis) and min(estimate(found.columns.axis.extent), sizes.depth) >= lanes:
        plan.append(Tile("b_depth", "b_lane", lanes, lanes, 1, True))
    return tuple(plan)

