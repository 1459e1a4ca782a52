"""Facts about loop nests that several passes ask for: maps, work, sizes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import cast

from lowc.ir.index import (
    Axis,
    Index,
    Opaque,
    Symbol,
    constant,
    depends_on,
    evaluate,
    floordiv,
    ix,
    mod,
    sole_atom,
)
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import (
    Buffer,
    Const,
    Expr,
    Extern,
    For,
    FromIndex,
    Kernel,
    Launch,
    Let,
    Load,
    Module,
    Op,
    Step,
    Stmt,
    Store,
    Var,
    View,
)
from lowc.ir.ops import MATHS
from lowc.ir.walk import Substitution, children, loads, stores
from lowc.scheduler.rename import fresh

HINT = 64  # stands in for a symbol of which only the range is known, as one that comes from data


@dataclass(frozen=True, slots=True, eq=False)
class MapNest:
    """A kernel that computes each element of ``out`` once: ``out[axes] = value`` after ``lets``, for all axes."""

    out: Buffer
    axes: tuple[Index, ...]
    lets: tuple[Let, ...]
    value: Expr


def as_map(kernel: Kernel) -> MapNest | None:
    """``kernel`` as a MapNest, or None if it is anything else."""
    loops = chain(kernel.body)
    body = loops[-1].body if loops else kernel.body
    last = body[-1] if body else None
    if not isinstance(last, Store) or last.mask is not None or last.reducer:
        return None
    lets = body[:-1]
    if not all(isinstance(s, Let) for s in lets):
        return None
    seen: set[Axis] = set()
    for position, size in zip(last.index, last.buffer.shape, strict=True):
        if constant(size) == 1 and constant(position) == 0:
            continue
        axis = plain_axis(position)
        if axis is None or axis in seen or axis.extent != size:
            return None
        seen.add(axis)
    return MapNest(last.buffer, last.index, tuple(s for s in lets if isinstance(s, Let)), last.value)


def plain_axis(index: Index) -> Axis | None:
    """The axis that ``index`` is, with nothing added or multiplied."""
    atom = sole_atom(index)
    return atom if isinstance(atom, Axis) else None


def weight(expr: Expr, seen: dict[int, int] | None = None) -> int:
    """The cost of evaluating ``expr`` once, in cheap vector instructions; loads and casts are free."""
    seen = {} if seen is None else seen
    if id(expr) in seen:
        return 0
    seen[id(expr)] = 1
    own = 0
    if isinstance(expr, Op):
        own = _WEIGHTS.get(expr.name, 12 if expr.name in MATHS else 1)
    return own + sum(weight(c, seen) for c in children(expr))


_WEIGHTS = {
    "cast": 0, "bitcast": 0, "neg": 1, "div": 4, "sqrt": 4, "floordiv": 12, "truncdiv": 12, "floormod": 12, "truncmod": 12,
    "fmod": 30, "check_index": 3, "check_nonzero": 3, "pow": 40, "sin": 16, "cos": 16,
}  # fmt: skip


def numel(shape: Sequence[Index]) -> Index:
    """Number of elements of ``shape``."""
    total = ix(1)
    for size in shape:
        total = total * size
    return total


def iterations(loops: Sequence[For]) -> int:
    """About how often the innermost of directly nested ``loops`` runs, at least 1."""
    return prod(max(1, estimate(loop.axis.extent)) for loop in loops)


def depends(loop: For, outer: Sequence[For]) -> bool:
    """Whether how long ``loop`` is depends on an axis of ``outer``."""
    return any(depends_on(loop.axis.extent, f.axis) for f in outer)


def nested(axes: Sequence[Axis], body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """Serial loops over ``axes``, outermost first, around ``body``."""
    inner = tuple(body)
    for axis in reversed(axes):
        inner = (For(axis, inner),)
    return inner


def estimate(index: Index) -> int:
    """A number for ``index``: exact if it has one, else with every symbol at its hint, or about ``HINT`` if it has none."""
    value = constant(index)
    if value is not None:
        return value
    env: dict[str, int] = {}
    pending = [index]
    while pending:
        for atom in index_atoms(pending.pop()):
            if isinstance(atom, Symbol):
                env[atom.name] = likely(atom)
            elif isinstance(atom, Axis) and atom.name not in env:
                env[atom.name] = estimate(atom.extent) // 2
            elif isinstance(atom, Opaque):
                env[repr(atom)] = 0
    return int(evaluate(index, env))


def likely(symbol: Symbol) -> int:
    """A value for ``symbol`` to decide with: its hint, or one near ``HINT`` in its range."""
    if symbol.hint is not None:
        return symbol.hint
    return max(symbol.lo, HINT if symbol.hi is None else min(symbol.hi, HINT))


def is_free(expr: Expr) -> bool:
    """Whether ``expr`` reads no memory and costs next to nothing."""
    return isinstance(expr, Const | FromIndex | Var) or (
        isinstance(expr, Op) and expr.name == "cast" and is_free(expr.args[0])
    )


@dataclass(frozen=True, slots=True)
class Uses:
    """Who touches each buffer, by step number, in order; buffers by ``id``."""

    readers: dict[int, list[int]]
    writers: dict[int, list[int]]
    returned: set[int]


def step_reads(step: Launch | Extern) -> list[Buffer]:
    """Buffers whose contents ``step`` needs."""
    if isinstance(step, Launch):
        found = {id(load.buffer): load.buffer for load in loads(step.kernel.body)}
        found.update({id(s.buffer): s.buffer for s in stores(step.kernel.body) if s.reducer})
        return list(found.values())
    out: list[Buffer] = []
    pending: list[object] = [*step.args, *(v for _, v in step.kwargs)]
    while pending:
        item = pending.pop()
        if isinstance(item, View):
            out.append(item.buffer)
        elif isinstance(item, tuple):
            pending.extend(cast("tuple[object, ...]", item))
    return out


def step_writes(step: Launch | Extern) -> list[Buffer]:
    """Buffers that ``step`` changes."""
    if isinstance(step, Launch):
        return list({id(s.buffer): s.buffer for s in stores(step.kernel.body)}.values())
    return [*(r for r in step.results if isinstance(r, Buffer)), *step.writes]


def uses(module: Module) -> Uses:
    """The readers and writers of every buffer of ``module``."""
    readers: dict[int, list[int]] = {}
    writers: dict[int, list[int]] = {}
    for number, step in enumerate(module.steps):
        for buffer in step_reads(step):
            readers.setdefault(id(buffer), []).append(number)
        for buffer in step_writes(step):
            writers.setdefault(id(buffer), []).append(number)
    return Uses(readers, writers, returned(module))


def returned(module: Module) -> set[int]:
    """``id`` of every buffer that the call returns, and of every input (what is stored there is seen)."""
    return output_buffers(module) | {id(b) for b in module.inputs if isinstance(b, Buffer)}


def output_buffers(module: Module) -> set[int]:
    """``id`` of every buffer that the call returns, or a view of it."""
    out: set[int] = set()
    pending: list[object] = [*module.outputs]
    while pending:
        item = pending.pop()
        if isinstance(item, View):
            out.add(id(item.buffer))
        elif isinstance(item, tuple):
            pending.extend(cast("tuple[object, ...]", item))
    return out


def private(module: Module) -> dict[int, list[Buffer]]:
    """By step number: the temps that this step alone touches and that the call does not return."""
    shared = returned(module)
    owner: dict[int, int] = {}
    mine: dict[int, list[Buffer]] = {}
    for number, step in enumerate(module.steps):
        for buffer in (*step_reads(step), *step_writes(step)):
            if id(buffer) not in owner:
                owner[id(buffer)] = number
                mine.setdefault(number, []).append(buffer)
            elif owner[id(buffer)] != number:
                shared.add(id(buffer))
    return {number: [b for b in own if id(b) not in shared] for number, own in mine.items()}


def prune(module: Module, steps: Sequence[Launch | Extern]) -> Module:
    """``module`` with ``steps``, and only the temps that they still touch or the call returns."""
    alive = returned(module)
    for step in steps:
        alive.update(id(b) for b in step_reads(step))
        alive.update(id(b) for b in step_writes(step))
        if isinstance(step, Launch):
            alive.update(id(b) for b in step.args)
    temps = tuple([t for t in module.temps if id(t) in alive])
    return replace(module, temps=temps, steps=tuple(steps))


def map_kernels(module: Module, each: Callable[[Kernel], Kernel], level: str = "") -> Module:
    """``module`` with ``each`` applied to its kernels, once to one that several launches share; ``level`` if that changes."""
    return expand_kernels(module, lambda kernel: (each(kernel),), level)


def expand_kernels(module: Module, each: Callable[[Kernel], tuple[Kernel, ...]], level: str = "") -> Module:
    """``module`` with a launch of each kernel that ``each`` makes of one; ``level`` if that changes.

    ``each`` keeps the params, in number and order, since the launches keep their arguments.  An error of it gets the ``origin``
    of the kernel's launches, if it has none.
    """
    done: dict[int, tuple[Kernel, ...]] = {}
    steps: list[Step] = []
    for step in module.steps:
        if not isinstance(step, Launch):
            steps.append(step)
            continue
        kernels = done.get(id(step.kernel))
        if kernels is None:
            try:
                kernels = done[id(step.kernel)] = each(step.kernel)
            except Exception as error:
                if not getattr(error, "origin", ()):
                    shared = [s for s in module.steps if isinstance(s, Launch) and s.kernel is step.kernel]
                    error.origin = tuple(dict.fromkeys(o for s in shared for o in s.origin))  # type: ignore[attr-defined]
                raise
        steps += [step if k is step.kernel else Launch(k, step.args, step.origin) for k in kernels]
    return replace(module, level=level or module.level, steps=tuple(steps))


def chain(body: Sequence[Stmt]) -> list[For]:
    """The loops that enclose all of ``body``, outermost first."""
    found: list[For] = []
    while len(body) == 1 and isinstance(body[0], For):
        found.append(body[0])
        body = body[0].body
    return found


def one_loop(nest: Sequence[For], name: str, taken: set[str]) -> For:
    """One loop over ``name`` for directly nested loops whose extents do not depend on one another."""
    flat = Axis(fresh(name, taken), numel([each.axis.extent for each in nest]))
    rest: Index = ix(flat)
    where = Substitution()
    for each in reversed(nest):
        where.atoms[each.axis] = rest if each is nest[0] else mod(rest, each.axis.extent)
        rest = floordiv(rest, each.axis.extent)
    return For(flat, where.body(nest[-1].body))


def touched(body: Sequence[Stmt]) -> list[Load | Store]:
    """Every access to memory in ``body``."""
    return [*loads(body), *stores(body)]
