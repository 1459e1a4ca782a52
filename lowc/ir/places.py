"""Places: boxes in which each row is what one place of a convolution's output sees of the input, read off a nest that copies (the
engine's im2col mode, PTX ISA 5.5.5).

    p = p_at + i;  c = c_at + k;  w = p % 14;  h = p // 14 % 14;  n = p // 196
    for i in 128 { for k in 64 {
      tile[i, k] = x[n*50176 + (h + a - 1)*3584 + (w + b - 1)*256 + c if p < P & c < 256 & w < 14 & h < 14 & n < N
                     & h + a - 1 >= 0 & h + a - 1 < 14 & w + b - 1 >= 0 & w + b - 1 < 14]
    } }

Places are numbered through all images: the engine goes on in the next row where one ends, and in the next image.  What of this it
needs to know the comparisons tell, also those that always hold: how many places a row and an image have (``w < 14``), and which
elements there are to be seen.  That a nest is nothing else is known by putting its address together again from what was found.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product

from lowc.ir.boxes import BOX, PIECE, RANK, Box, Window
from lowc.ir.index import (
    ZERO,
    Atom,
    Axis,
    Index,
    Opaque,
    Symbol,
    atoms,
    constant,
    depends_on,
    ix,
    split,
    substitute,
    upper_bound,
)
from lowc.ir.nodes import Buffer, Const, Expr, For, FromIndex, Op

STEPS = 8  # how far apart two places that follow on one another may be
# How far outside a tensor they may lie, by the dimensions that have windows.  How far from there elements are read has as many
# bits, without a sign.
CORNERS = {1: 1 << 15, 2: 1 << 7, 3: 1 << 4}

Compared = list[tuple[Index, Index]]


@dataclass(frozen=True, slots=True)
class Seen:
    """What is read from the place that has ``digit``, one of ``count``, along a dimension of ``size`` elements: the element at
    ``coordinate``, which is ``digit * step + first + tap``."""

    digit: Index
    count: Index
    coordinate: Index
    size: Index
    step: int
    first: int
    tap: Index


def places_of(loops: Sequence[For], buffer: Buffer, place: Index, mask: Expr | None) -> Box | None:
    """The Box of places that ``loops``, over places and channels, walk through ``buffer`` in, at ``place`` where ``mask``
    holds."""
    compared = _compared(mask)
    if len(loops) != 2 or compared is None:
        return None
    outer, inner = loops[0].axis, loops[1].axis
    below = compared[0]
    channels = [d for d in below if constant(split(d[0], inner)[0]) == 1 and not depends_on(d[0], outer)]
    numbers = [d for d in below if constant(split(d[0], outer)[0]) == 1 and not depends_on(d[0], inner)]
    high = constant(outer.extent) or 0
    if len(channels) != 1 or not numbers or not 0 < high <= BOX:
        return None
    (channel,) = channels
    number = max(numbers, key=lambda d: len(_digits(*d, below)))  # of all places, where a tile is one row of an image
    moving = {a for a in (*atoms(number[0]), inner) if isinstance(a, Axis | Opaque)}
    digits = _digits(*number, below)
    seen = [s for d in digits if (s := _seen(*d, moving, below)) is not None]
    if not digits or len(seen) < len(digits) or not _all_told(compared, [channel, number, *digits], seen):
        return None
    apart = _strides(place, number[0] - outer, outer, seen)
    if apart is None:
        return None
    rest = _rest(place - channel[0], number[0], seen, apart)
    if rest is None:
        return None
    if (seen[-1].step, seen[-1].first, seen[-1].tap) != (1, 0, ZERO) or len(seen) < 2:  # a single image
        apart = [*apart, seen[-1].size * apart[-1]]
        seen.append(Seen(ZERO, ix(1), ZERO, ix(1), 1, 0, ZERO))
    window = _window(seen[:-1])
    strides = (ix(1), *apart)
    piece = PIECE // buffer.dtype.bytes
    if window is None or len(strides) > RANK or any((constant(s) or 0) < 1 or (constant(s) or 0) % piece for s in apart):
        return None
    if (constant(rest) or 0) < 0 or any(c % piece for _, c in rest.terms):
        return None
    first: dict[Atom, Index] = {outer: ZERO, inner: ZERO}
    starts = tuple([substitute(i, first) for i in (channel[0], *(s.digit * s.step + s.first for s in seen))])
    sizes = (channel[1], *(s.size for s in seen))
    return Box(buffer, rest, sizes, strides, (constant(inner.extent) or 0, high), starts, window)


def _compared(mask: Expr | None) -> tuple[Compared, Compared] | None:
    """What is below what, and what is at least what, where ``mask`` holds; None if it says anything else."""
    below: Compared = []
    least: Compared = []
    pending = [] if mask is None else [mask]
    while pending:
        part = pending.pop()
        if not isinstance(part, Op) or part.name not in ("and", "lt", "ge"):
            return None
        if part.name == "and":
            pending += part.args
            continue
        left, right = _number(part.args[0]), _number(part.args[1])
        if left is None or right is None:
            return None
        known = below if part.name == "lt" else least
        if (left, right) not in known:
            known.append((left, right))
    return below, least


def _number(value: Expr) -> Index | None:
    if isinstance(value, FromIndex):
        return value.index
    return ix(int(value.value)) if isinstance(value, Const) and value.dtype.kind == "i" else None


def _digits(number: Index, count: Index, below: Compared) -> Compared:
    """The coordinates that ``number``, one of ``count``, stands for, innermost first, and their sizes; none if some are not
    told."""
    found: Compared = []
    unit = ix(1)
    while unit != count and len(found) < RANK:
        rest = number // unit
        fitting = [d for d in below if d[0] == rest % d[1] and d[0] != rest]
        fitting += [d for d in below if d[0] == rest and unit * d[1] == count]  # the last
        if not fitting:
            return []
        found.append(fitting[0])
        unit = unit * fitting[0][1]
    return found if unit == count else []


def _seen(digit: Index, count: Index, moving: Collection[Atom], below: Compared) -> Seen | None:
    """What is read from the place that has ``digit``; ``moving`` changes with places, and a tap with none of it."""
    for coordinate, _ in sorted(below, key=lambda d: d[0] == digit):  # itself if there is no other
        for step in range(1, STEPS + 1):
            rest = coordinate - digit * step
            first = sum(c for m, c in rest.terms if not m)
            tap = rest - first
            if not any(a in moving for a in atoms(rest)) and all(c > 0 for _, c in tap.terms):
                sizes = [size for c, size in below if c == coordinate]
                return Seen(digit, count, coordinate, min(sizes, key=lambda s: constant(s) or 1 << 62), step, first, tap)
    return None


def _all_told(compared: tuple[Compared, Compared], known: Compared, seen: Sequence[Seen]) -> bool:
    """Whether the comparisons say what is ``known``, that coordinates are within their dimensions, and no more."""
    below, least = compared
    coordinates = [s.coordinate for s in seen]
    if any(d not in known and d[0] not in coordinates for d in below):
        return False
    if any(low != ZERO or c not in coordinates for c, low in least):
        return False
    return all(s.first >= 0 or (s.coordinate, ZERO) in least for s in seen)


def _strides(place: Index, start: Index, outer: Axis, seen: Sequence[Seen]) -> list[Index] | None:
    """How far apart elements are along the dimensions: what ``place`` is for the places one further along each.  ``start``: the
    number of a tile's first place."""
    high = constant(outer.extent) or 1
    tiles = [m[0] for m, c in start.terms if len(m) == 1 and c == high and isinstance(m[0], Opaque | Axis)]
    if len(start.terms) != len(tiles) or len(tiles) > 1:
        return None

    def at(number: Index) -> Index:
        return substitute(place, {outer: number % high, tiles[0]: number // high} if tiles else {outer: number})

    found: list[Index] = []
    unit = ix(1)
    for each in seen:
        apart = constant(at(unit) - at(ZERO))
        if apart is None or apart % each.step:
            return None
        found.append(ix(apart // each.step))
        unit = unit * each.count
    return found


def _rest(place: Index, number: Index, seen: Sequence[Seen], apart: Sequence[Index]) -> Index | None:
    """What is left of ``place`` without what the coordinates add, the same for all places; None if they do not make it up."""
    forms: list[list[Index]] = []
    for each in seen:  # the number of an image is p // 196 or p // 14 // 14, which index arithmetic need not know to be equal
        within = number if each is seen[-1] else number % each.count
        forms.append([each.digit, within] if within != each.digit else [within])
        number = number // each.count
    for digits in product(*forms):
        rest = place
        for digit, each, stride in zip(digits, seen, apart, strict=True):
            rest = rest - (digit * each.step + each.first + each.tap) * stride
        if all(isinstance(a, Symbol) for a in atoms(rest)):
            return rest
    return None


def _window(seen: Sequence[Seen]) -> Window | None:
    limit = CORNERS.get(len(seen), 0)
    lower: list[int] = []
    upper: list[int] = []
    for each in seen:
        count, size = constant(each.count), constant(each.size)
        if count is None or size is None:
            return None
        lower.append(each.first)
        upper.append(each.first + (count - 1) * each.step - (size - 1))
    if any(not -limit <= n < limit for n in (*lower, *upper)):
        return None
    if any((upper_bound(each.tap) or 0) >= 2 * limit for each in seen):
        return None
    return Window(tuple(lower), tuple(upper), tuple([s.step for s in seen]), tuple([s.tap for s in seen]))
