"""Barriers in shared memory, and where in a ring of stages a thread is.

A barrier changes phase each time that all who are to arrive have, and all bytes that were announced have come: the number of
turns so far, modulo 2, is the phase that is waited for.
"""

from dataclasses import dataclass

from lowc.backends.nvptx.thread import Thread

SHARED = "@lowc_shared"
BOUNDED = "bounded"
PATIENCE = 1 << 22  # tries, each of some time that the hardware chooses, after which a wait that is bounded gives up


def pointer(t: Thread, start: int, number: str) -> str:
    """To barrier ``number`` of those that begin ``start`` bytes into shared memory."""
    at = t.b.pure(f"getelementptr i8, ptr addrspace(3) {SHARED}, i32 {start}")
    return t.b.pure(f"getelementptr i64, ptr addrspace(3) {at}, i32 {number}")


def init(t: Thread, barrier: str, count: int) -> None:
    """For ``count`` arrivals in each phase."""
    t.b.module.declare("llvm.nvvm.mbarrier.init.shared", "void", "ptr addrspace(3), i32")
    t.b.line(f"call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) {barrier}, i32 {count})")


def settle(t: Thread) -> None:
    """After the inits, for the engine to see them."""
    t.b.module.declare("llvm.nvvm.fence.mbarrier_init.release.cluster", "void", "")
    t.b.line("call void @llvm.nvvm.fence.mbarrier_init.release.cluster()")


def all_meet(t: Thread) -> None:
    """All threads of the block wait for one another."""
    t.b.module.declare("llvm.nvvm.barrier.cta.sync.aligned.all", "void", "i32")
    t.b.line("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")


def wait(t: Thread, barrier: str, phase: str) -> None:
    """Until the barrier has left ``phase``."""
    b = t.b
    if BOUNDED in t.ops:
        text = (
            "{ .reg .pred done, late; .reg .b32 tries; mov.b32 tries, 0; AGAIN${:uid}: "
            "mbarrier.try_wait.parity.shared.b64 done, [$0], $1; @done bra DONE${:uid}; add.u32 tries, tries, 1; "
            f"setp.gt.u32 late, tries, {PATIENCE}; @late trap; bra AGAIN${{:uid}}; DONE${{:uid}}: }}"
        )
        at = b.pure(f"ptrtoint ptr addrspace(3) {barrier} to i32")
        b.line(f'call void asm sideeffect "{text}", "r,r,~{{memory}}"(i32 {at}, i32 {phase}) convergent nounwind')
        return
    name = "llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta"
    b.module.declare(name, "i1", "ptr addrspace(3), i32")
    b.until(lambda: b.op(f"call i1 @{name}(ptr addrspace(3) {barrier}, i32 {phase})"))


def arrive(t: Thread, barrier: str) -> None:
    name = "llvm.nvvm.mbarrier.arrive.scope.cta.space.cta"
    t.b.module.declare(name, "i64", "ptr addrspace(3), i32")
    t.b.op(f"call i64 @{name}(ptr addrspace(3) {barrier}, i32 1)")


def expect(t: Thread, barrier: str, size: int) -> None:
    """Arrives, and has the barrier wait for ``size`` bytes of copies."""
    name = "llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta"
    t.b.module.declare(name, "i64", "ptr addrspace(3), i32")
    t.b.op(f"call i64 @{name}(ptr addrspace(3) {barrier}, i32 {size})")


@dataclass(slots=True)
class Place:
    """Stage and phase of a thread in a ring of ``stages``, in memory that becomes registers."""

    t: Thread
    stages: int
    stage: str
    phase: str

    def now(self) -> tuple[str, str]:
        return self.t.b.op(f"load i32, ptr {self.stage}"), self.t.b.op(f"load i32, ptr {self.phase}")

    def put(self, stage: str, phase: str) -> None:
        self.t.b.line(f"store i32 {stage}, ptr {self.stage}")
        self.t.b.line(f"store i32 {phase}, ptr {self.phase}")

    def advance(self, stage: str, phase: str) -> None:
        b = self.t.b
        following = b.op(f"add i32 {stage}, 1")
        last = b.op(f"icmp eq i32 {following}, {self.stages}")
        turned = b.op(f"zext i1 {last} to i32")
        self.put(b.op(f"select i1 {last}, i32 0, i32 {following}"), b.op(f"xor i32 {phase}, {turned}"))


def place(t: Thread, stages: int, phase: int) -> Place:
    """Stage 0, and the phase to be waited for there."""
    made = Place(t, stages, t.b.alloca("i32", 4), t.b.alloca("i32", 4))
    made.put("0", str(phase))
    return made
