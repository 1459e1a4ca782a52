"""memory: SCHEDULED → BUFFERED.  Temps get places in one workspace, shared where lifetimes allow; equal kernels become one.

A temp that a launch makes, and that the call does not return, lives in the workspace from its first to its last step; places are
given first-fit by offset.  Symbolic sizes: a temp takes the place of a dead one that is surely as large; new places follow one
another.
What extern calls make, what is returned, and temps whose size only a step of the call tells (how many elements a mask selects)
are tensors of their own: the workspace is there before the first step.  So is what an op of the user's is given, who may keep it.

The workspace lives as long as the call, while tensors come and go: a backward pass begins with all that the forward pass saved
and frees it step by step.  Where the two together would need more at their worst than temps that live only as long as they are
used, the workspace is made smaller, and large temps beyond its end are tensors of their own:

    saved activations   ####### ##### ### #          at the first step a workspace of three temps is one temp too many,
    live temps          ##      ##    ### ###        so the third is a tensor of its own, made when it is needed
"""

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from lowc.ir import arithmetic
from lowc.ir.collective import is_collective
from lowc.ir.index import Index, Symbol, atoms, constant, ix, prove_nonneg
from lowc.ir.nodes import Buffer, Extern, Launch, Module
from lowc.ir.walk import storage_size
from lowc.options import Options
from lowc.scheduler.equal import share_kernels
from lowc.scheduler.nest import estimate, output_buffers, prune, returned, step_reads, step_writes
from lowc.target import Target

ALIGN = 64  # bytes; a cache line, and the widest vector
LARGE = 1 << 16  # bytes; smaller temps always go to the workspace, which costs a call nothing
SLACK = 0.02  # of the peak; to save less than that, no temp leaves the workspace
CANDIDATES = 16  # sizes of the workspace that are tried


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with ``placed`` and ``workspace`` filled in and one Kernel object for launches of equal text."""
    module = prune(module, module.steps)
    placed, workspace = _plan(module)
    steps = share_kernels(module)
    return replace(module, level="BUFFERED", steps=steps, placed=placed, workspace=workspace)


@dataclass(slots=True)
class _Life:
    """``size`` in bytes, first and last step that touches it."""

    buffer: Buffer
    size: Index
    first: int
    last: int


def _plan(module: Module) -> tuple[tuple[tuple[str, Index], ...], Index]:
    outside = returned(module)
    outside |= {id(r) for s in module.steps if isinstance(s, Extern) for r in s.results}
    outside |= {id(b) for s in module.steps if isinstance(s, Extern) and _users(s.target) for b in step_reads(s)}
    temps = {id(t) for t in module.temps}
    everything = _lives(module)
    wanted = [life for key, life in everything.items() if key in temps and key not in outside]
    numeric = [life for life in wanted if constant(life.size) is not None]
    given = _given(module)
    symbolic = [life for life in wanted if constant(life.size) is None and _symbols(life.size) <= given]
    placed: list[tuple[str, Index]] = []
    inside = {id(life.buffer) for life in wanted}
    others = [life for key, life in everything.items() if key not in inside]
    top = 0
    if numeric:
        limit = None if symbolic else _limit(module, numeric, others)
        places, top = _place_numeric(numeric, limit)
        placed += [(life.buffer.name, ix(places[n])) for n, life in enumerate(numeric) if n in places]
    end = _place_symbolic(symbolic, placed, top)
    return tuple(placed), end


def _users(target: str) -> bool:
    """Whether an op is neither torch's nor lowc's; one that calls an op which another op is given is taken for the user's."""
    return target.partition(".")[0] not in ("aten", "prims") and target != arithmetic.TARGET and not is_collective(target)


def _given(module: Module) -> set[Symbol]:
    """The sizes that are known before the first step: those in the inputs, and what is computed from them."""
    given: set[Symbol] = set()
    for entry in module.inputs:
        if isinstance(entry, Symbol):
            given.add(entry)
        elif isinstance(entry, Buffer):
            given.update(*map(_symbols, (*entry.shape, *entry.strides)))
    return arithmetic.known_from(module.steps, given)


def _symbols(index: Index) -> set[Symbol]:
    return {a for a in atoms(index) if isinstance(a, Symbol)}


def _lives(module: Module) -> dict[int, _Life]:
    """By identity of the buffer: inputs live from the first step on, what is returned lives on after the last."""
    lives: dict[int, _Life] = {}
    for entry in module.inputs:
        if isinstance(entry, Buffer):
            lives[id(entry)] = _Life(entry, _bytes(entry), 0, 0)
    for number, step in enumerate(module.steps):
        for buffer in (*_reads(step), *_writes(step)):
            life = lives.setdefault(id(buffer), _Life(buffer, _bytes(buffer), number, number))
            life.last = number
    for key in output_buffers(module) & lives.keys():
        lives[key].last = len(module.steps)
    return lives


def _bytes(buffer: Buffer) -> Index:
    return storage_size(buffer) * buffer.dtype.bytes


def _limit(module: Module, temps: list[_Life], others: list[_Life]) -> int | None:
    """How large the workspace may be, in bytes, for the call to need hardly more than what is alive at its worst step; None: as
    large as all ``temps`` together need.
    """
    if any(constant(life.size) is None for life in others):
        return None
    clock = _clock(module)
    places, top = _place_numeric(temps, None)
    least = max(_profile(clock, temps + others))
    ends = {places[n] + _aligned(life) for n, life in enumerate(temps)} - {top}
    best: tuple[int, int | None] = (top + max(_profile(clock, others)), None)
    for limit in sorted(ends, reverse=True)[:CANDIDATES]:
        if best[0] <= least * (1 + SLACK):
            break
        kept, used = _place_numeric(temps, limit)
        out = [life for n, life in enumerate(temps) if n not in kept]
        peak = used + max(_profile(clock, out + others))
        if peak < best[0]:
            best = (peak, limit)
    return best[1]


def _clock(module: Module) -> list[int]:
    """For each step, and the end: its time.  Launches that follow one another are one native call, before which all they need is
    made and after which it is freed: one time.
    """
    clock = [0]
    for before, step in pairwise(module.steps):
        clock.append(clock[-1] + (isinstance(before, Extern) or isinstance(step, Extern)))
    return [*clock, clock[-1] + 1]


def _profile(clock: list[int], lives: list[_Life]) -> list[int]:
    """Bytes alive at each time."""
    changes = [0] * (clock[-1] + 2)
    for life in lives:
        size = constant(life.size) or 0
        changes[clock[life.first]] += size
        changes[clock[life.last] + 1] -= size
    return list(accumulate(changes))


def _aligned(life: _Life) -> int:
    return -(-(constant(life.size) or 0) // ALIGN) * ALIGN


def _place_numeric(lives: list[_Life], limit: int | None) -> tuple[dict[int, int], int]:
    """First fit by offset: (number of each temp: its offset, the bytes used).  Large temps that do not fit into ``limit`` bytes
    get no place.
    """
    active: list[tuple[int, int, int]] = []  # (offset, end, last step)
    places: dict[int, int] = {}
    top = 0
    for number in sorted(range(len(lives)), key=lambda n: lives[n].first):
        life, size = lives[number], _aligned(lives[number])
        active = sorted(a for a in active if a[2] >= life.first)
        offset = 0
        for start, end, _ in active:
            if offset + size <= start:
                break
            offset = max(offset, end)
        if limit is not None and size >= LARGE and offset + size > limit:
            continue
        active.append((offset, offset + size, life.last))
        places[number] = offset
        top = max(top, offset + size)
    return places, top


def _place_symbolic(lives: list[_Life], placed: list[tuple[str, Index]], top: int) -> Index:
    """The smallest place that is surely large enough, and whose temp has died, is used again; returns the bytes used.

    Which is smallest, the sizes of the traced call decide; that it is large enough is proven for all.
    """
    places: list[tuple[int, Index, Index]] = []  # (last step, offset, bytes that are used)
    end = ix(top)
    for life in sorted(lives, key=lambda x: x.first):
        fitting = [n for n, (last, _, room) in enumerate(places) if last < life.first and _holds(room, life.size)]
        if fitting:
            number = min(fitting, key=lambda n: estimate(places[n][2]))
            _, offset, room = places[number]
            places[number] = (life.last, offset, room)
        else:
            offset = end
            places.append((life.last, end, life.size))
            end = end + (life.size + (ALIGN - 1)) // ALIGN * ALIGN
        placed.append((life.buffer.name, offset))
    return end


def _holds(room: Index, size: Index) -> bool:
    return room == size or (estimate(room) >= estimate(size) and prove_nonneg(room - size))


def _reads(step: Launch | Extern) -> list[Buffer]:
    """Module buffers that ``step`` touches (a launch's args: its kernel's params are its own)."""
    return list(step.args) if isinstance(step, Launch) else step_reads(step)


def _writes(step: Launch | Extern) -> list[Buffer]:
    return [] if isinstance(step, Launch) else step_writes(step)
