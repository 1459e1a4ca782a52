"""Pipelines in which the threads that multiply fill the ring as well, by copies that they do not wait for (``cp.async``).

    start the copies of the first stages but one
    for each stage:
      wait until its copies are done, then for one another: all have it, and all are done with the stage before
      multiply the stage and, between, start the copies into the stage before, of what comes as many stages but one later

There is no branch in that: copies beyond the end read nothing, and what they set to 0 nobody multiplies.  What threads copy by
themselves they load before they multiply and store after it.  Values that they compute (``copies.by_threads``) they copy first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from lowc.backends.nvptx import barriers, copies
from lowc.backends.nvptx.async_copies import Copies, Later
from lowc.backends.nvptx.barriers import SHARED
from lowc.backends.nvptx.fragments import Fragments
from lowc.backends.nvptx.thread import Thread, Vals, operand, plus
from lowc.errors import CodegenError
from lowc.ir import tiles
from lowc.ir.index import constant
from lowc.ir.nodes import Buffer, Expr, For
from lowc.ir.pieces import pieces
from lowc.ir.tiles import Fill, Pipeline

ALIGNMENT = 1024  # of tiles: the pattern of the swizzle repeats there


@dataclass(slots=True)
class AsyncRing:
    """The ring of one kernel.  ``offsets``: of tiles in a stage, in bytes; ``size``: of a stage.  ``evaluate``: the value of an
    expression, for tiles that threads compute."""

    t: Thread
    found: Pipeline
    offsets: dict[str, int]
    size: int
    evaluate: Callable[[Expr], Vals]
    copied: list[Copies] = field(default_factory=list[Copies])
    computed: list[Fill] = field(default_factory=list[Fill])

    @property
    def stages(self) -> int:
        return self.found.loop.kind.width

    @property
    def bytes(self) -> int:
        """Of shared memory."""
        return self.stages * self.size

    def run(self, loop: For) -> None:
        """The loop."""
        b, t, found = self.t.b, self.t, self.found.product
        thread = t.tid["x"]
        b.module.globals[SHARED] = f"{SHARED} = external addrspace(3) global [0 x i8], align {ALIGNMENT}"
        shared = b.pure(f"ptrtoint ptr addrspace(3) {SHARED} to i32")
        fragments = Fragments(t, found, thread)
        self.share(thread)
        type_ = fragments.type
        count = found.rows * found.columns // found.threads
        memory = t.memory[found.sums.name].pointers[0]
        places = [b.pure(f"getelementptr {type_}, ptr {memory}, i64 {n}") if n else memory for n in range(count)]
        end, bits = operand(t, loop.axis.extent)
        least = t.range(loop.axis.extent)[0] or 0

        def fill(turn: str, stage: str) -> list[Callable[[], Later | None]]:
            """The copies of ``turn``, if there is such a turn, to ``stage`` (bytes into the ring)."""
            t.axes[loop.axis.name] = (turn, bits)
            sure = turn.isdigit() and int(turn) < least
            more = "" if sure else b.op(f"icmp slt i{bits} {turn}, {end}")

            def compute() -> list[str]:
                for each in self.computed:
                    at = plus(b, stage, str(self.offsets[each.tile.name]), 32)
                    copies.by_threads(t, each, thread, at, self.evaluate, found.threads)
                return []

            if self.computed:
                b.branch(more, [], compute) if more else compute()
            base = b.op(f"add i32 {shared}, {stage}")
            made: list[Callable[[], Later | None]] = []
            for each in self.copied:
                made += each.each(plus(b, base, str(self.offsets[each.fill.tile.name]), 32), more)
            return made

        barriers.all_meet(t)  # who reads what was there before is done
        for number in range(self.stages - 1):
            for copy in fill(str(number), str(number * self.size)):
                if later := copy():
                    later()
            self.call("cp.async.commit.group")

        def next_(stage: str) -> str:
            further = b.op(f"add i32 {stage}, {self.size}")
            return b.op(f"select i1 {b.op(f'icmp eq i32 {further}, {self.bytes}')}, i32 0, i32 {further}")

        def turn(index: str, state: list[str]) -> Sequence[str]:
            stage, free, *sums = state
            self.call("cp.async.wait.group", self.stages - 2)
            barriers.all_meet(t)
            starts = fill(b.op(f"add i{bits} {index}, {self.stages - 1}"), free)
            at = b.op(f"add i32 {shared}, {stage}")
            left, right = (plus(b, at, str(self.offsets[f.name]), 32) for f in (found.left, found.right))
            out = fragments.step(left, right, sums, starts)
            self.call("cp.async.commit.group")
            return (next_(stage), next_(free), *out)

        sums = [b.op(f"load {type_}, ptr {p}") for p in places]
        state = [("i32", "0"), ("i32", str((self.stages - 1) * self.size)), *((type_, s) for s in sums)]
        _, _, *out = b.loop("0", end, 1, state, turn, least >= 1, f"i{bits}")
        for place, value in zip(places, out, strict=True):
            b.line(f"store {type_} {value}, ptr {place}")

    def share(self, thread: str) -> None:
        """Who copies what."""
        for each in self.found.fills:
            found = pieces(each)
            if found is None:
                self.computed.append(each)
            else:
                self.copied.append(Copies(self.t, each, found, self.found.product.threads, thread))

    def call(self, what: str, number: int | None = None) -> None:
        self.t.b.module.declare(f"llvm.nvvm.{what}", "void", "" if number is None else "i32")
        self.t.b.line(f"call void @llvm.nvvm.{what}({'' if number is None else f'i32 {number}'})")


def is_async(loop: For) -> bool:
    """Whether the pipeline ``loop`` is filled by those who multiply."""
    found = tiles.pipeline(loop)
    return found is not None and found.product.key == tiles.MMA


def async_ring(t: Thread, loop: For, evaluate: Callable[[Expr], Vals]) -> AsyncRing:
    """The ring of the pipeline ``loop``; raises CodegenError for what is none."""
    found = tiles.pipeline(loop)
    if found is None or t.threads["y"] != 1 or t.threads["x"] != found.product.threads:
        raise CodegenError(f"the pipeline {loop.axis} is not of the form that there are instructions for")
    offsets: dict[str, int] = {}
    size = 0
    for tile in found.tiles:
        offsets[tile.name] = size
        size += -(-_bytes(tile) // ALIGNMENT) * ALIGNMENT
    return AsyncRing(t, found, offsets, size, evaluate)


def _bytes(tile: Buffer) -> int:
    return prod(constant(n) or 0 for n in tile.shape) * tile.dtype.bytes
