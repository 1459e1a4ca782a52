"""Outlets: threads put strips of results into shared memory, and the copying engine stores them.

    for each strip, its number n known in the code:
      the first thread waits until the engine has read what was in the memory of strip n % turns before; all wait for it
      the threads set the strip
      all wait for one another; the first thread has the engine store it, and goes on

The engine sees what threads wrote once they have passed a fence.  Before the kernel ends the first thread waits until all strips
have been read: shared memory is the next block's then.
Strips lie behind the ring in shared memory; each team has its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from math import prod

from lowc.artifact import TensorMap
from lowc.backends.nvptx.combine import barrier
from lowc.backends.nvptx.multiply import uniform
from lowc.backends.nvptx.thread import Memory, Thread, operand, plus
from lowc.errors import CodegenError
from lowc.ir import outlets
from lowc.ir.index import constant
from lowc.ir.nodes import Buffer, For, Kernel, Stmt
from lowc.ir.outlets import Drain, Outlet
from lowc.ir.tiles import GROUP

SHARED = "@lowc_shared"
OF_GROUPS = 8  # the barrier of the first group of threads; those before are for all threads, and teams
ALIGNMENT = 1024  # of strips: the pattern of the swizzle repeats there


@dataclass(slots=True)
class Outlets:
    """Of one kernel.  ``start``: of the strips in shared memory, in bytes; ``size``: of those of a team; ``maps``: of drains, in
    order, the first of them param ``first``; ``numbers``: of drains' maps, by strip.  ``group``: number of the thread's group."""

    t: Thread
    found: dict[int, Outlet]
    start: int
    first: int
    size: int = 0
    maps: list[TensorMap] = field(default_factory=list[TensorMap])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    offsets: dict[str, int] = field(default_factory=dict[str, int])
    group: str = ""

    def emit(self, loop: For, emit: Callable[[Stmt], None]) -> None:
        """The loop, its thread loops by ``emit``."""
        b, t, found = self.t.b, self.t, self.found[id(loop)]
        turns = loop.kind.width
        if found.apart:  # here, where all threads of a warp come by
            self.group = uniform(t, b.pure(f"lshr i32 {t.tid['x']}, {GROUP.bit_length() - 1}"))
        mine = f"mul i32 {t.team}, {self.size}" if t.team else ""
        # a number in a register: where the address of shared memory is put together behind a branch that one thread takes, ptxas
        # holds the ring's stage in registers of threads instead of the warp's, which takes twice the instructions of its loop
        base = b.op(f'call i32 asm "mov.b32 $0, {self.start};", "=r"()')
        base = plus(b, base, b.pure(mine) if mine else "", 32)
        for n in range(constant(loop.axis.extent) or 0):
            t.axes[loop.axis.name] = n
            places: dict[str, str] = {}
            for strip in found.strips:
                at = plus(b, base, str(self.offsets[strip.name] + n % turns * rounded(strip)), 32)
                places[strip.name] = b.pure(f"getelementptr i8, ptr addrspace(3) {SHARED}, i32 {at}")
                t.memory[strip.name] = Memory((places[strip.name],), 3, swizzled=True)
            self.first_does(lambda: self.wait(turns - 1), found.apart)
            self.meet(found.apart)
            emit(found.work)
            b.module.declare("llvm.nvvm.fence.proxy.async.shared_cta", "void", "")
            b.line("call void @llvm.nvvm.fence.proxy.async.shared_cta()")
            self.meet(found.apart)
            self.first_does(lambda places=places: self.drain(found, places), found.apart)
            for strip in found.strips:
                del t.memory[strip.name]

    def meet(self, apart: bool) -> None:
        """All threads, or with ``apart`` those of a group, wait for one another."""
        t, b = self.t, self.t.b
        if not apart:
            barrier(t)
            return
        b.module.declare("llvm.nvvm.barrier.cta.sync.aligned.count", "void", "i32, i32")
        number = b.pure(f"add i32 {self.group}, {OF_GROUPS}")
        b.line(f"call void @llvm.nvvm.barrier.cta.sync.aligned.count(i32 {number}, i32 {GROUP})")

    def first_does(self, body: Callable[[], None], apart: bool) -> None:
        """The first thread, or with ``apart`` that of each group."""

        def then() -> list[str]:
            body()
            return []

        b, tid = self.t.b, self.t.tid["x"]
        number = b.pure(f"and i32 {tid}, {GROUP - 1}") if apart else tid
        b.branch(b.pure(f"icmp eq i32 {number}, 0"), [], then)

    def wait(self, pending: int) -> None:
        """Until all but ``pending`` groups of stores have read their memory."""
        name = "llvm.nvvm.cp.async.bulk.wait.group.read"
        self.t.b.module.declare(name, "void", "i32")
        self.t.b.line(f"call void @{name}(i32 {pending})")

    def finish(self) -> None:
        """Before the kernel ends: until the memory of strips has been read.  Whoever comes after sees what was stored."""
        if self.found:
            self.first_does(lambda: self.wait(0), any(f.apart for f in self.found.values()))

    def drain(self, found: Outlet, places: dict[str, str]) -> None:
        for each in found.drains:
            self.store(each, places[each.strip.name], found.apart)
        self.t.b.module.declare("llvm.nvvm.cp.async.bulk.commit.group", "void", "")
        self.t.b.line("call void @llvm.nvvm.cp.async.bulk.commit.group()")

    def store(self, each: Drain, at: str, apart: bool) -> None:
        """Starts the stores of a strip at ``at``, with ``apart`` of the part of the thread's group."""
        b, t = self.t.b, self.t
        box = outlets.box(each)
        assert box is not None
        rank = len(box.box)
        name = f"llvm.nvvm.cp.async.bulk.tensor.s2g.tile.{rank}d"
        b.module.declare(name, "void", f"ptr addrspace(3), ptr{', i32' * rank}, i64, i1")
        outer, strides = each.loops[:-2], each.strip.strides
        if apart:
            size = (constant(strides[0]) or 0) * each.strip.dtype.bytes
            at = b.pure(f"getelementptr i8, ptr addrspace(3) {at}, i32 {b.pure(f'mul i32 {self.group}, {size}')}")
            t.axes[outer[0].axis.name] = (self.group, 32)
            outer, strides = outer[1:], strides[1:]
        for numbers in product(*[range(constant(f.axis.extent) or 0) for f in outer]):
            further = 0
            for loop, number, stride in zip(outer, numbers, strides, strict=False):
                t.axes[loop.axis.name] = number
                further += number * (constant(stride) or 0) * each.strip.dtype.bytes
            starts = "".join(f", i32 {operand(t, start, bits=32)[0]}" for start in box.starts)
            source = b.pure(f"getelementptr i8, ptr addrspace(3) {at}, i32 {further}") if further else at
            map_ = f"%m{self.first + self.numbers[each.strip.name]}"
            b.line(f"call void @{name}(ptr addrspace(3) {source}, ptr {map_}{starts}, i64 0, i1 false)")


def collect(t: Thread, kernel: Kernel, start: int, first: int) -> Outlets:
    """The outlets of ``kernel``, strips from ``start`` on, maps from ``first`` on; raises CodegenError for what is none."""
    made = Outlets(t, {}, -(-start // ALIGNMENT) * ALIGNMENT, first)
    position = {id(p): n for n, p in enumerate(kernel.params)}
    for loop in outlets.outlets(kernel.body):
        found = outlets.outlet(loop)
        if found is None:
            raise CodegenError(f"what takes results out over {loop.axis} is not of the form that there are instructions for")
        made.found[id(loop)] = found
        for each in found.drains:
            box = outlets.box(each)
            if box is None:
                raise CodegenError(f"where {each.strip.name} goes is no box of a buffer")
            width = box.buffer.dtype.bytes
            strides = tuple([n * width for n in box.strides[1:]])
            made.numbers[each.strip.name] = len(made.maps)
            made.maps.append(
                TensorMap(position[id(box.buffer)], box.buffer.dtype.name, box.offset * width, box.sizes, strides, box.box)
            )
            made.offsets[each.strip.name] = made.size
            made.size += loop.kind.width * rounded(each.strip)
            t.aligned.add(box.buffer.name)
    return made


def rounded(strip: Buffer) -> int:
    """Bytes of shared memory that a strip takes."""
    size = prod(constant(n) or 0 for n in strip.shape) * strip.dtype.bytes
    return -(-size // ALIGNMENT) * ALIGNMENT
