"""What a block of a convolution sees of its input, copied to scratch memory: zeros where the input ends, and what is a step apart
brought together, so that lanes find neighbours in memory.

    seen[c][phases][rows][columns] = x[…]        # element (h*step + phase) of a dimension is row h of that phase

Each element of the input is evaluated once (casts, and what was inlined into it), and the masks of the edges are bounds of loops.
Columns are those of the axis that lanes go along: places of the output, or another axis along which the input lies (channels).
"""

from collections.abc import Callable, Sequence

from lowc.errors import ScheduleError
from lowc.ir.index import (
    ONE,
    Atom,
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
)
from lowc.ir.nodes import Alloc, Buffer, Const, Expr, For, Kind, Load, Stmt, Store
from lowc.ir.walk import Substitution, has_check, parts, stores
from lowc.scheduler.conflict import conflict
from lowc.scheduler.convolution import Convolution, Window, bounded, find, seen_at
from lowc.scheduler.nest import nested, numel
from lowc.scheduler.rename import coordinate, coordinates, fresh
from lowc.scheduler.tiles import STACK


def convolution(loop: For, kind: Kind) -> Convolution:
    """What ``loop`` is; raises ScheduleError where that cannot be done by blocks that run in a loop of ``kind``."""
    found = find(loop)
    if found is None:
        raise ScheduleError(f"the loop over {loop.axis.name} is no convolution")
    if has_check(found.data) or has_check(found.weight):
        raise ScheduleError("a factor that is checked is evaluated where it stands")
    written = {id(s.buffer) for s in stores(found.rest)}
    if any(isinstance(p, Load) and id(p.buffer) in written for e in (found.data, found.weight) for p in parts(e)):
        raise ScheduleError("a factor is read from memory that the kernel writes")
    for each in found.outer:
        if why := conflict(each, kind):
            raise ScheduleError(f"blocks of {each.axis.name} meet: {why}")
    return found


class Seen:
    """``sizes``: places of a block, by axis; ``along``: what lanes go along.  ``even``: rows are whole vectors.

    The block at hand, as ``grid`` sets it: ``first``, its first place, and ``count``, how many it has, by axis; ``at`` has the
    places of other axes.  ``over``: elements behind all rows, which vectors may reach.
    """

    def __init__(
        self, found: Convolution, sizes: dict[Axis, int], along: Axis, lanes: int, even: bool, over: int, taken: set[str]
    ) -> None:
        self.found, self.sizes, self.along, self.lanes, self.taken = found, sizes, along, lanes, taken
        self.lane = next((w for w in found.windows if w.place == along), None)
        self.windows = [w for w in found.windows if w is not self.lane]
        wide = sizes[along] if self.lane is None else self.rows(self.lane)
        self.pitch = -(-wide // lanes) * lanes if even else wide
        self.phases = 1 if self.lane is None else self.lane.step
        self.plane = self.phases * self.pitch
        for window in self.windows:
            self.phases *= window.step
            self.plane *= window.step * self.rows(window)
        self.dtype = found.data.dtype
        total = self.plane + over
        for axis in found.depth:
            total += self.plane * ((constant(axis.extent) or 0) - 1)
        if total * self.dtype.bytes > STACK:
            raise ScheduleError(f"a block sees {total} elements")
        self.over = over
        self.memory = Buffer(fresh("seen", taken), self.dtype, (ix(total),), (ONE,), "local")
        steps = 1 if self.lane is None else self.lane.step
        self.row = Buffer(fresh("row", taken), self.dtype, (ix(steps * (self.pitch + lanes)),), (ONE,), "local")
        self.first: dict[Axis, Index] = {}
        self.count: dict[Axis, Index] = {}
        self.at: dict[Atom, Index] = {}
        self.names = {w: Opaque(w.place.name) for w in found.windows}
        self.input = seen_at(found.data, {w: ix(n) for w, n in self.names.items()})
        self.limits: dict[Window, tuple[Index | None, Index | None]] = {}
        # a bound holds for the whole copy, so that what else moves in it can be in none
        moving: set[Atom] = {*self.names.values(), *found.depth, *(() if self.lane else (along,))}
        for window, name in self.names.items():
            low, high, self.input = bounded(self.input, name, moving - {name})
            self.limits[window] = low, high

    def grid(self, kind: Kind, body: Callable[[], Sequence[Stmt]]) -> tuple[Stmt, ...]:
        """A loop of ``kind`` over the blocks, each of which does ``body``."""
        axes = [f.axis for f in self.found.outer]
        tiles = [Axis(fresh(f"{a.name}_t", self.taken), (a.extent + (self.sizes[a] - 1)) // self.sizes[a]) for a in axes]
        number = Axis(fresh("block", self.taken), numel([t.extent for t in tiles]))
        lets: list[Stmt] = []
        where = coordinates(ix(number), tiles, "b", self.taken, lets)
        for axis, tile in zip(axes, tiles, strict=True):
            size, place = self.sizes[axis], ix(0) if constant(tile.extent) == 1 else where[tile]
            self.first[axis] = self.at[axis] = place * size
            even = multiple_of(axis.extent, size)
            self.count[axis] = ix(size) if even else minimum(size, axis.extent - self.first[axis])
        block = (*lets, *body())
        return Substitution({number: ix(0)}).body(block) if constant(number.extent) == 1 else (For(number, block, kind),)

    def rows(self, window: Window) -> int:
        """Rows of a phase, for all places of a block."""
        return self.sizes[window.place] + (_taps(window) - 1) * window.gap // window.step

    def place(self, local: dict[Axis, Index], shift: dict[Window, Index], column: Index) -> Index:
        """Where the element is that places ``local`` of the block see by shifts of the windows, in the plane of a channel."""
        phase, row = ix(0), ix(0)
        for window in self.windows:
            phase = phase * window.step + mod(shift[window], ix(window.step))
            row = row * self.rows(window) + local[window.place] + floordiv(shift[window], ix(window.step))
        if self.lane is not None:
            phase = phase * self.lane.step + mod(shift[self.lane], ix(self.lane.step))
            column = column + floordiv(shift[self.lane], ix(self.lane.step))
        return phase * (self.plane // self.phases) + row * self.pitch + column

    # ------------------------------------------------------------ the copy

    def copied(self) -> tuple[Stmt, ...]:
        """The memory, filled for the block at hand."""
        row = (Alloc(self.row, "add"),) if self.lane is not None and self.lane.step > 1 else ()
        end = self.zeros(self.memory.shape[0] - self.over, ix(self.over))
        channels = [Axis(fresh(a.name, self.taken), a.extent) for a in self.found.depth]
        start = ix(0)
        for axis, own in zip(self.found.depth, channels, strict=True):
            self.at[axis] = ix(own)
            start = start * axis.extent + own
        copies = nested(channels, self.filled(0, start * self.plane, ix(0), ix(0), {}))
        for axis in self.found.depth:
            del self.at[axis]
        return (*row, Alloc(self.memory), *end, *copies)

    def filled(self, depth: int, start: Index, phase: Index, row: Index, where: dict[Window, Index]) -> tuple[Stmt, ...]:
        """Loops over the rows of windows from number ``depth`` on; ``where`` has the places of the input along those before."""
        if depth == len(self.windows):
            return self.columns(start, phase, row, where)
        window = self.windows[depth]
        below = self.pitch
        for other in self.windows[depth + 1 :]:
            below *= self.rows(other)
        later = self.lane.step if self.lane is not None else 1
        for other in self.windows[depth + 1 :]:
            later *= other.step
        size, rows = self.plane // self.phases, self.rows(window)
        out: list[Stmt] = []
        for number in _phases(window):
            at_phase = phase + number * later
            used = self.count[window.place] + ((_taps(window) - 1) * window.gap - number) // window.step
            low, high = self.bounds(window, window.step, number, used, out)
            starts = [start + (at_phase + n) * size + row * (below * rows) for n in range(later)]
            out += [s for first in starts for s in self.zeros(first, low * below)]
            inside = Axis(fresh(f"{window.place.name}_r", self.taken), high - low)
            seen = self.origin(window) + (low + inside) * window.step + number
            body = self.filled(depth + 1, start, at_phase, row * rows + low + inside, {**where, window: seen})
            out.append(For(inside, body))
            out += [s for first in starts for s in self.zeros(first + high * below, (rows - high) * below)]
        return tuple(out)

    def origin(self, window: Window) -> Index:
        return self.first[window.place] * window.step

    def bounds(
        self, window: Window, step: int, phase: int, count: Index, out: list[Stmt]
    ) -> tuple[Index, Index]:
        """(first, behind the last) of ``count`` elements, ``step`` apart from ``phase`` on, where the input is no 0 by a mask."""
        low, high = self.limits[window]
        there, origin = Substitution(self.at), self.origin(window)

        def number(limit: Index) -> Index:
            return floordiv(there.index(limit) - origin - phase + (step - 1), ix(step))

        first = ix(0) if low is None else maximum(0, minimum(number(low), count))
        last = count if high is None else minimum(count, maximum(number(high), first))
        return coordinate("low", first, self.taken, out), coordinate("high", last, self.taken, out)

    def value(self, where: dict[Window, Index]) -> Expr:
        """The input at these places, where the masks that are bounds are known to hold: loops go over nothing else."""
        return Substitution({**self.at, **{self.names[w]: place for w, place in where.items()}}).expr(self.input)

    def zeros(self, first: Index, count: Index) -> tuple[Stmt, ...]:
        """Zeros where the input ends; and where vectors see what is nobody's, which could be numbers that are slow to use."""
        known = constant(count)
        if known == 0:
            return ()
        place = Axis(fresh("z", self.taken), count)
        kind = Kind() if known is not None and known < self.lanes else Kind("vector", self.lanes)
        return (For(place, (Store(self.memory, (first + place,), Const(0.0, self.dtype)),), kind),)

    def columns(self, start: Index, phase: Index, row: Index, where: dict[Window, Index]) -> tuple[Stmt, ...]:
        """One row of the copy, in all phases of lanes."""
        vector = Kind("vector", self.lanes)
        begin = start + phase * (self.plane // self.phases) + row * self.pitch
        if self.lane is None:
            channel = Axis(fresh(self.along.name, self.taken), self.count[self.along])
            self.at[self.along] = self.first[self.along] + channel
            store = Store(self.memory, (begin + channel,), self.value(where))
            del self.at[self.along]
            count = self.count[self.along]
            return (For(channel, (store,), vector), *self.zeros(begin + count, self.pitch - count))
        lane, out = self.lane, list[Stmt]()
        used = (self.count[self.along] - 1) * lane.step + (_taps(lane) - 1) * lane.gap + 1
        low, high = self.bounds(lane, 1, 0, used, out)
        inside = Axis(fresh(self.along.name, self.taken), high - low)
        value = self.value({**where, lane: self.origin(lane) + low + inside})
        if lane.step == 1:
            copy = For(inside, (Store(self.memory, (begin + low + inside,), value),), vector)
            known = constant(high)
            if known is not None and max(0, self.pitch - self.lanes) <= known < self.pitch and self.pitch >= self.lanes:
                # one vector of zeros, of which a part is overwritten
                return (*out, *self.zeros(begin, low), *self.zeros(begin + self.pitch - self.lanes, ix(self.lanes)), copy)
            return (*out, *self.zeros(begin, low), copy, *self.zeros(begin + high, self.pitch - high))
        # beside what is copied, the row is 0 for all rows
        out.append(For(inside, (Store(self.row, (low + inside,), value),), vector))
        for number in _phases(lane):
            there = begin + number * (self.plane // self.phases)
            for shift, count in self.strips():
                place = Axis(fresh(self.along.name, self.taken), ix(count))
                apart = Load(self.row, ((ix(place) + shift) * lane.step + number,))
                out.append(For(place, (Store(self.memory, (there + shift + place,), apart),), vector))
        return tuple(out)

    def strips(self) -> Sequence[tuple[int, int]]:
        """Whole vectors that make a row, the last two of which may overlap."""
        if self.pitch % self.lanes == 0 or self.pitch < self.lanes:
            return ((0, self.pitch),)
        return ((0, self.pitch // self.lanes * self.lanes), (self.pitch - self.lanes, self.lanes))


def _taps(window: Window) -> int:
    return constant(window.tap.extent) or 0


def _phases(window: Window) -> list[int]:
    """The phases that taps see."""
    return sorted({tap * window.gap % window.step for tap in range(_taps(window))})
