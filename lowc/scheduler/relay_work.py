"""What threads make of both first products of a turn of ``relay_across``: weights where scores were, slopes beside them.

    for t { for j in pieces { for v in 2 { off = lse[…]; for h in 2 { scores[…] = 2 ** (scores[…] * c + off) } } } }
    for t { for j in pieces { for v in 2 { off = delta[…]; for h in 2 { sums[…] = scores[…] * (sums[…] + off) } } } }

A thread has two rows, of keys, 8 apart, and two neighbours of each piece of 8 others.  Scores by functions are made as in the
forward pass (``relay_scores``), with rows of keys in the place of those of queries.  Where a derivative makes slopes, which may
need the first product as well, both are made in one loop: then both products are waited for.  Caps come before that:

    for t { … { scores[…] = 1 / (1 + exp(2 * (scores[…] * c))) } }            # of which the tanh and its derivative are made
"""

import math
from collections.abc import Callable, Sequence

from lowc.ir import tiles
from lowc.ir.index import Index, ix, minimum, mod
from lowc.ir.nodes import Buffer, Const, Expr, For, FromIndex, Kind, Load, Op, Stmt, Store, Var
from lowc.ir.types import bool_, f32, i32
from lowc.ir.walk import Substitution
from lowc.scheduler.relay_gradient import GradientTiles
from lowc.scheduler.relay_scores import Place, Scores
from lowc.scheduler.relay_tiles import PAIR, PIECE, UNROLL, turn_by_turn
from lowc.scheduler.relay_weights import CAP, GRADIENT, Weights

LOG2E = math.log2(math.e)
LOOPS = 2  # over pieces, and over neighbours


class RelayWork:
    """``sums``: of both products; ``gathered``: less the logarithms of sums to base 2, and less ``delta``; ``read``: what scores
    load for each of the others, and where in the block that is; others begin at ``start``.  ``masked``: whether bounds count,
    ``tail``: and rows beyond the last, ``partial``: and others beyond the last.
    ``apart``: how many loops over functions run turn by turn; more than there are: rows of a thread are apart as well."""

    def __init__(
        self, tiles_: GradientTiles, values: Weights, sums: tuple[Buffer, Buffer], gathered: tuple[Buffer, Buffer],
        read: Sequence[tuple[Expr, Buffer]], start: Index, masked: bool, tail: bool, partial: bool, apart: int,
    ) -> None:  # fmt: skip
        self.tiles, self.values, self.sums, self.gathered, self.start = tiles_, values, sums, gathered, start
        self.read, self.apart = read, apart
        self.masked, self.tail, self.partial = masked, masked and tail, masked and partial

    def loops(self) -> list[Stmt]:
        if self.values.capped is not None:
            return [self.caps(self.values.capped), *self.by_function()]
        if self.values.slope is not None:
            return self.by_function()
        return [*([self.plain()] if self.values.plain else self.by_function()), self.slopes()]

    def begin(self) -> None:
        """Axes of a loop over what a thread has, and what is known before it of the rows of a thread."""
        here = self.tiles
        self.t, self.piece = here.axis("t", here.threads), here.axis("j", here.step.others // PIECE)
        self.v = here.axis("v", 2)
        self.outside: list[Stmt] = []
        self.column = mod(ix(self.t), ix(4)) * 2
        self.within = ix(self.piece) * PIECE + self.v

    def place(self, half: Index) -> tuple[Index, Index]:
        return ix(self.t), ix(self.piece) * 4 + half * 2 + self.v

    def taken_off(self, buffer: Buffer, body: list[Stmt]) -> Expr:
        return self.tiles.let("off", Load(buffer, (tiles.column(ix(self.t), ix(self.piece) * 4 + self.v),)), body)

    def nest(self, inside: Sequence[Stmt], neighbours: Kind, pieces: Kind = UNROLL) -> For:
        loops = For(self.piece, (For(self.v, tuple(inside), neighbours),), pieces)
        return self.tiles.threaded(self.t, (*self.outside, loops))

    # ------------------------------------------------------------ masks

    def bounds(self) -> Callable[[Index], list[Expr]]:
        """For the first or the second row of a thread: conditions under which the other of a place is seen."""
        here, found = self.tiles, self.values
        pairs: list[tuple[Expr | None, Expr | None, Index]] = []  # less than a number, more, by which step
        if not self.masked:
            return lambda half: []
        row = here.at[here.rows] + tiles.row(ix(self.t), ix(0))
        known = [Substitution({**here.at, here.rows: r, here.other: self.start + self.column}) for r in (row, row + 8)]
        for room, name in ((found.since, "late"), (found.until, "left")):
            if room is None:
                continue
            first, second = (there.index(room) for there in known)
            low = name == "late"
            limit = here.let(name, FromIndex(-first if low else first, i32), self.outside)
            pairs.append((limit if low else None, None if low else limit, second - first if low else first - second))
        if self.partial:
            beyond = minimum(here.other.extent - self.start, here.step.others) - self.column
            pairs.append((None, here.let("beyond", FromIndex(beyond, i32), self.outside), ix(0)))
        rows = here.let("rows", FromIndex(here.rows.extent - row, i32), self.outside) if self.tail else None

        def conditions(half: Index) -> list[Expr]:
            out: list[Expr] = []
            for low, high, step in pairs:
                number = FromIndex(self.within + half * step, i32)
                out.append(Op("lt", (number if low is None else low, number if high is None else high), bool_))
            return out if rows is None else [*out, Op("lt", (FromIndex(half * 8, i32), rows), bool_)]

        return conditions

    # ------------------------------------------------------------ loops

    def plain(self) -> For:
        """Weights of scores that are products times a number."""
        self.begin()
        h, seen = self.tiles.axis("h", 2), self.bounds()
        shared: list[Stmt] = []
        off, at = self.taken_off(self.gathered[0], shared), self.place(ix(h))
        value: Expr = Op("fma", (Load(self.sums[0], at), _f(self.values.factor * LOG2E), off), f32)
        for condition in seen(ix(h)):
            value = Op("select", (condition, value, _f(-math.inf)), f32)
        store = Store(self.sums[0], at, Op("ex2_normal", (value,), f32))
        return self.nest((*shared, For(h, (store,), UNROLL)), PAIR)

    def scores(self, half: int, product: Var, loaded: Sequence[tuple[Expr, Var]]) -> Scores:
        """Of the first or the second row of a thread, made of what is there instead of ``product``."""
        here = self.tiles
        row = here.at[here.rows] + tiles.row(ix(self.t), ix(half * 2))
        place = Place(here.at, here.rows, here.other, row, self.start + self.column, self.within, self.partial)
        return Scores(product, self.values.lets, place, here.taken, self.outside, loaded)

    def caps(self, capped: Expr) -> For:
        """What caps leave of products, in their place."""
        self.begin()
        body: list[Stmt] = []
        for half in range(2):
            at = self.place(ix(half))
            scores = self.scores(half, self.tiles.side.products[0].total, ())
            scores.of(capped, Load(self.sums[0], at), body)
            body.append(Store(self.sums[0], at, scores.inverse(capped)))
        return self.nest(body, UNROLL)

    def by_function(self) -> list[Stmt]:
        """Weights, and slopes if they are by a function as well; of both rows of a thread in one loop, or one after the other."""
        halves = ((0,), (1,)) if self.apart > LOOPS else ((0, 1),)
        return [self.of_rows(half) for half in halves]

    def of_rows(self, halves: Sequence[int]) -> For:
        self.begin()
        here, found, seen = self.tiles, self.values, self.bounds()
        body: list[Stmt] = []
        offs = [self.taken_off(g, body) for g in self.gathered[: 1 if found.slope is None else 2]]
        column = tiles.column(ix(self.t), ix(self.piece) * 4 + self.v)
        read = [(value, here.let("of_other", Load(buffer, (column,)), body)) for value, buffer in self.read]
        for half in halves:
            scores = self.scores(half, here.side.products[0].total if found.capped is None else Var(CAP, f32), read)
            at, conditions = self.place(ix(half)), seen(ix(half))
            product = here.let("product", Load(self.sums[0], at), body)
            score = scores.of(found.score, product, body)
            value: Expr = Op("fma", (score, _f(found.factor * LOG2E), offs[0]), f32)
            for condition in conditions:
                value = Op("select", (condition, value, _f(-math.inf)), f32)
            weight = here.let("weight", Op("ex2_normal", (value,), f32), body)
            body.append(Store(self.sums[0], at, weight))
            if found.slope is None:
                continue
            less = Op("mul", (weight, Op("add", (Load(self.sums[1], at), offs[1]), f32)), f32)
            slope = scores.more(found.slope, GRADIENT, here.let("gradient", less, body))
            for condition in conditions:
                slope = Op("select", (condition, slope, _f(0.0)), f32)
            body.append(Store(self.sums[1], at, slope))
        pieces, neighbours = turn_by_turn(self.apart, LOOPS)
        return self.nest(body, neighbours, pieces)

    def slopes(self) -> For:
        """Slopes that are weights times (the second product - delta)."""
        self.begin()
        h = self.tiles.axis("h", 2)
        shared: list[Stmt] = []
        off, at = self.taken_off(self.gathered[1], shared), self.place(ix(h))
        weight, other = (Load(s, at) for s in self.sums)
        store = Store(self.sums[1], at, Op("mul", (weight, Op("add", (other, off), f32)), f32))
        return self.nest((*shared, For(h, (store,), UNROLL)), PAIR)


def _f(value: float) -> Const:
    return Const(value, f32)
