"""Pipelines that multiply twice (``ir/relays.py``): one thread has the engine fill two rings of tiles, the others multiply.

The second product of a turn waits until the next turn has begun its first one, so that tensor cores multiply while threads make
weights of scores:

    wait for k 0; scores = q @ k 0; work
    each further turn j:
      wait for k j and v j-1; begin scores = q @ k j; begin total += held @ v j-1
      until the first is done; say that k j is empty; the work that touches neither ``held`` nor ``total``
      until the second is done; say that v j-1 is empty; the rest of the work
    wait for the last v; total += held @ v

What the turns compute is the same as one after the other: only the order of what does not touch is another.  Tiles of k and v
have barriers of their own, since k is done with a turn earlier.  Scores are made and read within a turn: ptxas would serialise
all products if registers that it fills were read in the turn after (C7514).

Turns of other numbers of products, as gradients have, are simpler: all tiles come, all first products, the work, all second
ones; what multiplies meanwhile is another group of threads.

Where blocks take several tiles in turns, the resident one is filled anew once the last of its products is done, while threads
still take results out.

    shared memory: [resident tile] [k: each stage] [v: each stage] [others]
                   [resident: full, empty] [full: k's, v's] [empty: k's, v's] [others: full]

Others are what turns with a product across have beside (``relay_across``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from lowc.artifact import TensorMap
from lowc.backends.llvm.values import Val
from lowc.backends.nvptx import barriers, copies
from lowc.backends.nvptx.barriers import SHARED
from lowc.backends.nvptx.begun import start_held, start_tiles, wait_for
from lowc.backends.nvptx.combine import merge, shuffled
from lowc.backends.nvptx.multiply import ROWS_BYTES, uniform
from lowc.backends.nvptx.thread import Thread, Vals, operand, plus, unknown
from lowc.errors import CodegenError
from lowc.ir import relays, tiles
from lowc.ir.index import constant
from lowc.ir.nodes import Buffer, Expr, For, Kernel, Load, Stmt, Store
from lowc.ir.relays import Quad, Turns
from lowc.ir.tiles import GROUP, Fill
from lowc.ir.walk import exprs, parts, statements

WARP = 32
MEET = 1  # the barrier at which those who multiply wait for one another
ALIGNMENT = 1024  # of tiles: the pattern of the swizzle repeats there
REGISTERS = {2: (24, 240), 3: (32, 160)}  # of who fills and who multiply, by groups of the latter; shares of 64 K


@dataclass(slots=True)
class RelayRing:
    """Of one kernel.  ``sizes``: of the resident tiles, and of a stage of each ring, in bytes; ``groups``: of 128 threads;
    ``maps``: of fills, ``numbers`` by the fill.  ``emit``: emits statements of the work; ``evaluate``:
    what decides whether a turn does anything."""

    t: Thread
    found: relays.Relay
    sizes: tuple[int, int, int]
    groups: int
    maps: list[TensorMap]
    numbers: dict[int, int]
    teams: int = 1
    engine_only: bool = True
    emit: Callable[[Sequence[Stmt]], None] = field(init=False)
    evaluate: Callable[[Expr], Vals] = field(init=False)
    place: barriers.Place = field(init=False)
    before: barriers.Place = field(init=False)
    turn: barriers.Place = field(init=False)
    half: barriers.Place = field(init=False)

    @property
    def across(self) -> relays.Across | None:
        return self.found.turns[0].across

    @property
    def stages(self) -> int:
        return self.found.turns[0].loop.kind.width

    @property
    def tiles(self) -> int:
        """Bytes of all tiles; the barriers are behind them."""
        return self.others + (0 if self.across is None else 2 * (_room(self.across.spread.tile) + self.gathered))

    @property
    def others(self) -> int:
        """Where what is beside the tiles of the rings begins, twice each: some threads are at a turn, others at the next."""
        return self.sizes[0] + self.stages * (self.sizes[1] + self.sizes[2])

    @property
    def gathered(self) -> int:
        """Bytes of what threads gather for a turn."""
        return 0 if self.across is None else sum(line_room(g) for g in self.across.gathered)

    @property
    def bytes(self) -> int:
        """Of shared memory."""
        told = any(f.across is not None and f.seen is not None for f in self.found.turns)
        return self.numbers_at + 8 * self.stages * told

    @property
    def numbers_at(self) -> int:
        """Where the numbers of turns are that who fills tells those who multiply (``relay_seen``)."""
        return self.tiles + 8 * (2 + 4 * self.stages + (0 if self.across is None else 2))

    @property
    def unset(self) -> frozenset[str]:
        """Arrays of sums that the first products set, or one across."""
        turns = self.found.turns
        return frozenset(p.sums.name for each in turns for p in (*each.firsts, *([each.across.product] if each.across else [])))

    @property
    def registers(self) -> tuple[int, int] | None:
        return REGISTERS.get(self.groups)

    @property
    def placed(self) -> frozenset[str]:
        """Tiles in memory of the ring's."""
        return frozenset([f.tile.name for f in self.found.residents])

    # ------------------------------------------------------------ barriers

    def full(self, ring: int, stage: str) -> str:
        """Of ring 0 (k) or 1 (v)."""
        return barriers.pointer(self.t, self.tiles + 8 * (2 + ring * self.stages), stage)

    def empty(self, ring: int, stage: str) -> str:
        return barriers.pointer(self.t, self.tiles + 8 * (2 + (2 + ring) * self.stages), stage)

    def spread(self, half: str) -> str:
        """Where all warps say that they have spread what they hold."""
        return barriers.pointer(self.t, self.tiles + 8 * (2 + 4 * self.stages), half)

    def there(self, empty: bool) -> str:
        """Of the resident tiles."""
        return barriers.pointer(self.t, self.tiles, str(int(empty)))

    def prepare(self, first: str) -> None:
        """Thread ``first`` (a condition) sets up the barriers; all wait for it."""

        def init() -> list[str]:
            barriers.init(self.t, self.there(False), len(self.found.residents))
            barriers.init(self.t, self.there(True), self.groups)
            for ring in (0, 1):
                for stage in range(self.stages):
                    barriers.init(self.t, self.full(ring, str(stage)), 1)
                    barriers.init(self.t, self.empty(ring, str(stage)), self.groups)
            for half in (0, 1) if self.across is not None else ():
                barriers.init(self.t, self.spread(str(half)), self.groups * GROUP // WARP)
            barriers.settle(self.t)
            return []

        self.t.b.branch(first, [], init)
        barriers.all_meet(self.t)

    def begin(self, phase: int) -> None:
        self.place = barriers.place(self.t, self.stages, phase)
        self.turn = barriers.place(self.t, 1, phase)
        self.half = barriers.place(self.t, 2, phase)

    def offset(self, ring: int, stage: str) -> str:
        """Where a stage of a ring is, in bytes."""
        b = self.t.b
        start = self.sizes[0] + (self.stages * self.sizes[1] if ring else 0)
        return plus(b, b.op(f"mul i32 {stage}, {self.sizes[1 + ring]}"), str(start), 32)

    # ------------------------------------------------------------ who fill

    def fill_resident(self, loop: For) -> None:
        number = next(n for n, f in enumerate(self.found.residents) if f.loops[0] is loop)
        stage, phase = self.turn.now()
        if number == 0:
            barriers.wait(self.t, self.there(True), phase)
        self.copy(self.found.residents[number], str(self.resident_at(self.found.residents[number].tile)), self.there(False))
        if number == len(self.found.residents) - 1:
            self.turn.advance(stage, phase)

    def resident_at(self, tile: Buffer) -> int:
        """Where a resident tile is, in bytes."""
        number = next(n for n, f in enumerate(self.found.residents) if f.tile is tile)
        return sum(_room(f.tile) for f in self.found.residents[:number])

    def copy(self, fill: Fill, offset: str, full: str) -> None:
        barriers.expect(self.t, full, _bytes(fill.tile))
        copies.by_engine(self.t, fill, f"%m{self.numbers[id(fill)]}", offset, full)

    def fill(self, loop: For, thread: str, evaluate: Callable[[Expr], Vals]) -> None:
        """A pipeline as the thread that fills has it."""
        b, t = self.t.b, self.t
        found = self.turns(loop)

        def fill() -> list[str]:
            stage, phase = self.place.now()
            for ring, each in enumerate(found.fills):
                barriers.wait(t, self.empty(ring, stage), phase)
                self.copy(each, self.offset(ring, stage), self.full(ring, stage))
            self.place.advance(stage, phase)
            return []

        def turn(index: str, _: list[str]) -> Sequence[str]:
            t.axes[loop.axis.name] = (index, bits)
            return self.where_seen(found, fill)

        end, bits = operand(t, loop.axis.extent)
        b.loop("0", end, 1, [], turn, (t.range(loop.axis.extent)[0] or 0) >= 1, f"i{bits}")

    def where_seen(self, found: Turns, body: Callable[[], list[str]]) -> list[str]:
        """``body`` under the condition of the turns."""
        return body() if found.seen is None else self.t.b.branch(self.evaluate(found.seen)[0].text, [], body)

    def turns(self, loop: For) -> Turns:
        return next(each for each in self.found.turns if each.loop is loop)

    # ------------------------------------------------------------ who multiply

    def multipliers(self, thread: str) -> tuple[str, str, str]:
        """Of a thread: whether it is the first of its group, shared memory, the rows of a tile that are its group's."""
        b = self.t.b
        first = b.pure(f"icmp eq i32 {b.pure(f'and i32 {thread}, {GROUP - 1}')}, 0")
        group = uniform(self.t, b.pure(f"lshr i32 {thread}, {GROUP.bit_length() - 1}"))
        shared = b.pure(f"ptrtoint ptr addrspace(3) {SHARED} to i32")
        return first, shared, b.pure(f"add i32 {shared}, {b.pure(f'mul i32 {group}, {ROWS_BYTES}')}")

    def release(self, first: str, *empty: str) -> None:
        """The ``first`` thread of a group says that it is done with what the barriers are of."""

        def then() -> list[str]:
            for barrier in empty:
                barriers.arrive(self.t, barrier)
            return []

        self.t.b.branch(first, [], then)

    def meet(self) -> None:
        """Those who multiply wait for one another."""
        self.t.b.module.declare("llvm.nvvm.barrier.cta.sync.aligned.count", "void", "i32, i32")
        self.t.b.line(f"call void @llvm.nvvm.barrier.cta.sync.aligned.count(i32 {MEET}, i32 {self.groups * GROUP})")

    def count(self, loop: For) -> tuple[str, int]:
        """How many turns a pipeline has, as an operand.  ptxas knows the count of the only one, without which attention without
        masks takes 8 percent longer."""
        return (operand if len(self.found.turns) == 1 else unknown)(self.t, loop.axis.extent)

    def multiply(self, loop: For, thread: str) -> None:
        """A pipeline as those who multiply have it."""
        b, t, found = self.t.b, self.t, self.turns(loop)
        if not found.simple:
            self.multiply_in_order(loop, thread)
            return
        first, shared, rows = self.multipliers(thread)
        one, other = found.firsts[0], found.seconds[0]
        early, late = _halves(found)

        def at(ring: int, stage: str) -> str:
            return b.op(f"add i32 {shared}, {self.offset(ring, stage)}")

        def scores(stage: str) -> None:
            self.emit(found.local)
            start_tiles(t, one, rows, at(0, stage), t.memory[one.sums.name].pointers[0])

        def mix(stage: str) -> None:
            start_held(t, other, at(1, stage))

        sums = lambda: (t.memory[one.sums.name].pointers[0], one.columns // 2)  # noqa: E731
        mixed = (t.memory[other.sums.name].pointers[0], other.columns // 2)

        def remember(stage: str, phase: str) -> None:
            self.before.put(stage, phase)
            self.place.advance(stage, phase)

        if loop is self.found.turns[0].loop:
            if (t.range(loop.axis.extent)[0] or 0) < 1:
                raise CodegenError(f"the pipeline {loop.axis} may have no turn")
            self.before = barriers.place(t, self.stages, 0)
            turn_stage, turn_phase = self.turn.now()
            barriers.wait(t, self.there(False), turn_phase)
            self.turn.advance(turn_stage, turn_phase)
            t.axes[loop.axis.name] = 0
            stage, phase = self.place.now()
            barriers.wait(t, self.full(0, stage), phase)
            scores(stage)
            wait_for(t, 0, [sums()])
            self.release(first, self.empty(0, stage))
            self.emit(early)
            self.emit(late)
            remember(stage, phase)

        def work() -> list[str]:
            stage, phase = self.place.now()
            last, last_phase = self.before.now()
            barriers.wait(t, self.full(0, stage), phase)  # both before the products: nothing comes between these
            barriers.wait(t, self.full(1, last), last_phase)
            scores(stage)
            mix(last)
            wait_for(t, 1, [sums()])
            self.release(first, self.empty(0, stage))
            self.emit(early)
            wait_for(t, 0, [mixed, sums()])  # the scores as well: what was made of them is made before
            self.release(first, self.empty(1, last))
            self.emit(late)
            remember(stage, phase)
            return []

        def turn(index: str, _: list[str]) -> Sequence[str]:
            t.axes[loop.axis.name] = (index, bits)
            return self.where_seen(found, work)

        end, bits = self.count(loop)
        start = "1" if loop is self.found.turns[0].loop else "0"
        if (constant(loop.axis.extent) or 2) > int(start):
            b.loop(start, end, 1, [], turn, False, f"i{bits}")
        if loop is self.found.turns[-1].loop:
            self.release(first, self.there(True))
            last, last_phase = self.before.now()
            barriers.wait(t, self.full(1, last), last_phase)
            mix(last)
            wait_for(t, 0, [mixed])
            self.release(first, self.empty(1, last))

    def multiply_in_order(self, loop: For, thread: str) -> None:
        """The same for turns of any number of products: all that a turn does is done before the next one begins."""
        b, t, found = self.t.b, self.t, self.turns(loop)
        first, shared, rows = self.multipliers(thread)
        place = {id(fill.tile): ring for ring, fill in enumerate(found.fills)}

        def turn(index: str, _: list[str]) -> Sequence[str]:
            t.axes[loop.axis.name] = (index, bits)
            stage, phase = self.place.now()
            for ring in (0, 1):
                barriers.wait(t, self.full(ring, stage), phase)
            starts = {tile: b.op(f"add i32 {shared}, {self.offset(ring, stage)}") for tile, ring in place.items()}
            self.emit(found.local)
            for product in found.firsts:
                left = plus(b, rows, str(self.resident_at(product.left)), 32)
                start_tiles(t, product, left, starts[id(product.right)], t.memory[product.sums.name].pointers[0])
            wait_for(t, 0, [(t.memory[p.sums.name].pointers[0], p.columns // 2) for p in found.firsts])
            self.emit(found.work)
            for product in found.seconds:
                start_held(t, product, starts[id(product.right)])
            wait_for(t, 0, [(t.memory[p.sums.name].pointers[0], p.columns // 2) for p in found.seconds])
            self.release(first, self.empty(0, stage), self.empty(1, stage))
            self.place.advance(stage, phase)
            return ()

        if loop is self.found.turns[0].loop:
            stage, phase = self.turn.now()
            barriers.wait(t, self.there(False), phase)
            self.turn.advance(stage, phase)
        end, bits = self.count(loop)
        b.loop("0", end, 1, [], turn, (t.range(loop.axis.extent)[0] or 0) >= 1, f"i{bits}")
        if loop is self.found.turns[-1].loop:
            self.release(first, self.there(True))


def _halves(found: Turns) -> tuple[list[Stmt], list[Stmt]]:
    """The work up to what touches what the second product reads or adds to, and the rest."""
    touched = (found.seconds[0].held, found.seconds[0].sums)
    for number, stmt in enumerate(found.work):
        for inside in statements((stmt,)):
            loaded = [p.buffer for e in exprs(inside) for p in parts(e) if isinstance(p, Load)]
            if isinstance(inside, Store):
                loaded.append(inside.buffer)
            if any(b is other for b in loaded for other in touched):
                return list(found.work[:number]), list(found.work[number:])
    return list(found.work), []


# ---------------------------------------------------------------- four threads


def combine(t: Thread, found: Quad) -> None:
    """Combines what four neighbouring threads have: by two shuffles, after which each has it."""
    whole, part = t.memory[found.whole.name].pointers[0], t.memory[found.part.name].pointers[0]
    dtype = found.part.dtype
    for n in range(found.count):
        places = [t.b.pure(f"getelementptr float, ptr {p}, i64 {n}") if n else p for p in (whole, part)]
        old, mine = (Val(t.b.op(f"load float, ptr {p}"), dtype) for p in places)
        for lane in (1, 2):
            (mine,) = merge(t, found.reducer, [mine], [shuffled(t, mine, lane)])
        (mine,) = merge(t, found.reducer, [old], [mine])
        t.b.line(f"store float {mine.text}, ptr {places[0]}")


# ---------------------------------------------------------------- the ring of a kernel


def relay_ring(t: Thread, kernel: Kernel) -> RelayRing | None:
    """The rings of ``kernel``; None if its pipelines multiply once."""
    found = relays.relay(relays.block_body(kernel.body))
    if found is None:
        return None
    position = {id(p): n for n, p in enumerate(kernel.params)}
    maps: list[TensorMap] = []
    numbers: dict[int, int] = {}
    for each in (*found.residents, *(f for turns in found.turns for f in turns.fills)):
        box = tiles.box(each)
        if box is None or each.key != tiles.TMA:
            raise CodegenError(f"what fills {each.tile.name} is no box of a buffer")
        width = box.buffer.dtype.bytes
        strides = tuple([n * width for n in box.strides[1:]])
        made = TensorMap(position[id(box.buffer)], box.buffer.dtype.name, box.offset * width, box.sizes, strides, box.box)
        if made not in maps:
            maps.append(made)
        numbers[id(each)] = maps.index(made)
        t.aligned.add(box.buffer.name)
    first = found.turns[0]
    resident = sum(_room(f.tile) for f in found.residents)
    sizes = (resident, *(_room(f.tile) for f in first.fills))
    t.b.module.globals[SHARED] = f"{SHARED} = external addrspace(3) global [0 x i8], align {ALIGNMENT}"
    return RelayRing(t, found, (sizes[0], sizes[1], sizes[2]), first.firsts[0].threads // GROUP, maps, numbers)


def _room(tile: Buffer) -> int:
    """Bytes up to where another tile may begin."""
    return -(-_bytes(tile) // ALIGNMENT) * ALIGNMENT


def line_room(gathered: Buffer) -> int:
    """Bytes up to where something else that is gathered may begin."""
    return -(-_bytes(gathered) // 16) * 16


def _bytes(tile: Buffer) -> int:
    return prod(constant(n) or 0 for n in tile.shape) * tile.dtype.bytes
