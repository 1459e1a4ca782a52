"""The primitive ``Depthwise``: a convolution that sums over taps alone, by blocks of places of the output.

    for c { for h in 56 { for w in 56 {
      acc s = add; for i in 3 { for j in 3 { s add= product(x[…], weight[c, i, j]) } }; out[…] = f(s)
    } } }
      →  for g in … parallel {                                     # each block: one channel, so many rows
           alloc seen: f32[30*64]; copies of rows of x, zeros where x ends
           for h_o in 7 { for w in 56 vector(16) {
             acc s0, s1, s2, s3 = add                              # rows below one another: what is read serves several
             x0 = seen[…]; s0 add= product(x0, w00); x1 = seen[…]; s0 add= product(x1, w10); s1 add= product(x1, w00); …
             out[…] = f(s0); …
           } } }

What is copied how is in ``seen.py``.  Lanes go along a dimension of places, as above, or
along another axis that results lie along (channels): then the copy has all channels of the block at each place, and the loop over
lanes is outside of those over places, as weights are vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from lowc.errors import ScheduleError
from lowc.ir.index import ONE, Axis, Index, constant, floordiv, ix
from lowc.ir.nodes import Acc, Alloc, Buffer, Expr, For, Kind, Let, Load, Op, Stmt, Store, Update, Var
from lowc.ir.walk import Substitution
from lowc.scheduler.convolution import Convolution, Window
from lowc.scheduler.nest import nested, numel
from lowc.scheduler.rename import fresh, renewed
from lowc.scheduler.seen import Seen, convolution

UNROLLED = 30  # taps up to which all are unrolled; of more, those along one dimension


@dataclass(frozen=True, slots=True)
class Depthwise:
    """``axis``: the outermost loop.  A block has ``tile[i]`` places of each axis named there (0: all), and one of each other
    axis.  Vectors of ``lanes`` go along the axis ``along``, ``flight`` at a time; ``rows`` places along ``down`` ("": none) are
    summed at a time.  ``kind``: of the loop over blocks."""

    axis: str
    along: str
    down: str
    tile: tuple[tuple[str, int], ...]
    rows: int
    lanes: int
    flight: int
    kind: Kind


def depthwise(loop: For, step: Depthwise, taken: set[str]) -> tuple[Stmt, ...]:
    """``loop`` by blocks; raises ScheduleError where it is no such convolution."""
    found = convolution(loop, step.kind)
    if found.depth:
        raise ScheduleError(f"the loop over {step.axis} sums over more than taps")
    names = {f.axis.name for f in found.outer}
    if step.along not in names or step.down not in names | {""} or step.along == step.down:
        raise ScheduleError(f"lanes along {step.along}, rows along {step.down}")
    blocks = _Blocks(found, step, taken)
    return blocks.seen.grid(step.kind, blocks.block)


class _Blocks:
    """``first``: the first place of the block, ``count`` how many it has, by axis; ``at``: the place at hand."""

    def __init__(self, found: Convolution, step: Depthwise, taken: set[str]) -> None:
        self.found, self.step, self.taken = found, step, taken
        self.axes = [f.axis for f in found.outer]
        self.along = next(a for a in self.axes if a.name == step.along)
        self.down = next((a for a in self.axes if a.name == step.down), None)
        self.windows = {w.place: w for w in found.windows}
        self.lane = self.windows.get(self.along)
        self.sizes = {a: self.size(a, dict(step.tile)) for a in self.axes}
        self.dtype = found.data.dtype
        self.weights: dict[tuple[int, ...], Expr] = {}
        self.rolled = prod(constant(w.tap.extent) or 0 for w in found.windows) > UNROLLED
        over = 0 if self.lane is None else step.lanes + ((constant(self.lane.tap.extent) or 0) - 1) * self.lane.gap
        self.seen = Seen(found, self.sizes, self.along, step.lanes, True, over, taken)
        self.first, self.count, self.at = self.seen.first, self.seen.count, self.seen.at
        self.channel = ix(0)

    def size(self, axis: Axis, tile: dict[str, int]) -> int:
        """Places along ``axis`` that a block has at most."""
        known = constant(axis.extent)
        wanted = tile.get(axis.name, 1)
        if axis in self.windows or axis == self.along or wanted != 1:
            if wanted == 0:
                wanted = known or 0
            if wanted < 1:
                raise ScheduleError(f"a block has {wanted} places along {axis.name}")
        return wanted

    def axis(self, name: str, extent: int | Index) -> Axis:
        return Axis(fresh(name, self.taken), ix(extent))

    # ------------------------------------------------------------ blocks

    def block(self) -> tuple[Stmt, ...]:
        if self.lane is not None:
            return (*self.kept_weights(), *self.seen.copied(), *self.places())
        copy = self.seen.copied()
        lane = self.axis(self.along.name, self.count[self.along])
        self.at[self.along], self.channel = self.first[self.along] + lane, ix(lane)
        return (*copy, For(lane, (*self.kept_weights(), *self.places()), Kind("vector", self.step.lanes)))

    # ------------------------------------------------------------ weights

    def kept_weights(self) -> tuple[Stmt, ...]:
        """Names for the weights of this block; in an array where loops over taps read them."""
        taps = [w.tap for w in self.found.windows]
        there = Substitution(self.at)
        if self.rolled:
            own = [self.axis(t.name, t.extent) for t in taps]
            self.array = Buffer(
                fresh("weights", self.taken), self.dtype, (numel([t.extent for t in taps]),), (ONE,), "local"
            )
            for tap, axis in zip(taps, own, strict=True):
                there.atoms[tap] = ix(axis)
            store = Store(self.array, (self.number(dict(zip(taps, map(ix, own), strict=True))),), there.expr(self.found.weight))
            return (Alloc(self.array), *nested(own, (store,)))
        out: list[Stmt] = []
        for places in product(*(range(constant(t.extent) or 0) for t in taps)):
            there = Substitution({**self.at, **{t: ix(n) for t, n in zip(taps, places, strict=True)}})
            var = Var(fresh("weight", self.taken), self.dtype)
            out.append(Let(var, there.expr(self.found.weight)))
            self.weights[places] = var
        return tuple(out)

    def number(self, taps: dict[Axis, Index]) -> Index:
        total = ix(0)
        for window in self.found.windows:
            total = total * window.tap.extent + taps[window.tap]
        return total

    def weight(self, taps: dict[Axis, Index]) -> Expr:
        if self.rolled:
            return Load(self.array, (self.number(taps),))
        return self.weights[tuple([constant(taps[w.tap]) or 0 for w in self.found.windows])]

    # ------------------------------------------------------------ the output

    def places(self) -> tuple[Stmt, ...]:
        """Loops over the places of the block."""
        inner = [a for a in self.axes if self.sizes[a] > 1 and a not in (self.along, self.down)]
        own = {a: self.axis(a.name, self.count[a]) for a in inner}
        for a in inner:
            self.at[a] = self.first[a] + own[a]
        local = {a: ix(own[a]) if a in own else ix(0) for a in self.axes}
        return nested(list(own.values()), self.rows_of(local))

    def rows_of(self, local: dict[Axis, Index]) -> tuple[Stmt, ...]:
        if self.down is None:
            return self.strip(local, 1)
        count, rows = self.count[self.down], self.step.rows
        known, out = constant(count), list[Stmt]()
        blocks = floordiv(count, ix(rows))
        if constant(blocks) != 0:
            block = self.axis(f"{self.down.name}_o", blocks)
            out.append(For(block, self.strip({**local, self.down: ix(block) * rows}, rows)))
        if known is not None and known % rows:
            out += self.strip({**local, self.down: blocks * rows}, known % rows)
        elif known is None:
            left = self.axis(f"{self.down.name}_l", count - blocks * rows)
            out.append(For(left, self.strip({**local, self.down: blocks * rows + left}, 1)))
        return tuple(out)

    def strip(self, local: dict[Axis, Index], rows: int) -> tuple[Stmt, ...]:
        """``rows`` places below the one at ``local``, for all lanes."""
        if self.lane is None:
            accs, sums = self.sums(local, rows)
            return (*sums, *self.results(local, accs))
        lanes, known = self.step.lanes, constant(self.count[self.along])
        if known is None or known % lanes == 0:
            return (self.vectors(local, rows, self.count[self.along]),)
        whole = known // lanes * lanes
        main = () if not whole else (self.vectors(local, rows, ix(whole)),)
        return (*main, *self.tail(local, rows, whole, known - whole))

    def vectors(self, local: dict[Axis, Index], rows: int, count: Index) -> For:
        lane = self.axis(self.along.name, count)
        self.at[self.along] = self.first[self.along] + lane
        accs, sums = self.sums({**local, self.along: ix(lane)}, rows)
        return For(lane, (*sums, *self.results(local, accs)), Kind("vector", self.step.lanes, "", self.step.flight))

    def tail(self, local: dict[Axis, Index], rows: int, whole: int, count: int) -> tuple[Stmt, ...]:
        """The last lanes of a row: sums of a whole vector, which need no mask as the copy has room, and what is made of some."""
        lanes = self.step.lanes
        part = Buffer(fresh("part", self.taken), self.dtype, (ix(rows * lanes),), (ONE,), "local")
        lane = self.axis(self.along.name, lanes)
        accs, sums = self.sums({**local, self.along: whole + ix(lane)}, rows)
        kept = [Store(part, (n * lanes + ix(lane),), acc) for n, acc in enumerate(accs)]
        own = self.axis(self.along.name, count)
        self.at[self.along] = self.first[self.along] + whole + own
        results = self.results(local, [Load(part, (n * lanes + ix(own),)) for n in range(rows)])
        kind = Kind("vector", lanes)
        return (Alloc(part), For(lane, (*sums, *kept), kind), For(own, tuple(results), kind))

    def sums(self, local: dict[Axis, Index], rows: int) -> tuple[list[Var], list[Stmt]]:
        total = self.found.total
        accs = [Var(fresh(f"{total.name}_{n}", self.taken), total.dtype) for n in range(rows)]
        body: list[Stmt] = [Acc((a,), "add") for a in accs]
        window = None if self.down is None else self.windows.get(self.down)
        others = [w for w in self.found.windows if w is not window]
        looped = [w for w in others if self.rolled and not (w is self.lane and w.step > 1)]
        unrolled = [w for w in others if w not in looped]
        own = {w.tap: self.axis(w.tap.name, w.tap.extent) for w in looped}
        inner: list[Stmt] = []
        for numbers in product(*(range(constant(w.tap.extent) or 0) for w in unrolled)):
            taps = {**{t: ix(a) for t, a in own.items()}, **{w.tap: ix(n) for w, n in zip(unrolled, numbers, strict=True)}}
            inner += self.taps(local, taps, window, accs)
        return accs, [*body, *nested(list(own.values()), tuple(inner))]

    def results(self, local: dict[Axis, Index], sums: Sequence[Expr]) -> list[Stmt]:
        """What is made of the sums of rows."""
        body: list[Stmt] = []
        for number, value in enumerate(sums):
            there = Substitution(self.at)
            if self.down is not None:
                there.atoms[self.down] = self.first[self.down] + local[self.down] + number
            there.rename(self.found.total.name, value)
            body += renewed(there, self.found.rest, self.taken)
        return body

    def taps(
        self, local: dict[Axis, Index], taps: dict[Axis, Index], window: Window | None, accs: Sequence[Var]
    ) -> list[Stmt]:
        """Products of all taps of ``window``, and of one tap of each other, with what the rows see."""
        out: list[Stmt] = []
        named: dict[int, Var] = {}

        def seen(offset: int) -> Var:
            if offset not in named:
                named[offset] = Var(fresh("x", self.taken), self.dtype)
                out.append(Let(named[offset], Load(self.seen.memory, (self.place(local, taps, window, offset),))))
            return named[offset]

        def add(row: int, offset: int, weight: Expr) -> None:
            value = Op("product", (seen(offset), weight), self.dtype)
            out.append(Update((accs[row],), "add", (value,)))

        if window is None:
            # rows that share no input: they lie along no window
            if len(accs) > 1:
                raise ScheduleError(f"rows along {self.step.down} see nothing in common")
            add(0, 0, self.weight(taps))
            return out
        for tap in range(constant(window.tap.extent) or 0):
            weight = self.weight({**taps, window.tap: ix(tap)})
            if self.rolled:
                var = Var(fresh("weight", self.taken), self.dtype)
                out.append(Let(var, weight))
                weight = var
            for row in range(len(accs)):
                add(row, row * window.step + tap * window.gap, weight)
        return out

    def place(self, local: dict[Axis, Index], taps: dict[Axis, Index], down: Window | None, offset: int) -> Index:
        """Where in the copy the input is for taps, and ``offset`` below the first row's first."""
        shift = {w: ix(offset) if w is down else taps[w.tap] * w.gap for w in self.found.windows}
        return self.seen.place(local, shift, self.channel if self.lane is None else local[self.along])
