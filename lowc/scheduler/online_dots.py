"""The primitive ``OnlineDots``: attention of few queries on a CPU, as in decoding: keys and values are read once, as they lie.

    for b { for i in 1 { scores, their greatest, weights, their sum, weighted values } }              # ``attention.find``
      →  for g in … parallel {
           alloc queries: f32[64]; a copy; alloc mixed: f32[64] = add; alloc top, total, shrink: f32[1]
           for j in … {                                        # 256 keys at a time
             scores = keys . queries                           # lanes along the depth, added up at the end (``dots``)
             new = max(top, the greatest score); shrink = exp(top - new); scores = exp(scores - new)      # lanes along the keys
             total = total * shrink + the sum of scores
             mixed = mixed * shrink + scores @ values          # lanes along the columns
           }
           out = mixed / total; …
         }

For keys that lie along the depth and values that lie along whole vectors of columns.  Those that are where data tells, in the
pages of a cache, are copied first, a block at a time.  See ``online`` for what is the same there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir.index import Axis, Index, constant, ix
from lowc.ir.nodes import Acc, Alloc, Buffer, Const, Expr, For, If, Kind, Load, Op, Stmt, Store, Update, Var
from lowc.ir.types import bool_
from lowc.ir.walk import Substitution
from lowc.scheduler.attention import Attention
from lowc.scheduler.attention_blocks import Blocks, attention, greater, settled, shrunk, zeroed
from lowc.scheduler.contraction import contiguous
from lowc.scheduler.dots import Dots, dots
from lowc.scheduler.nest import nested
from lowc.scheduler.rename import fresh, renewed


@dataclass(frozen=True, slots=True)
class OnlineDots:
    """``axis``: the outermost loop.  All rows (or the only one) are in a block, with ``keys`` at a time.  ``tile``: of how many
    keys for each row, and of how many columns, sums are in registers, in vectors of ``lanes``.  ``kind``: of the loop over
    blocks."""

    axis: str
    keys: int
    tile: tuple[int, int]
    lanes: int
    kind: Kind


def online_dots(loop: For, step: OnlineDots, taken: set[str]) -> tuple[Stmt, ...]:
    """``loop``, attention, by blocks; raises ScheduleError where it is none of a few rows, or lies otherwise."""
    found = attention(loop)
    rows = 1 if found.rows is None else constant(found.rows.axis.extent)
    if rows is None or rows < 1:
        raise ScheduleError(f"the loop over {step.axis} has no known number of rows")
    if not contiguous(found.key, found.depth) or not contiguous(found.value, found.columns):
        raise ScheduleError("keys and values must lie along the depth and the columns")
    if (constant(found.columns.extent) or 1) % step.tile[1] or step.tile[1] % step.lanes or step.keys % step.tile[0]:
        raise ScheduleError(f"{found.columns.extent} columns and {step.keys} keys in tiles of {step.tile}")
    made = _Dots(found, rows, step, taken)
    return made.grid(rows, step.kind, made.block)


class _Dots(Blocks):
    def __init__(self, found: Attention, rows: int, step: OnlineDots, taken: set[str]) -> None:
        super().__init__(found, step.keys, step.lanes, taken)
        self.step, self.high = step, rows
        self.deep, self.across = (constant(a.extent) or 0 for a in (found.depth, found.columns))
        self.queries = self.array("queries", rows * self.deep)
        self.mixed = self.array("mixed", rows * self.across)
        self.scores = self.array("scores", rows * step.keys)
        self.top, self.total, self.shrink = (self.array(n, rows) for n in ("top", "total", "shrink"))
        self.near = self.array("keys", step.keys * self.deep) if found.of_key else None
        self.far = self.array("values", step.keys * self.across) if found.of_value else None

    def row(self, row: Index) -> dict[Axis, Index]:
        return {} if self.rows is None else {self.rows: self.first + row}

    def block(self) -> tuple[Stmt, ...]:
        r, d = self.axis("r", self.high), self.axis("d", self.deep)
        there = Substitution({**self.at, **self.row(ix(r)), self.found.depth: ix(d)})
        copy = Store(self.queries, (ix(r) * self.deep + d,), there.expr(self.found.query))
        again = self.axis("r", self.high)
        return (
            *(Alloc(b) for b in (self.queries, self.scores, self.top, self.shrink, self.near, self.far) if b is not None),
            *(zeroed(b) for b in (self.mixed, self.total)),
            For(r, (self.bound(For(d, (copy,))),)),
            For(again, (Store(self.top, (ix(again),), Const(-math.inf, self.dtype)),)),
            *self.turns(self.high, self.turn),
            *self.results(),
        )

    def turn(self, start: Index, count: Index, score: Expr) -> tuple[Stmt, ...]:
        body = (
            *self.copied(self.near, self.found.of_key, self.found.key, self.found.depth, start, count),
            *self.copied(self.far, self.found.of_value, self.found.value, self.found.columns, start, count),
            *self.dots(start, count), *self.weights(start, count, score), *self.values(start, count),
        )  # fmt: skip
        condition = self.told(score, self.found.keys)
        if condition is None:
            return body
        j, r, most = self.axis("j", count), self.axis("r", self.high), self.axis("r", self.high)
        sees, one = self.array("sees", self.high), Const(1.0, self.dtype)
        row, some = (Var(fresh(n, self.taken), self.dtype) for n in ("row", "some"))
        there = Substitution({**self.at, **self.row(ix(r)), self.found.keys: start + j})
        either = Op("select", (there.expr(condition), one, Const(0.0, self.dtype)), self.dtype)
        each = (Acc((row,), "max"), self.bound(For(j, (Update((row,), "max", (either,)),))), Store(sees, (ix(r),), row))
        return (
            Alloc(sees),
            For(r, each),
            Acc((some,), "max"),
            For(most, (Update((some,), "max", (Load(sees, (ix(most),)),)),)),
            If(Op("eq", (some, one), bool_), body),
        )

    def copied(
        self, buffer: Buffer | None, lets: Sequence[Stmt], factor: Expr, along: Axis, start: Index, count: Index
    ) -> tuple[Stmt, ...]:
        """A block of ``factor`` as it is read by ``lets``; nothing without a ``buffer`` for it."""
        if buffer is None:
            return ()
        j, d = self.axis("j", count), self.axis("d", along.extent)
        there = Substitution({**self.at, self.found.keys: start + j, along: ix(d)})
        body = renewed(there, lets, self.taken)
        store = Store(buffer, (ix(j) * along.extent + d,), there.expr(factor))
        return (For(j, (*body, self.bound(For(d, (store,))))),)

    def dots(self, start: Index, count: Index) -> tuple[Stmt, ...]:
        """Scores of whole tiles of keys, then of the keys that are left."""
        tile, out = self.step.tile[0], list[Stmt]()
        for size, first, some in ((tile, ix(0), count // tile), (1, count // tile * tile, count % tile)):
            if constant(some) == 0:
                continue
            d, r, t, j = self.axis("d", self.deep), self.axis("r", self.high), self.axis("tile", some), self.axis("j", size)
            key = first + ix(t) * size + j
            there = Substitution({**self.at, self.found.depth: ix(d), self.found.keys: start + key}).expr(self.found.key)
            if self.near is not None:
                there = Load(self.near, (key * self.deep + d,))
            product = Op("product", (Load(self.queries, (ix(r) * self.deep + d,)), there), self.dtype)
            add = Store(self.scores, (ix(r) * self.size + key,), product, None, "add")
            axes = [d, *([r] if self.high > 1 else ()), *([j] if size > 1 else ())]
            (loop,) = nested(axes, (add,)) if self.high > 1 else Substitution({r: ix(0)}).body(nested(axes, (add,)))
            if size == 1:
                (loop,) = Substitution({j: ix(0)}).body((loop,))
            assert isinstance(loop, For)
            sizes = (*((self.high,) if self.high > 1 else ()), *((size,) if size > 1 else ()))
            body = dots(loop, Dots(d.name, sizes, self.lanes), self.taken)
            out.append(For(t, tuple([self.stored(s) for s in body])))
        return tuple(out)

    def stored(self, stmt: Stmt) -> Stmt:
        """``stmt`` with sums stored, not added, to scores."""
        if isinstance(stmt, For):
            return For(stmt.axis, tuple([self.stored(s) for s in stmt.body]), stmt.kind)
        return settled(stmt) if isinstance(stmt, Store) and stmt.buffer is self.scores else stmt

    def weights(self, start: Index, count: Index, score: Expr) -> tuple[Stmt, ...]:
        r, j, again = self.axis("r", self.high), self.axis("j", count), self.axis("j", count)
        place, body = (ix(r) * self.size + j,), list[Stmt]()
        best, part = (Var(fresh(n, self.taken), self.dtype) for n in ("best", "part"))
        there = Substitution(
            {**self.at, **self.row(ix(r)), self.found.keys: start + j}, {self.found.product.name: Load(self.scores, place)}
        )
        body += renewed(there, self.found.lets, self.taken)
        value = self.let("score", there.expr(score), body)
        greatest = For(j, (*body, Store(self.scores, place, value), Update((best,), "max", (value,))))
        top, own = Load(self.top, (ix(r),)), (ix(r),)
        lets, less, new, by = self.grown(top, greater(top, best))
        place, body = (ix(r) * self.size + again,), list[Stmt]()
        weight = self.let("weight", Op("exp", (Op("sub", (Load(self.scores, place), less), self.dtype),), self.dtype), body)
        weigh = For(again, (*body, Store(self.scores, place, self.narrowed(weight)), Update((part,), "add", (weight,))))
        each = (
            Acc((best,), "max"),
            self.bound(greatest),
            *lets,
            Store(self.shrink, own, by),
            Store(self.top, own, new),
            Acc((part,), "add"),
            self.bound(weigh),
            shrunk(Store(self.total, own, part), Load(self.shrink, own)),
        )
        return (For(r, each),)

    def values(self, start: Index, count: Index) -> tuple[Stmt, ...]:
        j, r, e = self.axis("j", count), self.axis("r", self.high), self.axis("e", self.across)
        there = Substitution({**self.at, self.found.keys: start + j, self.found.columns: ix(e)}).expr(self.found.value)
        if self.far is not None:
            there = Load(self.far, (ix(j) * self.across + e,))
        product = Op("product", (Load(self.scores, (ix(r) * self.size + j,)), there), self.dtype)
        add = Store(self.mixed, (ix(r) * self.across + e,), product, None, "add")

        def end(add: Store) -> Store:
            return shrunk(add, Load(self.shrink, (add.index[0] // self.across,)))

        return self.product((j, r, e), add, (self.high, self.step.tile[1]), (), end)

    def results(self) -> tuple[Stmt, ...]:
        found, out = self.found, list[Stmt]()
        for body in (found.mix, found.rest):
            if not body:
                continue
            r, e = self.axis("r", self.high), self.axis(found.columns.name, found.columns.extent)
            values = self.known(Load(self.top, (ix(r),)), Load(self.total, (ix(r),)))
            there = Substitution({**self.at, **self.row(ix(r)), found.columns: ix(e)}, values)
            there.rename(found.mixed.name, Load(self.mixed, (ix(r) * self.across + e,)))
            made = renewed(there, body, self.taken)
            out.append(For(r, (self.bound(For(e, made)),) if body is found.mix else made))
        return tuple(out)


