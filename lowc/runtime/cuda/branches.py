"""Which kernels of a native call run side by side, on streams of their own.

An event costs the host as much as half a launch, so a kernel leaves the main stream only where that pays: it leaves most of the
GPU idle (few blocks), takes long (many iterations in a thread), and runs beside another of which the same is true.

    main    a ---- record -- c ------------- wait -- d
    side             wait -- b -- record

Everything else stays on the main stream, in the order of the program.  At the end the main stream has waited for all others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lowc.artifact import Artifact, Entry, Native
from lowc.ir.index import Index, constant
from lowc.ir.nodes import Buffer, For, If, Launch, Stmt
from lowc.ir.walk import loads, stores

SIDES = 3  # streams beside the main one
LONG = 2048  # iterations of a thread: some ten microseconds


@dataclass(frozen=True, slots=True)
class Start:
    """Launch step ``step`` on stream ``lane`` (0: the main one)."""

    step: int
    lane: int


@dataclass(frozen=True, slots=True)
class Signal:
    """Record the event of ``lane`` in its stream."""

    step: int
    lane: int


@dataclass(frozen=True, slots=True)
class Await:
    """Have the stream of ``lane`` wait for the event of lane ``other``."""

    step: int
    lane: int
    other: int


@dataclass(frozen=True, slots=True)
class Branches:
    """What to do, in order; ``sides``: how many streams beside the main one."""

    order: tuple[Start | Signal | Await, ...]
    sides: int = 0


def branch(artifact: Artifact, native: Native, processors: int) -> Branches:
    """The order of ``native``'s launches for a GPU of ``processors`` multiprocessors (0: one stream)."""
    steps = native.launches
    straight = Branches(tuple(Start(step, 0) for step in steps))
    slow = [_is_slow(artifact, step, processors) for step in steps]
    if sum(slow) < 2:
        return straight
    needs = _needs(artifact, steps)
    lanes = _lanes(needs, slow)
    return Branches(_order(steps, needs, lanes), max(lanes)) if any(lanes) else straight


def _lanes(needs: Sequence[frozenset[int]], slow: Sequence[bool]) -> list[int]:
    """The lane of each launch.  ``needs``: for each, those before it that it must come after."""
    lanes: list[int] = []
    last: dict[int, int] = {}
    before: list[set[int]] = []
    for number, wanted in enumerate(needs):
        before.append(set(wanted).union(*(before[n] for n in wanted)))
        # A lane is as good as empty for this launch if it has to wait for the last one there anyway.
        free = [lane for lane, step in last.items() if step in before[number]]
        lane = 0
        if slow[number] and last and 0 not in free:
            beside = any(slow[n] for n in range(number) if n not in before[number])
            side = next((n for n in free if n), len(last) if len(last) <= SIDES else 0)
            lane = side if beside else 0
        last[lane] = number
        lanes.append(lane)
    return lanes


def _order(
    steps: Sequence[int], needs: Sequence[frozenset[int]], lanes: Sequence[int]
) -> tuple[Start | Signal | Await, ...]:
    """Launches, with events where a lane needs what another one has done."""
    waits: list[
        list[tuple[int, int]]
    ] = []  # for each launch: (lane, the launch there that it waits for; -1: the start)
    seen: dict[tuple[int, int], int] = {}  # (lane, other): the last launch there that it has waited for
    for number, wanted in enumerate(needs):
        lane = lanes[number]
        latest: dict[int, int] = {}
        for n in wanted:
            latest[lanes[n]] = max(n, latest.get(lanes[n], -1))
        if lane and (lane, 0) not in seen:
            latest.setdefault(0, -1)
        found = [
            (other, n)
            for other, n in sorted(latest.items())
            if other != lane and ((lane, other) not in seen or n > seen[lane, other])
        ]
        seen.update({(lane, other): n for other, n in found})
        waits.append(found)
    final = [(lane, max(n for n, at in enumerate(lanes) if at == lane)) for lane in range(1, max(lanes) + 1)]
    final = [(lane, n) for lane, n in final if seen.get((0, lane), -1) < n]
    signals = {n for group in (*waits, final) for _, n in group}
    order: list[Start | Signal | Await] = [Signal(steps[0], 0)] if -1 in signals else []
    for number, step in enumerate(steps):
        order += [Await(step, lanes[number], other) for other, _ in waits[number]]
        order.append(Start(step, lanes[number]))
        if number in signals:
            order.append(Signal(step, lanes[number]))
    order += [Await(steps[-1], 0, other) for other, _ in final]
    return tuple(order)


# ---------------------------------------------------------------- who touches what


def _needs(artifact: Artifact, steps: Sequence[int]) -> list[frozenset[int]]:
    """For each launch, the earlier ones that it must not overtake."""
    placed = dict(artifact.module.placed)
    touched = [_touches(_launch(artifact, step)) for step in steps]
    out: list[frozenset[int]] = []
    for number, (reads, writes) in enumerate(touched):
        found = [
            n
            for n, (r, w) in enumerate(touched[:number])
            if _meet(w, [*reads, *writes], placed) or _meet(r, writes, placed)
        ]
        out.append(frozenset(found))
    return out


def _touches(launch: Launch) -> tuple[list[Buffer], list[Buffer]]:
    """(read, written) buffers of the module."""
    argument = dict(zip((p.name for p in launch.kernel.params), launch.args, strict=True))
    body = launch.kernel.body
    writes = {s.buffer.name for s in stores(body)} & argument.keys()
    reads = {load.buffer.name for load in loads(body)} | {s.buffer.name for s in stores(body) if s.reducer}
    return [argument[n] for n in reads & argument.keys()], [argument[n] for n in writes]


def _meet(some: Sequence[Buffer], others: Sequence[Buffer], placed: Mapping[str, Index]) -> bool:
    """Whether they share memory: the same buffer, or places of the workspace that overlap."""
    return any(a.name == b.name or _overlap(a, b, placed) for a in some for b in others)


def _overlap(a: Buffer, b: Buffer, placed: Mapping[str, Index]) -> bool:
    if a.name not in placed or b.name not in placed:
        return False
    ranges: list[tuple[int, int]] = []
    for buffer in (a, b):
        start, size = constant(placed[buffer.name]), _bytes(buffer)
        if start is None or size is None:
            return True
        ranges.append((start, start + size))
    (first, end), (other, other_end) = ranges
    return first < other_end and other < end


def _bytes(buffer: Buffer) -> int | None:
    last = 0
    for size, stride in zip(buffer.shape, buffer.strides, strict=True):
        n, step = constant(size), constant(stride)
        if n is None or step is None:
            return None
        last += max(n - 1, 0) * step
    return (last + 1) * buffer.dtype.bytes


# ---------------------------------------------------------------- how long it takes


def _launch(artifact: Artifact, step: int) -> Launch:
    launch = artifact.module.steps[step]
    assert isinstance(launch, Launch)
    return launch


def _is_slow(artifact: Artifact, step: int, processors: int) -> bool:
    """Whether a launch uses at most half of the GPU, and that for long."""
    launch = _launch(artifact, step)
    entry: Entry = artifact.entries[launch.kernel.name]
    blocks = constant(entry.grid)
    return blocks is not None and blocks * 2 <= processors and _iterations(launch.kernel.body) >= LONG


def _iterations(body: Sequence[Stmt]) -> int:
    """How many statements a thread runs, about; symbolic extents count once."""
    total = 0
    for stmt in body:
        if isinstance(stmt, For):
            extent = constant(stmt.axis.extent) or 1
            if stmt.kind.name == "block":
                times = 1
            elif stmt.kind.name == "thread":
                times = -(-extent // max(stmt.kind.width, 1))
            else:
                times = extent
            total += times * _iterations(stmt.body)
        elif isinstance(stmt, If):
            total += _iterations(stmt.body)
        else:
            total += 1
    return total
