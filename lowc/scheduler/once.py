"""once: SCHEDULED → SCHEDULED.  What is made of constants alone is made by launches in front, which need not be repeated.

    launch mm_0(x, w, out, b_ahead)        # copies w to b_ahead in the order of use, then multiplies
      →  launch mm_0_once(w, b_ahead)      # b_ahead is an input now, constant as w is
         launch mm_0(x, out, b_ahead)

``Module.constants`` names the inputs that never change: the weights of an artifact.  Loops at the top of a kernel that read
nothing else, and sizes of no call, go to a launch of their own if all that they write is memory that nobody else writes, and
takes little more room than what they read: panels of a factor, sums of it, a transposed copy, but not weights of 8 bits widened
to 32.  A caller who runs the launches in front once, as a model is loaded, and keeps what they write, need not run them again;
who runs all steps in each call has the same results.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lowc.ir.index import Opaque, atoms, constant
from lowc.ir.nodes import Alloc, Buffer, For, Kernel, Launch, Module, Step, Stmt, Update, Var
from lowc.ir.walk import (
    buffers,
    exprs,
    has_check,
    indices,
    loads,
    make_kernel,
    names,
    parts,
    statements,
    storage_size,
    stores,
    symbols,
)
from lowc.options import Options
from lowc.scheduler.nest import output_buffers
from lowc.target import Target

ROOM = 1.3  # bytes that may be written for each byte that is read
SMALL = 1 << 12  # bytes that may be written in any case


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with launches in front, and what they write among its inputs and constants."""
    if not module.constants or not all(isinstance(s, Launch) for s in module.steps):
        return module
    known = set(module.constants)
    outside = {b.name for b in module.temps if id(b) in output_buffers(module)}
    writers: dict[str, list[int]] = {}
    for number, step in enumerate(module.steps):
        for buffer in _written(step):
            writers.setdefault(buffer.name, []).append(number)
    front: list[Step] = []
    rest: list[Step] = []
    new: list[Buffer] = []
    done: dict[tuple[int, tuple[bool, ...], tuple[bool, ...]], _Parts] = {}
    temps = {t.name for t in module.temps}
    for number, step in enumerate(module.steps):
        assert isinstance(step, Launch)
        own = tuple([a.name in temps and a.name not in outside and writers.get(a.name) == [number] for a in step.args])
        fixed = tuple([a.name in known for a in step.args])
        key = id(step.kernel), own, fixed
        if key not in done:
            params = step.kernel.params
            done[key] = _apart(
                step.kernel,
                {p.name for p, f in zip(params, fixed, strict=True) if f},
                {p.name for p, f in zip(params, own, strict=True) if f},
            )
        pair = done[key]
        args = {p.name: a for p, a in zip(step.kernel.params, step.args, strict=True)}
        for kernel, steps in ((pair.front, front), (pair.rest, rest)):
            if kernel is not None:
                steps.append(Launch(kernel, tuple([args[p.name] for p in kernel.params]), step.origin))
        new += [args[name] for name in pair.made]
        known |= {args[name].name for name in pair.made}
    if not new:
        return module
    moved = {b.name for b in new}
    return replace(
        module,
        inputs=(*module.inputs, *new),
        temps=tuple([t for t in module.temps if t.name not in moved]),
        steps=(*front, *rest),
        constants=(*module.constants, *(b.name for b in new)),
    )


def count(module: Module) -> int:
    """How many steps in front of ``module`` need not be repeated."""
    constants = set(module.constants)
    return sum(not constants.isdisjoint(b.name for b in _written(step)) for step in module.steps)


def made(module: Module) -> tuple[Buffer, ...]:
    """The inputs that those steps write."""
    written = {b.name for step in module.steps for b in _written(step)}
    inputs = [b for b in module.inputs if isinstance(b, Buffer)]
    return tuple([b for b in inputs if b.name in written and b.name in module.constants])


def _written(step: Step) -> list[Buffer]:
    """Arguments that ``step`` stores to."""
    if not isinstance(step, Launch):
        return []
    stored = {s.buffer.name for s in stores(step.kernel.body)}
    return [a for p, a in zip(step.kernel.params, step.args, strict=True) if p.name in stored]


@dataclass(frozen=True, slots=True)
class _Parts:
    """A kernel in two, each None if there is nothing in it; ``made``: the params that the first one writes."""

    front: Kernel | None
    rest: Kernel | None
    made: tuple[str, ...]


def _apart(kernel: Kernel, fixed: set[str], own: set[str]) -> _Parts:
    """``kernel`` in two.  ``fixed``: params that are constants; ``own``: temps that this kernel alone writes."""
    params = {p.name: p for p in kernel.params}
    possible = set(own)
    while True:
        front: list[Stmt] = []
        rest: list[Stmt] = []
        wrong: set[str] = set()
        for stmt in kernel.body:
            (front if _is_constant(stmt, fixed | possible, possible) else rest).append(stmt)
        for stmt in rest:
            wrong |= {s.buffer.name for s in stores((stmt,))} & possible
        written = {s.buffer.name for s in stores(front)} & params.keys()
        wrong |= (possible - written) & {load.buffer.name for load in loads(front)}
        wrong |= {name for name in written if not _fits(params[name], [s for s in front if _stores(s, name)], fixed)}
        if not wrong:
            break
        possible -= wrong
    if not front:
        return _Parts(None, kernel, ())
    kernels: list[Kernel | None] = []
    for name, body in ((f"{kernel.name}_once", front), (kernel.name, rest)):
        used = {b.name for b in buffers(body)}
        kernels.append(make_kernel(name, body, [p for p in kernel.params if p.name in used]) if body else None)
    return _Parts(kernels[0], kernels[1], tuple(p.name for p in kernel.params if p.name in written))


def _stores(stmt: Stmt, name: str) -> bool:
    return any(s.buffer.name == name for s in stores((stmt,)))


def _is_constant(stmt: Stmt, readable: set[str], writable: set[str]) -> bool:
    """Whether ``stmt`` is a loop that reads constants alone, the same in each call, and writes what may be kept."""
    if not isinstance(stmt, For) or symbols((stmt,)):
        return False
    inner = {s.buffer.name for s in statements((stmt,)) if isinstance(s, Alloc)}
    if any(s.buffer.name not in writable | inner for s in stores((stmt,))):
        return False
    if any(load.buffer.name not in readable | inner for load in loads((stmt,))):
        return False
    return not _outside((stmt,)) and not any(has_check(e) for s in statements((stmt,)) for e in exprs(s))


def _outside(body: Sequence[Stmt]) -> bool:
    """Whether ``body`` uses a name that is defined outside of it, or adds to a sum that is."""
    bound = names(body)
    if any(v.name not in bound for s in statements(body) if isinstance(s, Update) for v in s.vars):
        return True
    if any(isinstance(a, Opaque) and a.name not in bound for index in indices(body) for a in atoms(index)):
        return True
    return any(isinstance(p, Var) and p.name not in bound for s in statements(body) for e in exprs(s) for p in parts(e))


def _fits(buffer: Buffer, body: Sequence[Stmt], fixed: set[str]) -> bool:
    """Whether keeping ``buffer``, which ``body`` writes, takes little more memory than what is read for it."""
    size = constant(storage_size(buffer))
    if size is None:
        return False
    read = {load.buffer.name: load.buffer for load in loads(body) if load.buffer.name in fixed}
    most = sum((constant(storage_size(b)) or 0) * b.dtype.bytes for b in read.values()) * ROOM
    return size * buffer.dtype.bytes <= max(most, SMALL)
