"""Turns under a condition, of pipelines with a product across: who fills finds out which are done, and tells those who multiply,
who have no registers for it.

    shared memory, behind the barriers: of each stage the number of the turn it is of, and that of the next one that is done
    who fills:     for each turn that is done, and once more: wait until the stage is empty; say both numbers; fill
    who multiply:  wait until a stage is full; read both numbers; leave if the first is no turn's

The numbers are stored before the barrier is told to expect the tiles, and read after it says that they are there.
"""

from collections.abc import Callable

from lowc.backends.nvptx import barriers
from lowc.backends.nvptx.relay import RelayRing
from lowc.backends.nvptx.thread import operand
from lowc.ir.nodes import For
from lowc.ir.relays import Turns

PAIR = "<2 x i32>"


def fill(ring: RelayRing, loop: For) -> None:
    """A pipeline as the thread that fills has it."""
    b, t, found = ring.t.b, ring.t, ring.turns(loop)
    end, bits = operand(t, loop.axis.extent)
    place, ahead = (b.alloca(f"i{bits}", bits // 8) for _ in range(2))
    _further(ring, found, "0", end, bits, place)

    def stops() -> str:
        index = b.op(f"load i{bits}, ptr {place}")
        _further(ring, found, b.op(f"add nsw i{bits} {index}, 1"), end, bits, ahead)
        following = b.op(f"load i{bits}, ptr {ahead}")
        stage, phase = ring.place.now()
        barriers.wait(t, ring.empty(0, stage), phase)
        barriers.wait(t, ring.empty(1, stage), phase)
        pair = f"{PAIR} poison"
        for number, text in enumerate((index, following)):
            text = b.op(f"trunc i{bits} {text} to i32") if bits > 32 else text
            pair = f"{PAIR} {b.op(f'insertelement {pair}, i32 {text}, i32 {number}')}"
        b.line(f"store {pair}, ptr addrspace(3) {_at(ring, stage)}, align 8")
        ends = b.op(f"icmp sge i{bits} {index}, {end}")

        def tell() -> None:
            for number in range(2):
                barriers.arrive(t, ring.full(number, stage))

        def copy() -> None:
            t.axes[loop.axis.name] = (index, bits)
            for number, each in enumerate(found.fills):
                ring.copy(each, ring.offset(number, stage), ring.full(number, stage))

        b.either(ends, tell, copy)
        ring.place.advance(stage, phase)
        b.line(f"store i{bits} {following}, ptr {place}")
        return ends

    b.until(stops)


def turns(ring: RelayRing, loop: For, first: str, work: Callable[[str, str], None]) -> None:
    """A pipeline as those who multiply have it: ``work`` gets the numbers of a turn and of the next."""
    b, t = ring.t.b, ring.t
    end, bits = operand(t, loop.axis.extent)

    def stops() -> str:
        stage, phase = ring.place.now()
        index, following = told(ring, bits)
        ends = b.op(f"icmp sge i{bits} {index}, {end}")

        def leave() -> None:
            barriers.wait(t, ring.full(1, stage), phase)  # a phase that nobody waits for is an error to compute-sanitizer
            ring.meet()  # none of them reads what the stage gets next
            ring.release(first, *(ring.empty(number, stage) for number in range(2)))
            ring.place.advance(stage, phase)

        b.either(ends, leave, lambda: work(index, following))
        return ends

    b.until(stops)


def told(ring: RelayRing, bits: int) -> tuple[str, str]:
    """The number of the turn whose stage is next, once that is full, and that of the turn behind it."""
    b, t = ring.t.b, ring.t
    stage, phase = ring.place.now()
    barriers.wait(t, ring.full(0, stage), phase)
    pair = b.op(f"load {PAIR}, ptr addrspace(3) {_at(ring, stage)}, align 8")
    numbers = [b.op(f"extractelement {PAIR} {pair}, i32 {n}") for n in range(2)]
    if bits > 32:
        numbers = [b.op(f"sext i32 {n} to i{bits}") for n in numbers]
    return numbers[0], numbers[1]


def _at(ring: RelayRing, stage: str) -> str:
    """Where the numbers of a stage are."""
    return barriers.pointer(ring.t, ring.numbers_at, stage)


def _further(ring: RelayRing, found: Turns, first: str, end: str, bits: int, place: str) -> None:
    """Leaves at ``place`` the number of the first turn from ``first`` on whose condition holds; ``end``, or ``first`` if that is
    more, if there is none."""
    b, t, seen = ring.t.b, ring.t, found.seen
    assert seen is not None
    b.line(f"store i{bits} {first}, ptr {place}")

    def stops() -> str:
        index = b.op(f"load i{bits}, ptr {place}")
        t.axes[found.loop.axis.name] = (index, bits)
        inside = b.op(f"icmp slt i{bits} {index}, {end}")
        (stop,) = b.branch(inside, [("i1", "true")], lambda: [ring.evaluate(seen)[0].text])
        further = b.op(f"add nsw i{bits} {index}, 1")
        b.line(f"store i{bits} {b.op(f'select i1 {stop}, i{bits} {index}, i{bits} {further}')}, ptr {place}")
        return stop

    b.until(stops)
