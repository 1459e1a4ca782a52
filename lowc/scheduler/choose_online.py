"""Choosing how attention is done on a CPU: tiles of registers, rows of a block, keys at a time."""

import os
from lowc.ir.index import constant
from lowc.ir.nodes import PARALLEL, For, Kernel, Kind
from lowc.scheduler.attention import find
from lowc.scheduler.choose import PARALLEL_WORK
from lowc.scheduler.contract import Step
from lowc.scheduler.nest import estimate, iterations
from lowc.scheduler.online import Online
from lowc.scheduler.tiles import STACK
from lowc.target import Target

TILES = {512: (4, 4), 256: (6, 2), 128: (4, 2)}  # by bits of a vector: keys (or columns of values), vectors of rows


def choices(kernel: Kernel, target: Target, threads: bool) -> tuple[tuple[Step, ...], ...]:
    """Schedules for ``kernel`` if that is attention of several rows; none if it is none."""
    if len(kernel.body) != 1 or not isinstance(kernel.body[0], For):
        return ()
    found = find(kernel.body[0])
    if found is None or found.rows is None:
        return ()
    lanes = target.vector_bits // found.product.dtype.bits
    high, vectors = eval(os.environ.get("TILE", "None")) or TILES[target.vector_bits]
    wide = vectors * lanes
    rows = int(os.environ.get("ROWS", -(-64 // wide) * wide))
    keys = int(os.environ.get("KEYS", -(-64 // high) * high))
    work = iterations(found.outer) * estimate(found.keys.extent) * estimate(found.depth.extent)
    kind = PARALLEL if threads and target.cores > 1 and work // lanes >= PARALLEL_WORK else Kind()
    return ((Online(found.outer[0].axis.name, rows, keys, (high, wide), lanes, kind),),)
