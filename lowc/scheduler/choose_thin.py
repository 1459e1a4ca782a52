"""Schedules of thin contractions: so few rows (or columns) that each element of the other factor is used only a few times, and
copying it in the order of use would cost more than it saves.  That factor is read once, as it lies in memory:

    along the depth      dots: lanes along the depth, a tile of sums whose lanes are added at the end (a linear layer's weights)
    along the columns    streams: row after row of it is added to the sums of a block, which stay in the L1 cache
"""

from dataclasses import dataclass

from lowc.ir.index import Index, constant
from lowc.ir.nodes import For, Kind
from lowc.scheduler.apply import Bind, Reorder, Split
from lowc.scheduler.contract import Step
from lowc.scheduler.contraction import Contraction, as_it_lies, contiguous
from lowc.scheduler.dots import Dots
from lowc.scheduler.gather import Gather
from lowc.scheduler.grid import Grid
from lowc.scheduler.nest import estimate
from lowc.scheduler.outward import Outward
from lowc.scheduler.pack import Pack
from lowc.target import Target

DOTS = 32  # rows (or columns) up to which dots are faster than tiles
STREAMS = 6  # rows up to which streams are
SLICE = 1024  # elements of depth after which many rows go back to their start, so that they stay near
AT_A_TIME = 8  # rows that streams read at a time
WIDE = 512  # columns of a block at most


@dataclass(frozen=True, slots=True)
class Thin:
    """A contraction with its loops: ``batch`` around ``rows`` (or none) and ``columns``."""

    found: Contraction
    batch: tuple[For, ...]
    lanes: int
    cores: int
    kind: Kind

    @property
    def order(self) -> tuple[str, ...]:
        own = (self.found.columns,) if self.found.rows is None else (self.found.rows, self.found.columns)
        return tuple(f.axis.name for f in (*self.batch, *own))

    @property
    def rows(self) -> Index | None:
        return None if self.found.rows is None else self.found.rows.axis.extent


def choose(thin: Thin, target: Target) -> tuple[Step, ...]:
    """A Schedule, or none if there is no form for it."""
    found = thin.found
    high, wide = 1 if thin.rows is None else estimate(thin.rows), estimate(found.columns.axis.extent)
    if contiguous(found.right, found.depth.axis) and min(high, wide) <= DOTS:
        return _dots(thin, target)
    if contiguous(found.right, found.columns.axis) and high <= STREAMS and wide >= 4 * thin.lanes:
        return _streams(thin)
    return ()


def _start(thin: Thin, rows: int, columns: int) -> list[Step]:
    """Blocks of so many rows and columns, their sums outside."""
    plan: list[Step] = []
    if thin.order != tuple(f.axis.name for f in thin.found.outer):
        plan.append(Reorder(thin.order))
    own = (columns,) if thin.found.rows is None else (rows, columns)
    plan.append(Grid(thin.order, (*([1] * len(thin.batch)), *own), thin.kind))
    left = [(name, size) for name, size in zip(thin.order[len(thin.batch) :], own, strict=True) if size > 1]
    plan.append(Outward(tuple(f"{name}_i" for name, _ in left), tuple(size for _, size in left)))
    return plan


def _streams(thin: Thin) -> tuple[Step, ...]:
    found = thin.found
    rows = 1 if thin.rows is None else estimate(thin.rows)
    share = estimate(found.columns.axis.extent) // (2 * thin.cores)
    wide = max(4 * thin.lanes, min(WIDE * 2 // rows, share)) // thin.lanes * thin.lanes
    name = f"{found.columns.axis.name}_i"
    vector = Kind("vector", thin.lanes)
    return (
        *_start(thin, rows, wide),
        Bind(f"{name}_a", vector),
        Gather(found.depth.axis.name, AT_A_TIME),
        Bind(name, Kind("vector", thin.lanes)),
    )


def _dots(thin: Thin, target: Target) -> tuple[Step, ...]:
    found = thin.found
    columns = estimate(found.columns.axis.extent)
    rows = 1 if thin.rows is None else estimate(thin.rows)
    high = 1 if thin.rows is None else _block(thin.rows, 64 if rows > 64 else rows, 1)
    share = min(WIDE, max(1, columns // (4 * thin.cores)) if rows <= 64 else columns)
    known = constant(found.columns.axis.extent)
    across = next(n for n in (8 if high <= 2 else 4, 6, 5, 4, 3, 2, 1) if known is not None and known % n == 0 or n == 1)
    wide = _block(found.columns.axis.extent, max(share, across), across)
    if high * wide == 1:
        return ()  # a sum by itself is no tile
    down = _down(high, across, target) if thin.rows is not None else 1
    plan = _start(thin, high, wide)
    depth = found.depth.axis.name
    if high > 8 and estimate(found.depth.axis.extent) > SLICE + SLICE // 4:
        plan.append(Split(depth, SLICE))
        depth = f"{depth}_i"
    direct = as_it_lies(found.left, found.depth.axis)
    if high > 1 and not direct:
        deep = constant(found.depth.axis.extent)
        room = SLICE if depth.endswith("_i") else deep
        if room is None or room * high > 1 << 16:
            return ()
        plan.append(Pack(depth, int(found.swapped), "a", 0, 1, (high, room)))
        plan.append(Bind("a_depth", Kind("vector", thin.lanes, "", 4)))
    sizes = tuple(n for n, size in ((down, high), (across, wide)) if size > 1)
    plan.append(Dots(depth, sizes, thin.lanes))
    plan.append(Bind(f"{found.columns.axis.name}_i", Kind("vector", thin.lanes)))
    return tuple(plan)


def _block(extent: Index, wanted: int, unit: int) -> int:
    """About ``wanted``, a multiple of ``unit`` that divides ``extent``; ``wanted`` itself if there is no such."""
    known = constant(extent)
    if known is not None:
        for size in range(min(wanted, known), max(unit, wanted // 3) - 1, -1):
            if known % size == 0 and size % unit == 0:
                return size
    return -(-wanted // unit) * unit


def _down(high: int, across: int, target: Target) -> int:
    """Rows of a tile: as many as divide the block's and leave registers for the factors."""
    room = target.registers - across - 2
    return next((n for n in (6, 5, 4, 3, 2) if high % n == 0 and n * across <= room and n * across <= 24), 1)
