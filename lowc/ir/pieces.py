"""What threads copy into shared memory without waiting for it (``cp.async``, PTX ISA 9.7.9.25), by 16, 8 or 4 bytes.

    for i in 128 instr(async) { for k in 64 { tile[i, k] = x[… if i_at + i < M & k_o*64 + k < K] } }

A piece is neighbours in memory, whose address is a multiple of its size.  Of one that the mask cuts off, what is outside becomes
0; for that the mask must be comparisons of coordinates with sizes (``start + axis < size``), which hold up to some element of a
row of the tile and then no more.
"""

from dataclasses import dataclass

from lowc.ir.boxes import dimensions
from lowc.ir.index import Index, constant, depends_on, split
from lowc.ir.nodes import Buffer, Load
from lowc.ir.tiles import Fill

SIZES = (16, 8, 4, 2)  # bytes; of 2 there is no instruction
LEAST = 4


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """``place``: of the element at the axes of the fill, in elements; ``size`` of a piece in bytes.  ``ends``: where a row of the
    tile ends, in elements, whichever comes first; ``within``: (coordinate, size) of the comparisons that hold for whole rows."""

    buffer: Buffer
    place: Index
    size: int
    ends: tuple[Index, ...]
    within: tuple[tuple[Index, Index], ...]


def pieces(found: Fill) -> Pieces | None:
    """The Pieces of ``found``; None if what it copies are none."""
    value = found.store.value
    if not isinstance(value, Load) or value.buffer.space != "global":
        return None
    inner, width = found.loops[-1].axis, value.buffer.dtype.bytes
    step, rest = split(value.index[0], inner)
    if constant(step) != 1 or depends_on(rest, inner):
        return None
    size = next((n for n in SIZES if all(c * width % n == 0 for _, c in rest.terms)), 0)
    compared = dimensions(value.mask)
    if not size or (value.mask is not None and not compared):
        return None
    ends: list[Index] = []
    within: list[tuple[Index, Index]] = []
    for coordinate, limit in compared:
        if not depends_on(coordinate, inner):
            within.append((coordinate, limit))
            continue
        step, start = split(coordinate, inner)
        if constant(step) != 1 or depends_on(start, inner) or depends_on(limit, inner):
            return None
        ends.append(limit - start)
    return Pieces(value.buffer, value.index[0], size, tuple(ends), tuple(within))


def is_async(found: Fill, least: int = LEAST) -> bool:
    """Whether an instruction copies each piece of ``found``, of ``least`` bytes or more."""
    made = pieces(found)
    return made is not None and made.size >= least
