"""Choosing how warps multiply tiles (``mma.sync``, compute capability 8.0 and later): where a GPU has no ``wgmma``, or where the
engine that copies for it does not take the factors as they lie.

A block has one tile; as many blocks are at a time on a multiprocessor as its shared memory and registers allow, and while one
waits the others multiply.  Small products get small tiles, so that there are blocks for all multiprocessors, and slices of their
depth.  Times are in cycles of an H200, where they were measured (benchmarks/results/h200_mma.md); on other GPUs they are taken to
be in the same proportions.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lowc.ir import tiles
from lowc.ir.index import constant
from lowc.ir.nodes import Kernel, Load
from lowc.scheduler.choose_tensor_cores import DEEP, MOST_SLICES, PARTS, SAVED, Size, contraction, size_of
from lowc.scheduler.contraction import Contraction, contiguous
from lowc.scheduler.slice_depth import slice_of
from lowc.scheduler.tensor_cores import FEW, TensorCores, narrow
from lowc.target import Target

ABILITY = "mma"
LEAST_STAGES, STAGES = 2, 4
RASTER = 8  # rows of tiles that are done together
CYCLES = 1755  # of a microsecond
ADDING = 4000  # that a kernel that adds up slices takes …
MEMORY = 2400  # … and bytes that memory moves in a cycle
SUM = 8  # bytes of a sum of a slice, written and read
SLOWER = {16: 1.0, 8: 2.0, 4: 2.85, 2: 4.3}
"""How many times as long a span takes where pieces have so many bytes."""
FILLS = ((tiles.ASYNC, tiles.ASYNC), (tiles.COPY, tiles.ASYNC), (tiles.ASYNC, tiles.COPY), (tiles.COPY, tiles.COPY))


@dataclass(frozen=True, slots=True)
class Way:
    """A tile of rows x columns by ``groups`` of 128 threads, ``shares`` of the columns among them.  ``blocks``: at a time on a
    multiprocessor, if there is memory.  Cycles: ``start`` until the first tiles are there, and after the last product; for 64
    elements of the depth (32 of f32) ``alone`` of a block by itself, ``span`` of each of several."""

    tile: tuple[int, int]
    groups: int
    shares: int
    blocks: int
    start: int
    alone: int
    span: int

    @property
    def sums(self) -> int:
        """Of a thread."""
        return self.tile[0] * self.tile[1] // (self.groups * tiles.GROUP)

    @property
    def copies(self) -> bool:
        """Whether threads have registers for what they load themselves, while they multiply."""
        return self.sums <= FEW and sum(self.tile) <= self.groups * tiles.GROUP

    @property
    def name(self) -> str:
        return f"{self.tile[0]}x{self.tile[1]} by {4 * self.groups} warps"


WAYS = (
    Way((128, 128), 1, 1, 2, 5800, 1235, 1080),
    Way((128, 128), 2, 2, 2, 5800, 1350, 1165),
    Way((128, 64), 1, 1, 3, 5100, 740, 640),
    Way((64, 64), 1, 2, 4, 3500, 440, 390),
    Way((64, 32), 1, 1, 6, 3400, 330, 290),
)


def choices(kernel: Kernel, target: Target) -> Iterator[TensorCores]:
    """Ways to do ``kernel`` if that is one contraction for warps, best first; none if it is none."""
    found = possible(kernel, target)
    if found is None:
        return
    size, axis = size_of(found), found.outer[0].axis.name
    for copies in FILLS:
        for way in sorted(WAYS, key=lambda w: cost(size, w, target.cores)):
            stages = stages_of(way, target)
            if stages < LEAST_STAGES or (tiles.COPY in copies and not way.copies):
                continue
            yield TensorCores(axis, way.tile, stages, copies, 0, RASTER, way.groups, 1, 0, tiles.MMA, way.shares)


def possible(kernel: Kernel, target: Target) -> Contraction | None:
    """The contraction that ``kernel`` is, if warps of ``target`` can do it: of f32 or i8 with both factors along the depth."""
    found = contraction(kernel, target, ABILITY)
    if found is None or narrow(found.left).dtype.bits == 16:
        return found
    plain = all(isinstance(narrow(f), Load) and contiguous(f, found.depth.axis) for f in (found.left, found.right))
    return found if plain else None


def as_they_lie(kernel: Kernel, target: Target) -> bool:
    """Whether both factors of the contraction that ``kernel`` is are memory, contiguous along rows or columns or the depth."""
    found = possible(kernel, target)
    if found is None or found.rows is None:
        return False
    sides = ((found.left, found.rows), (found.right, found.columns))
    return all(
        isinstance(narrow(f), Load) and any(contiguous(f, axis) for axis in (found.depth.axis, loop.axis)) for f, loop in sides
    )


def stages_of(way: Way, target: Target) -> int:
    """Of the ring, of as many blocks as ``way`` wants at a time; of one if there is no memory for several."""
    each = sum(way.tile) * tiles.LINE
    several = target.shared // way.blocks // each
    return min(STAGES, several if several > LEAST_STAGES else target.shared // each)


def cost(size: Size, way: Way, processors: int, least: int = 16) -> float:
    """About how many cycles products take that way; ``least``: bytes of the smallest pieces in which factors are copied."""
    high, wide = way.tile
    blocks = size.batch * -(-size.rows // high) * -(-size.columns // wide)
    each = -(-blocks // processors)
    rounds, rest = divmod(each, way.blocks)
    span = rounds * max(way.alone, way.blocks * way.span) + (max(way.alone, rest * way.span) if rest else 0)
    return way.start + -(-size.depth * size.width // tiles.LINE) * span * SLOWER[least]


def time(size: Size, processors: int, least: int) -> float:
    """About how many microseconds products take at best, in one piece."""
    return min(cost(size, way, processors, least) for way in WAYS if way.tile[1] >= tiles.SPAN) / CYCLES


def slices(found: Contraction, target: Target) -> int:
    """In how many slices of its depth a product is done, by a kernel for each tile of each and one that adds them up."""
    size = size_of(found)
    if size.width < 2 or any(constant(f.axis.extent) is None for f in (*found.outer, found.depth)):
        return 1
    sums, span = size.batch * size.rows * size.columns, tiles.LINE // size.width
    ways = [way for way in WAYS if way.tile[1] >= tiles.SPAN or not size.turned]
    whole = min(cost(size, way, target.cores) for way in ways)
    best, most = (SAVED * whole, 1), min(MOST_SLICES, size.depth // (DEEP * span), PARTS // (4 * max(1, sums)))
    for count in range(2, most + 1):
        deep = slice_of(size.depth, count, span)
        if (count - 1) * deep < size.depth:
            part = replace(size, batch=size.batch * count, depth=deep)
            time = min(cost(part, way, target.cores) for way in ways) + ADDING + sums * SUM * count / MEMORY
            best = min(best, (time, count))
    return best[1]
