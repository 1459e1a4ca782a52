"""The primitive ``GradientBlocks``: gradients of attention on a CPU, blocks of rows by blocks of other rows.

    for b { for near in R { weights and slopes of all others; their sums } }                     # ``attention_gradient.find``
      →  for g in … parallel {                                 # each block has so many rows, which lanes go along
           alloc rows: f32[64*64], …; copies, transposed       # [depth][rows], for both products
           alloc mixed: f32[64*64] = add, …                    # [columns][rows], for each sum
           for o in … {                                        # 64 others at a time, those that some row of the block sees
             totals = others @ rows, …                         # [others][rows], by tiles of registers; others as they lie
             totals = weights, slopes                          # in place
             mixed += others @ totals, …                       # [columns][rows]
           }
           results of mixed                                    # transposed back
         }

Rows are of queries or of keys: the form is the same.  With both nests in a kernel (``attention_gradient.whole``) rows are of
keys, the outer loop is over heads of keys, and in each turn slopes, times the rows as they lie, are added to sums of the queries,
memory of the kernel's own, in the order of the keys: five products instead of seven.

Nothing is reduced across lanes, and each number is added up by one core in one order.
"""

from collections.abc import Callable
from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir.index import (
    ONE,
    Atom,
    Axis,
    Index,
    constant,
    depends_on,
    floordiv,
    ix,
    maximum,
    minimum,
    mod,
    multiple_of,
    split,
)
from lowc.ir.nodes import Alloc, Buffer, Const, Expr, For, Kernel, Kind, Load, Op, Stmt, Store
from lowc.ir.types import DType, bool_
from lowc.ir.walk import Substitution, free_atoms, make_kernel, names, rewrite, same
from lowc.scheduler.attention_gradient import Mix, Product, Side, gradient, reads, visible
from lowc.scheduler.contraction import contiguous
from lowc.scheduler.nest import nested, numel
from lowc.scheduler.rename import coordinates, fresh, renewed
from lowc.scheduler.scratch import Scratch

Reader = Callable[[Index, Index], Expr]


@dataclass(frozen=True, slots=True)
class GradientBlocks:
    """Of the kernel's nest, or both.  A block has ``tile[1]`` rows, and ``size`` others at a time; ``tile``: others (or columns)
    and rows of which sums are in registers, ``across``: others and columns of sums over rows; in vectors of ``lanes``.  ``kind``:
    of the outermost loop."""

    size: int
    tile: tuple[int, int]
    across: tuple[int, int]
    lanes: int
    kind: Kind


def gradient_blocks(kernel: Kernel, step: GradientBlocks) -> Kernel:
    """``kernel``, one or both of the nests, by blocks; raises ScheduleError where it is none."""
    side = gradient(kernel.body)
    if side is None:
        raise ScheduleError(f"{kernel.name} is no gradient of attention")
    if any(depends_on(f.axis.extent, g.axis) for f in side.outer for g in side.outer):
        raise ScheduleError("how long a loop around is depends on another loop")
    if any(depends_on(a.extent, b) for a in side.others for b in (*side.others, *(f.axis for f in side.outer))):
        raise ScheduleError("how many others there are depends on another loop")
    mixes = [*side.mixes, *([side.across] if side.across else ())]
    if any(constant(a.extent) is None for a in (*(p.depth for p in side.products), *(m.columns for m in mixes))):
        raise ScheduleError("heads of a width that only the call tells")
    if any(wide % step.lanes for _, wide in (step.tile, step.across)) or step.size % step.tile[0] or step.size % step.across[0]:
        raise ScheduleError(f"{step.size} others in tiles of {step.tile} and {step.across}")
    taken = names(kernel.body) | {p.name for p in (*kernel.params, *kernel.sizes)}
    made = _Gradients(side, step, taken)
    return make_kernel(kernel.name, made.grid(), (*kernel.params, *made.memory))


class _Gradients(Scratch):
    """``at``: what axes of the side are; ``first``: the first row of the block; ``kept``: memory of the totals of both products,
    then of weights and slopes, [others][rows]."""

    def __init__(self, side: Side, step: GradientBlocks, taken: set[str]) -> None:
        super().__init__(side.products[0].total.dtype, step.lanes, taken)
        self.side, self.step = side, step
        self.high, self.wide = step.tile
        self.near = Axis(fresh("row", taken), ix(1)) if side.near is None else side.near.axis
        self.other = side.others[-1]
        self.ragged = not multiple_of(self.near.extent, self.wide)
        self.room = visible(side)
        self.at: dict[Atom, Index] = {}
        self.first = ix(0)
        self.panels = [self.array("rows", self.wide * self.deep(p.depth)) for p in side.products]
        self.kept = [self.array("kept", self.wide * step.size) for _ in side.products]
        self.mixed = [self.array("mixed", self.wide * self.rounded(m.columns)) for m in side.mixes]
        self.memory: list[Buffer] = []
        self.constants: dict[int, Buffer] = {}
        self.turn_copies: list[tuple[Expr, Buffer]] = []
        if side.across is not None:
            self.padded = (self.other.extent + (step.size - 1)) // step.size * step.size
            self.columns = -(-self.deep(side.across.columns) // step.across[1]) * step.across[1]
            count = numel([a.extent for a in (*side.batch, *side.others[:-1])]) * self.padded * self.columns
            self.memory.append(Buffer(fresh("sums", taken), self.dtype, (count,), (ONE,)))
            self.lines = self.array("lines", self.wide * self.columns)

    def deep(self, axis: Axis) -> int:
        return constant(axis.extent) or 0

    def rounded(self, axis: Axis) -> int:
        return -(-self.deep(axis) // self.high) * self.high

    # ------------------------------------------------------------ loops

    def grid(self) -> tuple[Stmt, ...]:
        """The loop over blocks of rows, or, where there are sums across, over heads of keys."""
        down = (self.near.extent + (self.wide - 1)) // self.wide
        batch = numel([a.extent for a in self.side.batch])
        lets: list[Stmt] = []
        if self.side.across is not None:
            number = self.axis("head", batch)
            self.at.update(coordinates(ix(number), self.side.batch, "b", self.taken, lets))
            tile = self.axis("block", down)
            start = self.zeroed()
            self.first = ix(tile) * self.wide
            blocks = For(tile, self.block())
            return self.outermost(number, (*lets, *start, blocks, *self.summed(self.side.across)))
        number = self.axis("block", batch * down)
        matrix, place = floordiv(ix(number), down), mod(ix(number), down)
        if self.room is not None:  # blocks of few others and of many take turns, so that cores have equal shares
            pair, late = floordiv(place, ix(2)), mod(place, ix(2))
            place = pair + late * (down - 1 - pair * 2)
        self.at.update(coordinates(matrix, self.side.batch, "b", self.taken, lets))
        self.first = self.named(f"{self.near.name}_b", place, lets) * self.wide
        return self.outermost(number, (*lets, *self.block()))

    def outermost(self, axis: Axis, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        if constant(axis.extent) == 1:
            return Substitution({axis: ix(0)}).body(body)
        return (For(axis, body, self.step.kind),)

    def block(self) -> tuple[Stmt, ...]:
        lines: tuple[Stmt, ...] = ()
        if self.side.across is not None:
            lines = self.near_lines(self.side.across)
        return (
            *(s for n, p in enumerate(self.side.products) for s in self.near_panel(n, p)),
            *lines,
            *self.near_constants(),
            *(Alloc(b) for b in self.kept),
            *(Alloc(b, "add") for b in self.mixed),
            *self.turns(),
            *(s for n, m in enumerate(self.side.mixes) for s in self.result(n, m)),
        )

    def turns(self) -> tuple[Stmt, ...]:
        """The loops over blocks of others, those that some row of the block sees."""
        size, extent, room = self.step.size, self.other.extent, self.room
        begin, blocks, lets = ix(0), (extent + (size - 1)) // size, list[Stmt]()
        if room is not None:
            step, _ = split(room, self.other)
            if constant(step) == 1:  # all from one on: the first that the first row sees
                least = Substitution({**self.at, self.near: self.first, self.other: ix(0)}).index(ONE - room)
                begin = self.named("begin", floordiv(maximum(least, 0), ix(size)), lets)
            else:  # all up to one: the last that the last row sees
                last = Substitution({**self.at, self.near: self.first + (self.wide - 1), self.other: ix(0)}).index(room)
                blocks = floordiv(minimum(extent, maximum(last, 0)) + (size - 1), ix(size))
        outer = [self.axis(a.name, a.extent) for a in self.side.others[:-1]]
        self.at.update({a: ix(b) for a, b in zip(self.side.others, outer, strict=False)})
        trips = self.named("turns", blocks - begin, lets)
        number = self.axis("turn", trips)
        inner: list[Stmt] = []
        start = (begin + number) * size
        if constant(extent) is not None and (constant(extent) or 0) <= size:
            start, count = ix(0), extent
        elif multiple_of(extent, size):
            count = ix(size)
        else:
            count = minimum(size, self.named("count", minimum(size, extent - start), inner))
        body = (*inner, *self.turn(start, count))
        return (*lets, *nested([*outer, number], body))

    # ------------------------------------------------------------ rows of the block

    def left(self) -> Index:
        """How many rows of the block there are."""
        if not self.ragged:
            return ix(self.wide)
        return maximum(0, minimum(self.wide, self.near.extent - self.first))

    def near_panel(self, number: int, product: Product) -> tuple[Stmt, ...]:
        d, r = self.axis("d", self.deep(product.depth)), self.axis("r", self.left())
        there = Substitution({**self.at, self.near: self.first + r, product.depth: ix(d)})
        store = Store(self.panels[number], (ix(d) * self.wide + r,), there.expr(product.near))
        return (Alloc(self.panels[number], "add" if self.ragged else ""), *self.copy(d, r, store))

    def near_lines(self, across: Mix) -> tuple[Stmt, ...]:
        r, e = self.axis("r", self.left()), self.axis("e", across.columns.extent)
        there = Substitution({**self.at, self.near: self.first + r, across.columns: ix(e)})
        store = Store(self.lines, (ix(r) * self.columns + e,), there.expr(across.factor))
        whole_lines = not self.ragged and self.columns == self.deep(across.columns)
        return (Alloc(self.lines, "" if whole_lines else "add"), *self.copy(r, e, store))

    def near_constants(self) -> tuple[Stmt, ...]:
        """Copies of what of weights and slopes depends on the row alone."""
        self.constants = {}
        out: list[Stmt] = []
        for part in self.loads():
            used = free_atoms(part)
            if self.near not in used or any(a in used for a in self.side.others):
                continue
            block = self.array("of_row", self.wide, part.dtype)
            r = self.axis("r", self.left())
            store = Store(block, (ix(r),), Substitution({**self.at, self.near: self.first + r}).expr(part))
            out += [Alloc(block, _fill(part.dtype) if self.ragged else ""), self.bound(For(r, (store,)))]
            self.constants[id(part)] = block
        return tuple(out)

    def loads(self) -> list[Load]:
        """What weights and slopes read without a mask."""
        return [load for load in reads(self.side) if load.mask is None]

    # ------------------------------------------------------------ a block of others

    def turn(self, start: Index, count: Index) -> tuple[Stmt, ...]:
        self.turn_copies = []
        out: list[Stmt] = []
        for number, product in enumerate(self.side.products):
            other, roomy = self.reader(product.other, product.depth, start, count, out)
            tiles = (count + (self.high - 1)) // self.high * self.high
            d, o, r = self.axis("d", self.deep(product.depth)), self.axis("o", tiles), self.axis("r", self.wide)
            value = Op("product", (other(ix(o), ix(d)), Load(self.panels[number], (ix(d) * self.wide + r,))), self.dtype)
            add = Store(self.kept[number], (ix(o) * self.wide + r,), value, None, "add")
            names_ = (*roomy, self.panels[number].name)
            out += self.product((d, o, r), add, self.step.tile, names_, lambda s: Store(s.buffer, s.index, s.value))
        out += self.slopes(start, count)
        for number, mix in enumerate(self.side.mixes):
            other, roomy = self.reader(mix.factor, mix.columns, start, count, out)
            kept = self.kept[self.place(mix.kept)]
            o, e, r = self.axis("o", count), self.axis("e", self.rounded(mix.columns)), self.axis("r", self.wide)
            value = Op("product", (other(ix(o), ix(e)), Load(kept, (ix(o) * self.wide + r,))), self.dtype)
            add = Store(self.mixed[number], (ix(e) * self.wide + r,), value, None, "add")
            out += self.product((o, e, r), add, self.step.tile, (*roomy, kept.name), lambda s: s)
        if self.side.across is not None:
            out += self.added(self.side.across, start, count)
        return tuple(out)

    def place(self, kept: int) -> int:
        """In which of the arrays what is kept as number ``kept`` is."""
        return kept if len(self.side.kept) > 1 else len(self.kept) - 1

    def reader(
        self, value: Expr, along: Axis, start: Index, count: Index, out: list[Stmt]
    ) -> tuple[Reader, tuple[str, ...]]:
        """(an element of ``value`` for one of the others of the block and a place ``along``, memory that tiles stay in); what is
        no plain load of what is summed is copied by ``out``, once for equal values."""
        size, extent, room = self.step.size, self.deep(along), self.rounded(along)
        if isinstance(value, Load) and value.mask is None and value.dtype == self.dtype and contiguous(value, along):

            def direct(other: Index, place: Index) -> Expr:
                if constant(count) != size:  # tiles have rows of others, which may be more than there are
                    other = minimum(other, self.other.extent - 1 - start)
                if room > extent:
                    place = minimum(place, extent - 1)
                return Substitution({**self.at, self.other: start + other, along: place}).expr(value)

            return direct, (value.buffer.name,)
        plain = Axis("along", along.extent)
        canonical = Substitution({along: ix(plain)}).expr(value)
        block = next((b for known, b in self.turn_copies if same(known, canonical)), None)
        if block is None:
            block = self.array("other", size * room)
            self.turn_copies.append((canonical, block))
            o, place = self.axis("o", count), self.axis("e", extent)
            there = Substitution({**self.at, self.other: start + o, along: ix(place)})
            copies = self.copy(o, place, Store(block, (ix(o) * room + place,), there.expr(value)))
            out += [Alloc(block, "" if constant(count) == size and room == extent else "add"), *copies]
        return (lambda o, p: Load(block, (o * room + p,))), (block.name,)

    def slopes(self, start: Index, count: Index) -> tuple[Stmt, ...]:
        """Weights and slopes, in the place of totals."""
        o = self.axis("o", count)
        turned, copies = self.turned(start, count)

        def each(r: Index) -> tuple[Stmt, ...]:
            number = self.first + r
            if self.ragged:
                number = minimum(number, self.near.extent - 1)  # nothing of the others is kept
            place = (ix(o) * self.wide + r,)
            there = Substitution({**self.at, self.near: number, self.other: start + o})
            for product, kept in zip(self.side.products, self.kept, strict=True):
                there.rename(product.total.name, Load(kept, place))
            memo: dict[int, Expr] = {key: Load(b, (r,)) for key, b in self.constants.items()}
            memo |= {key: Load(b, place) for key, b in turned.items()}
            body: list[Stmt] = []
            for stmt in self.side.lets:
                value = there.expr(rewrite(stmt.value, lambda p: p, memo))
                there.rename(stmt.var.name, self.let("value", value, body))
            values: list[Expr] = []
            for stmt in self.side.kept:
                value = there.expr(rewrite(stmt.value, lambda p: p, memo))
                value = value if value.dtype == self.dtype else Op("cast", (value,), self.dtype)
                values.append(self.let("kept_value", value, body))
            return (*body, *(Store(self.kept[self.place(n)], place, v) for n, v in enumerate(values)))

        return (*copies, For(o, (self.vectors(self.wide, each),)))

    def turned(self, start: Index, count: Index) -> tuple[dict[int, Buffer], list[Stmt]]:
        """What of weights and slopes lies along the others, as a mask may: by ``id`` of a load, [others][rows] of it; the
        copies."""
        found: dict[int, Buffer] = {}
        copies: list[Stmt] = []
        for part in self.loads():
            across, rest = split(part.index[0], self.near)
            if constant(across) in (0, 1) or constant(split(rest, self.other)[0]) != 1:
                continue
            block = self.array("bias", self.step.size * self.wide, part.dtype)
            o, r = self.axis("o", count), self.axis("r", self.left())
            there = Substitution({**self.at, self.near: self.first + r, self.other: start + o})
            copies.append(Alloc(block, _fill(part.dtype) if self.ragged else ""))
            copies += self.copy(o, r, Store(block, (ix(o) * self.wide + r,), there.expr(part)))
            found[id(part)] = block
        return found, copies

    # ------------------------------------------------------------ sums across

    def head(self) -> Index:
        """Where the sums of the head of queries begin."""
        number = ix(0)
        for axis in (*self.side.batch, *self.side.others[:-1]):
            number = number * axis.extent + self.at[axis]
        return number * (self.padded * self.columns)

    def zeroed(self) -> tuple[Stmt, ...]:
        """Sums of the queries of a head of keys, 0."""
        axes = [self.axis(a.name, a.extent) for a in self.side.others[:-1]]
        self.at.update({a: ix(b) for a, b in zip(self.side.others, axes, strict=False)})
        place = self.axis("place", self.padded * self.columns)
        zero = Store(self.memory[0], (self.head() + place,), Const(0.0, self.dtype))
        return nested(axes, (self.bound(For(place, (zero,))),))

    def added(self, across: Mix, start: Index, count: Index) -> tuple[Stmt, ...]:
        """Slopes times the rows of the block, added to the sums of the others."""
        high = self.step.across[0]
        kept, sums = self.kept[self.place(across.kept)], self.memory[0]
        within = self.array("within", self.step.size * self.columns)
        k, o = self.axis("k", self.left()), self.axis("o", (count + (high - 1)) // high * high)
        e = self.axis("e", self.columns)
        value = Op("product", (Load(kept, (ix(o) * self.wide + k,)), Load(self.lines, (ix(k) * self.columns + e,))), self.dtype)
        add = Store(within, (ix(o) * self.columns + e,), value, None, "add")
        first = self.head() + start * self.columns

        def end(done: Store) -> Store:
            place = (first + done.index[0],)
            return Store(sums, place, Op("add", (Load(sums, place), done.value), self.dtype))

        return self.product((k, o, e), add, self.step.across, (kept.name, self.lines.name), end)

    def summed(self, across: Mix) -> tuple[Stmt, ...]:
        """What is made of these sums."""
        axes = [self.axis(a.name, a.extent) for a in self.side.others]
        self.at.update({a: ix(b) for a, b in zip(self.side.others, axes, strict=True)})
        e = self.axis("e", across.columns.extent)
        there = Substitution({**self.at, across.columns: ix(e)})
        there.rename(across.total.name, Load(self.memory[0], (self.head() + self.at[self.other] * self.columns + e,)))
        body = self.bound(For(e, renewed(there, across.body, self.taken)))
        del self.at[self.other]
        return nested(axes, (body,))

    # ------------------------------------------------------------ results

    def result(self, number: int, mix: Mix) -> tuple[Stmt, ...]:
        r, e = self.axis("r", self.left()), self.axis(mix.columns.name, mix.columns.extent)
        there = Substitution({**self.at, self.near: self.first + r, mix.columns: ix(e)})
        there.rename(mix.total.name, Load(self.mixed[number], (ix(e) * self.wide + r,)))
        return self.copy(r, e, *renewed(there, mix.body, self.taken))


def _fill(dtype: DType) -> str:
    return "or" if dtype == bool_ else "add"
