"""Which tiles of scores a mask lets any row see, as data and coordinates tell: conditions of whole tiles beside the mask.

    (i >= j) & (document[i] == document[j])
      →  low[t], high[t] = the least and the greatest of document[128 t … 128 t + 127]            # a kernel before
         (low[i // 128] <= high[j // 128]) & (low[j // 128] <= high[i // 128]) & (i >= j) & (document[i] == document[j])

A comparison is possible within a tile if it is of the ends of what its sides can be there; "and" and "or" if their parts are;
anything else is.  Such a condition follows from the mask, so that results are the same; a schedule that finds that it is one for
all of a tile (``scheduler.relay_scores.of_tiles``) computes no tile where it does not hold.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowc.ir.index import (
    Atom,
    Axis,
    FloorDiv,
    Index,
    Mod,
    Opaque,
    atoms,
    constant,
    depends_on,
    floordiv,
    ix,
    minimum,
    split,
    substitute,
)
from lowc.ir.nodes import Const, Expr, FromIndex, Load, Op, Var
from lowc.ir.walk import Substitution, free_atoms, parts, same
from lowc.lowering.builder import Builder
from lowc.lowering.scalars import const, op, select
from lowc.lowering.values import Coords, Value

TILE = 128  # rows, and keys
COMPARED = frozenset({"eq", "lt", "le", "gt", "ge"})
Ends = Callable[[Coords], tuple[Expr, Expr]]
"""The least and the greatest that something is in the tile of a place (batch, head, row, key)."""
Condition = Callable[[Coords], Expr]


@dataclass(frozen=True, slots=True)
class _Axes:
    """Coordinates of a place; what has one element has no axis."""

    batch: Index
    head: Index
    row: Index
    key: Index


def conditions(b: Builder, mask: Callable[[Coords], Sequence[Expr]], shape: Coords) -> list[Condition]:
    """Conditions of tiles that follow from the conjunction of ``mask``, over ``shape``: batches, heads, rows, keys.

    Adds the kernels that they need.
    """
    with b.dropped(), b.loops(shape, range(4), "p") as at:
        found = list(mask(tuple(at)))
    made = _Tiles(b, tuple(at), shape)
    several = [made.possible(c) for c in found if not (_is_of_coordinates(c) or of_tile(c, made.at[2:]))]  # schedules see those
    return [c for c in several if c is not None]


def _is_of_coordinates(value: Expr) -> bool:
    return all(isinstance(p, Op | FromIndex | Const) for p in parts(value)) and (isinstance(value, Op) and value.name in COMPARED)


def of_tile(value: Expr, axes: Sequence[Index]) -> bool:
    """Whether ``value`` is one for all of a tile as it is: ``table[b, j // 128] >= 0``, of a cache in pages, say."""
    if any(isinstance(p, Var) for p in parts(value)):
        return False
    for part in parts(value):
        for index in part.index if isinstance(part, Load) else (part.index,) if isinstance(part, FromIndex) else ():
            if any(isinstance(a, Opaque) for a in atoms(index)) or _depends(_by_tiles(index, axes), axes):
                return False
    return True


def _by_tiles(index: Index, axes: Sequence[Index]) -> Index:
    """``index`` with an axis of its own for the number of a tile, or of several, along ``axes``, wherever that is computed."""
    found = [a for a in atoms(index) if isinstance(a, FloorDiv | Mod) and (constant(a.den) or 1) % TILE == 0 and a.num in axes]
    tiles = [ix(Axis(f"tile {n}", ix(1 << 62))) for n in range(len(found))]
    return substitute(index, {a: t if isinstance(a, FloorDiv) else a.num - a.den * t for a, t in zip(found, tiles, strict=True)})


def _depends(index: Index, axes: Sequence[Index]) -> bool:
    return any(constant(a) is None and depends_on(index, _axis(a)) for a in axes)


class _Tiles:
    def __init__(self, b: Builder, at: Coords, shape: Coords) -> None:
        self.b, self.at, self.shape = b, at, shape
        self.kept: list[tuple[Expr, Index, tuple[Value, Value]]] = []

    def possible(self, value: Expr) -> Condition | None:
        """Where ``value`` may hold; None for everywhere."""
        if not isinstance(value, Op):
            return None
        if value.name in ("and", "or"):
            both = [self.possible(a) for a in value.args]
            known = [c for c in both if c is not None]
            if value.name == "or" and len(known) < 2:
                return None
            if len(known) < 2:
                return known[0] if known else None
            one, other, name = known[0], known[1], value.name
            return lambda place: op(name, one(place), other(place))
        if value.name not in COMPARED or value.args[0].dtype.kind not in "iu":
            return None
        if of_tile(value, self.at[2:]):
            return lambda place: self.there(value, place)
        left, right = (self.ends(a) for a in value.args)
        if left is None or right is None:
            return None
        return lambda place: _compared(value.name, left(place), right(place))

    def ends(self, side: Expr) -> Ends | None:
        """None for what is no side that rows or keys alone tell."""
        if any(isinstance(a, Opaque) for a in free_atoms(side)):  # made of what a let before it tells
            return None
        row, key = (_varies(side, a) for a in self.at[2:])
        if not row and not key:
            return lambda place: (self.there(side, place), self.there(side, place))
        if isinstance(side, FromIndex):
            return self.of_index(side)
        if (found := self.of_sum(side)) is not None:
            return found
        if row and key:
            return None
        axis = 2 if row else 3
        low, high = self.arrays(side, axis)

        def ends(place: Coords) -> tuple[Expr, Expr]:
            where = (*place[:2], floordiv(place[axis], ix(TILE)))
            return self.b.read(low, where), self.b.read(high, where)

        return ends

    def there(self, side: Expr, place: Coords) -> Expr:
        return self.b.again(Substitution(_values(self.at, place)).expr(side))

    def of_index(self, side: FromIndex) -> Ends | None:
        """Of a sum of coordinates times numbers, and what is one for all of a tile."""
        steps: list[int] = []
        rest = _by_tiles(side.index, self.at[2:])
        for axis in self.at[2:]:
            step, rest = (ix(0), rest) if constant(axis) is not None else split(rest, _axis(axis))
            if (by := constant(step)) is None:
                return None
            steps.append(by)
        if _depends(rest, self.at[2:]):
            return None

        def ends(place: Coords) -> tuple[Expr, Expr]:
            first = [floordiv(n, ix(TILE)) * TILE for n in place[2:]]
            low = [n + (TILE - 1 if by < 0 else 0) for n, by in zip(first, steps, strict=True)]
            high = [n + (TILE - 1 if by > 0 else 0) for n, by in zip(first, steps, strict=True)]
            both = [Substitution(_values(self.at, (*place[:2], *end))).index(side.index) for end in (low, high)]
            return self.b.index(both[0], side.dtype), self.b.index(both[1], side.dtype)

        return ends

    def of_sum(self, side: Expr) -> Ends | None:
        """Of coordinates and what is one for all of a tile, as data may tell: ``table[j // 128] * 128 + j % 128``.  All numbers
        where the type has no room for the sum."""
        if not isinstance(side, Op) or side.name not in ("add", "sub"):
            return None
        parts = [self.of_index(a) if isinstance(a, FromIndex) else None for a in side.args]
        if len([p for p in parts if p is not None]) != 1 or not any(of_tile(a, self.at[2:]) for a in side.args):
            return None
        name, dtype = side.name, side.dtype
        bits = dtype.bits - (dtype.kind == "i")
        least, most = const(-(1 << bits) if dtype.kind == "i" else 0, dtype), const((1 << bits) - 1, dtype)

        def ends(place: Coords) -> tuple[Expr, Expr]:
            left, right = (
                (self.there(a, place),) * 2 if of is None else of(place) for a, of in zip(side.args, parts, strict=True)
            )
            low, high = op(name, left[0], right[name == "sub"]), op(name, left[1], right[name == "add"])
            fits = op("le", low, high)
            return select(fits, low, least), select(fits, high, most)

        return ends

    def arrays(self, side: Expr, axis: int) -> tuple[Value, Value]:
        """The least and the greatest of ``side`` in each tile along ``axis``: [B, H, tiles], B and H 1 where one is for all."""
        length, b = self.shape[axis], self.b
        for known, size, arrays in self.kept:
            if size == length and same(known, Substitution(_values(self.at[axis : axis + 1], self.at[2:3])).expr(side)):
                return arrays
        shape = tuple([n if _varies(side, a) else ix(1) for n, a in zip(self.shape[:2], self.at[:2], strict=True)])
        shape = (*shape, floordiv(length + (TILE - 1), ix(TILE)))
        made: list[Value] = []
        for reducer in ("min", "max"):
            out = b.temp(side.dtype, shape, name=f"{b.stem}_{reducer}")
            with b.kernel(f"{b.stem}_tiles"), b.loops(shape, range(3)) as at:
                best = b.acc(reducer, side.dtype)
                with b.loop(TILE, "u") as u:
                    place = [*at[:2], ix(0), ix(0)]
                    place[axis] = minimum(at[2] * TILE + u, length - 1)
                    b.update(best, reducer, self.there(side, tuple(place)))
                b.store(out, tuple(at), best[0])
            made.append(out)
        self.kept.append((Substitution(_values(self.at[axis : axis + 1], self.at[2:3])).expr(side), length, (made[0], made[1])))
        return made[0], made[1]


def _axis(index: Index) -> Axis:
    atom = index.terms[0][0][0]
    assert isinstance(atom, Axis)
    return atom


def _varies(side: Expr, at: Index) -> bool:
    return constant(at) is None and _axis(at) in free_atoms(side)


def _values(at: Coords, place: Coords) -> dict[Atom, Index]:
    return {_axis(a): p for a, p in zip(at, place, strict=True) if constant(a) is None}


def _compared(name: str, left: tuple[Expr, Expr], right: tuple[Expr, Expr]) -> Expr:
    if name == "eq":
        return op("and", op("le", left[0], right[1]), op("le", right[0], left[1]))
    return op(name, left[0], right[1]) if name in ("lt", "le") else op(name, left[1], right[0])
