"""Boxes: what the engine that copies parts of a tensor (TMA) needs to know of one, read off a nest that copies.

    for i in 128 { for k in 64 { tile[i, k] = x[(i_at + i)*4096 + k_at + k if i_at + i < M & k_at + k < K] } }

A tensor has up to five dimensions, two of which are walked through.  The comparisons tell them apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lowc.ir.index import ZERO, Axis, FloorDiv, Index, Mod, Opaque, Symbol, atoms, constant, ix, split
from lowc.ir.nodes import Buffer, Const, Expr, For, FromIndex, Op

BOX = 256  # the most elements along a dimension of a box
RANK = 5  # the most dimensions of a tensor
PIECE = 16  # bytes, of which an offset and what neighbours along a dimension are apart are multiples


@dataclass(frozen=True, slots=True)
class Window:
    """Of places (``ir/places.py``), for each dimension but the first and the last, innermost first: where the first and the last
    of them are, counted from the first and the last element; how far apart they are; how far from there elements are read."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]
    taps: tuple[Index, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """What the copying engine needs to know of a nest that copies part of a tensor: dimensions, innermost first.

    ``offset`` in elements; ``sizes``: elements outside are 0; ``strides`` in elements, the first is 1; ``box``: how many along
    each are copied at a time, from ``starts`` on, which may depend on loops around and on all loops of the nest but two.

    With a ``window`` places are copied, and ``box`` is how many channels of how many places.
    """

    buffer: Buffer
    offset: Index
    sizes: tuple[Index, ...]
    strides: tuple[Index, ...]
    box: tuple[int, ...]
    starts: tuple[Index, ...]
    window: Window | None = None


def box_of(loops: Sequence[For], buffer: Buffer, place: Index, mask: Expr | None) -> Box | None:
    """The Box that ``loops`` over a tile walk through ``buffer`` in, at ``place`` where ``mask`` holds."""
    if len(loops) < 2:
        return None
    inner, outer = loops[-1].axis, loops[-2].axis
    compared = dimensions(mask)
    first = next((d for d in compared if constant(split(d[0], inner)[0]) == 1), None)
    second = next((d for d in compared if constant(split(d[0], outer)[0]) == 1), None)
    if first is None or second is None or first is second or (constant(outer.extent) or BOX + 1) > BOX:
        return None
    ordered = [first, second, *(d for d in compared if d is not first and d is not second)]
    rest = place
    sizes: list[Index] = []
    strides: list[Index] = []
    starts: list[Index] = []
    for number, (coordinate, size) in enumerate(ordered):
        marker = (inner, outer)[number] if number < 2 else _marker(coordinate)
        if marker is None or (number > 1 and _depends(coordinate, (inner, outer))):
            return None
        stride = split(rest, marker)[0]
        rest = rest - coordinate * stride
        if number > 1 and stride == ZERO:
            continue  # the same for all of them
        sizes.append(size)
        strides.append(stride)
        starts.append(coordinate - marker if number < 2 else coordinate)
    piece = PIECE // buffer.dtype.bytes
    if constant(strides[0]) != 1 or len(sizes) > RANK or any(not _is_multiple(s, piece) for s in (rest, *strides[1:])):
        return None
    if (constant(rest) or 0) < 0 or any((n := constant(s)) is not None and n < 1 for s in strides):
        return None  # rows in reverse, or one row for all
    if _depends(starts[0], (outer,)) or _depends(starts[1], (inner,)):
        return None
    if any(not isinstance(a, Symbol) for i in (rest, *sizes, *strides) for a in atoms(i) if isinstance(a, Axis | Opaque)):
        return None
    small = (constant(inner.extent) or 0, constant(outer.extent) or 0, *([1] * (len(sizes) - 2)))
    return Box(buffer, rest, tuple(sizes), tuple(strides), small, tuple(starts))


def dimensions(mask: Expr | None) -> list[tuple[Index, Index]]:
    """(coordinate, size) for each comparison in a conjunction of them; none if it is anything else."""
    found: list[tuple[Index, Index]] = []
    pending = [] if mask is None else [mask]
    while pending:
        part = pending.pop()
        if not isinstance(part, Op) or part.name not in ("and", "lt"):
            return []
        if part.name == "and":
            pending += part.args
            continue
        low, high = part.args
        if not isinstance(low, FromIndex) or not isinstance(high, FromIndex | Const):
            return []
        found.append((low.index, high.index if isinstance(high, FromIndex) else ix(int(high.value))))
    return found


def _marker(coordinate: Index) -> Axis | Opaque | FloorDiv | Mod | None:
    """The atom by whose share of an address a coordinate's stride is known."""
    alone = [m[0] for m, c in coordinate.terms if len(m) == 1 and c == 1]
    for kinds in (Axis | Opaque, FloorDiv | Mod):
        found = next((a for a in alone if isinstance(a, kinds)), None)
        if isinstance(found, Axis | Opaque | FloorDiv | Mod):
            return found
    return None


def _depends(index: Index, axes: Sequence[Axis]) -> bool:
    return any(a in axes for a in atoms(index))


def _is_multiple(index: Index, number: int) -> bool:
    return all(c % number == 0 for _, c in index.terms)
