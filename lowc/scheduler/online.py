"""The primitive ``Online``: attention on a CPU, blocks of queries by blocks of keys, with no row of scores in memory.

    for b { for i in L { scores, their greatest, weights, their sum, weighted values } }              # ``attention.find``
      →  for g in … parallel {                                 # each block has so many rows of queries, which lanes go along
           alloc queries: f32[64*64]; copies, transposed       # [depth][rows]
           alloc mixed: f32[64*64] = add; alloc top, total, shrink: f32[64]
           for j in … {                                        # 64 keys at a time, as far as some row of the block sees
             scores = keys @ queries                           # [keys][rows], by tiles of registers; keys are read where they are
             new = max(top, the greatest score); shrink = exp(top - new); scores = exp(scores - new)
             total = total * shrink + the sum of scores
             mixed = mixed * shrink + values @ scores          # [columns][rows]
           }
           out = mixed / total; …                              # transposed back
         }

So a row's greatest score is that of the keys so far, and what was summed shrinks when it grows.  With rows on lanes nothing is
reduced across lanes, and neither keys nor values are packed: each is one element for all lanes.  Those that are no plain loads of
what is summed (narrow ones, or such as lie the other way) are copied, a block at a time.

Blocks of keys that every row sees come first, without mask; then those that some row sees, or that end with the last key.
A NaN among scores is left out of the greatest: it is then in the sum.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir.index import (
    Axis,
    Index,
    Opaque,
    constant,
    floordiv,
    ix,
    maximum,
    minimum,
    mod,
    multiple_of,
    split,
)
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import Acc, Alloc, Buffer, Const, Expr, For, If, Kind, Load, Op, Stmt, Store, Update, Var
from lowc.ir.types import bool_
from lowc.ir.walk import Substitution, free_atoms, parts, rewrite
from lowc.scheduler.attention import Attention
from lowc.scheduler.attention_blocks import Blocks, attention, greater, settled, shrunk, zeroed
from lowc.scheduler.contraction import contiguous
from lowc.scheduler.rename import fresh, renewed


@dataclass(frozen=True, slots=True)
class Online:
    """``axis``: the outermost loop.  A block has ``rows`` of queries, in panels of ``tile[1]``, and ``keys`` at a time; ``tile``:
    keys (or columns of values) and rows of queries of which sums are in registers, in vectors of ``lanes``.  ``kind``: of the
    loop over blocks."""

    axis: str
    rows: int
    keys: int
    tile: tuple[int, int]
    lanes: int
    kind: Kind


def online(loop: For, step: Online, taken: set[str]) -> tuple[Stmt, ...]:
    """``loop``, attention, by blocks; raises ScheduleError where it is none."""
    found = attention(loop)
    if step.rows % step.tile[1] or step.tile[1] % step.lanes or step.keys % step.tile[0]:
        raise ScheduleError(f"{step.rows} rows and {step.keys} keys in tiles of {step.tile}")
    rows = Axis(fresh("row", taken), ix(1)) if found.rows is None else found.rows.axis
    made = _Online(found, rows, step, taken)
    return made.grid(step.rows, step.kind, made.block)


class _Online(Blocks):
    def __init__(self, found: Attention, rows: Axis, step: Online, taken: set[str]) -> None:
        super().__init__(found, step.keys, step.lanes, taken)
        self.step, self.down = step, rows
        self.high, self.wide = step.tile
        self.panels = step.rows // self.wide
        self.deep, across = (constant(a.extent) or 0 for a in (found.depth, found.columns))
        self.across = -(-across // self.high) * self.high
        self.ragged = not multiple_of(rows.extent, step.rows)
        self.queries = self.array("queries", step.rows * self.deep)
        self.mixed = self.array("mixed", step.rows * self.across)
        self.scores = self.array("scores", step.rows * step.keys)
        self.top, self.total, self.shrink = (self.array(n, step.rows) for n in ("top", "total", "shrink"))

    # ------------------------------------------------------------ places

    def place(self, row: Index, across: Index, count: int) -> Index:
        """Where (``across``, ``row``) is in an array of panels [count][rows of a panel]."""
        return floordiv(row, ix(self.wide)) * (count * self.wide) + across * self.wide + mod(row, ix(self.wide))

    def each_panel(self, body: Callable[[Index], Sequence[Stmt]]) -> tuple[Stmt, ...]:
        if self.panels == 1:
            return tuple(body(ix(0)))
        panel = self.axis("panel", self.panels)
        return (For(panel, tuple(body(ix(panel)))),)

    def block(self) -> tuple[Stmt, ...]:
        least = Const(-math.inf, self.dtype)

        def unseen(panel: Index) -> tuple[Stmt, ...]:
            return (self.vectors(self.wide, lambda r: (Store(self.top, (panel * self.wide + r,), least),)),)

        return (
            Alloc(self.queries, "add" if self.ragged else ""),
            *self.copied_queries(),
            *(Alloc(b) for b in (self.scores, self.top, self.shrink)),
            *(zeroed(b) for b in (self.mixed, self.total)),
            *self.each_panel(unseen),
            *self.turns(self.step.rows, self.turn),
            *self.results(),
        )

    def left(self, panel: Index) -> Index:
        """How many rows of a panel there are."""
        if not self.ragged:
            return ix(self.wide)
        return maximum(0, minimum(self.wide, self.down.extent - self.first - panel * self.wide))

    def row(self, panel: Index, row: Index) -> Index:
        """The number of a row, or of the last one where there is none: nothing of it is kept."""
        number = self.first + panel * self.wide + row
        return minimum(number, self.down.extent - 1) if self.ragged else number

    # ------------------------------------------------------------ copies

    def copied_queries(self) -> tuple[Stmt, ...]:
        def each(panel: Index) -> tuple[Stmt, ...]:
            d, r = self.axis("d", self.deep), self.axis("r", self.left(panel))
            there = Substitution({**self.at, self.down: self.first + panel * self.wide + r, self.found.depth: ix(d)})
            place = panel * (self.deep * self.wide) + ix(d) * self.wide + r
            return self.copy(d, r, Store(self.queries, (place,), there.expr(self.found.query)))

        return self.each_panel(each)

    def scratch(
        self, value: Expr, along: Axis, start: Index, count: Index, room: int, name: str
    ) -> tuple[Callable[[Index, Index], Expr], tuple[Stmt, ...], tuple[str, ...]]:
        """(an element of ``value`` for a key of the block and a place ``along``, of which tiles have ``room``; statements
        before; memory that tiles stay in)."""
        keys, size, extent = self.found.keys, self.step.keys, constant(along.extent) or 0
        whole = constant(count) == size
        if isinstance(value, Load) and value.mask is None and value.dtype == self.dtype and contiguous(value, along):

            def direct(key: Index, place: Index) -> Expr:
                if not whole and along == self.found.depth:  # tiles have rows of keys, which may be more than there are
                    key = minimum(key, keys.extent - 1 - start)
                if room > extent:
                    place = minimum(place, extent - 1)
                return Substitution({**self.at, keys: start + key, along: place}).expr(value)

            return direct, (), (value.buffer.name,)
        block = self.array(name, size * room)
        key, place = self.axis("j", count), self.axis(along.name, extent)
        there = Substitution({**self.at, keys: start + key, along: ix(place)})
        store = Store(block, (ix(key) * room + place,), there.expr(value))
        copies = self.copy(key, place, store)
        fill = "" if whole and room == extent else "add"
        return (lambda k, p: Load(block, (k * room + p,))), (Alloc(block, fill), *copies), ()

    # ------------------------------------------------------------ a block of keys

    def turn(self, start: Index, count: Index, score: Expr) -> tuple[Stmt, ...]:
        found = self.found
        key, before, roomy = self.scratch(found.key, found.depth, start, count, self.deep, "key")
        tiles = (count + (self.high - 1)) // self.high * self.high
        d, j, i = self.axis("d", self.deep), self.axis("j", tiles), self.axis("i", self.step.rows)
        product = Op("product", (key(ix(j), ix(d)), Load(self.queries, (self.place(ix(i), ix(d), self.deep),))), self.dtype)
        add = Store(self.scores, (self.place(ix(i), ix(j), self.step.keys),), product, None, "add")
        first = self.product((d, j, i), add, self.step.tile, (*roomy, self.queries.name), settled)
        value, between, roomy = self.scratch(found.value, found.columns, start, count, self.across, "value")
        j, e, i = self.axis("j", count), self.axis("e", self.across), self.axis("i", self.step.rows)
        product = Op("product", (value(ix(j), ix(e)), Load(self.scores, (self.place(ix(i), ix(j), self.step.keys),))), self.dtype)
        add = Store(self.mixed, (self.place(ix(i), ix(e), self.across),), product, None, "add")
        second = self.product((j, e, i), add, self.step.tile, (*roomy, self.scores.name), self.shrunk)
        weights = self.each_panel(lambda panel: self.weights(panel, start, count, score))
        return self.where_seen(start, count, score, (*before, *first, *weights, *between, *second))

    def where_seen(self, start: Index, count: Index, score: Expr, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """``body`` of a block of keys, if a row sees one of them, as far as data along the rows tells."""
        condition = self.told(score, self.down)
        if condition is None:
            return body
        sees = self.array("sees", self.wide)
        j, r, some = self.axis("j", count), self.axis("r", self.wide), Var(fresh("some", self.taken), self.dtype)

        def each(panel: Index) -> tuple[Stmt, ...]:
            def found(row: Index) -> tuple[Stmt, ...]:
                there = Substitution({**self.at, self.down: self.row(panel, row), self.found.keys: start + j})
                either = (there.expr(condition), Const(1.0, self.dtype), Load(sees, (row,)))
                return (Store(sees, (row,), Op("select", either, self.dtype)),)

            return (For(j, (self.vectors(self.wide, found),)),)

        return (
            Alloc(sees, "add"),
            *self.each_panel(each),
            Acc((some,), "max"),
            self.bound(For(r, (Update((some,), "max", (Load(sees, (ix(r),)),)),))),
            If(Op("gt", (some, Const(0.0, self.dtype)), bool_), body),
        )

    def shrunk(self, add: Store) -> Store:
        (place,) = add.index
        row = ix(0)
        for atom in index_atoms(place):
            step = constant(split(place, atom)[0])
            if step == 1:
                row = row + ix(atom)
            elif step == self.across * self.wide:
                row = row + ix(atom) * self.wide
        return shrunk(add, Load(self.shrink, (row,)))

    def weights(self, panel: Index, start: Index, count: Index, score: Expr) -> tuple[Stmt, ...]:
        """Scores become weights; the greatest score, the sum and by what sums shrink follow."""
        dtype, wide = self.dtype, self.wide
        best, shift, part = (self.array(n, wide) for n in ("best", "shift", "part"))
        j, again = self.axis("j", count), self.axis("j", count)
        base = panel * (self.step.keys * wide)
        turned, copies = self.turned(panel, start, count, score)

        def row(r: Index) -> Index:
            return panel * wide + r

        def greatest(r: Index) -> tuple[Stmt, ...]:
            body: list[Stmt] = []
            place = (base + ix(j) * wide + r,)
            there = Substitution(
                {**self.at, self.down: self.row(panel, r), self.found.keys: start + j},
                {self.found.product.name: Load(self.scores, place)},
            )
            body += renewed(there, self.found.lets, self.taken)
            memo: dict[int, Expr] = {key: Load(b, (ix(j) * wide + r,)) for key, b in turned.items()}
            value = self.let("score", there.expr(rewrite(score, lambda p: p, memo)), body)
            return (*body, Store(self.scores, place, value), Store(best, (r,), greater(value, Load(best, (r,)))))

        def follow(r: Index) -> tuple[Stmt, ...]:
            body, less, new, by = self.grown(Load(self.top, (row(r),)), Load(best, (r,)))
            return (*body, Store(shift, (r,), less), Store(self.shrink, (row(r),), by), Store(self.top, (row(r),), new))

        def weigh(r: Index) -> tuple[Stmt, ...]:
            body: list[Stmt] = []
            place = (base + ix(again) * wide + r,)
            value = Op("exp", (Op("sub", (Load(self.scores, place), Load(shift, (r,))), dtype),), dtype)
            weight = self.let("weight", value, body)
            return (*body, Store(self.scores, place, self.narrowed(weight)), Store(part, (r,), weight, None, "add"))

        def sum_up(r: Index) -> tuple[Stmt, ...]:
            return (shrunk(Store(self.total, (row(r),), Load(part, (r,))), Load(self.shrink, (row(r),))),)

        return (
            *copies,
            Alloc(best),
            Alloc(shift),
            Alloc(part, "add"),
            self.vectors(self.wide, lambda r: (Store(best, (r,), Load(self.top, (row(r),))),)),
            For(j, (self.vectors(self.wide, greatest),)),
            self.vectors(self.wide, follow),
            For(again, (self.vectors(self.wide, weigh),)),
            self.vectors(self.wide, sum_up),
        )

    def turned(self, panel: Index, start: Index, count: Index, score: Expr) -> tuple[dict[int, Buffer], list[Stmt]]:
        """What of a score lies along the keys, as a mask may: by ``id`` of a load, [keys][rows of a panel] of it; the copies."""
        found: dict[int, Buffer] = {}
        copies: list[Stmt] = []
        told = {Opaque(s.var.name) for s in self.found.lets}
        for part in {id(p): p for p in parts(score)}.values():
            if not isinstance(part, Load) or part.mask is not None or told & free_atoms(part):
                continue
            across, rest = split(part.index[0], self.down)
            if constant(across) in (0, 1) or constant(split(rest, self.found.keys)[0]) != 1:
                continue
            block = self.array("bias", self.step.keys * self.wide, part.dtype)
            j, r = self.axis("j", count), self.axis("r", self.left(panel))
            there = Substitution({**self.at, self.down: self.first + panel * self.wide + r, self.found.keys: start + j})
            fill = ("or" if part.dtype == bool_ else "add") if self.ragged else ""
            copies += [Alloc(block, fill), *self.copy(j, r, Store(block, (ix(j) * self.wide + r,), there.expr(part)))]
            found[id(part)] = block
        return found, copies

    # ------------------------------------------------------------ results

    def results(self) -> tuple[Stmt, ...]:
        found = self.found

        def known(panel: Index, row: Index) -> Substitution:
            number = panel * self.wide + row
            values = self.known(Load(self.top, (number,)), Load(self.total, (number,)))
            return Substitution({**self.at, self.down: self.first + number}, values)

        def mixed(panel: Index) -> tuple[Stmt, ...]:
            r, e = self.axis("r", self.left(panel)), self.axis(found.columns.name, found.columns.extent)
            there = known(panel, ix(r))
            there.atoms[found.columns] = ix(e)
            there.rename(found.mixed.name, Load(self.mixed, (panel * (self.across * self.wide) + ix(e) * self.wide + r,)))
            return self.copy(r, e, *renewed(there, found.mix, self.taken))

        def rest(panel: Index) -> tuple[Stmt, ...]:
            r = self.axis("r", self.left(panel))
            return (self.bound(For(r, renewed(known(panel, ix(r)), found.rest, self.taken))),)

        return (*self.each_panel(mixed), *(self.each_panel(rest) if found.rest else ()))
