"""What threads make of products of queries and keys: scores by masks, biases and functions, at the places that a thread has.

    select(document[i] == document[j], s * 0.25 + slopes[h] * f32(j - i), -inf)
      →  of_row = document[row]; of_row_1 = slopes[h]; first = f32(start + t % 4 * 2 - row)            # once for a row of a tile
         score = select(of_row == document[key], s * 0.25 + of_row_1 * (first + piece * 8 + v), -inf)      # for each score

What does not depend on keys is computed once for a row and a tile.  Floats of coordinates are that of the first key and a number
that is known in code, which are exact up to 2**24.  Caps (``c * tanh(s / c)``) take two instructions that approximate.  Rows
beyond the last read what the last one does: nothing of them is stored.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from lowc.ir.index import (
    Atom,
    Axis,
    FloorDiv,
    Index,
    Opaque,
    atoms,
    constant,
    depends_on,
    ix,
    minimum,
    split,
    substitute,
)
from lowc.ir.interval import interval
from lowc.ir.nodes import Const, Expr, FromIndex, Let, Load, Op, Stmt, Var
from lowc.ir.ops import CHECKS
from lowc.ir.types import f32, i32
from lowc.ir.walk import Substitution, both, free_atoms, parts, same, with_mask
from lowc.scheduler.attention import masked, masks
from lowc.scheduler.rename import coordinate, fresh, let
from lowc.scheduler.tile_epilogue import less

EXACT = 1 << 24  # integers up to which floats are exact
ROOM = 1 << 31  # of 32 bits
SMALL = 32  # what coordinates, which are below 2**25, may be multiplied with for 32 bits to have room for the sum


@dataclass(frozen=True, slots=True)
class Place:
    """``at``: what axes are, but ``rows`` and ``keys``: there ``row`` and ``first + number``, ``number`` known in code.
    ``ends``: whether keys may be beyond the last."""

    at: dict[Atom, Index]
    rows: Axis
    keys: Axis
    row: Index
    first: Index
    number: Index
    ends: bool


class Scores:
    """Scores of one row of a thread.  ``lets``: what places in tables are made of; ``before``: where statements of the row go;
    ``loaded``: what is there without a load."""

    def __init__(
        self, product: Var, lets: Sequence[Let], place: Place, taken: set[str], before: list[Stmt],
        loaded: Sequence[tuple[Expr, Var]] = (),
    ) -> None:  # fmt: skip
        self.loaded = loaded
        self.product, self.lets, self.place, self.taken, self.before = product, lets, place, taken, before
        row = minimum(place.row, place.rows.extent - 1)
        inside = row if row == place.row else coordinate("inside", row, taken, before)
        key = place.first + place.number
        self.plain = Substitution({**place.at, place.rows: place.row, place.keys: key})
        self.inside = Substitution({**place.at, place.rows: inside, place.keys: key})
        self.varying: set[Atom] = {place.keys, Opaque(product.name)}
        self.known: list[tuple[Expr, Var]] = []
        self.memo: dict[tuple[int, bool], Expr] = {}

    def of(self, score: Expr, product: Expr, body: list[Stmt]) -> Expr:
        """``score`` of ``product``; ``body``: statements for each score."""
        self.plain.rename(self.product.name, product)
        self.inside.rename(self.product.name, product)
        for each in self.lets:
            varies = not self.varying.isdisjoint(free_atoms(each.value))
            var = Var(fresh(each.var.name, self.taken), each.var.dtype)
            (body if varies else self.before).append(Let(var, self.read(each.value)))
            if varies:
                self.varying.add(Opaque(each.var.name))
            for there in (self.plain, self.inside):
                there.rename(each.var.name, var)
        return self.made(score, True)

    def more(self, value: Expr, name: str, what: Expr) -> Expr:
        """What ``value`` is at the same place, once a score is made there; ``name`` is ``what``."""
        self.varying.add(Opaque(name))
        for there in (self.plain, self.inside):
            there.rename(name, what)
        return self.made(value, False)

    def made(self, value: Expr, added: bool) -> Expr:
        """``added``: whether the score is ``value`` times a number, and others added: an absolute error is one of the score."""
        key = id(value), added
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self.part(value, added)
        return found

    def part(self, value: Expr, added: bool) -> Expr:
        if isinstance(value, Const | FromIndex | Var):
            return self.plain.expr(value)
        if self.varying.isdisjoint(free_atoms(value)):
            return self.of_row(value)
        for one, var in self.loaded:
            if same(one, value):
                return var
        if isinstance(value, Load) or value.name in CHECKS:
            return self.read(value)
        counted = self.counted(value)
        if counted is not None:
            return counted
        capped = of_cap(value)
        if capped is not None:
            return slope_of_tanh(self.inverse(capped))
        times = _number(value)
        inside = added and (times is not None or value.name in ("add", "sub", "neg", "select"))
        args = tuple([self.made(a, inside) for a in value.args])
        if times is not None:
            return _times(args[0], times)
        if value.name == "tanh" and value.dtype == f32 and added:
            return tanh(_inverse(args[0]))
        return Op(value.name, args, value.dtype)

    def inverse(self, value: Expr) -> Expr:
        """``1 / (1 + exp(2 * value))``, of which a hyperbolic tangent is made."""
        return _inverse(self.made(value, False))

    def of_row(self, value: Expr) -> Expr:
        for one, var in self.known:
            if same(one, value):
                return var
        self.known.append((value, let("of_row", self.read(value), self.taken, self.before)))
        return self.known[-1][1]

    def counted(self, value: Op) -> Expr | None:
        """A float of a coordinate, as one of the first key and a number."""
        inner = value.args[0]
        if value.name != "cast" or value.dtype != f32 or not isinstance(inner, FromIndex):
            return None
        step, rest = split(inner.index, self.place.keys)
        low, high = interval(inner.index)
        by = constant(step)
        if by is None or depends_on(rest, self.place.keys):
            return None
        near = low is not None and high is not None and max(-low, high) + abs(by) * 1024 < ROOM
        if not near and max([abs(c) for m, c in inner.index.terms if m]) > SMALL:
            return None
        there = Substitution({**self.place.at, self.place.rows: self.place.row})
        first: Expr = FromIndex(there.index(rest) + self.place.first * by, i32)
        further: Expr = FromIndex(self.place.number * by, i32)
        if low is None or high is None or max(-low, high) + abs(by) * 1024 > EXACT:  # the sum is of integers
            start = let("first", first, self.taken, self.before)
            return Op("cast", (Op("add", (start, further), i32),), f32)
        start = let("first", Op("cast", (first,), f32), self.taken, self.before)
        return Op("add", (start, Op("cast", (further,), f32)), f32)

    def read(self, value: Expr) -> Expr:
        """``value`` where what it loads is there: at the last row for rows beyond, nowhere for keys beyond."""
        made = self.inside.expr(value)
        if not self.place.ends or self.varying.isdisjoint(free_atoms(value)):
            return made
        return with_mask(made, less(self.place.first + self.place.number, self.place.keys.extent), {})


def of_tiles(score: Expr, rows: Axis, high: int, keys: Axis, size: int) -> tuple[Expr | None, Expr]:
    """(the conditions of ``score`` that are one for all of ``high`` rows and ``size`` keys, in one, the score where they hold).

    ``select(low[i // 128] <= high[j // 128], x, -inf)`` is such a one where tiles are of 128 rows and keys.
    """
    conditions, inner = masks(score)
    same_ = [c for c in conditions if _is_of_tiles(c, rows, high) and _is_of_tiles(c, keys, size)]
    if not same_:
        return None, score
    rest = masked([c for c in conditions if all(c is not s for s in same_)], inner)
    return reduce(both, same_[1:], same_[0]), rest


def _is_of_tiles(value: Expr, axis: Axis, size: int) -> bool:
    whole = Axis(f"{axis.name}:", axis.extent)
    for part in parts(value):
        if isinstance(part, Var) or (isinstance(part, Op) and part.name in CHECKS):
            return False
        for index in part.index if isinstance(part, Load) else (part.index,) if isinstance(part, FromIndex) else ():
            tiles: dict[Atom, Index] = {a: ix(whole) for a in atoms(index) if isinstance(a, FloorDiv) and _is_tile(a, axis, size)}
            if depends_on(substitute(index, tiles), axis) or any(isinstance(a, Opaque) for a in atoms(index)):
                return False
    return True


def _is_tile(atom: FloorDiv, axis: Axis, size: int) -> bool:
    by = constant(atom.den)
    return atom.num == ix(axis) and by is not None and by % size == 0


def _number(value: Op) -> float | None:
    """What the f32 ``value`` is its first part times, if that is a number: a division takes ten instructions."""
    if value.dtype != f32 or value.name not in ("mul", "div") or not isinstance(value.args[1], Const):
        return None
    number = float(value.args[1].value)
    if value.name == "mul" or not 2.0**-100 < abs(number) < 2.0**100:
        return number if value.name == "mul" else None
    return 1.0 / number


def _times(value: Expr, number: float) -> Expr:
    """``value * number``, of which one product is left where ``value`` is one with a number itself."""
    if isinstance(value, Op) and value.name in ("mul", "fma") and all(isinstance(a, Const) for a in value.args[1:]):
        numbers = [float(a.value) * number for a in value.args[1:] if isinstance(a, Const)]
        if all(2.0**-100 < abs(n) < 2.0**100 for n in numbers):
            return Op(value.name, (value.args[0], *(Const(n, f32) for n in numbers)), f32)
    return Op("mul", (value, Const(number, f32)), f32)


def tanh(inverse: Expr) -> Expr:
    """The hyperbolic tangent with an absolute error below 2**-20, by two instructions that approximate."""
    return Op("fma", (inverse, Const(-2.0, f32), Const(1.0, f32)), f32)


def _inverse(value: Expr) -> Expr:
    """``1 / (1 + exp(2 * value))``."""
    power = Op("ex2_normal", (_times(value, 2 * math.log2(math.e)),), f32)
    return Op("rcp", (Op("add", (power, Const(1.0, f32)), f32),), f32)


def of_cap(value: Op) -> Expr | None:
    """The argument, if ``value`` is 1 less the square of a hyperbolic tangent."""
    if value.name != "sub" or value.dtype != f32 or not isinstance(value.args[0], Const) or value.args[0].value != 1:
        return None
    square = value.args[1]
    if not isinstance(square, Op) or square.name != "mul" or not same(square.args[0], square.args[1]):
        return None
    inner = square.args[0]
    return inner.args[0] if isinstance(inner, Op) and inner.name == "tanh" else None


def slope_of_tanh(inverse: Expr) -> Expr:
    """The derivative of the hyperbolic tangent, from what that is made of: as exact where it is small."""
    return Op("mul", (inverse, Op("fma", (inverse, Const(-4.0, f32), Const(4.0, f32)), f32)), f32)
