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
from collections.abc import Sequence
from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir import outlets, relays, tiles
from lowc.ir.index import (
    ONE,
    Atom,
    Axis,
    FloorDiv,
    Index,
    Opaque,
    atoms,
    constant,
    depends_on,
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
from lowc.ir.walk import Substitution, both, free_atoms, rewrite, with_mask
from lowc.scheduler.attention import Attention, find, seen
from lowc.scheduler.nest import nested, numel
from lowc.scheduler.rename import fresh
from lowc.scheduler.tensor_cores import narrow
from lowc.scheduler.tile_epilogue import less

UNROLL = Kind("unroll", 128)
PAIR = Kind("vector", 2)
CHAINS = 4  # in which the greatest and the sum of a row are found
PIECE = 8  # keys, or columns, of which a thread has two neighbours
WIDEST = 256  # depth and columns


@dataclass(frozen=True, slots=True)
class Relayed:
    """``axis``: the outermost loop.  ``groups`` of 128 threads have 64 rows of queries each; ``keys`` come at a time, in as many
    ``stages``.  ``late_first``: blocks of the last rows, which see most keys, are the first.  ``strips``: how many are in turn
    where results leave; 0 where threads store."""

    axis: str
    groups: int
    keys: int
    stages: int
    late_first: bool
    strips: int


def relayed(loop: For, step: Relayed, taken: set[str]) -> tuple[Stmt, ...]:
    """``loop``, attention, by tiles; raises ScheduleError where it is none that tensor cores can do."""
    found = find(loop)
    if found is None or found.rows is None:
        raise ScheduleError(f"the loop over {loop.axis} is no attention with rows")
    for each in found.outer:
        if any(depends_on(each.axis.extent, f.axis) for f in found.outer):
            raise ScheduleError(f"how long {each.axis} is depends on another loop")
    if (lower_bound(found.keys.extent) or 0) < 1:
        raise ScheduleError(f"{found.keys} may have no iteration")
    return _Relay(found, step, taken).grid()


def scaled(score: Expr, product: Var) -> tuple[Expr, float]:
    """(a score, c): the score of the product is c times that one, c positive."""
    if isinstance(score, Op) and score.name == "mul":
        factor, other = score.args[1], score.args[0]
        if isinstance(factor, Const) and isinstance(other, Var) and other.name == product.name and 0 < factor.value < math.inf:
            return other, float(factor.value)
    return score, 1.0


class _Relay:
    def __init__(self, found: Attention, step: Relayed, taken: set[str]) -> None:
        assert found.rows is not None
        self.found, self.step, self.taken = found, step, taken
        self.rows = found.rows.axis
        self.batch = [f.axis for f in found.outer if f is not found.rows]
        self.threads, self.high = step.groups * tiles.GROUP, step.groups * tiles.GROUP_ROWS
        deep, wide = constant(found.depth.extent), constant(found.columns.extent)
        if deep is None or wide is None or max(deep, wide) > WIDEST or wide % PIECE or deep % PIECE:
            raise ScheduleError(f"heads of {found.depth.extent} and {found.columns.extent}")
        self.deep, self.wide = deep, wide
        self.query, self.key, self.value = (narrow(e) for e in (found.query, found.key, found.value))
        if not self.query.dtype == self.key.dtype == self.value.dtype == found.weight:
            raise ScheduleError("factors of several types")
        self.limit, inner = seen(found)
        if self.limit is not None:
            step_, first = split(self.limit, self.rows)
            if step_ != ONE or (constant(first) or 0) < 1:
                raise ScheduleError(f"a row that sees {self.limit} keys")
        self.score, self.factor = scaled(inner, found.product)
        self.lets: list[Let] = []
        self.at: dict[Atom, Index] = {}
        self.each = step.keys // 2  # scores of a thread
        self.thread = Axis(fresh("t", taken), ix(self.threads))

    # ------------------------------------------------------------ names

    def axis(self, name: str, extent: int | Index) -> Axis:
        return Axis(fresh(name, self.taken), ix(extent))

    def local(self, name: str, count: int, reducer: str = "", dtype: object = f32) -> Alloc:
        """An array of ``count`` for each thread."""
        shape, strides = (ix(self.threads), ix(count)), (ix(count), ONE)
        return Alloc(Buffer(fresh(name, self.taken), dtype, shape, strides, "local"), reducer)  # type: ignore[arg-type]

    def named(self, name: str, index: Index) -> Index:
        """``index`` as the coordinate that a let holds, unless it is a number."""
        if constant(index) is not None:
            return index
        var = Var(fresh(name, self.taken), i64)
        self.lets.append(Let(var, FromIndex(index, i64)))
        return ix(Opaque(var.name))

    def let(self, name: str, value: Expr, body: list[Stmt]) -> Var:
        var = Var(fresh(name, self.taken), value.dtype)
        body.append(Let(var, value))
        return var

    def threaded(self, axis: Axis, body: Sequence[Stmt]) -> For:
        return For(axis, tuple(body), Kind("thread", self.threads))

    # ------------------------------------------------------------ the grid

    def grid(self) -> tuple[Stmt, ...]:
        down = (self.rows.extent + (self.high - 1)) // self.high
        several = numel([a.extent for a in self.batch])
        block = self.axis(f"{self.rows.name}_g", several * down)
        if self.step.late_first:
            matrix, tile = mod(ix(block), several), down - 1 - floordiv(ix(block), several)
        else:
            matrix, tile = floordiv(ix(block), down), mod(ix(block), down)
        for axis in reversed(self.batch):
            last = axis is self.batch[0]
            self.at[axis] = self.named(f"{axis.name}_at", matrix if last else mod(matrix, axis.extent))
            matrix = floordiv(matrix, axis.extent)
        self.at[self.rows] = self.named(f"{self.rows.name}_tile", tile) * self.high
        self.share()
        body = self.tile()
        return (For(block, (*self.lets, *body), Kind("block")),)

    def share(self) -> None:
        """Gives names to what several heads have in common: ``h // 4``."""
        for factor in (self.key, self.value):
            for atom in list(free_atoms(factor)):
                if not isinstance(atom, FloorDiv) or atom in self.at or constant(atom.den) is None:
                    continue
                inside = [a for a in atoms(atom.num) if isinstance(a, Axis)]
                if len(inside) == 1 and inside[0] in self.batch and atom.num == ix(inside[0]):
                    self.at[atom] = self.named(f"{inside[0].name}_shared", floordiv(self.at[inside[0]], atom.den))

    # ------------------------------------------------------------ tiles

    def fill(
        self, name: str, value: Expr, across: Axis, start: Index, size: int, along: Axis, turned: bool
    ) -> tuple[Buffer, For]:
        """The tile of ``value`` for ``size`` places of ``across`` from ``start`` on, and all of ``along``, which rows of the tile
        lie along; and the nest that fills it.  ``turned``: ``along`` are columns, not the depth, of the product."""
        chunks = -(-(constant(along.extent) or 0) // tiles.SPAN)
        chunk, i, k = self.axis("c", chunks), self.axis(across.name, size), self.axis("k", tiles.SPAN)
        flat = chunks == 1 and not turned
        axes = (i, k) if flat else (chunk, i, k)
        at = {**self.at, across: start + i, along: ix(k) + (ZERO_IX if flat else ix(chunk) * tiles.SPAN)}
        shape = tuple([a.extent for a in axes])
        strides = tuple([numel(shape[n + 1 :]) for n in range(len(shape))])
        tile = Buffer(fresh(name, self.taken), value.dtype, shape, strides, "shared")
        inside: Expr | None = None
        for axis in (along, across, *self.batch):
            if axis in at:
                inside = both(inside, less(at[axis], axis.extent))
        for atom, there in self.at.items():
            if isinstance(atom, FloorDiv):
                axis = next(a for a in atoms(atom.num) if isinstance(a, Axis))
                inside = both(inside, less(there, floordiv(axis.extent + (atom.den - 1), atom.den)))
        assert inside is not None
        there = with_mask(Substitution(at).expr(value), inside, {})
        nest = nested(axes, (Store(tile, tuple([ix(a) for a in axes]), there),))[0]
        assert isinstance(nest, For)
        nest = For(nest.axis, nest.body, Kind("instr", 0, tiles.TMA))
        filled = tiles.fill(nest)
        if filled is None or tiles.box(filled) is None:
            raise ScheduleError(f"{name} is no box that the copying engine takes")
        return tile, nest

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
        for masked, count, last in self.segments():
            if constant(count) == 0:
                continue
            body.append(self.turns(masked, count, last))
        return [*body, *self.ends()]

    def segments(self) -> list[tuple[bool, Index, Index]]:
        """(whether some rows do not see all keys, how many tiles of keys, the number of the last, which comes first)."""
        keys, size = self.found.keys.extent, self.step.keys
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

    def turns(self, masked: bool, count: Index, last: Index) -> For:
        turn = self.axis(f"{self.found.keys.name}_o", count)
        start = (last - turn) * self.step.keys
        k, k_fill = self.fill("k", self.key, self.found.keys, start, self.step.keys, self.found.depth, False)
        v, v_fill = self.fill("v", self.value, self.found.keys, start, self.step.keys, self.found.columns, True)
        scores, part, all_ = self.local("scores", self.each, "add"), self.local("part", 2), self.local("all", 2, "max")
        shrink = self.local("shrink", 2)
        local = (scores, part, all_, shrink)
        body: list[Stmt] = [Alloc(k), Alloc(v), *local, k_fill, v_fill, self.scores(scores.buffer, k)]
        body += [
            self.greatest(scores.buffer, part.buffer, masked, start), self.combined(all_.buffer, part.buffer, "max"),
            self.weights(scores.buffer, all_.buffer, shrink.buffer), self.shrunk(shrink.buffer), self.rounded(scores.buffer),
            self.mix(v),
        ]  # fmt: skip
        return For(turn, tuple(body), Kind("pipeline", self.step.stages))

    # ------------------------------------------------------------ instructions

    def scores(self, sums: Buffer, k: Buffer) -> For:
        t, r, d = self.axis("t", self.threads), self.axis("r", self.each), self.axis("d", -(-self.deep // 16) * 16)
        place = tiles.place if len(k.shape) == 2 else tiles.deep_place
        row = tiles.row_of_many(ix(t), ix(r), self.each, self.high)
        left = Load(self.q, place(self.q, row, ix(d)))
        right = Load(k, place(k, tiles.column_of_many(ix(t), ix(r), self.each), ix(d)))
        return self.instruction(t, r, d, sums, left, right)

    def mix(self, v: Buffer) -> For:
        t, r, i = self.axis("t", self.threads), self.axis("r", self.wide // 2), self.axis("i", self.step.keys)
        left = Load(self.held.buffer, (relays.owner(ix(t), ix(i)), relays.number(ix(r), ix(i))))
        right = Load(v, tiles.place(v, tiles.column(ix(t), ix(r)), ix(i)))
        return self.instruction(t, r, i, self.mixed.buffer, left, right)

    def instruction(self, t: Axis, r: Axis, k: Axis, sums: Buffer, left: Load, right: Load) -> For:
        product = Op("product", (Op("cast", (left,), f32), Op("cast", (right,), f32)), f32)
        add = Store(sums, (ix(t), ix(r)), product, None, "add")
        return self.threaded(t, (For(r, (For(k, (add,)),), Kind("instr", 0, tiles.WGMMA)),))

    def combined(self, whole: Buffer, part: Buffer, reducer: str) -> For:
        t, h, n = self.axis("t", self.threads), self.axis("h", 2), self.axis("n", relays.FOUR)
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

    def greatest(self, scores: Buffer, part: Buffer, masked: bool, start: Index) -> For:
        """The greatest score that a thread has of each of its rows; scores become what masks and biases make of them."""
        t, h, g, c, v = (
            self.axis("t", self.threads), self.axis("h", 2), self.axis("g", self.step.keys // PIECE // CHAINS),
            self.axis("c", CHAINS), self.axis("v", 2),
        )  # fmt: skip
        chain, best = self.chains("max")
        piece = ix(g) * CHAINS + c
        at = (ix(t), piece * 4 + ix(h) * 2 + v)
        row = self.at[self.rows] + tiles.row(ix(t), ix(h) * 2)
        outside: list[Stmt] = []
        inside: list[Stmt] = []
        product = Load(scores, at)
        score: Expr = self.scored(product, row, start + tiles.column(ix(t), piece * 4 + v), masked)
        if masked:
            limit = self.found.keys.extent
            if self.limit is not None:
                limit = minimum(limit, Substitution({**self.at, self.rows: row}).index(self.limit))
            room = minimum(limit - start, self.step.keys) - mod(ix(t), ix(4)) * 2
            left = self.let("room", FromIndex(room, i32), outside)
            within = FromIndex(piece * PIECE + v, i32)
            score = Op("select", (Op("gt", (left, within), bool_), score, _f(-math.inf)), f32)
        if score is not product:
            score = self.let("score", score, inside)
            inside.append(Store(scores, at, score))
        inside.append(Store(chain.buffer, (ix(c),), score, None, "max"))
        loops: Stmt = For(g, (For(c, (For(v, tuple(inside), UNROLL),), UNROLL),), UNROLL)
        return self.threaded(t, (For(h, (*outside, chain, loops, Store(part, (ix(t), ix(h)), best)), UNROLL),))

    def scored(self, product: Load, row: Index, key: Index, masked: bool) -> Expr:
        if isinstance(self.score, Var):
            return product
        there = Substitution({**self.at, self.rows: row, self.found.keys: key})
        there.rename(self.found.product.name, product)
        value = there.expr(self.score)
        if any(isinstance(p, Load) and p is not product for p in _loads(value)):
            inside = less(row, self.rows.extent)
            if masked:
                inside = both(inside, less(key, self.found.keys.extent))
            value = _masked_beside(value, product, inside)
        return value

    def weights(self, scores: Buffer, all_: Buffer, shrink: Buffer) -> For:
        t, h, g, c, v = (
            self.axis("t", self.threads), self.axis("h", 2), self.axis("g", self.step.keys // PIECE // CHAINS),
            self.axis("c", CHAINS), self.axis("v", 2),
        )  # fmt: skip
        at = (ix(t), ix(h))
        factor = _f(self.factor * math.log2(math.e))
        before: list[Stmt] = []
        old = self.let("old", Load(self.top.buffer, at), before)
        new = self.let("new", Op("max", (old, Load(all_, at)), f32), before)
        before.append(Store(self.top.buffer, at, new))
        off = self.let("off", Op("neg", (Op("mul", (_finite(new), factor), f32),), f32), before)
        less_ = self.let("less", _ex2(Op("fma", (old, factor, off), f32)), before)
        before.append(Store(shrink, at, less_))
        chain, sum_ = self.chains("add")
        place = (ix(t), (ix(g) * CHAINS + c) * 4 + ix(h) * 2 + v)
        inside: list[Stmt] = []
        weight = self.let("weight", _ex2(Op("fma", (Load(scores, place), factor, off), f32)), inside)
        inside += [Store(scores, place, weight), Store(chain.buffer, (ix(c),), weight, None, "add")]
        loops = For(g, (For(c, (For(v, tuple(inside), UNROLL),), UNROLL),), UNROLL)
        total = Store(self.total.buffer, at, Op("fma", (Load(self.total.buffer, at), less_, sum_), f32))
        return self.threaded(t, (For(h, (*before, chain, loops, total), UNROLL),))

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
            rest = _renamed(there, self.found.rest, self.taken)
            first = Op("eq", (FromIndex(mod(ix(t), ix(4)), i64), Const(0, i64)), bool_)
            body.append(If(Op("and", (first, less(row, self.rows.extent)), bool_), rest))
        settle = self.threaded(t, (For(h, tuple(body), UNROLL),))
        arrays = whole.buffer, inverse.buffer, shift.buffer
        return [whole, inverse, shift, self.combined(whole.buffer, self.total.buffer, "add"), settle, self.results(*arrays)]

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
            made = self.drain(stmt, strip) if isinstance(stmt, Store) else None
            if made is not None:
                staged[id(stmt)] = made[0]
                drains.append(made[1])
        work = self.work(strip, staged, (whole, inverse, shift))
        if not staged:
            return work
        count = constant(strip.extent) or 1
        allocs = [Alloc(b) for b in staged.values()]
        return For(strip, (*allocs, work, *drains), Kind("pipeline", self.step.strips if count % self.step.strips == 0 else 1))

    def drain(self, store: Store, strip: Axis) -> tuple[Buffer, For] | None:
        """A strip, and the nest that stores it, if the engine can."""
        if store.reducer or store.mask is not None or store.buffer.dtype.bits != 16:
            return None
        i, k = self.axis(self.rows.name, self.high), self.axis(self.found.columns.name, tiles.SPAN)
        at = {**self.at, self.rows: self.at[self.rows] + i, self.found.columns: ix(strip) * tiles.SPAN + k}
        buffer = Buffer(fresh("strip", self.taken), store.buffer.dtype, (i.extent, k.extent), (k.extent, ONE), "shared")
        inside: Expr | None = None
        for axis in (*self.batch, self.rows, self.found.columns):
            inside = both(inside, less(at[axis], axis.extent))
        index = tuple([Substitution(at).index(n) for n in store.index])
        nest = nested((i, k), (Store(store.buffer, index, Load(buffer, (ix(i), ix(k))), inside),))[0]
        assert isinstance(nest, For)
        nest = For(nest.axis, nest.body, Kind("instr", 0, tiles.TMA))
        found = outlets.drain(nest)
        return (buffer, nest) if found is not None and outlets.box(found) is not None else None

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
        for stmt, old in zip(_renamed(there, self.found.mix, self.taken), self.found.mix, strict=True):
            if isinstance(stmt, Let):
                inside.append(Let(stmt.var, _by_inverse(stmt.value, total, inverse)))
                continue
            assert isinstance(stmt, Store)
            value = _by_inverse(stmt.value, total, inverse)
            if id(old) in staged:
                inside.append(Store(staged[id(old)], (row, within), value))
            else:
                inside.append(Store(stmt.buffer, stmt.index, value, stmt.mask, stmt.reducer))
        body: list[Stmt] = [*outside, For(piece, (For(v, tuple(inside), PAIR),), UNROLL)]
        if (constant(self.rows.extent) or 1) % self.high:
            body = [If(less(at_row, self.rows.extent), tuple(body))]
        return self.threaded(t, (For(h, tuple(body), UNROLL),))


# ---------------------------------------------------------------- expressions

ZERO_IX = ix(0)


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


def _loads(value: Expr) -> list[Load]:
    found: list[Load] = []

    def node(part: Expr) -> Expr:
        if isinstance(part, Load):
            found.append(part)
        return part

    rewrite(value, node, {})
    return found


def _masked_beside(value: Expr, product: Load, inside: Expr) -> Expr:
    """``value`` whose loads, ``product`` excepted, happen only where ``inside`` holds."""

    def node(part: Expr) -> Expr:
        if isinstance(part, Load) and part.buffer is not product.buffer:
            return Load(part.buffer, part.index, both(part.mask, inside))
        return part

    return rewrite(value, node, {})


def _renamed(there: Substitution, body: Sequence[Stmt], taken: set[str]) -> tuple[Stmt, ...]:
    for stmt in body:
        if isinstance(stmt, Let):
            there.rename(stmt.var.name, Var(fresh(stmt.var.name, taken), stmt.var.dtype))
    return there.body(tuple(body))
