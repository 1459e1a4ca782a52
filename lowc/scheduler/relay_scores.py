"""What threads make of products of queries and keys: scores by masks, biases and functions, at the places that a thread has.

    select(document[i] == document[j], s * 0.25 + slopes[h] * f32(j - i), -inf)
      →  of_row = document[row]; of_row_1 = slopes[h]; first = f32(start + t % 4 * 2 - row)            # once for a row of a tile
         score = select(of_row == document[key], s * 0.25 + of_row_1 * (first + piece * 8 + v), -inf)      # for each score

What does not depend on keys is computed once for a row and a tile.  Floats of coordinates are that of the first key and a number
that is known in code, which are exact up to 2**24.  Rows beyond the last read what the last one does: nothing of them is stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lowc.ir.index import Atom, Axis, Index, Opaque, constant, depends_on, minimum, split
from lowc.ir.interval import interval
from lowc.ir.nodes import Const, Expr, FromIndex, Let, Load, Op, Stmt, Var
from lowc.ir.ops import CHECKS
from lowc.ir.types import f32, i32
from lowc.ir.walk import Substitution, free_atoms, same, with_mask
from lowc.scheduler.rename import coordinate, fresh, let
from lowc.scheduler.tile_epilogue import less

EXACT = 1 << 24  # integers up to which floats are exact


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
    """Scores of one row of a thread.  ``lets``: what places in tables are made of; ``before``: where statements of the row go."""

    def __init__(self, product: Var, lets: Sequence[Let], place: Place, taken: set[str], before: list[Stmt]) -> None:
        self.product, self.lets, self.place, self.taken, self.before = product, lets, place, taken, before
        row = minimum(place.row, place.rows.extent - 1)
        inside = row if row == place.row else coordinate("inside", row, taken, before)
        key = place.first + place.number
        self.plain = Substitution({**place.at, place.rows: place.row, place.keys: key})
        self.inside = Substitution({**place.at, place.rows: inside, place.keys: key})
        self.varying: set[Atom] = {place.keys, Opaque(product.name)}
        self.known: list[tuple[Expr, Var]] = []
        self.memo: dict[int, Expr] = {}

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
        return self.made(score)

    def made(self, value: Expr) -> Expr:
        found = self.memo.get(id(value))
        if found is None:
            found = self.memo[id(value)] = self.part(value)
        return found

    def part(self, value: Expr) -> Expr:
        if isinstance(value, Const | FromIndex | Var):
            return self.plain.expr(value)
        if self.varying.isdisjoint(free_atoms(value)):
            return self.of_row(value)
        if isinstance(value, Load) or (isinstance(value, Op) and value.name in CHECKS):
            return self.read(value)
        assert isinstance(value, Op)
        counted = self.counted(value)
        return Op(value.name, tuple([self.made(a) for a in value.args]), value.dtype) if counted is None else counted

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
        by, room = constant(step), constant(self.place.keys.extent)
        if by is None or depends_on(rest, self.place.keys) or low is None or high is None or room is None:
            return None
        if max(-low, high) + abs(by) * 1024 > EXACT:
            return None
        there = Substitution({**self.place.at, self.place.rows: self.place.row})
        first = FromIndex(there.index(rest) + self.place.first * by, i32)
        start = let("first", Op("cast", (first,), f32), self.taken, self.before)
        return Op("add", (start, Op("cast", (FromIndex(self.place.number * by, i32),), f32)), f32)

    def read(self, value: Expr) -> Expr:
        """``value`` where what it loads is there: at the last row for rows beyond, nowhere for keys beyond."""
        made = self.inside.expr(value)
        if not self.place.ends or self.varying.isdisjoint(free_atoms(value)):
            return made
        return with_mask(made, less(self.place.first + self.place.number, self.place.keys.extent), {})
