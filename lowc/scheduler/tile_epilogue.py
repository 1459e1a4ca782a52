"""What is made of a tile's sums (``tensor_cores``): through strips in shared memory that the copying engine stores, or directly.

Threads have two neighbouring columns of a row each, so that what they store themselves are many short pieces of rows; strips
(``ir/outlets.py``) leave whole lines.  A store goes through a strip if its buffer, dtype and layout suit the engine; the others
stay with the threads.
"""

from collections.abc import Mapping, Sequence

from lowc.errors import ScheduleError
from lowc.ir import outlets, tiles
from lowc.ir.index import Atom, Axis, Index, constant, contiguous_strides, floordiv, ix, mod, multiple_of
from lowc.ir.nodes import Alloc, Buffer, Expr, For, FromIndex, If, Kind, Let, Load, Op, Stmt, Store
from lowc.ir.types import bool_, i64
from lowc.ir.walk import Substitution, both, with_mask
from lowc.scheduler.contraction import Contraction, innermost
from lowc.scheduler.nest import nested
from lowc.scheduler.rename import fresh, renewed

UNROLL = Kind("unroll", 64)
STRIP = 64  # columns
PART = 32  # of a strip, in which a row of f32 has 128 bytes
PIECE = 8  # columns in which each thread has two neighbours


def less(coordinate: Index, size: Index) -> Expr:
    return Op("lt", (FromIndex(coordinate, i64), FromIndex(size, i64)), bool_)


class Epilogue:
    """Of ``found``: ``at`` has where the tile begins, for each axis of it; ``tile`` its rows and columns, which ``threads`` have
    sums of; ``strips``: how many are in turn; ``shares``: of the columns, among threads that have the same rows."""

    def __init__(
        self,
        found: Contraction,
        at: Mapping[Atom, Index],
        tile: tuple[int, int],
        threads: int,
        strips: int,
        taken: set[str],
        shares: int = 1,
    ) -> None:
        assert found.rows is not None
        block = innermost(found.outer[-1].body)
        assert block is not None
        self.acc, _, self.rest = block
        self.found, self.at, self.strips, self.taken = found, at, strips, taken
        self.rows, self.columns = found.rows.axis, found.columns.axis
        self.high, self.wide = tile
        self.threads, self.at_a_time = threads, threads * tiles.GROUP_ROWS // tiles.GROUP // shares
        self.share = self.wide // shares  # columns

    def axis(self, name: str, extent: int) -> Axis:
        return Axis(fresh(name, self.taken), ix(extent))

    def nests(self, sums: Buffer) -> list[For]:
        """The loop over whole strips, or over threads where nothing goes through strips; then that of columns behind them."""
        whole, rest = divmod(self.share, STRIP)
        found = [self.whole(sums, whole)] if whole else []
        return [*found, self.work(sums, self.axis("c", 1), {}, whole * STRIP, rest)] if rest else found

    def whole(self, sums: Buffer, count: int) -> For:
        """The loop over ``count`` strips."""
        strip = self.axis("c", count)
        staged: dict[int, Buffer] = {}
        drains: list[For] = []
        for stmt in self.rest if self.strips else ():
            found = self.drain(stmt, strip) if isinstance(stmt, Store) else None
            if found is not None:
                staged[id(stmt)], nest = found
                drains.append(nest)
        if not staged:
            return self.work(sums, strip, staged)
        strips = tuple([Alloc(b) for b in staged.values()])
        turns = min(self.strips, count)
        return For(strip, (*strips, self.work(sums, strip, staged), *drains), Kind("pipeline", turns))

    def drain(self, store: Store, strip: Axis) -> tuple[Buffer, For] | None:
        """A strip, and the nest that stores it, if the engine can."""
        dtype = store.buffer.dtype
        if store.reducer or store.mask is not None or dtype.kind != "f" or dtype.bytes not in (2, 4):
            return None
        span = outlets.span(dtype)
        i, k = self.axis(self.rows.name, self.high), self.axis(self.columns.name, span)
        part = self.axis("n", STRIP // span)
        axes = (i, k) if span == STRIP else (part, i, k)
        column = ix(strip) * STRIP + k + (ix(part) * span if span < STRIP else 0)
        at = {**self.at, self.rows: self.at[self.rows] + i, self.columns: self.at[self.columns] + column}
        shape = tuple([a.extent for a in axes])
        buffer = Buffer(fresh("strip", self.taken), dtype, shape, contiguous_strides(shape), "shared")
        inside: Expr | None = None
        for loop in self.found.outer:
            inside = both(inside, less(at[loop.axis], loop.axis.extent))
        index = Substitution(at).body((Store(store.buffer, store.index, store.value),))[0]
        assert isinstance(index, Store)
        nest = nested(axes, (Store(store.buffer, index.index, Load(buffer, tuple([ix(a) for a in axes])), inside),))[0]
        assert isinstance(nest, For)
        nest = For(nest.axis, nest.body, Kind("instr", 0, tiles.TMA))
        found = outlets.drain(nest)
        return (buffer, nest) if found is not None and outlets.box(found) is not None else None

    def work(self, sums: Buffer, strip: Axis, staged: Mapping[int, Buffer], start: int = 0, count: int = STRIP) -> For:
        """What threads make of their sums, two neighbours at a time: of a ``strip`` of ``count`` columns, or of all; the first
        begins at column ``start``."""
        thread, half, lane = self.axis("t", self.threads), self.axis("h", 2), self.axis("v", 2)
        block = self.axis("q", self.high // self.at_a_time)
        each = PART if count % PART == 0 else count
        part, piece = self.axis("n", count // each), self.axis("j", each // PIECE)
        row = tiles.row(mod(ix(thread), ix(2 * self.at_a_time)), ix(half) * 2) + ix(block) * self.at_a_time
        within = ix(piece) * PIECE + tiles.column(ix(thread), ix(0))
        first = floordiv(ix(thread), ix(2 * self.at_a_time)) * self.share + ix(strip) * STRIP + start + ix(part) * PART + within
        number = ix(block) * (self.share // 2) + ix(strip) * (STRIP // 2) + start // 2
        number = number + ix(part) * (PART // 2) + ix(piece) * 4 + ix(half) * 2
        at_row, at_first = self.at[self.rows] + row, self.at[self.columns] + first
        place = Substitution({**self.at, self.rows: at_row, self.columns: at_first + lane})
        place.rename(self.acc.vars[0].name, Load(sums, (ix(thread), number + lane)))
        strips: list[Buffer | None] = [staged.get(id(s)) for s in self.rest]
        body: list[Stmt] = []
        for stmt, buffer in zip(renewed(place, self.rest, self.taken), strips, strict=True):
            if buffer is None:
                body.append(stmt)
                continue
            assert isinstance(stmt, Store)
            flat = len(buffer.shape) == 2
            where = (row, ix(part) * PART + within + lane) if flat else (ix(part), row, within + lane)
            body.append(Store(buffer, where, stmt.value))
        width = self.columns.extent
        whole, even = (constant(width) or 1) % self.wide == 0, multiple_of(width, 2)
        if not whole and not even:
            body = list(_under(body, less(at_first + lane, width)))
        inner: Stmt = For(lane, tuple(body), Kind("vector", 2))
        if not whole and even:
            inner = If(less(at_first, width), (inner,))
        inner = For(part, (For(piece, (inner,), UNROLL),), UNROLL)
        if not staged:
            inner = For(strip, (inner,), UNROLL)
        if (constant(self.rows.extent) or 1) % self.high:
            inner = If(less(at_row, self.rows.extent), (inner,))
        return For(thread, (For(block, (For(half, (inner,), UNROLL),), UNROLL),), Kind("thread", self.threads))


def _under(body: Sequence[Stmt], mask: Expr) -> tuple[Stmt, ...]:
    """``body`` where ``mask`` holds."""
    memo: dict[int, Expr] = {}
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Let):
            out.append(Let(stmt.var, with_mask(stmt.value, mask, memo)))
        else:
            if not isinstance(stmt, Store):
                raise ScheduleError("loops behind the sums of a product")
            out.append(Store(stmt.buffer, stmt.index, with_mask(stmt.value, mask, memo), both(stmt.mask, mask), stmt.reducer))
    return tuple(out)
