"""Choosing how warps multiply tiles (``mma.sync``, compute capability 8.0 and later): where a GPU has no ``wgmma``.

A block has one tile; as many blocks are at a time on a multiprocessor as its shared memory and registers allow, and while one
waits the others multiply.  Small products get small tiles, so that there are blocks for all multiprocessors.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lowc.ir import tiles
from lowc.ir.nodes import Kernel
from lowc.scheduler.choose_tensor_cores import Size, contraction, size_of
from lowc.scheduler.tensor_cores import TensorCores
from lowc.target import Target

ABILITY = "mma"
LEAST_STAGES, STAGES = 2, 4
RASTER = 8  # rows of tiles that are done together
FILLS = ((tiles.ASYNC, tiles.ASYNC), (tiles.COPY, tiles.ASYNC), (tiles.ASYNC, tiles.COPY), (tiles.COPY, tiles.COPY))


@dataclass(frozen=True, slots=True)
class Way:
    """A tile of rows x columns by ``groups`` of 128 threads, ``shares`` of the columns among them.  ``blocks``: at a time on a
    multiprocessor, if there is memory; ``rate``: of multiplying, of that of the fastest."""

    tile: tuple[int, int]
    groups: int
    shares: int
    blocks: int
    rate: float

    @property
    def name(self) -> str:
        return f"{self.tile[0]}x{self.tile[1]} by {4 * self.groups} warps"


WAYS = (
    Way((128, 128), 1, 2, 2, 1.0),
    Way((128, 128), 2, 2, 1, 0.9),
    Way((128, 64), 1, 2, 3, 0.75),
    Way((64, 64), 1, 2, 4, 0.6),
)


def choices(kernel: Kernel, target: Target) -> Iterator[TensorCores]:
    """Ways to do ``kernel`` if that is one contraction for warps, best first; none if it is none."""
    found = contraction(kernel, target, ABILITY)
    if found is None:
        return
    size, axis = size_of(found), found.outer[0].axis.name
    for way in sorted(WAYS, key=lambda w: cost(size, w, target)):
        stages = stages_of(way, target)
        if stages >= LEAST_STAGES:
            for copies in FILLS:
                yield TensorCores(axis, way.tile, stages, copies, 0, RASTER, way.groups, 1, 0, tiles.MMA, way.shares)


def stages_of(way: Way, target: Target) -> int:
    """Of the ring, of as many blocks as ``way`` wants at a time; of one if there is no memory for several."""
    each = sum(way.tile) * tiles.LINE
    several = target.shared // way.blocks // each
    return min(STAGES, several if several > LEAST_STAGES else target.shared // each)


def cost(size: Size, way: Way, target: Target) -> float:
    """About how long products take that way."""
    high, wide = way.tile
    blocks = size.batch * -(-size.rows // high) * -(-size.columns // wide)
    return -(-blocks // target.cores) * high * wide / way.rate
