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
    ONE,
    Atom,
    Axis,
    Index,
    Opaque,
    constant,
    depends_on,
    floordiv,
    ix,
    lower_bound,
    maximum,
    minimum,
    mod,
    multiple_of,
    split,
)
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import Alloc, Buffer, Const, Expr, For, FromIndex, Kind, Let, Load, Op, Stmt, Store, Var
from lowc.ir.types import DType, bool_, i64
from lowc.ir.walk import Substitution, free_atoms, map_statements, parts
from lowc.scheduler.apply import Tile, bind, tiled
from lowc.scheduler.attention import Attention, find, seen
from lowc.scheduler.contraction import contiguous
from lowc.scheduler.nest import nested, numel
from lowc.scheduler.registers import Registers, registers
from lowc.scheduler.rename import fresh


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
    """``loop``, attention, by blocks; raises ScheduleError where it is none that has rows."""
    found = find(loop)
    if found is None or found.rows is None:
        raise ScheduleError(f"the loop over {loop.axis.name} is no attention with rows")
    if any(depends_on(f.axis.extent, g.axis) for f in found.outer for g in found.outer):
        raise ScheduleError(f"how long a loop within {loop.axis.name} is depends on another loop")
    if (lower_bound(found.keys.extent) or 0) < 1:
        raise ScheduleError(f"{found.keys.name} may have no iteration")
    return _Online(found, step, taken).grid()


class _Online:
    def __init__(self, found: Attention, step: Online, taken: set[str]) -> None:
        assert found.rows is not None
        self.found, self.step, self.taken = found, step, taken
        self.rows = found.rows.axis
        self.batch = [f.axis for f in found.outer if f is not found.rows]
        self.high, self.wide = step.tile
        self.panels = step.rows // self.wide
        self.dtype = found.product.dtype
        deep, across = constant(found.depth.extent), constant(found.columns.extent)
        if deep is None or across is None or step.rows % self.wide or self.wide % step.lanes or step.keys % self.high:
            raise ScheduleError(f"heads of {found.depth.extent} and {found.columns.extent} in tiles of {step.tile}")
        self.deep, self.across = deep, -(-across // self.high) * self.high
        self.limit, self.inner = seen(found)
        if self.limit is not None and split(self.limit, self.rows)[0] != ONE:
            self.limit = None
        self.ragged = not multiple_of(self.rows.extent, step.rows)
        self.at: dict[Atom, Index] = {}
        self.lets: list[Stmt] = []
        self.first = ix(0)
        self.queries = self.array("queries", step.rows * self.deep)
        self.mixed = self.array("mixed", step.rows * self.across)
        self.scores = self.array("scores", step.rows * step.keys)
        self.top, self.total, self.shrink = (self.array(n, step.rows) for n in ("top", "total", "shrink"))

    # ------------------------------------------------------------ names

    def axis(self, name: str, extent: int | Index) -> Axis:
        return Axis(fresh(name, self.taken), ix(extent))

    def array(self, name: str, count: int, dtype: DType | None = None) -> Buffer:
        return Buffer(fresh(name, self.taken), dtype or self.dtype, (ix(count),), (ONE,), "local")

    def named(self, name: str, index: Index, lets: list[Stmt]) -> Index:
        """``index`` as the coordinate that a let holds, unless it is a number."""
        if constant(index) is not None:
            return index
        var = Var(fresh(name, self.taken), i64)
        lets.append(Let(var, FromIndex(index, i64)))
        return ix(Opaque(var.name))

    def let(self, name: str, value: Expr, body: list[Stmt]) -> Var:
        var = Var(fresh(name, self.taken), value.dtype)
        body.append(Let(var, value))
        return var

    def place(self, row: Index, across: Index, count: int) -> Index:
        """Where (``across``, ``row``) is in an array of panels [count][rows of a panel]."""
        return floordiv(row, ix(self.wide)) * (count * self.wide) + across * self.wide + mod(row, ix(self.wide))

    def lanes(self, body: Callable[[Index], Sequence[Stmt]]) -> For:
        """``body`` for each row of a panel, of which it is told the number: vectors, one after the other."""
        vector, lane = self.axis("v", self.wide // self.step.lanes), self.axis("r", self.step.lanes)
        inner = For(lane, tuple(body(ix(vector) * self.step.lanes + lane)), Kind("vector", self.step.lanes))
        if constant(vector.extent) == 1:
            return Substitution({vector: ix(0)}).body((inner,))[0]  # type: ignore[return-value]
        return For(vector, (inner,), Kind("unroll", self.wide // self.step.lanes))

    def each_panel(self, body: Callable[[Index], Sequence[Stmt]]) -> tuple[Stmt, ...]:
        if self.panels == 1:
            return tuple(body(ix(0)))
        panel = self.axis("panel", self.panels)
        return (For(panel, tuple(body(ix(panel)))),)

    # ------------------------------------------------------------ the grid

    def grid(self) -> tuple[Stmt, ...]:
        down = (self.rows.extent + (self.step.rows - 1)) // self.step.rows
        block = self.axis(f"{self.rows.name}_g", numel([a.extent for a in self.batch]) * down)
        matrix, tile = floordiv(ix(block), down), mod(ix(block), down)
        if self.limit is not None:  # blocks of few keys and of many take turns, so that cores have equal shares
            pair, late = floordiv(tile, ix(2)), mod(tile, ix(2))
            tile = pair + late * (down - 1 - pair * 2)
        for axis in reversed(self.batch):
            last = axis is self.batch[0]
            self.at[axis] = self.named(f"{axis.name}_b", matrix if last else mod(matrix, axis.extent), self.lets)
            matrix = floordiv(matrix, axis.extent)
        self.first = self.named(f"{self.rows.name}_b", tile, self.lets) * self.step.rows
        body = (*self.lets, *self.block())
        if constant(block.extent) == 1:
            return Substitution({block: ix(0)}).body(body)
        return (For(block, body, self.step.kind),)

    def block(self) -> tuple[Stmt, ...]:
        size, rows = self.step.keys, self.step.rows
        lets: list[Stmt] = []
        keys = self.found.keys.extent
        last = whole = keys
        if self.limit is not None:
            first = Substitution({**self.at, self.rows: self.first}).index(self.limit)
            last = self.named("last", minimum(keys, first + (rows - 1)), lets)
            whole = minimum(keys, maximum(first, 0))
        whole = self.named("whole", floordiv(whole, ix(size)), lets)
        edges = self.named("edges", floordiv(last + (size - 1), ix(size)) - whole, lets)
        turns: list[Stmt] = []
        if constant(whole) != 0:
            turn = self.axis("turn", whole)
            turns.append(For(turn, self.turn(ix(turn) * size, ix(size), self.inner, True)))
        if constant(edges) != 0:
            turn = self.axis("turn", edges)
            start = (whole + turn) * size
            known = constant(last), constant(whole)
            if None not in known and constant(edges) == 1:
                count = last - whole * size
            else:
                count = minimum(size, last - start)
            turns.append(For(turn, self.turn(start, count, self.found.score, False)))
        start = [
            *self.each_panel(
                lambda panel: (
                    self.lanes(lambda r: (Store(self.top, (panel * self.wide + r,), Const(-math.inf, self.dtype)),)),
                )
            )
        ]
        return (
            *lets,
            Alloc(self.queries, "add" if self.ragged else ""),
            *self.copied_queries(),
            Alloc(self.scores),
            Alloc(self.mixed, "add"),
            Alloc(self.total, "add"),
            Alloc(self.top),
            Alloc(self.shrink),
            *start,
            *turns,
            *self.results(),
        )

    def left(self, panel: Index) -> Index:
        """How many rows of a panel there are."""
        if not self.ragged:
            return ix(self.wide)
        return maximum(0, minimum(self.wide, self.rows.extent - self.first - panel * self.wide))

    def row(self, panel: Index, row: Index) -> Index:
        """The number of a row, or of the last one where there is none: nothing of it is kept."""
        number = self.first + panel * self.wide + row
        return minimum(number, self.rows.extent - 1) if self.ragged else number

    # ------------------------------------------------------------ copies

    def copied_queries(self) -> tuple[Stmt, ...]:
        def each(panel: Index) -> tuple[Stmt, ...]:
            d, r = self.axis("d", self.deep), self.axis("r", self.left(panel))
            there = Substitution({**self.at, self.rows: self.first + panel * self.wide + r, self.found.depth: ix(d)})
            place = panel * (self.deep * self.wide) + ix(d) * self.wide + r
            return self.copy(d, r, Store(self.queries, (place,), there.expr(self.found.query)))

        return self.each_panel(each)

    def copy(self, outer: Axis, inner: Axis, *body: Stmt) -> tuple[Stmt, ...]:
        """``body`` for all of ``outer`` and ``inner``, along which what is stored is contiguous."""
        lanes = self.step.lanes
        loop = For(outer, (For(inner, tuple(body)),))
        reads = [p for s in body if isinstance(s, Let | Store) for p in parts(s.value) if isinstance(p, Load)]
        if not any(constant(split(p.index[0], inner)[0]) not in (0, 1) for p in reads):
            try:
                return (For(outer, (bind(For(inner, tuple(body)), Kind("vector", lanes)),)),)
            except ScheduleError:
                return (loop,)
        try:
            return tiled(loop, Tile(outer.name, inner.name, lanes, lanes, 1, True), self.taken)
        except ScheduleError:
            return (loop,)

    def scratch(
        self, value: Expr, along: Axis, start: Index, count: Index, room: int, name: str
    ) -> tuple[Callable[[Index, Index], Expr], tuple[Stmt, ...], tuple[str, ...]]:
        """(an element of ``value`` for a key of the block and a place ``along``, statements before, memory that tiles stay in)."""
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

    def turn(self, start: Index, count: Index, score: Expr, whole: bool) -> tuple[Stmt, ...]:
        lets: list[Stmt] = []
        if not whole:
            count = self.named("count", count, lets)
            if constant(count) is None:
                count = minimum(self.step.keys, count)
        found = self.found
        key, before, roomy = self.scratch(found.key, found.depth, start, count, self.deep, "key")
        d, j, i = self.axis("d", self.deep), self.axis("j", count), self.axis("i", self.step.rows)
        product = Op("product", (key(ix(j), ix(d)), Load(self.queries, (self.place(ix(i), ix(d), self.deep),))), self.dtype)
        add = Store(self.scores, (self.place(ix(i), ix(j), self.step.keys),), product, None, "add")
        first = self.product((d, j, i), add, roomy, lambda s: Store(s.buffer, s.index, s.value))
        value, between, roomy = self.scratch(found.value, found.columns, start, count, self.across, "value")
        j, e, i = self.axis("j", count), self.axis("e", self.across), self.axis("i", self.step.rows)
        product = Op("product", (value(ix(j), ix(e)), Load(self.scores, (self.place(ix(i), ix(j), self.step.keys),))), self.dtype)
        add = Store(self.mixed, (self.place(ix(i), ix(e), self.across),), product, None, "add")
        second = self.product((j, e, i), add, roomy, self.shrunk)
        weights = self.each_panel(lambda panel: self.weights(panel, start, count, score))
        return (*lets, *before, *first, *weights, *between, *second)

    def product(
        self, axes: tuple[Axis, Axis, Axis], add: Store, roomy: tuple[str, ...], end: Callable[[Store], Store]
    ) -> tuple[Stmt, ...]:
        """The sums of products by tiles of registers, each of which goes to memory as ``end`` makes it of an addition."""
        (loop,) = nested(axes, (add,))
        assert isinstance(loop, For)
        step = Registers(axes[0].name, self.high, self.wide, self.step.lanes, (*roomy, self.queries.name, self.scores.name))
        body = registers(loop, step, self.taken)
        return map_statements(body, lambda s: (end(s),) if isinstance(s, Store) and s.buffer is add.buffer else (s,))

    def shrunk(self, add: Store) -> Store:
        """What was summed so far, as the greatest score has grown, and a tile's sum."""
        (place,) = add.index
        row = ix(0)
        for atom in index_atoms(place):
            step = constant(split(place, atom)[0])
            if step == 1:
                row = row + ix(atom)
            elif step == self.across * self.wide:
                row = row + ix(atom) * self.wide
        less = Op("mul", (Load(add.buffer, add.index), Load(self.shrink, (row,))), self.dtype)
        return Store(add.buffer, add.index, Op("add", (less, add.value), self.dtype))

    def weights(self, panel: Index, start: Index, count: Index, score: Expr) -> tuple[Stmt, ...]:
        """Scores become weights; the greatest score, the sum and by what sums shrink follow."""
        dtype, wide = self.dtype, self.wide
        nothing, zero = Const(-math.inf, dtype), Const(0.0, dtype)
        best, shift, part = (self.array(n, wide) for n in ("best", "shift", "part"))
        j, again = self.axis("j", count), self.axis("j", count)
        base = panel * (self.step.keys * wide)

        def row(r: Index) -> Index:
            return panel * wide + r

        def greatest(r: Index) -> tuple[Stmt, ...]:
            body: list[Stmt] = []
            place = (base + ix(j) * wide + r,)
            there = Substitution(
                {**self.at, self.rows: self.row(panel, r), self.found.keys: start + j},
                {self.found.product.name: Load(self.scores, place)},
            )
            value = self.let("score", there.expr(score), body)
            old = Load(best, (r,))
            more = Op("select", (Op("gt", (value, old), bool_), value, old), dtype)
            return (*body, Store(self.scores, place, value), Store(best, (r,), more))

        def follow(r: Index) -> tuple[Stmt, ...]:
            body: list[Stmt] = []
            new = self.let("new", Load(best, (r,)), body)
            none = Op("eq", (new, nothing), bool_)
            less = self.let("less", Op("select", (none, zero, new), dtype), body)
            old = Op("exp", (Op("sub", (Load(self.top, (row(r),)), less), dtype),), dtype)
            return (*body, Store(shift, (r,), less), Store(self.shrink, (row(r),), old), Store(self.top, (row(r),), new))

        def weigh(r: Index) -> tuple[Stmt, ...]:
            body: list[Stmt] = []
            place = (base + ix(again) * wide + r,)
            value = Op("exp", (Op("sub", (Load(self.scores, place), Load(shift, (r,))), dtype),), dtype)
            weight = self.let("weight", value, body)
            kept: Expr = weight
            if self.found.weight != dtype:
                kept = Op("cast", (Op("cast", (weight,), self.found.weight),), dtype)
            return (*body, Store(self.scores, place, kept), Store(part, (r,), weight, None, "add"))

        def sum_up(r: Index) -> tuple[Stmt, ...]:
            old = Op("mul", (Load(self.total, (row(r),)), Load(self.shrink, (row(r),))), dtype)
            return (Store(self.total, (row(r),), Op("add", (old, Load(part, (r,))), dtype)),)

        return (
            Alloc(best),
            Alloc(shift),
            Alloc(part, "add"),
            self.lanes(lambda r: (Store(best, (r,), Load(self.top, (row(r),))),)),
            For(j, (self.lanes(greatest),)),
            self.lanes(follow),
            For(again, (self.lanes(weigh),)),
            self.lanes(sum_up),
        )

    # ------------------------------------------------------------ results

    def results(self) -> tuple[Stmt, ...]:
        found = self.found

        def known(panel: Index, row: Index, body: list[Stmt]) -> Substitution:
            number = panel * self.wide + row
            top = self.let("top_of", Load(self.top, (number,)), body)
            none = Op("eq", (top, Const(-math.inf, self.dtype)), bool_)
            shift = Op("select", (none, Const(0.0, self.dtype), top), self.dtype)
            values = {found.total.name: Load(self.total, (number,)), found.shift.name: shift}
            return Substitution({**self.at, self.rows: self.first + number}, values)

        def mixed(panel: Index) -> tuple[Stmt, ...]:
            r, e = self.axis("r", self.left(panel)), self.axis(found.columns.name, found.columns.extent)
            body: list[Stmt] = []
            there = known(panel, ix(r), body)
            uses_shift = any(Opaque(found.shift.name) in free_atoms(s.value) for s in found.mix if isinstance(s, Let | Store))
            there.atoms[found.columns] = ix(e)
            there.rename(found.mixed.name, Load(self.mixed, (panel * (self.across * self.wide) + ix(e) * self.wide + r,)))
            return self.copy(r, e, *(body if uses_shift else ()), *self.fresh_lets(there, found.mix))

        def rest(panel: Index) -> tuple[Stmt, ...]:
            r = self.axis("r", self.left(panel))
            body: list[Stmt] = []
            there = known(panel, ix(r), body)
            loop = For(r, (*body, *self.fresh_lets(there, found.rest)))
            try:
                return (bind(loop, Kind("vector", self.step.lanes)),)
            except ScheduleError:
                return (loop,)

        return (*self.each_panel(mixed), *(self.each_panel(rest) if found.rest else ()))

    def fresh_lets(self, there: Substitution, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        for stmt in body:
            if isinstance(stmt, Let):
                there.rename(stmt.var.name, Var(fresh(stmt.var.name, self.taken), stmt.var.dtype))
        return there.body(tuple(body))

