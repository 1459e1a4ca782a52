"""Pipelines: some threads fill a ring of tiles in shared memory, the others multiply them.

The kernel's threads, who multiply, get 128 more, who fill.  Both walk through the block-level statements, those who fill through
the part of them that leads to the pipeline.  They wait for each other at barriers in shared memory, two for each stage:

    who fill                                         who multiply
    wait until stage s is empty                      wait until stage s is full
    tell how many bytes will come, start the copies  multiply-adds of stage s, under way together with those of the one before
    (or copy, and say that it is done)               once the latter are done, say that their stage is empty

A barrier changes phase each time that all who are to arrive have: a stage's number of turns so far, modulo 2, is the phase that
is waited for.  Stages and phases go on from one run of the loop to the next.

Where teams have tiles in turn, each multiplies the stages of its tiles and passes over as many for each tile of another team; who
fill do not know of that.  A team begins a tile when the one before it has seen the last stage of its own full: a phase modulo 2
says nothing about stages that are further ahead than one round of the ring.

    shared memory: [stage: [tile] …] … [full: 8 bytes for each stage] [empty: likewise]
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from lowc.artifact import TensorMap
from lowc.backends.nvptx import barriers, copies, multiply
from lowc.backends.nvptx.barriers import SHARED
from lowc.backends.nvptx.thread import Thread, Vals, operand, plus, sized
from lowc.errors import CodegenError
from lowc.ir import tiles
from lowc.ir.index import constant
from lowc.ir.nodes import SERIAL, Alloc, Buffer, Expr, For, If, Kernel, Let, Load, Stmt
from lowc.ir.tiles import GROUP, Pipeline
from lowc.ir.types import f32
from lowc.ir.walk import exprs, parts, statements

ALIGNMENT = 1024  # of tiles: the pattern of the swizzle repeats there
REGISTERS = {2: (40, 232)}  # of those who fill and those who multiply, by groups of the latter; shares of 64 K


def teams(kernel: Kernel) -> int:
    """How many teams of threads have tiles in turn."""
    found = [s.kind.width for s in statements(kernel.body) if isinstance(s, For) and s.kind.name == "teams"]
    return found[0] if found else 1


@dataclass(slots=True)
class Ring:
    """The ring of one kernel.  ``offsets``: of tiles in a stage, in bytes; ``size``: of a stage; ``groups``: of 128 threads in a
    team; ``maps``: of fills by the engine, in order.  ``sets``: whether the first stage of a tile sets its sums."""

    t: Thread
    found: Pipeline
    offsets: dict[str, int]
    size: int
    groups: int
    teams: int
    maps: list[TensorMap]
    sets: bool
    place: barriers.Place = field(init=False)

    @property
    def stages(self) -> int:
        return self.found.loop.kind.width

    @property
    def bytes(self) -> int:
        """Of shared memory."""
        return self.stages * self.size + 16 * self.stages

    @property
    def unset(self) -> frozenset[str]:
        """Arrays of sums that the first product sets."""
        return frozenset({self.found.product.sums.name} if self.sets else ())

    @property
    def registers(self) -> tuple[int, int] | None:
        """Of those who fill and those who multiply."""
        return REGISTERS.get(self.groups * self.teams) if self.engine_only else None

    @property
    def engine_only(self) -> bool:
        return all(f.key == tiles.TMA for f in self.found.fills)

    # ------------------------------------------------------------ barriers

    def barrier(self, number: str, empty: bool) -> str:
        """The pointer to a stage's barrier."""
        return barriers.pointer(self.t, self.stages * (self.size + (8 if empty else 0)), number)

    def prepare(self, first: str) -> None:
        """Thread ``first`` (a condition) sets up the barriers; all wait for it."""
        filling = 1 if self.engine_only else GROUP

        def init() -> list[str]:
            for stage in range(self.stages):
                for empty, count in ((False, filling), (True, self.groups)):
                    barriers.init(self.t, self.barrier(str(stage), empty), count)
            barriers.settle(self.t)
            return []

        self.t.b.branch(first, [], init)
        barriers.all_meet(self.t)

    # ------------------------------------------------------------ stages

    def begin(self, phase: int) -> None:
        """Stage 0, and the phase to be waited for there."""
        self.place = barriers.place(self.t, self.stages, phase)

    def skip(self, count: str) -> None:
        """Passes over ``count`` (i32) stages."""
        b = self.t.b
        stage, phase = self.place.now()
        further = b.op(f"add i32 {stage}, {count}")
        turned = b.op(f"and i32 {b.op(f'udiv i32 {further}, {self.stages}')}, 1")
        self.place.put(b.op(f"urem i32 {further}, {self.stages}"), b.op(f"xor i32 {phase}, {turned}"))

    def turn_of(self, next_: bool) -> tuple[str, str]:
        """The barrier at which a team waits for its turn, of this team or of the next; how many threads come to it."""
        b, t = self.t.b, self.t
        team = b.op(f"urem i32 {b.op(f'add i32 {t.team}, 1')}, {self.teams}") if next_ else t.team
        return b.op(f"add i32 {team}, {1 + self.teams}"), str(2 * GROUP * self.groups)

    def await_turn(self) -> None:
        number, count = self.turn_of(False)
        self.t.b.module.declare("llvm.nvvm.barrier.cta.sync.aligned.count", "void", "i32, i32")
        self.t.b.line(f"call void @llvm.nvvm.barrier.cta.sync.aligned.count(i32 {number}, i32 {count})")

    def pass_turn(self) -> None:
        """To the next team, which need not wait for it yet."""
        number, count = self.turn_of(True)
        self.t.b.module.declare("llvm.nvvm.barrier.cta.arrive.aligned.count", "void", "i32, i32")
        self.t.b.line(f"call void @llvm.nvvm.barrier.cta.arrive.aligned.count(i32 {number}, i32 {count})")

    def take_turns(self) -> None:
        """Before the first tile: each team goes to the stages of its own, and the last one lets the first begin."""
        b, t = self.t.b, self.t
        self.skip_tiles(t.team)
        last = b.pure(f"icmp eq i32 {t.team}, {self.teams - 1}")
        b.branch(last, [], lambda: _none(self.pass_turn))

    def skip_tiles(self, count: str) -> None:
        """Passes over the stages of ``count`` (i32) tiles."""
        stages, bits = operand(self.t, self.found.loop.axis.extent)
        stages = sized(self.t.b, stages, bits, 32)
        self.skip(stages if count == "1" else self.t.b.op(f"mul i32 {stages}, {count}"))

    def base(self, stage: str) -> str:
        """How many bytes into shared memory a stage is."""
        return self.t.b.op(f"mul i32 {stage}, {self.size}")

    # ------------------------------------------------------------ who fill

    def fill(self, loop: For, thread: str, evaluate: Callable[[Expr], Vals]) -> None:
        """The loop as those who fill have it; ``thread``: the number among them."""
        b, t = self.t.b, self.t
        first = b.pure(f"icmp eq i32 {thread}, 0")
        known = {id(f): copies.before(t, f, loop) for f in self.found.fills if f.key == tiles.TMA}
        expected = sum(_bytes(f.tile) for f in self.found.fills if f.key == tiles.TMA)

        def copy_by_engine(full: str, base: str) -> None:
            barriers.expect(t, full, expected)
            number = 0
            for each in self.found.fills:
                if each.key == tiles.TMA:
                    at = plus(b, base, str(self.offsets[each.tile.name]), 32)
                    copies.by_engine(t, each, f"%m{number}", at, full, known[id(each)])
                    number += 1

        def turn(index: str, _: list[str]) -> Sequence[str]:
            t.axes[loop.axis.name] = (index, bits)
            stage, phase = self.place.now()
            full = self.barrier(stage, False)
            barriers.wait(t, self.barrier(stage, True), phase)
            base = self.base(stage)
            if self.engine_only:
                copy_by_engine(full, base)
            else:
                if expected:
                    b.branch(first, [], lambda: _none(lambda: copy_by_engine(full, base)))
                for each in self.found.fills:
                    if each.key == tiles.COPY:
                        copies.by_threads(t, each, thread, plus(b, base, str(self.offsets[each.tile.name]), 32), evaluate)
                b.module.declare("llvm.nvvm.fence.proxy.async.shared_cta", "void", "")
                b.line("call void @llvm.nvvm.fence.proxy.async.shared_cta()")
                if expected:  # whoever has told what to expect has arrived by that
                    others = b.pure(f"xor i1 {first}, true")
                    b.branch(others, [], lambda: _none(lambda: barriers.arrive(t, full)))
                else:
                    barriers.arrive(t, full)
            self.place.advance(stage, phase)
            return ()

        end, bits = operand(t, loop.axis.extent)
        b.loop("0", end, 1, [], turn, (t.range(loop.axis.extent)[0] or 0) >= 1, f"i{bits}")

    # ------------------------------------------------------------ who multiply

    def multiply(self, loop: For, thread: str) -> None:
        """The loop as those who multiply have it."""
        b, t, found = self.t.b, self.t, self.found.product
        where = t.memory[found.sums.name]
        work = multiply.Multiply(t, found, where.pointers[0])
        group = multiply.uniform(t, b.pure(f"lshr i32 {thread}, {GROUP.bit_length() - 1}"))
        shared = b.pure(f"ptrtoint ptr addrspace(3) {SHARED} to i32")
        first = b.pure(f"icmp eq i32 {b.pure(f'and i32 {thread}, {GROUP - 1}')}, 0")
        before = b.alloca("i32", 4)
        b.line(f"store i32 0, ptr {before}")

        def release() -> None:
            barriers.arrive(t, self.barrier(b.op(f"load i32, ptr {before}"), True))

        def turn(index: str, _: list[str]) -> Sequence[str]:
            stage, phase = self.place.now()
            barriers.wait(t, self.barrier(stage, False), phase)
            at = b.op(f"add i32 {shared}, {self.base(stage)}")
            left = b.op(f"add i32 {at}, {self.offsets[found.left.name]}")
            right = b.op(f"add i32 {at}, {self.offsets[found.right.name]}")
            work.step(group, left, right, b.op(f"icmp ne i{bits} {index}, 0") if self.sets else "")
            if found.key == tiles.APART:  # the stage is multiplied
                b.branch(first, [], lambda: _none(lambda: barriers.arrive(t, self.barrier(stage, True))))
            else:
                later = b.op(f"and i1 {first}, {b.op(f'icmp ne i{bits} {index}, 0')}")
                b.branch(later, [], lambda: _none(release))
                b.line(f"store i32 {stage}, ptr {before}")
            self.place.advance(stage, phase)
            return ()

        if self.teams > 1:
            self.await_turn()
        end, bits = operand(t, loop.axis.extent)
        runs = (t.range(loop.axis.extent)[0] or 0) >= 1
        b.loop("0", end, 1, [], turn, runs, f"i{bits}")
        if found.key == tiles.APART:
            return
        if self.teams > 1:
            self.pass_turn()
        work.finish()
        some = first if runs else b.op(f"and i1 {first}, {b.op(f'icmp sgt i{bits} {end}, 0')}")
        b.branch(some, [], lambda: _none(release))
        if self.teams > 1:
            self.skip_tiles(str(self.teams - 1))


def ring(t: Thread, kernel: Kernel, loop: For) -> Ring:
    """The ring of ``kernel``, whose pipeline ``loop`` is; raises CodegenError if it has none of the form."""
    found = tiles.pipeline(loop)
    if found is None:
        raise CodegenError(f"the pipeline {loop.axis} is not of the form that there are instructions for")
    offsets: dict[str, int] = {}
    size = 0
    for tile in found.tiles:
        offsets[tile.name] = size
        size += -(-_bytes(tile) // ALIGNMENT) * ALIGNMENT
    position = {id(p): n for n, p in enumerate(kernel.params)}
    maps: list[TensorMap] = []
    for each in found.fills:
        if each.key != tiles.TMA:
            continue
        box = tiles.box(each)
        if box is None:
            raise CodegenError(f"what fills {each.tile.name} is no box of a buffer")
        width = box.buffer.dtype.bytes
        strides = tuple([n * width for n in box.strides[1:]])
        # as f32 the bits that are not multiplied would be cut off (measured on an H200); so the engine rounds to nearest
        kind = "tf32" if box.buffer.dtype == f32 else box.buffer.dtype.name
        seen = () if box.window is None else (box.window.lower, box.window.upper, box.window.steps)
        maps.append(TensorMap(position[id(box.buffer)], kind, box.offset * width, box.sizes, strides, box.box, *seen))
        t.aligned.add(box.buffer.name)
    groups = (constant(found.product.loop.axis.extent) or 0) // GROUP
    t.b.module.globals[SHARED] = f"{SHARED} = external addrspace(3) global [0 x i8], align {ALIGNMENT}"
    return Ring(t, found, offsets, size, groups, teams(kernel), maps, _sets(t, kernel, found))


def _sets(t: Thread, kernel: Kernel, found: Pipeline) -> bool:
    """Whether the first product can set the sums: they are those of one run of the pipeline, which surely has an iteration."""
    if (t.range(found.loop.axis.extent)[0] or 0) < 1 or found.product.key == tiles.APART:
        return False
    bodies = [kernel.body, *(s.body for s in statements(kernel.body) if isinstance(s, For | If))]
    around = next(body for body in bodies if any(s is found.loop for s in body))
    before = around[[s is found.loop for s in around].index(True) - 1]
    return isinstance(before, Alloc) and before.buffer is found.product.sums


def part(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """What of ``body`` those who fill walk through: what leads to the pipeline, and the lets on the way."""
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Let):
            if any(isinstance(p, Load) and p.buffer.space != "global" for e in exprs(stmt) for p in parts(e)):
                raise CodegenError(f"{stmt.var.name}, which leads to a pipeline, is read from memory of the block")
            out.append(stmt)
        elif isinstance(stmt, For) and stmt.kind.name in ("pipeline", "instr"):
            if not tiles.is_outlet(stmt):
                out.append(stmt)
        elif isinstance(stmt, For) and tiles.pipelines(stmt.body):
            out.append(For(stmt.axis, part(stmt.body), SERIAL if stmt.kind.name == "teams" else stmt.kind))
        elif isinstance(stmt, If) and tiles.pipelines(stmt.body):
            out.append(If(stmt.cond, part(stmt.body)))
    return tuple(out)


def _bytes(tile: Buffer) -> int:
    return prod(constant(n) or 0 for n in tile.shape) * tile.dtype.bytes


def _none(body: Callable[[], None]) -> list[str]:
    body()
    return []
