"""The primitive ``RelayedAcross``: all gradients of attention of 16-bit floats in one kernel, by five products on tensor cores.

    for b { for near in R {                                      # rows of keys: ``attention_gradient.find``
      weights and slopes of all others; their sums; sums of slopes times keys, added to memory
    } }
      →  for g in … block {                                      # each block has 128 rows of keys
           alloc rows, rows_1 @shared; a fill of each            # k, v
           for o in … pipeline(2) {                              # 64 or 128 rows of queries at a time
             alloc others, others_1 @shared; a fill of each      # q and the gradient of the result
             alloc lse, delta, slopes @shared; lse = …; delta = …
             scores = rows @ others; sums_1 = rows_1 @ others_1  # ``tiles.TileProduct``: keys are rows, queries columns
             scores = weights; sums_1 = weights * (sums_1 - delta); held, held_1 = both, rounded
             slopes = held_1                                     # ``relays.Spread``
             mixed += held @ others_1; mixed_1 += held_1 @ others
             across = slopes @ rows; y += across                 # ``relays.Across``
           }
           results of mixed
         }

Weights and slopes stay in registers as left factors of what is added up for keys and values; what queries get goes through shared
memory and is added in memory by atomic operations, so that its last bits depend on the order of blocks.  Turns under a mask come
first, in a pipeline of their own.  The schedule is that of FlashAttention-3 (Shah et al., 2024), measured on an H200.
"""

from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir import tiles
from lowc.ir.index import Index, constant, floordiv, ix, maximum, minimum, mod
from lowc.ir.nodes import Alloc, Buffer, Const, Expr, For, If, Kind, Load, Op, Stmt, Store
from lowc.ir.relays import SPREAD
from lowc.ir.types import f32
from lowc.ir.walk import Substitution, same, with_mask
from lowc.scheduler.attention_gradient import Mix, Side, find
from lowc.scheduler.nest import numel
from lowc.scheduler.relay_gradient import GradientTiles, RelayedGradient
from lowc.scheduler.relay_tiles import PAIR, PIECE, UNROLL
from lowc.scheduler.relay_weights import weights_of
from lowc.scheduler.relay_work import LOG2E, RelayWork
from lowc.scheduler.rename import fresh, renewed
from lowc.scheduler.tile_epilogue import less

GROUPS = 2  # of 128 threads
FOUR = Kind("vector", 4)


@dataclass(frozen=True, slots=True)
class RelayedAcross:
    """``axis``: the outermost loop.  ``others``: rows of queries that come at a time, in as many ``stages``; 128 or 64 for heads
    of up to 64, else 64.  Blocks of ``heads`` come before those of others.  ``stagger``: blocks begin at different rows of
    queries, where they have all of them, so that they add to different places at a time.  ``strips``: how many are in turn where
    results leave; 0 where threads store.  ``apart``: how many of the loops over scores by
    functions run turn by turn, outermost first; more than there are: rows of a thread are apart as well."""

    axis: str
    others: int
    stages: int
    heads: int
    stagger: bool
    strips: int = 0
    apart: int = 0


def relayed_across(loop: For, step: RelayedAcross, taken: set[str]) -> tuple[Stmt, ...]:
    """``loop``, gradients of attention, by tiles; raises ScheduleError where it is none that tensor cores can do."""
    side = find(loop)
    if side is None or side.near is None or side.across is None or len(side.others) != 1:
        raise ScheduleError(f"the loop over {loop.axis} is no gradient of attention that is added up across rows")
    made = _Across(side, step, taken)
    several = constant(numel([a.extent for a in made.batch]))
    heads = step.heads if several is not None and several % step.heads == 0 else 1
    return made.grid(False, 0, heads)


class _Across(GradientTiles):
    def __init__(self, side: Side, step: RelayedAcross, taken: set[str]) -> None:
        super().__init__(side, RelayedGradient(step.axis, GROUPS, step.others, step.stages), taken)
        assert side.across is not None
        self.way, self.across = step, side.across
        self.spans = [-(-(constant(p.depth.extent) or 0) // tiles.SPAN) for p in side.products]
        # each group multiplies across 64 rows of others, by a span of columns, or by half of one
        fits = self.spans[0] == self.spans[1] and self.spans[0] * step.others // tiles.SPAN in (1, GROUPS)
        if not fits or self.tile_of != [1, 0] or [m.kept for m in side.mixes] != [0, 1]:
            raise ScheduleError(f"{step.others} others at a time for heads of {self.spans} spans")
        self.split = step.others < self.high  # whether groups have columns of their own across, not rows
        self.wide = min(tiles.SPAN, self.spans[0] * tiles.SPAN // (GROUPS if self.split else 1))  # columns of a group across
        self.values = weights_of(side, self.high, step.others)
        self.matrix = self.place_of_sums()
        near, factor = side.products[0].near, self.across.factor
        there = Substitution({self.across.columns: ix(side.products[0].depth)})
        if self.across.kept != 1 or self.across.columns.extent != side.products[0].depth.extent:
            raise ScheduleError("what is added across rows is not of slopes")
        if not same(there.expr(factor), near):
            raise ScheduleError("what is added across rows is not of the rows that are multiplied first")

    # ------------------------------------------------------------ where sums are

    def place_of_sums(self) -> Index:
        """Where the sums of a head begin in memory, which has them as threads do."""
        store = self.across.body[0]
        assert isinstance(store, Store)
        pieces, tall = self.spans[0] * (tiles.SPAN // PIECE), (self.other.extent + 127) // 128 * 2
        size = tall * pieces * (tiles.GROUP * 4)
        at = tiles.held_at(ix(self.other), ix(self.across.columns))
        matrix = ix(0)
        for axis in self.batch:
            matrix = matrix * axis.extent + axis
        expected = matrix * size + ((at[0] * pieces + at[1]) * tiles.GROUP + at[2]) * 4 + at[3]
        if store.index != (expected,) or store.buffer.shape != (numel([a.extent for a in self.batch]) * size,):
            raise ScheduleError(f"{store.buffer.name} has sums elsewhere than threads have them")
        return matrix * size

    def shared(self) -> tuple[Expr, ...]:
        return tuple([factor for pair in self.factors for factor in pair])

    # ------------------------------------------------------------ turns

    def tile(self) -> list[Stmt]:
        fills = self.brought_once(True)
        loops = [self.pipeline(masked, first, count) for masked, first, count in self.segments() if constant(count) != 0]
        body = [*(Alloc(b) for b in self.resident), *self.mixed, *self.held, *fills, *loops]
        return [*body, *(self.taken_out(m, a.buffer) for m, a in zip(self.side.mixes, self.mixed, strict=True))]

    def segments(self) -> list[tuple[bool, Index, Index]]:
        """(whether some rows are not seen, the first tile of others, how many): those under a mask come first."""
        size, extent, since, until = self.step.others, self.other.extent, self.values.since, self.values.until
        total = (extent + (size - 1)) // size
        first, near = self.at[self.rows], self.rows.extent
        begin = whole = ix(0)
        tail = (constant(near) or 1) % self.high != 0  # rows that there are not, and that others see
        if since is not None:
            begin = self.named("begin", minimum(total, floordiv(maximum(1 - self.room_at(since, first), 0), ix(size))))
            most = maximum(1 - self.room_at(since, first + (self.high - 1)), 0)
            whole = minimum(total, maximum(floordiv(most + (size - 1), ix(size)), begin))
            beyond = constant(self.room_at(since, near, extent - 1))
            tail = tail and (beyond is None or beyond > 0)
        self.tail = tail
        # others beyond the last are zeros, of which a function may make anything
        self.partial = not self.values.plain and (constant(extent) or 1) % size != 0
        end, least = total, extent
        if until is not None:
            last = self.room_at(until, first + (self.high - 1))
            end = self.named("end", minimum(total, maximum(floordiv(maximum(last, 0) + (size - 1), ix(size)), begin)))
            least = minimum(extent, maximum(self.room_at(until, first), 0))
        whole = minimum(whole, end) if until is not None else whole
        if tail:  # all of the last block's turns
            whole = maximum(whole, end * minimum(1, floordiv(first + (self.high - 1), near)))
        whole = self.named("whole", whole)
        if until is not None or self.partial:
            edge = self.named("edge", maximum(whole, minimum(end, floordiv(least, ix(size)))))
            return [(True, begin, whole - begin), (False, whole, edge - whole), (True, edge, end - edge)]
        if since is None and not tail:
            return [(False, begin, total)]
        return [(True, begin, whole - begin), (False, whole, total - whole)]

    def room_at(self, room: Index, row: Index, other: Index | int = 0) -> Index:
        return Substitution({**self.at, self.rows: row, self.other: ix(other)}).index(room)

    def pipeline(self, masked: bool, first: Index, count: Index) -> For:
        size, extent = self.step.others, self.other.extent
        turn = self.axis(f"{self.other.name}_o", count)
        number = first + turn
        if self.way.stagger and not self.values.masked:
            number = mod(number + floordiv(self.at[self.rows], ix(self.high)), (extent + (size - 1)) // size)
        start = number * size
        tiles_of, fills = self.brought(start)
        taken_off = [("lse", Op("mul", (self.values.lse, Const(LOG2E, f32)), f32)), ("delta", self.values.delta)]
        gathered = [self.gather(name, Op("neg", (value,), f32), start) for name, value in taken_off]
        read = [(value, self.gather("of_other", value, start)) for value in self.values.of_others(self.rows, self.other)]
        gathered += [made for _, made in read]
        kept = self.side.kept[1].buffer.dtype
        shape = (ix(size // tiles.SPAN), ix(self.high), ix(tiles.SPAN))
        strides = (ix(self.high * tiles.SPAN), ix(tiles.SPAN), ix(1))
        slopes = Buffer(fresh("slopes", self.taken), kept, shape, strides, "shared")
        sums = [self.local("sums", self.each, "add").buffer for _ in tiles_of]
        across = self.local("across", self.wide // 2, "add").buffer
        allocs = [*(Alloc(b) for b in tiles_of), *(Alloc(b) for b, _ in gathered), Alloc(slopes)]
        memory = [*allocs, *(Alloc(b, "add") for b in (*sums, across))]
        body: list[Stmt] = [*fills, *(g for _, g in gathered)]
        body += [self.first(n, sums[n], tiles_of[n]) for n in range(2)]
        known = [(value, buffer) for value, (buffer, _) in read]
        near = gathered[0][0], gathered[1][0]
        where = start, masked, self.tail, self.partial
        work = RelayWork(self, self.values, (sums[0], sums[1]), near, known, *where, self.way.apart)
        body += [*work.loops(), *self.rounded(sums), self.spread(self.held[1].buffer, slopes)]
        for mix, mixed, which in zip(self.side.mixes, self.mixed, self.tile_of, strict=True):
            body.append(self.second(mixed.buffer, self.held[mix.kept].buffer, tiles_of[which]))
        body += [self.third(across, slopes), self.adds(across, number)]
        if self.values.seen is not None:
            body = [If(Substitution({**self.at, self.other: start}).expr(self.values.seen), tuple(body))]
        return For(turn, (*memory, *body), Kind("pipeline", self.step.stages))

    def gather(self, name: str, value: Expr, start: Index) -> tuple[Buffer, For]:
        """What a row of others has, for those of a turn; 0 is loaded beyond the last."""
        t = self.axis("t", self.step.others)
        buffer = Buffer(fresh(name, self.taken), value.dtype, (t.extent,), (ix(1),), "shared")
        there = Substitution({**self.at, self.other: start + t})
        value = with_mask(there.expr(value), less(start + t, self.other.extent), {})
        return buffer, self.threaded(t, (Store(buffer, (ix(t),), value),))

    def taken_out(self, mix: Mix, mixed: Buffer) -> For:
        """The loop over strips that the engine stores, or over threads that store where it cannot."""
        width = constant(mix.columns.extent) or 0
        strip = self.axis("c", -(-width // tiles.SPAN))
        drains = [(s, self.drain(s, strip, mix.columns)) for s in mix.body if isinstance(s, Store)]
        found = {id(s): made for s, made in drains if made is not None}
        if not self.way.strips or width % tiles.SPAN or len(found) < len(drains):
            return self.result(mix, mixed)
        t, piece = self.axis("t", self.threads), self.axis("j", tiles.SPAN // PIECE)
        v, h = self.axis("v", 2), self.axis("h", 2)
        row, within = tiles.row(ix(t), ix(h) * 2), tiles.column(ix(t), ix(piece) * 4 + v)
        number = (ix(strip) * (tiles.SPAN // PIECE) + piece) * 4 + ix(h) * 2 + v
        column = ix(strip) * tiles.SPAN + within
        there = Substitution({**self.at, self.rows: self.at[self.rows] + row, mix.columns: column})
        there.rename(mix.total.name, Load(mixed, (ix(t), number)))
        group = floordiv(ix(t), ix(tiles.GROUP))
        inside: list[Stmt] = []
        for new, old in zip(renewed(there, mix.body, self.taken), mix.body, strict=True):
            if isinstance(new, Store):
                new = Store(found[id(old)][0], (group, row - group * tiles.GROUP_ROWS, within), new.value)
            inside.append(new)
        work = self.threaded(t, (For(h, (For(piece, (For(v, tuple(inside), PAIR),), UNROLL),), UNROLL),))
        allocs, stores = [Alloc(b) for b, _ in found.values()], [d for _, d in found.values()]
        turns = self.way.strips if (constant(strip.extent) or 1) % self.way.strips == 0 else 1
        return For(strip, (*allocs, work, *stores), Kind("pipeline", turns))

    # ------------------------------------------------------------ what threads do

    def spread(self, held: Buffer, slopes: Buffer) -> For:
        t, n = self.axis("t", self.threads), self.axis("n", self.each)
        where = tiles.place(slopes, tiles.column(ix(t), ix(n)), tiles.row(ix(t), ix(n)))
        return self.threaded(t, (For(n, (Store(slopes, where, Load(held, (ix(t), ix(n)))),), Kind("instr", 0, SPREAD)),))

    def third(self, across: Buffer, slopes: Buffer) -> For:
        t, r, i = self.axis("t", self.threads), self.axis("r", self.wide // 2), self.axis("i", self.high)
        row, column = tiles.row(ix(t), ix(r)), tiles.column(ix(t), ix(r))
        if self.split:
            row = tiles.row(mod(ix(t), ix(tiles.GROUP)), ix(r))
            column = column + floordiv(ix(t), ix(tiles.GROUP)) * self.wide
        left, right = (Load(b, tiles.place(b, p, ix(i))) for b, p in ((slopes, row), (self.resident[0], column)))
        return self.instruction(t, r, i, across, left, right)

    def adds(self, across: Buffer, number: Index) -> For:
        t, piece, v = self.axis("t", self.threads), self.axis("j", self.wide // PIECE), self.axis("v", 4)
        store = self.across.body[0]
        assert isinstance(store, Store)
        group, thread = floordiv(ix(t), ix(tiles.GROUP)), mod(ix(t), ix(tiles.GROUP))
        pieces = self.wide // PIECE
        tile, strip = (number, group * pieces + piece) if self.split else (number * GROUPS + group, ix(piece))
        place = ((tile * (self.spans[0] * (tiles.SPAN // PIECE)) + strip) * tiles.GROUP + thread) * 4 + v
        index = Substitution(self.at).index(self.matrix) + place
        add = Store(store.buffer, (index,), Load(across, (ix(t), ix(piece) * 4 + v)), None, "add")
        return self.threaded(t, (For(piece, (For(v, (add,), FOUR),), UNROLL),))
