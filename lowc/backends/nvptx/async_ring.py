"""Pipelines in which the threads that multiply fill the ring as well, by copies that they do not wait for (``cp.async``).

    start the copies of the first stages but one
    for each stage:
      wait until its copies are done, then for one another: all have it, and all are done with the stage before
      start the copies into the stage before, of what comes as many stages later as there are but one
      multiply the stage

What a thread has copied by itself (``instr(copy)``: values that are computed, rows that begin anywhere) it stores there at once;
who reads it has waited for all threads by then.  A stage beyond the end gets no copies, but counts as one that is done.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from lowc.backends.nvptx import access, barriers, copies
from lowc.backends.nvptx.barriers import SHARED
from lowc.backends.nvptx.fragments import Fragments
from lowc.backends.nvptx.thread import Thread, Vals, operand, plus, sized
from lowc.errors import CodegenError
from lowc.ir import tiles
from lowc.ir.index import Atom, Axis, Index, constant, ix
from lowc.ir.nodes import Buffer, Expr, For
from lowc.ir.pieces import Pieces, pieces
from lowc.ir.tiles import LINE, Fill, Pipeline
from lowc.ir.walk import Substitution

ALIGNMENT = 1024  # of tiles: the pattern of the swizzle repeats there
PIECE = 16  # bytes
IN_LINE = LINE // PIECE


@dataclass(slots=True)
class AsyncRing:
    """The ring of one kernel.  ``offsets``: of tiles in a stage, in bytes; ``size``: of a stage.  ``evaluate``: the value of an
    expression, for tiles that threads copy."""

    t: Thread
    found: Pipeline
    offsets: dict[str, int]
    size: int
    evaluate: Callable[[Expr], Vals]

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
        count = found.rows * found.columns // found.threads
        memory = t.memory[found.sums.name].pointers[0]
        places = [b.pure(f"getelementptr float, ptr {memory}, i64 {n}") if n else memory for n in range(count)]
        end, bits = operand(t, loop.axis.extent)
        least = t.range(loop.axis.extent)[0] or 0

        def begin(turn: str, stage: str) -> None:
            """Starts the copies of ``turn`` to ``stage`` (bytes into the ring), if there is such a turn."""

            def copy() -> list[str]:
                t.axes[loop.axis.name] = (turn, bits)
                for each in self.found.fills:
                    self.fill(each, thread, shared, plus(b, stage, str(self.offsets[each.tile.name]), 32))
                return []

            if turn.isdigit() and int(turn) < least:
                copy()
            else:
                b.branch(b.op(f"icmp slt i{bits} {turn}, {end}"), [], copy)
            self.call("cp.async.commit.group")

        barriers.all_meet(t)  # who reads what was there before is done
        for number in range(self.stages - 1):
            begin(str(number), str(number * self.size))

        def next_(stage: str) -> str:
            further = b.op(f"add i32 {stage}, {self.size}")
            return b.op(f"select i1 {b.op(f'icmp eq i32 {further}, {self.bytes}')}, i32 0, i32 {further}")

        def turn(index: str, state: list[str]) -> Sequence[str]:
            stage, free, *sums = state
            self.call("cp.async.wait.group", self.stages - 2)
            barriers.all_meet(t)
            begin(b.op(f"add i{bits} {index}, {self.stages - 1}"), free)
            at = b.op(f"add i32 {shared}, {stage}")
            left, right = (plus(b, at, str(self.offsets[f.name]), 32) for f in (found.left, found.right))
            return (next_(stage), next_(free), *fragments.step(left, right, sums))

        sums = [b.op(f"load float, ptr {p}") for p in places]
        state = [("i32", "0"), ("i32", str((self.stages - 1) * self.size)), *(("float", s) for s in sums)]
        _, _, *out = b.loop("0", end, 1, state, turn, least >= 1, f"i{bits}")
        for place, value in zip(places, out, strict=True):
            b.line(f"store float {value}, ptr {place}")

    def call(self, what: str, number: int | None = None) -> None:
        self.t.b.module.declare(f"llvm.nvvm.{what}", "void", "" if number is None else "i32")
        self.t.b.line(f"call void @llvm.nvvm.{what}({'' if number is None else f'i32 {number}'})")

    # ------------------------------------------------------------ copies

    def fill(self, each: Fill, thread: str, shared: str, offset: str) -> None:
        """Starts filling the tile at ``offset`` bytes into the ring."""
        found = pieces(each) if each.key == tiles.ASYNC else None
        if found is None:
            copies.by_threads(self.t, each, thread, offset, self.evaluate, self.found.product.threads)
            return
        b, t = self.t.b, self.t
        t.aligned.add(found.buffer.name)
        threads, wide = self.found.product.threads, PIECE // found.buffer.dtype.bytes
        lines = threads // IN_LINE  # that all threads copy at a time, one piece each
        line, piece = Axis("async.line", ix(lines)), Axis("async.piece", ix(IN_LINE))
        t.axes[line.name] = b.pure(f"lshr i32 {thread}, {IN_LINE.bit_length() - 1}"), 32
        t.axes[piece.name] = b.pure(f"and i32 {thread}, {IN_LINE - 1}"), 32
        turned = b.pure(f"and i32 {t.axes[line.name][0]}, {IN_LINE - 1}")  # type: ignore[index]
        place = b.pure(f"shl i32 {b.pure(f'xor i32 {thread}, {turned}')}, {PIECE.bit_length() - 1}")
        at = b.op(f"add i32 {b.op(f'add i32 {shared}, {offset}')}, {place}")
        base = b.op(f"inttoptr i32 {at} to ptr addrspace(3)")
        axes = [f.axis for f in each.loops]
        high = constant(axes[-2].extent) or 0
        for first in range(0, prod(constant(a.extent) or 0 for a in axes[:-1]), lines):
            where: dict[Atom, Index] = {axes[-2]: ix(line) + first % high, axes[-1]: ix(piece) * wide}
            if len(axes) == 3:
                where[axes[0]] = ix(first // high)
            self.piece(found, where, ix(piece) * wide, base, first * LINE)

    def piece(self, found: Pieces, where: Mapping[Atom, Index], inner: Index, base: str, further: int) -> None:
        """Starts the copy of 16 bytes, from element ``inner`` of a row on, at ``where``, to ``further`` bytes behind ``base``."""
        b, t = self.t.b, self.t
        put = Substitution(where)
        width, element = found.size, found.buffer.dtype.bytes
        held = ""
        for coordinate, limit in found.within:
            x, y, bits = self.pair(put.index(coordinate), put.index(limit))
            one = b.pure(f"icmp slt i{bits} {x}, {y}")
            held = b.pure(f"and i1 {held}, {one}") if held else one
        source = access.address(t, found.buffer, put.index(found.place), 0)
        for number in range(PIECE // width):
            size = str(width)
            for end in found.ends:
                size = self.least(put.index(end) - inner - number * width // element, width, element, size)
            if held:
                size = b.pure(f"select i1 {held}, i32 {size}, i32 0")
            to, at = base, source
            if further + number * width:
                to = b.pure(f"getelementptr i8, ptr addrspace(3) {base}, i32 {further + number * width}")
            if number:
                at = b.pure(f"getelementptr i8, ptr addrspace(1) {source}, i64 {number * width}")
            self.copy(to, at, width, size)

    def pair(self, x: Index, y: Index) -> tuple[str, str, int]:
        bits = 32 if self.t.fits(x) and self.t.fits(y) else 64
        return operand(self.t, x, bits=bits)[0], operand(self.t, y, bits=bits)[0], bits

    def least(self, left: Index, width: int, element: int, size: str) -> str:
        """``size`` (bytes, i32) or, if less, those of ``left`` elements, which may be negative."""
        b = self.t.b
        if (self.t.range(left)[0] or 0) * element >= width:
            return size
        text, bits = operand(self.t, left)
        kind = f"i{bits}"
        some = b.call(f"llvm.smax.{kind}", kind, [(kind, text), (kind, "0")])
        few = b.call(f"llvm.smin.{kind}", kind, [(kind, some), (kind, str(width // element))])
        bytes_ = b.pure(f"mul i32 {sized(b, few, bits, 32)}, {element}")
        return bytes_ if size == str(width) else b.call("llvm.smin.i32", "i32", [("i32", bytes_), ("i32", size)])

    def copy(self, to: str, source: str, width: int, size: str) -> None:
        """``width`` bytes, of which ``size`` come from memory and the others are 0; those of 16 pass by the L1 cache."""
        whole = size == str(width)
        name = f"llvm.nvvm.cp.async.{'cg' if width == PIECE else 'ca'}.shared.global.{width}{'' if whole else '.s'}"
        self.t.b.module.declare(name, "void", f"ptr addrspace(3), ptr addrspace(1){'' if whole else ', i32'}")
        args = f"ptr addrspace(3) {to}, ptr addrspace(1) {source}{'' if whole else f', i32 {size}'}"
        self.t.b.line(f"call void @{name}({args})")


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
