"""The primitive ``Direct``: a convolution that sums over channels and taps, as products of tiles of registers.

    for o { for h in 56 { for w in 56 {
      acc s = add; for c in 64 { for i in 3 { for j in 3 { s add= product(x[…], weight[o, c, i, j]) } } }; out[…] = f(s)
    } } }
      →  for g in … parallel {                                  # each block: so many rows of one image
           alloc seen: f32[64*10*58]; copies of rows of x, zeros where x ends
           for o_t in 8 {                                       # eight channels of the output
             alloc sums: f32[8*480]                             # [channel][row*58 + column]
             for p_t in 10 {
               alloc tile: f32[384] @local = add
               for c in 64 { for i in 3 { for j in 3 {
                 line = seen[c*580 + i*58 + j + p_t*48 …]       # 48 places: three vectors
                 for o in 8 unroll { tile[o*48 + p] add= product(weight[…], line[p]) }
               } } }
               sums[…] = tile[…]
             }
             for o { for h { for w vector { out[…] = f(sums[o*480 + h*58 + w]) } } }
           } }

Lanes go along all rows of the block as they lie in the copy, what is between two of them included: so vectors are full whatever
the width, and each tap is the same copy, shifted.  Results lie along rows, so that nothing is transposed.  Sums of many channels
are of slices of them, which are then added up.  Weights are read where they lie, one for all lanes; those that are no plain
numbers of the sum's type, or too few for whole tiles, are copied first, a slice at a time.
"""

from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir.index import ONE, Axis, Index, constant, ix, minimum, multiple_of
from lowc.ir.nodes import Alloc, Buffer, Expr, For, Kind, Let, Load, Op, Stmt, Store, Var
from lowc.ir.walk import Substitution, free_atoms
from lowc.scheduler.convolution import Convolution
from lowc.scheduler.nest import nested, numel
from lowc.scheduler.rename import fresh, renewed
from lowc.scheduler.seen import Seen, convolution
from lowc.scheduler.tiles import STACK


@dataclass(frozen=True, slots=True)
class Direct:
    """``axis``: the outermost loop.  Lanes go along ``along``, of which a block has ``wide`` places (all, if there is a window
    along it), and ``high`` places of ``down`` ("": there is no such axis).  It makes ``channels[1]`` of the axis
    ``channels[0]``.  ``tile``: channels and places of which sums are in registers; ``deep``: channels of the input in a slice.
    ``kind``: of the loop over blocks."""

    axis: str
    along: str
    wide: int
    down: str
    high: int
    channels: tuple[str, int]
    tile: tuple[int, int]
    deep: int
    lanes: int
    kind: Kind


def direct(loop: For, step: Direct, taken: set[str]) -> tuple[Stmt, ...]:
    """``loop`` by blocks; raises ScheduleError where it is no such convolution."""
    found = convolution(loop, step.kind)
    if len(found.depth) != 1:
        raise ScheduleError(f"the loop over {step.axis} sums over {len(found.depth)} axes besides taps")
    blocks = _Blocks(found, step, taken)
    return blocks.seen.grid(step.kind, blocks.block)


class _Blocks:
    """``wide``: places of a block, what lies between its rows and behind them included."""

    def __init__(self, found: Convolution, step: Direct, taken: set[str]) -> None:
        self.found, self.step, self.taken = found, step, taken
        self.axes = [f.axis for f in found.outer]
        named = {a.name: a for a in self.axes}
        windows = {w.place: w for w in found.windows}
        along, channels = named.get(step.along), named.get(step.channels[0])
        whole = along is not None and constant(along.extent) == step.wide
        if along is None or channels is None or not (whole or along not in windows) or step.wide < 1:
            raise ScheduleError(f"lanes along {step.along}, channels along {step.channels[0]}")
        if channels in free_atoms(found.data) or step.tile[1] % step.lanes or step.channels[1] % step.tile[0]:
            raise ScheduleError(f"blocks of {step.channels[1]} along {step.channels[0]} in tiles of {step.tile}")
        self.along, self.channels, self.down = along, channels, named.get(step.down)
        if any(w.place not in (self.along, self.down) for w in found.windows):
            raise ScheduleError("the input is seen through a window along another axis")
        (self.depth,) = found.depth
        sizes = dict.fromkeys(self.axes, 1) | {along: step.wide, channels: step.channels[1]}
        if self.down is not None:
            sizes[self.down] = step.high
        self.sizes = sizes
        probe = Seen(found, sizes, along, step.lanes, False, 0, set(taken))
        rows = 1 if self.down is None else step.high
        self.pitch = probe.pitch
        used = (rows - 1) * self.pitch + sizes[along]
        self.wide = -(-used // step.tile[1]) * step.tile[1]
        self.seen = Seen(found, sizes, along, step.lanes, False, self.wide - used + step.lanes, taken)
        self.first, self.count, self.at = self.seen.first, self.seen.count, self.seen.at
        self.dtype = found.data.dtype
        taps = numel([w.tap.extent for w in found.windows])
        self.taps = constant(taps) or 0
        plain = isinstance(found.weight, Load) and found.weight.mask is None
        self.direct = plain and multiple_of(channels.extent, step.tile[0])
        self.weights = self.array("weights", step.tile[0] * step.deep * self.taps)
        self.sums = self.array("sums", step.tile[0] * self.wide)
        scratch = (self.seen.memory, self.sums, *(() if self.direct else (self.weights,)))
        if sum(constant(b.shape[0]) or 0 for b in scratch) * self.dtype.bytes > STACK:
            raise ScheduleError("a block takes more than a stack")

    def axis(self, name: str, extent: int | Index) -> Axis:
        return Axis(fresh(name, self.taken), ix(extent))

    def array(self, name: str, count: int) -> Buffer:
        return Buffer(fresh(name, self.taken), self.dtype, (ix(count),), (ONE,), "local")

    # ------------------------------------------------------------ blocks

    def block(self) -> tuple[Stmt, ...]:
        return (*self.seen.copied(), *self.all_channels())

    def all_channels(self) -> tuple[Stmt, ...]:
        high, wide = self.step.tile
        count = self.count[self.channels]
        tile = self.axis(f"{self.channels.name}_t", (count + (high - 1)) // high)
        first = self.first[self.channels] + ix(tile) * high
        left = ix(high) if multiple_of(self.channels.extent, high) else minimum(high, self.channels.extent - first)
        sliced = self.step.deep < (constant(self.depth.extent) or 0)
        places = self.axis("p_t", self.wide // wide)

        def each(start: Index, deep: Index) -> tuple[Stmt, ...]:
            body = self.tile(first, start, deep, ix(places) * wide, sliced)
            loop = (For(places, body),) if self.wide > wide else Substitution({places: ix(0)}).body(body)
            return (*self.copied_weights(first, left, start, deep), *loop)

        if sliced:
            part = self.axis(f"{self.depth.name}_t", (self.depth.extent + (self.step.deep - 1)) // self.step.deep)
            start = ix(part) * self.step.deep
            even = multiple_of(self.depth.extent, self.step.deep)
            deep = ix(self.step.deep) if even else minimum(self.step.deep, self.depth.extent - start)
            sums: tuple[Stmt, ...] = (For(part, each(start, deep)),)
        else:
            sums = each(ix(0), self.depth.extent)
        return (For(tile, (Alloc(self.sums, "add" if sliced else ""), *sums, *self.results(first, left))),)

    # ------------------------------------------------------------ weights

    def copied_weights(self, first: Index, left: Index, start: Index, deep: Index) -> tuple[Stmt, ...]:
        """The weights of a slice, [channel of the output][channel of the input][taps]; none where they are read as they lie."""
        if self.direct:
            return ()
        channel, depth = self.axis(self.channels.name, left), self.axis(self.depth.name, deep)
        taps = {w.tap: self.axis(w.tap.name, w.tap.extent) for w in self.found.windows}
        there = Substitution({**self.at, self.channels: first + channel, self.depth: start + depth})
        there.atoms.update((t, ix(a)) for t, a in taps.items())
        place = self.weight_place(ix(channel), ix(depth), {t: ix(a) for t, a in taps.items()})
        store = Store(self.weights, (place,), there.expr(self.found.weight))
        return (Alloc(self.weights, "add"), *nested([channel, depth, *taps.values()], (store,)))

    def weight_place(self, channel: Index, depth: Index, taps: dict[Axis, Index]) -> Index:
        at = channel * self.step.deep + depth
        for window in self.found.windows:
            at = at * window.tap.extent + taps[window.tap]
        return at

    def weight(self, first: Index, row: Index, start: Index, depth: Index, taps: dict[Axis, Index]) -> Expr:
        if not self.direct:
            return Load(self.weights, (self.weight_place(row, depth, taps),))
        there = Substitution({**self.at, self.channels: first + row, self.depth: start + depth})
        there.atoms.update(taps.items())
        return there.expr(self.found.weight)

    # ------------------------------------------------------------ sums

    def tile(self, first: Index, start: Index, deep: Index, place: Index, sliced: bool) -> tuple[Stmt, ...]:
        """The sums of a tile over a slice; they go to ``sums``."""
        high, wide = self.step.tile
        vectors, unroll = Kind("vector", self.step.lanes, "", wide // self.step.lanes), Kind("unroll", high)
        tile = self.array("tile", high * wide)
        depth = self.axis(self.depth.name, deep)
        looped = [w for w in self.found.windows if w.place != self.along or w.step == 1]
        own = {w.tap: self.axis(w.tap.name, w.tap.extent) for w in looped}
        across, down = self.axis("p", wide), self.axis("o", high)
        local = {} if self.down is None else {self.down: ix(0)}
        body: list[Stmt] = []
        # which of its phases a tap sees is known once taps are
        lane = next((w.tap for w in self.found.windows if w not in looped), None)
        for number in range(1 if lane is None else constant(lane.extent) or 0):
            taps = {t: ix(a) for t, a in own.items()}
            if lane is not None:
                taps[lane] = ix(number)
            line = self.array("line", wide)
            filled, column, each = self.axis("p", wide), self.axis("p", wide), self.axis("o", high)
            shift = {w: taps[w.tap] * w.gap for w in self.found.windows}
            seen = (start + depth) * self.seen.plane + self.seen.place(local, shift, place + filled)
            one = Var(fresh("weight", self.taken), self.dtype)
            product = Op("product", (one, Load(line, (ix(column),))), self.dtype)
            add = Store(tile, (ix(each) * wide + column,), product, None, "add")
            weight = self.weight(first, ix(each), start, ix(depth), taps)
            body += [
                Alloc(line),
                For(filled, (Store(line, (ix(filled),), Load(self.seen.memory, (seen,))),), vectors),
                For(each, (Let(one, weight), For(column, (add,), vectors)), unroll),
            ]
        total = Load(tile, (ix(down) * wide + across,))
        done = Store(self.sums, (ix(down) * self.wide + place + across,), total, None, "add" if sliced else "")
        return (
            Alloc(tile, "add"),
            *nested([depth, *own.values()], tuple(body)),
            For(down, (For(across, (done,), vectors),), unroll),
        )

    def results(self, first: Index, left: Index) -> tuple[Stmt, ...]:
        """What is made of the sums."""
        channel, column = self.axis(self.channels.name, left), self.axis(self.along.name, self.count[self.along])
        at, loops = ix(channel) * self.wide + column, [channel]
        there = Substitution({**self.at, self.channels: first + channel, self.along: self.first[self.along] + column})
        if self.down is not None:
            row = self.axis(self.down.name, self.count[self.down])
            at, loops = at + ix(row) * self.pitch, [channel, row]
            there.atoms[self.down] = self.first[self.down] + row
        there.rename(self.found.total.name, Load(self.sums, (at,)))
        body = renewed(there, self.found.rest, self.taken)
        return nested(loops, (For(column, body, Kind("vector", self.step.lanes)),))
