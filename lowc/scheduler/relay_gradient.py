"""The primitive ``RelayedGradient``: a gradient of attention of 16-bit floats by the tensor cores of a GPU.

    for b { for near in R { weights and slopes of all others; their sums } }                    # ``attention_gradient.find``
      →  for g in … block {                                    # each block has so many rows
           alloc rows, rows_1 @shared; a fill of each
           alloc mixed: f32[256, 64] @local = add; alloc held: bf16[256, 32] @local; …
           for o in … pipeline(2) {                             # 64 others at a time
             alloc others, others_1 @shared; a fill of each
             sums = rows @ others; sums_1 = rows_1 @ others_1   # ``tiles.TileProduct``
             held = slopes of both; …                           # in registers, where sums were
             mixed += held @ others                             # ``relays.HeldProduct``
           }
           results of mixed
         }

For queries rows are q and the gradient of the result, others k and v, and slopes times k is added up; for keys and values rows
are k and v, others q and that gradient, and weights and slopes are both held.  All that some row of a block may see comes; the
mask is applied to all.  Weights below 2**-126 are 0.

On an H200 it had 0.56 to 0.77 of cuDNN's speed (benchmarks/results/h200_attention.md).
"""

import math
from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir import relays, tiles
from lowc.ir.index import Atom, Index, constant, floordiv, ix, maximum, minimum, mod, split
from lowc.ir.nodes import Alloc, Buffer, Const, Expr, For, If, Kind, Load, Op, Stmt, Store
from lowc.ir.walk import Substitution, both, free_atoms, rewrite, with_mask
from lowc.scheduler.attention_gradient import Mix, Side, find, reads, visible
from lowc.scheduler.relay import WIDEST
from lowc.scheduler.relay_tiles import PAIR, PIECE, UNROLL, RelayTiles
from lowc.scheduler.rename import renewed
from lowc.scheduler.tensor_cores import narrow
from lowc.scheduler.tile_epilogue import less


@dataclass(frozen=True, slots=True)
class RelayedGradient:
    """``axis``: the outermost loop.  ``groups`` of 128 threads have 64 rows each; ``others`` come at a time, in as many
    ``stages``."""

    axis: str
    groups: int
    others: int
    stages: int


def relayed_gradient(loop: For, step: RelayedGradient, taken: set[str]) -> tuple[Stmt, ...]:
    """``loop``, a gradient of attention, by tiles; raises ScheduleError where it is none that tensor cores can do."""
    side = find(loop)
    if side is None or side.near is None:
        raise ScheduleError(f"the loop over {loop.axis} is no gradient of attention with rows")
    if len(side.others) > 1:
        raise ScheduleError(f"several heads of queries for one of keys in the loop over {loop.axis}")
    return GradientTiles(side, step, taken).grid(False, 0)


class GradientTiles(RelayTiles):
    """``factors``: of rows and of others, of both products, 16 bits; ``tile_of``: which tile of others a sum takes."""

    def __init__(self, side: Side, step: RelayedGradient, taken: set[str]) -> None:
        assert side.near is not None
        super().__init__(side.outer, side.near.axis, step.groups, taken)
        self.side, self.step, self.other = side, step, side.others[0]
        self.factors = [(narrow(p.near), narrow(p.other)) for p in side.products]
        widths = [constant(a.extent) for a in (*(p.depth for p in side.products), *(m.columns for m in side.mixes))]
        if any(w is None or w > WIDEST or w % PIECE for w in widths):
            raise ScheduleError(f"heads of {widths}")
        types = {f.dtype for pair in self.factors for f in pair} | {s.buffer.dtype for s in side.kept}
        if len(types) > 1 or any(t.bits != 16 or t.kind != "f" for t in types):
            raise ScheduleError("factors of several types, or not of 16 bits")
        self.tile_of = [self.taken_from(m) for m in side.mixes]
        self.each = step.others // 2  # sums of a thread
        self.room = visible(side)

    def taken_from(self, mix: Mix) -> int:
        """The number of the product whose others ``mix`` adds up."""
        factor = narrow(mix.factor)
        for number, (product, (_, other)) in enumerate(zip(self.side.products, self.factors, strict=True)):
            if isinstance(other, Load) and isinstance(factor, Load) and other.buffer is factor.buffer:
                there = Substitution({mix.columns: ix(product.depth)}).expr(factor)
                if isinstance(there, Load) and there.index == other.index and mix.columns.extent == product.depth.extent:
                    return number
        raise ScheduleError("sums are not of what is multiplied first")

    def shared(self) -> tuple[Expr, ...]:
        return tuple([other for _, other in self.factors])

    def tile(self) -> list[Stmt]:
        fills = self.brought_once(False)
        body = [*(Alloc(b) for b in self.resident), *self.mixed, *self.held, *self.of_rows(), *fills]
        body.append(self.turns())
        return [*body, *(self.result(m, a.buffer) for m, a in zip(self.side.mixes, self.mixed, strict=True))]

    def brought_once(self, turned: bool) -> list[Stmt]:
        """Fills of the tiles of rows (``resident``, ``turned`` as in ``fill``); makes what is ``mixed`` and ``held``."""
        self.resident: list[Buffer] = []
        fills: list[Stmt] = []
        for product, (near, _) in zip(self.side.products, self.factors, strict=True):
            tile, filled = self.fill("rows", near, self.rows, self.at[self.rows], self.high, product.depth, turned)
            self.resident.append(tile)
            fills.append(filled)
        self.mixed = [self.local("mixed", (constant(m.columns.extent) or 0) // 2, "add") for m in self.side.mixes]
        self.held = [self.local("held", self.each, dtype=s.buffer.dtype) for s in self.side.kept]
        return fills

    def brought(self, start: Index) -> tuple[list[Buffer], list[Stmt]]:
        """The tiles of a turn's others, from ``start`` on, and what fills them."""
        others: list[Buffer] = []
        fills: list[Stmt] = []
        for product, (_, other) in zip(self.side.products, self.factors, strict=True):
            tile, filled = self.fill("others", other, self.other, start, self.step.others, product.depth, True)
            others.append(tile)
            fills.append(filled)
        return others, fills

    # ------------------------------------------------------------ what weights and slopes read

    def of_rows(self) -> list[Stmt]:
        """Copies of what depends on the row alone, two rows for each thread."""
        self.copies: dict[int, Buffer] = {}
        out: list[Stmt] = []
        for part in reads(self.side):
            if self.other in free_atoms(part) or self.rows not in free_atoms(part):
                continue
            made = self.local("of_row", 2, dtype=part.dtype)
            t, h = self.axis("t", self.threads), self.axis("h", 2)
            row = self.at[self.rows] + tiles.row(ix(t), ix(h) * 2)
            value = with_mask(Substitution({**self.at, self.rows: row}).expr(part), less(row, self.rows.extent), {})
            out += [made, self.threaded(t, (For(h, (Store(made.buffer, (ix(t), ix(h)), value),), UNROLL),))]
            self.copies[id(part)] = made.buffer
        return out

    # ------------------------------------------------------------ turns

    def turns(self) -> For:
        size, extent, room = self.step.others, self.other.extent, self.room
        begin, count = ix(0), (extent + (size - 1)) // size
        if room is not None:
            first = self.at[self.rows]
            if constant(split(room, self.other)[0]) == 1:  # all from one on: the first that the first row sees
                least = Substitution({**self.at, self.other: ix(0)}).index(1 - room)
                begin = self.named("begin", floordiv(maximum(least, 0), ix(size)))
            else:  # all up to one: the last that the last row sees
                last = Substitution({**self.at, self.rows: first + (self.high - 1), self.other: ix(0)}).index(room)
                count = floordiv(minimum(extent, maximum(last, 0)) + (size - 1), ix(size))
        turn = self.axis(f"{self.other.name}_o", self.named("turns", count - begin))
        start = (begin + turn) * size
        others, fills = self.brought(start)
        sums = [self.local("sums", self.each, "add") for _ in others]
        body: list[Stmt] = [*(Alloc(b) for b in others), *sums, *fills]
        body += [self.first(n, sums[n].buffer, others[n]) for n in range(len(others))]
        body += [self.slopes([s.buffer for s in sums], start), *self.rounded([s.buffer for s in sums])]
        for mix, mixed, number in zip(self.side.mixes, self.mixed, self.tile_of, strict=True):
            body.append(self.second(mixed.buffer, self.held[mix.kept].buffer, others[number]))
        return For(turn, tuple(body), Kind("pipeline", self.step.stages))

    def first(self, number: int, sums: Buffer, others: Buffer) -> For:
        product, rows = self.side.products[number], self.resident[number]
        deep = -(-(constant(product.depth.extent) or 0) // 16) * 16
        t, r, d = self.axis("t", self.threads), self.axis("r", self.each), self.axis("d", deep)
        place = tiles.place if len(rows.shape) == 2 else tiles.deep_place
        left = Load(rows, place(rows, tiles.row_of_many(ix(t), ix(r), self.each, self.high), ix(d)))
        right = Load(others, tiles.deep_place(others, tiles.column_of_many(ix(t), ix(r), self.each, self.high), ix(d)))
        return self.instruction(t, r, d, sums, left, right)

    def second(self, mixed: Buffer, held: Buffer, others: Buffer) -> For:
        wide = constant(mixed.shape[1]) or 0
        t, r, i = self.axis("t", self.threads), self.axis("r", wide), self.axis("i", self.step.others)
        left = Load(held, (relays.owner(ix(t), ix(i)), relays.number(ix(r), ix(i))))
        right = Load(others, tiles.place(others, tiles.column(ix(t), ix(r)), ix(i)))
        return self.instruction(t, r, i, mixed, left, right)

    def slopes(self, sums: list[Buffer], start: Index) -> For:
        """Weights and slopes, in the place of the sums they are made of."""
        t, piece = self.axis("t", self.threads), self.axis("j", self.step.others // PIECE)
        v, h = self.axis("v", 2), self.axis("h", 2)
        number = ix(piece) * 4 + ix(h) * 2 + v
        row = self.at[self.rows] + tiles.row(ix(t), ix(h) * 2)
        other = start + tiles.column(ix(t), ix(piece) * 4 + v)
        there = Substitution({**self.at, self.rows: row, self.other: other})
        for product, memory in zip(self.side.products, sums, strict=True):
            there.rename(product.total.name, Load(memory, (ix(t), number)))
        within = less(other, self.other.extent)
        outside: list[Stmt] = []
        known: dict[int, Expr] = {key: Load(b, (ix(t), ix(h))) for key, b in self.copies.items()}
        for part in reads(self.side):
            if id(part) in known:
                continue
            inside = within if self.rows not in free_atoms(part) else both(within, less(row, self.rows.extent))
            value = with_mask(Substitution({**self.at, self.rows: row, self.other: other}).expr(part), inside, {})
            known[id(part)] = value if self.rows in free_atoms(part) else self.let("of_other", value, outside)
        body: list[Stmt] = []
        for stmt in self.side.lets:
            value = there.expr(rewrite(_by_ex2(stmt.value), lambda p: p, dict(known)))
            there.rename(stmt.var.name, self.let("value", value, body))
        values: list[Expr] = []
        for stmt in self.side.kept:
            value = there.expr(rewrite(_by_ex2(stmt.value), lambda p: p, dict(known)))
            value = value.args[0] if isinstance(value, Op) and value.name == "cast" else value
            if (constant(self.other.extent) or 1) % self.step.others:  # where nothing is, it could be inf, and times 0 NaN
                value = Op("select", (within, value, Const(0.0, value.dtype)), value.dtype)
            values.append(self.let("kept", value, body))
        first = len(sums) - len(values)
        body += [Store(sums[first + n], (ix(t), number), value) for n, value in enumerate(values)]
        return self.threaded(t, (For(piece, (For(v, (*outside, For(h, tuple(body), UNROLL)), UNROLL),), UNROLL),))

    def rounded(self, sums: list[Buffer]) -> list[Stmt]:
        """Weights and slopes as they are multiplied."""
        out: list[Stmt] = []
        for source, target in zip(sums[len(sums) - len(self.held) :], self.held, strict=True):
            t, r, v = self.axis("t", self.threads), self.axis("r", self.each // 2), self.axis("v", 2)
            held, at = target.buffer, (ix(t), ix(r) * 2 + v)
            store = Store(held, at, Op("cast", (Load(source, at),), held.dtype))
            out.append(self.threaded(t, (For(r, (For(v, (store,), PAIR),), UNROLL),)))
        return out

    # ------------------------------------------------------------ results

    def result(self, mix: Mix, mixed: Buffer) -> For:
        t, h, v = self.axis("t", self.threads), self.axis("h", 2), self.axis("v", 2)
        piece = self.axis("j", (constant(mix.columns.extent) or 0) // PIECE)
        row = self.at[self.rows] + tiles.row(ix(t), ix(h) * 2)
        column = ix(piece) * PIECE + mod(ix(t), ix(4)) * 2 + v
        at: dict[Atom, Index] = {**self.at, self.rows: row, mix.columns: column}
        there = Substitution(at)
        there.rename(mix.total.name, Load(mixed, (ix(t), ix(piece) * 4 + ix(h) * 2 + v)))
        body: Stmt = For(piece, (For(v, renewed(there, mix.body, self.taken), PAIR),), UNROLL)
        if (constant(self.rows.extent) or 1) % self.high:
            body = If(less(row, self.rows.extent), (body,))
        return self.threaded(t, (For(h, (body,), UNROLL),))


def _by_ex2(value: Expr) -> Expr:
    """``value`` with exponentials of differences, which weights are, by the instruction for base 2."""

    def node(part: Expr) -> Expr:
        if isinstance(part, Op) and part.name == "exp" and isinstance(part.args[0], Op) and part.args[0].name == "sub":
            exponent = Op("mul", (part.args[0], Const(math.log2(math.e), part.dtype)), part.dtype)
            return Op("ex2_normal", (exponent,), part.dtype)
        return part

    return rewrite(value, node, {})
