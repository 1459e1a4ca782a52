"""The primitive ``Relayed``: attention of 16-bit floats by the tensor cores of a GPU, scores and weights in registers alone.

    for b { for i in L { scores, their greatest, weights, their sum, weighted values } }              # ``attention.find``
      →  for g in … block {                                    # each block has so many rows of queries
           alloc q @shared; a fill of q
           alloc mixed: f32[256, 64] @local = add; alloc top, total: f32[256, 2] @local; …
           for j in … pipeline(2) {                             # 128 keys at a time, from the last that are seen to the first
             alloc k, v @shared; a fill of each
             scores = q @ k                                     # ``tiles.TileProduct``
             part = the greatest score of a row, in each of four threads; all = that of the four (``relays.Quad``)
             new = max(top, all); shrink = 2 ** ((top - new) * c); weights = 2 ** ((scores - new) * c)
             total = total * shrink + the sum of weights; mixed = mixed * shrink; held = bf16(weights)
             mixed += held @ v                                  # ``relays.HeldProduct``
           }
           out = mixed / total; …                               # through strips, as with products (``tile_epilogue``)
         }

So a row's greatest score is that of the keys so far, and what was summed shrinks when it grows.  Keys that some row of the
block does not see, for the mask or beyond the last, come first, in a pipeline of their own; keys that no row sees do not come.
A score that is the product times a positive number stays as it is: the number goes into the exponent.  Weights below 2**-126
are 0.
"""

import math
from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir import relays, tiles
from lowc.ir.index import (
    ONE,
    Axis,
    Index,
    constant,
    floordiv,
    ix,
    lower_bound,
    maximum,
    minimum,
    mod,
    split,
)
from lowc.ir.nodes import (
    Alloc,
    Buffer,
    Const,
    Expr,
    For,
    FromIndex,
    If,
    Kind,
    Let,
    Load,
    Op,
    Stmt,
    Store,
    Var,
)
from lowc.ir.types import bool_, f32, i32, i64
from lowc.ir.walk import Substitution, rewrite
from lowc.scheduler.attention import Attention, of_queries, sees
from lowc.scheduler.relay_scores import Place, Scores, of_tiles
from lowc.scheduler.relay_tiles import PAIR, PIECE, UNROLL, RelayTiles, turn_by_turn
from lowc.scheduler.rename import fresh, renewed
from lowc.scheduler.tensor_cores import narrow
from lowc.scheduler.tile_epilogue import less

CHAINS = 4  # in which the greatest and the sum of a row are found
WIDEST = 256  # depth and columns


@dataclass(frozen=True, slots=True)
class Relayed:
    """``axis``: the outermost loop.  ``groups`` of 128 threads have 64 rows of queries each; ``keys`` come at a time, in as many
    ``stages``.  ``late_first``: blocks of the last rows, which see most keys, are the first.  ``strips``: how many are in turn
    where results leave; 0 where threads store.  ``blocks``: the most there are at a time, each taking tiles in turns; 0: one for
    each tile.  ``apart``: how many of the loops over scores by functions run turn by turn, outermost first."""

    axis: str
    groups: int
    keys: int
    stages: int
    late_first: bool
    strips: int
    blocks: int = 0
    apart: int = 0


def relayed(loop: For, step: Relayed, taken: set[str]) -> tuple[Stmt, ...]:
    """``loop``, attention, by tiles; raises ScheduleError where it is none that tensor cores can do."""
    found = of_queries(loop)
    if found is None:
        raise ScheduleError(f"the loop over {loop.axis} is no attention, or data tells where keys are")
    if (lower_bound(found.keys.extent) or 0) < 1:
        raise ScheduleError(f"{found.keys} may have no iteration")
    return _Relay(found, step, taken).grid(step.late_first, step.blocks)


def scaled(score: Expr, product: Var) -> tuple[Expr, float]:
    """(a score, c): the score of the product is c times that one, c positive."""
    if isinstance(score, Op) and score.name == "mul":
        factor, other = score.args[1], score.args[0]
        if isinstance(factor, Const) and isinstance(other, Var) and other.name == product.name and 0 < factor.value < math.inf:
            return other, float(factor.value)
    return score, 1.0


class _Relay(RelayTiles):
    def __init__(self, found: Attention, step: Relayed, taken: set[str]) -> None:
        rows = Axis(fresh("row", taken), ONE) if found.rows is None else found.rows.axis
        super().__init__(found.outer, rows, step.groups, taken)
        self.found, self.step = found, step
        deep, wide = constant(found.depth.extent), constant(found.columns.extent)
        if deep is None or wide is None or max(deep, wide) > WIDEST or wide % PIECE or deep % PIECE:
            raise ScheduleError(f"heads of {found.depth.extent} and {found.columns.extent}")
        self.deep, self.wide = deep, wide
        self.query, self.key, self.value = (narrow(e) for e in (found.query, found.key, found.value))
        if found.rows is None and isinstance(self.query, Load):  # the only row lies anywhere, for a tile of rows
            (at,) = self.query.index
            self.query = Load(self.query.buffer, (at + ix(rows) * deep,), self.query.mask)
        if not self.query.dtype == self.key.dtype == self.value.dtype == found.weight:
            raise ScheduleError("factors of several types")
        self.limit, self.begin, inner = sees(found)
        self.score, self.factor = scaled(inner, found.product)
        self.seen, self.within = of_tiles(self.score, self.rows, self.high, found.keys, step.keys)
        self.each = step.keys // 2  # scores of a thread

    def shared(self) -> tuple[Expr, ...]:
        return self.key, self.value

    def tile(self) -> list[Stmt]:
        q, filled = self.fill("q", self.query, self.rows, self.at[self.rows], self.high, self.found.depth, False)
        self.q = q
        self.mixed, self.held = self.local("mixed", self.wide // 2, "add"), self.local("held", self.each, dtype=q.dtype)
        self.top, self.total = self.local("top", 2), self.local("total", 2)
        t, h = self.axis("t", self.threads), self.axis("h", 2)
        at = (ix(t), ix(h))
        start = self.threaded(
            t,
            (For(h, (Store(self.top.buffer, at, _f(-math.inf)), Store(self.total.buffer, at, _f(0.0))), UNROLL),),
        )
        body: list[Stmt] = [Alloc(q), self.mixed, self.held, self.top, self.total, filled, start]
        segments = self.segments()
        if self.seen is not None and len(segments) == 1:  # the first turn of all has no condition
            segments = [(masked, *part) for masked, count, last in segments for part in ((ix(1), last), (count - 1, last - 1))]
        for number, (masked, count, last) in enumerate(segments):
            if constant(count) == 0:
                continue
            body.append(self.turns(masked, count, last, number > 0))
        return [*body, *self.ends()]

    def segments(self) -> list[tuple[bool, Index, Index]]:
        """(whether some rows do not see all keys, how many tiles of keys, the number of the last, which comes first)."""
        keys, size = self.found.keys.extent, self.step.keys
        if self.begin is not None or (self.limit is not None and not self.grows(self.limit)):
            return self.between()
        if self.limit is None and (constant(keys) or 1) % size == 0:
            return [(False, floordiv(keys, ix(size)), floordiv(keys, ix(size)) - 1)]
        if self.limit is None:
            whole = self.named("whole", floordiv(keys - 1, ix(size)))
            count = whole + 1
        else:
            first = Substitution(self.at).index(self.limit)
            whole = self.named("whole", floordiv(minimum(keys - 1, first), ix(size)))
            count = self.named("count", floordiv(minimum(keys, first + (self.high - 1)) + (size - 1), ix(size)))
        return [(True, maximum(1, count - whole), count - 1), (False, whole, whole - 1)]

    def grows(self, limit: Index) -> bool:
        """Whether each row sees a key more than the one before, and the first sees one."""
        step, first = split(limit, self.rows)
        return step == ONE and (constant(first) or 0) >= 1

    def between(self) -> list[tuple[bool, Index, Index]]:
        """``segments`` where rows may see no key, and may not see the first ones; those are last."""
        keys, size = self.found.keys.extent, self.step.keys
        last_row = self.at[self.rows] + (self.high - 1)
        most = least = keys
        if self.limit is not None:
            most, least = (minimum(keys, n) for n in (self.of_row(self.limit, last_row), self.of_row(self.limit)))
        count = self.named("count", maximum(1, floordiv(most + (size - 1), ix(size))))
        whole = minimum(count - 1, floordiv(maximum(least, 0), ix(size)))
        if self.begin is None:
            whole = self.named("whole", whole)
            return [(True, maximum(1, count - whole), count - 1), (False, whole, whole - 1)]
        first, behind = (maximum(self.of_row(self.begin, row), 0) for row in (self.at[self.rows], last_row))
        low = self.named("low", minimum(count - 1, floordiv(first, ix(size))))
        whole = self.named("whole", maximum(whole, low))
        edge = self.named("edge", minimum(whole, floordiv(behind + (size - 1), ix(size))))
        return [
            (True, maximum(1, count - whole), count - 1), (False, maximum(0, whole - edge), whole - 1),
            (True, maximum(0, edge - low), edge - 1),
        ]  # fmt: skip

    def of_row(self, index: Index, row: Index | None = None) -> Index:
        """``index`` for a row, the first of the block unless told."""
        return Substitution(self.at if row is None else {**self.at, self.rows: row}).index(index)

    def turns(self, masked: bool, count: Index, last: Index, told: bool) -> For:
        """``told``: turns whose scores are masked as a whole do nothing."""
        turn = self.axis(f"{self.found.keys.name}_o", count)
        start = (last - turn) * self.step.keys
        k, k_fill = self.fill("k", self.key, self.found.keys, start, self.step.keys, self.found.depth, False)
        v, v_fill = self.fill("v", self.value, self.found.keys, start, self.step.keys, self.found.columns, True)
        scores, shrink = self.local("scores", self.each, "add"), self.local("shrink", 2)
        halves = [(self.local("part", 1), self.local("all", 1, "max")) for _ in range(2)]
        local = (scores, shrink, *(a for pair in halves for a in pair))
        body: list[Stmt] = [k_fill, v_fill, self.scores(scores.buffer, k)]
        for half, (part, all_) in enumerate(halves):  # one row after the other
            body.append(self.greatest(scores.buffer, part.buffer, half, masked, start, told))
            body.append(self.combined(all_.buffer, part.buffer, "max", 1))
            body.append(self.weights(scores.buffer, all_.buffer, shrink.buffer, half))
        body += [self.shrunk(shrink.buffer), self.rounded(scores.buffer), self.mix(v)]
        if told and self.seen is not None:
            body = [If(self.seen_at(start), tuple(body))]
        return For(turn, (Alloc(k), Alloc(v), *local, *body), Kind("pipeline", self.step.stages))

    def seen_at(self, start: Index) -> Expr:
        """Whether a tile of keys is seen, as far as conditions of whole tiles tell."""
        assert self.seen is not None
        return Substitution({**self.at, self.found.keys: start}).expr(self.seen)

    # ------------------------------------------------------------ instructions

    def scores(self, sums: Buffer, k: Buffer) -> For:
        t, r, d = self.axis("t", self.threads), self.axis("r", self.each), self.axis("d", -(-self.deep // 16) * 16)
        place = tiles.place if len(k.shape) == 2 else tiles.deep_place
        row = tiles.row_of_many(ix(t), ix(r), self.each, self.high)
        left = Load(self.q, place(self.q, row, ix(d)))
        right = Load(k, place(k, tiles.column_of_many(ix(t), ix(r), self.each, self.high), ix(d)))
        return self.instruction(t, r, d, sums, left, right)

    def mix(self, v: Buffer) -> For:
        t, r, i = self.axis("t", self.threads), self.axis("r", self.wide // 2), self.axis("i", self.step.keys)
        left = Load(self.held.buffer, (relays.owner(ix(t), ix(i)), relays.number(ix(r), ix(i))))
        right = Load(v, tiles.place(v, tiles.column(ix(t), ix(r)), ix(i)))
        return self.instruction(t, r, i, self.mixed.buffer, left, right)

    def combined(self, whole: Buffer, part: Buffer, reducer: str, count: int) -> For:
        t, h, n = self.axis("t", self.threads), self.axis("h", count), self.axis("n", relays.FOUR)
        one = Load(part, (floordiv(ix(t), ix(relays.FOUR)) * relays.FOUR + n, ix(h)))
        update = Store(whole, (ix(t), ix(h)), one, None, reducer)
        return self.threaded(t, (For(h, (For(n, (update,)),), Kind("instr", 0, relays.QUAD)),))

    # ------------------------------------------------------------ what threads do with scores

    def chains(self, reducer: str) -> tuple[Alloc, Expr]:
        """Accumulators of which neighbouring pieces have another each, and what they are together."""
        buffer = Buffer(fresh("chain", self.taken), f32, (ix(CHAINS),), (ONE,), "local")
        parts: list[Expr] = [Load(buffer, (ix(n),)) for n in range(CHAINS)]
        while len(parts) > 1:
            parts = [Op(reducer, (a, b), f32) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return Alloc(buffer, reducer), parts[0]

    def greatest(self, scores: Buffer, part: Buffer, half: int, masked: bool, start: Index, told: bool) -> For:
        """The greatest score that a thread has of one of its rows; scores become what masks and biases make of them."""
        t, g, c, v = self.pieces()
        chain, best = self.chains("max")
        piece = ix(g) * CHAINS + c
        at = (ix(t), piece * 4 + half * 2 + v)
        row = self.at[self.rows] + tiles.row(ix(t), ix(half * 2))
        outside: list[Stmt] = []
        inside: list[Stmt] = []
        product = Load(scores, at)
        score: Expr = product
        if not isinstance(self.within, Var):
            first = start + mod(ix(t), ix(4)) * 2
            ends = masked and (constant(self.found.keys.extent) or 1) % self.step.keys != 0
            place = Place(self.at, self.rows, self.found.keys, row, first, piece * PIECE + v, ends)
            score = Scores(self.found.product, self.found.lets, place, self.taken, outside).of(self.within, product, inside)
        if self.seen is not None and not told:
            seen = self.let("seen", self.seen_at(start), outside)
            score = Op("select", (seen, score, _f(-math.inf)), f32)
        if masked:
            limit = self.found.keys.extent
            if self.limit is not None:
                limit = minimum(limit, Substitution({**self.at, self.rows: row}).index(self.limit))
            room = minimum(limit - start, self.step.keys) - mod(ix(t), ix(4)) * 2
            left = self.let("room", FromIndex(room, i32), outside)
            within = FromIndex(piece * PIECE + v, i32)
            score = Op("select", (Op("gt", (left, within), bool_), score, _f(-math.inf)), f32)
            if self.begin is not None:
                before = maximum(self.of_row(self.begin, row) - start, 0) - mod(ix(t), ix(4)) * 2
                early = self.let("early", FromIndex(before, i32), outside)
                score = Op("select", (Op("ge", (within, early), bool_), score, _f(-math.inf)), f32)
        if score is not product:
            score = self.let("score", score, inside)
            inside.append(Store(scores, at, score))
        inside.append(Store(chain.buffer, (ix(c),), score, None, "max"))
        kinds = turn_by_turn(self.step.apart if not isinstance(self.within, Var) else 0, 3)
        loops: Stmt = For(g, (For(c, (For(v, tuple(inside), kinds[2]),), kinds[1]),), kinds[0])
        return self.threaded(t, (*outside, chain, loops, Store(part, (ix(t), ix(0)), best)))

    def pieces(self) -> tuple[Axis, Axis, Axis, Axis]:
        """Axes over threads, and over what each has of a row: groups of chains, chains, neighbours."""
        several = self.axis("g", self.step.keys // PIECE // CHAINS)
        return self.axis("t", self.threads), several, self.axis("c", CHAINS), self.axis("v", 2)

    def weights(self, scores: Buffer, all_: Buffer, shrink: Buffer, half: int) -> For:
        t, g, c, v = self.pieces()
        at = (ix(t), ix(half))
        factor = _f(self.factor * math.log2(math.e))
        before: list[Stmt] = []
        old = self.let("old", Load(self.top.buffer, at), before)
        new = self.let("new", Op("max", (old, Load(all_, (ix(t), ix(0)))), f32), before)
        before.append(Store(self.top.buffer, at, new))
        off = self.let("off", Op("neg", (Op("mul", (_finite(new), factor), f32),), f32), before)
        less_ = self.let("less", _ex2(Op("fma", (old, factor, off), f32)), before)
        before.append(Store(shrink, at, less_))
        chain, sum_ = self.chains("add")

        def weighed(piece: Index, neighbour: Index, reducer: str) -> list[Stmt]:
            place = (ix(t), piece * 4 + half * 2 + neighbour)
            body: list[Stmt] = []
            weight = self.let("weight", _ex2(Op("fma", (Load(scores, place), factor, off), f32)), body)
            return [*body, Store(scores, place, weight), Store(chain.buffer, (ix(c),), weight, None, reducer)]

        # the first weights set the sums: adding them to 0 takes instructions
        first = For(c, (*weighed(ix(c), ix(0), ""), *weighed(ix(c), ONE, "add")), UNROLL)
        c = self.axis("c", CHAINS)
        rest = Axis(g.name, g.extent - 1)
        inside = weighed((ix(rest) + 1) * CHAINS + c, ix(v), "add")
        loops = (first, For(rest, (For(c, (For(v, tuple(inside), UNROLL),), UNROLL),), UNROLL))
        total = Store(self.total.buffer, at, Op("fma", (Load(self.total.buffer, at), less_, sum_), f32))
        return self.threaded(t, (*before, chain, *loops, total))

    def shrunk(self, shrink: Buffer) -> For:
        t, r, h, v = self.axis("t", self.threads), self.axis("r", self.wide // PIECE), self.axis("h", 2), self.axis("v", 2)
        mixed = self.mixed.buffer
        at = (ix(t), ix(r) * 4 + ix(h) * 2 + v)
        store = Store(mixed, at, Op("mul", (Load(mixed, at), Load(shrink, (ix(t), ix(h)))), f32))
        return self.threaded(t, (For(r, (For(h, (For(v, (store,), UNROLL),), UNROLL),), UNROLL),))

    def rounded(self, scores: Buffer) -> For:
        """Weights as they are multiplied."""
        t, r, v = self.axis("t", self.threads), self.axis("r", self.each // 2), self.axis("v", 2)
        held, at = self.held.buffer, (ix(t), ix(r) * 2 + v)
        store = Store(held, at, Op("cast", (Load(scores, at),), held.dtype))
        return self.threaded(t, (For(r, (For(v, (store,), PAIR),), UNROLL),))

    # ------------------------------------------------------------ results

    def ends(self) -> list[Stmt]:
        whole, inverse, shift = self.local("whole", 2, "add"), self.local("inverse", 2), self.local("shift", 2)
        t, h = self.axis("t", self.threads), self.axis("h", 2)
        at = (ix(t), ix(h))
        body: list[Stmt] = []
        sum_ = self.let("sum", Load(whole.buffer, at), body)
        off = self.let("off", Op("mul", (_finite(Load(self.top.buffer, at)), _f(self.factor)), f32), body)
        body += [Store(inverse.buffer, at, Op("div", (_f(1.0), sum_), f32)), Store(shift.buffer, at, off)]
        row = self.at[self.rows] + tiles.row(ix(t), ix(h) * 2)
        if self.found.rest:
            there = self.row_values(row, sum_, off)
            rest = renewed(there, self.found.rest, self.taken)
            first = Op("eq", (FromIndex(mod(ix(t), ix(4)), i64), Const(0, i64)), bool_)
            body.append(If(Op("and", (first, less(row, self.rows.extent)), bool_), rest))
        settle = self.threaded(t, (For(h, tuple(body), UNROLL),))
        arrays = whole.buffer, inverse.buffer, shift.buffer
        return [whole, inverse, shift, self.combined(whole.buffer, self.total.buffer, "add", 2), settle, self.results(*arrays)]

    def row_values(self, row: Index, total: Expr, shift: Expr) -> Substitution:
        there = Substitution({**self.at, self.rows: row})
        there.rename(self.found.total.name, total)
        there.rename(self.found.shift.name, shift)
        return there

    def results(self, whole: Buffer, inverse: Buffer, shift: Buffer) -> For:
        """The loop over strips, or over threads where nothing goes through strips."""
        strip = self.axis("c", -(-self.wide // tiles.SPAN))
        staged: dict[int, Buffer] = {}
        drains: list[For] = []
        for stmt in self.found.mix if self.step.strips and self.wide % tiles.SPAN == 0 else ():
            made = self.drain(stmt, strip, self.found.columns) if isinstance(stmt, Store) else None
            if made is not None:
                staged[id(stmt)] = made[0]
                drains.append(made[1])
        work = self.work(strip, staged, (whole, inverse, shift))
        if not staged:
            return work
        count = constant(strip.extent) or 1
        allocs = [Alloc(b) for b in staged.values()]
        return For(strip, (*allocs, work, *drains), Kind("pipeline", self.step.strips if count % self.step.strips == 0 else 1))

    def work(self, strip: Axis, staged: dict[int, Buffer], arrays: tuple[Buffer, Buffer, Buffer]) -> For:
        t, h, v = self.axis("t", self.threads), self.axis("h", 2), self.axis("v", 2)
        pieces = tiles.SPAN // PIECE if staged else self.wide // PIECE
        piece = self.axis("j", pieces)
        within = ix(piece) * PIECE + mod(ix(t), ix(4)) * 2 + v
        column = within + (ix(strip) * tiles.SPAN if staged else 0)
        number = (ix(piece) + (ix(strip) * (tiles.SPAN // PIECE) if staged else 0)) * 4 + ix(h) * 2 + v
        row = tiles.row(ix(t), ix(h) * 2)
        at_row = self.at[self.rows] + row
        outside: list[Stmt] = []
        names = ("total", "inverse", "shift")
        loads = [Load(b, (ix(t), ix(h))) for b in arrays]
        total, inverse, shift = (self.let(name, load, outside) for name, load in zip(names, loads, strict=True))
        there = self.row_values(at_row, total, shift)
        there.atoms[self.found.columns] = column
        there.rename(self.found.mixed.name, Load(self.mixed.buffer, (ix(t), number)))
        inside: list[Stmt] = []
        for stmt, old in zip(renewed(there, self.found.mix, self.taken), self.found.mix, strict=True):
            if isinstance(stmt, Let):
                inside.append(Let(stmt.var, _by_inverse(stmt.value, total, inverse)))
                continue
            assert isinstance(stmt, Store)
            value = _by_inverse(stmt.value, total, inverse)
            if id(old) in staged:
                group = floordiv(ix(t), ix(tiles.GROUP))
                inside.append(Store(staged[id(old)], (group, row - group * tiles.GROUP_ROWS, within), value))
            else:
                inside.append(Store(stmt.buffer, stmt.index, value, stmt.mask, stmt.reducer))
        body: list[Stmt] = [*outside, For(piece, (For(v, tuple(inside), PAIR),), UNROLL)]
        if (constant(self.rows.extent) or 1) % self.high:
            body = [If(less(at_row, self.rows.extent), tuple(body))]
        return self.threaded(t, (For(h, tuple(body), UNROLL),))


# ---------------------------------------------------------------- expressions

def _f(value: float) -> Const:
    return Const(value, f32)


def _ex2(value: Expr) -> Expr:
    return Op("ex2_normal", (value,), f32)


def _finite(top: Expr) -> Expr:
    """``top``, or 0 for a row that has seen nothing so far."""
    return Op("select", (Op("eq", (top, _f(-math.inf)), bool_), _f(0.0), top), f32)


def _by_inverse(value: Expr, total: Var, inverse: Var) -> Expr:
    """``value`` with divisions by ``total`` as products with its inverse."""

    def node(part: Expr) -> Expr:
        if isinstance(part, Op) and part.name == "div" and isinstance(part.args[1], Var) and part.args[1].name == total.name:
            return Op("mul", (part.args[0], inverse), part.dtype)
        return part

    return rewrite(value, node, {})
