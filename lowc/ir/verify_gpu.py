"""The rules of a kernel @MACHINE for NVIDIA GPUs (docs/design.md 6), beyond those of ``verify_kernel``.

Checked: where block and thread loops stand, how many threads there are, what may be inside, that values shared by threads are
read only once they are complete, that threads which wait for one another all come by, and how @local memory is indexed.
Not checked: missing barriers, extents below 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from lowc.errors import VerifyError
from lowc.ir.index import Axis, Index, Opaque, atoms, ix, upper_bound
from lowc.ir.interval import interval
from lowc.ir.nodes import (
    Acc,
    Alloc,
    Barrier,
    For,
    If,
    Kernel,
    Launch,
    Let,
    Load,
    Module,
    Stmt,
    Store,
    Update,
    Var,
)
from lowc.ir.printer import print_kernel_lines
from lowc.ir.relays import exchanges, has_relay
from lowc.ir.scan import read, walk_in_order
from lowc.ir.tiles import GROUP
from lowc.ir.verify_tiles import broken
from lowc.ir.verify_values import excerpt
from lowc.ir.walk import exprs, indices, parts, statements

KINDS = frozenset({"serial", "unroll", "vector", "thread", "instr", "pipeline", "teams"})
MAX_THREADS = 1024
Dims = frozenset[str]


@dataclass(slots=True)
class _State:
    """``open``: the dimensions of the thread loops around.  ``varying``: axes and lets that differ from thread to thread.

    ``declared``: the dimensions open around an accumulator or a @local buffer.  ``axes``: of thread loops, with their dimension.
    ``around``: the statements around.  ``exchanging``: whether one of them is an instruction by which threads exchange.
    """

    kernel: Kernel
    threads: dict[str, int] = field(default_factory=dict[str, int])
    open: Dims = frozenset()
    varying: set[str] = field(default_factory=set[str])
    declared: dict[str, Dims] = field(default_factory=dict[str, Dims])
    axes: dict[str, str] = field(default_factory=dict[str, str])
    places: dict[str, list[tuple[Index, ...]]] = field(default_factory=dict[str, list[tuple[Index, ...]]])
    around: list[For | If] = field(default_factory=list[For | If])
    exchanging: bool = False
    stmt: object = None

    def fail(self, rule: str) -> NoReturn:
        shown = excerpt(print_kernel_lines(self.kernel), self.stmt)
        raise VerifyError(f"{self.kernel.name}: {rule}\n{shown}")


def verify_threads(module: Module) -> None:
    """Raises VerifyError if a kernel of ``module`` is none for a GPU."""
    seen: set[int] = set()
    for step in module.steps:
        if isinstance(step, Launch) and id(step.kernel) not in seen:
            seen.add(id(step.kernel))
            verify_kernel_threads(step.kernel)


def verify_kernel_threads(kernel: Kernel) -> None:
    """Raises VerifyError if ``kernel`` is none for a GPU."""
    s = _State(kernel)
    body = kernel.body
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind.name == "block":
        body = body[0].body
    for stmt in statements(body):
        s.stmt = stmt
        if isinstance(stmt, For) and stmt.kind.name == "thread":
            _width(s, stmt)
    if s.threads.get("x", 1) * s.threads.get("y", 1) > MAX_THREADS:
        s.stmt = kernel
        s.fail(f"{s.threads['x']} x {s.threads['y']} threads; a block has {MAX_THREADS} at most")
    if (wrong := broken(kernel)) is not None:
        s.stmt, rule = wrong
        s.fail(rule)
    _block(s, body)
    for name, places in s.places.items():
        _local(s, name, places)


def _width(s: _State, loop: For) -> None:
    d, width = loop.kind.key or "x", loop.kind.width
    if d not in ("x", "y"):
        s.fail(f"a thread loop along {d}; threads lie along x and y")
    if width < 1 or (width & (width - 1) and (width % GROUP or not has_relay(s.kernel.body))):
        s.fail(f"thread({width}): a power of two is needed")
    if s.threads.setdefault(d, width) != width:
        s.fail(f"a loop over {width} threads in {d}, others are over {s.threads[d]}")
    most = [m for m in (upper_bound(loop.axis.extent), interval(loop.axis.extent)[1]) if m is not None]
    if not most or min(most) > width:
        s.fail(f"{loop.axis.extent} iterations are not known to be at most {width}, the number of threads")


def _block(s: _State, body: Sequence[Stmt]) -> None:
    for position, stmt in enumerate(body):
        s.stmt = stmt
        _note(s, stmt)
        if isinstance(stmt, Acc):
            s.declared[stmt.vars[0].name] = s.open
            _complete(s, stmt, {v.name for v in stmt.vars}, body[position + 1 :])
        elif isinstance(stmt, Alloc):
            s.declared[stmt.buffer.name] = s.open
            if stmt.buffer.space == "shared" and s.open:
                s.fail(f"{stmt.buffer.name} is a block's, and declared in a thread loop")
            if stmt.buffer.space == "local":
                s.places[stmt.buffer.name] = []
            if stmt.reducer:
                _complete(s, stmt, {stmt.buffer.name}, body[position + 1 :])
        elif isinstance(stmt, Let):
            if s.open:
                s.varying.add(stmt.var.name)
        elif isinstance(stmt, For):
            _for(s, stmt)
        elif isinstance(stmt, If):
            s.around.append(stmt)
            _block(s, stmt.body)
            s.around.pop()
        elif isinstance(stmt, Barrier) and s.open:
            s.fail("a barrier inside a thread loop")


def _for(s: _State, loop: For) -> None:
    kind = loop.kind.name
    if kind == "block":
        s.fail("block loops are the outermost, each the whole body of the one before")
    if kind not in KINDS:
        s.fail(f"a {kind} loop in a kernel for a GPU")
    outer = s.open
    if kind == "thread":
        d = loop.kind.key or "x"
        if d in s.open:
            s.fail(f"thread loops along {d} in one another")
        if any(isinstance(a, For) and a.kind.name == "vector" for a in s.around):
            s.fail("a thread loop inside a vector loop")
        s.open |= {d}
        s.axes[loop.axis.name] = d
        s.varying.add(loop.axis.name)
    exchanging, s.exchanging = s.exchanging, s.exchanging or (kind == "thread" and exchanges(loop))
    s.around.append(loop)
    _block(s, loop.body)
    s.around.pop()
    s.open, s.exchanging = outer, exchanging


def _note(s: _State, stmt: Stmt) -> None:
    """Notes accesses to @local memory; those by which instructions read what other threads hold are none of a thread's."""
    for expr in () if s.exchanging else exprs(stmt):
        for part in parts(expr):
            if isinstance(part, Load) and part.buffer.space == "local" and part.buffer.name in s.places:
                s.places[part.buffer.name].append(part.index)
    if isinstance(stmt, Store) and stmt.buffer.name in s.places:
        s.places[stmt.buffer.name].append(stmt.index)


# ---------------------------------------------------------------- accumulators


def _complete(s: _State, stmt: Acc | Alloc, names: set[str], rest: Sequence[Stmt]) -> None:
    """What threads accumulate together is read after its last update, and they all come by to combine it."""
    if isinstance(stmt, Alloc) and any(_is_of_threads(s, other, names) for other in statements(rest)):
        return  # an array of accumulators with elements for each thread: not checked
    updating = [n for n, other in enumerate(rest) if _across(other, names)]
    if not updating:
        return
    if not (isinstance(stmt, Acc) and _is_scanned(s, stmt, rest)):
        for other in statements(rest[: updating[-1] + 1]):
            if _reads(other, names):
                s.stmt = other
                s.fail(f"{sorted(names)[0]} is read before all threads have added to it")
    if isinstance(stmt, Alloc) and stmt.buffer.space == "shared":
        return
    for around in s.around:
        inside_threads = bool(s.open)
        if isinstance(around, If) and inside_threads:
            s.fail(f"{sorted(names)[0]} is combined across threads under a condition inside a thread loop")
        if isinstance(around, For) and around.kind.name != "thread" and _varies(s, around.axis.extent):
            s.fail(
                f"{sorted(names)[0]} is combined across threads in {around.axis}, which differs between threads"
            )


def _is_scanned(s: _State, acc: Acc, rest: Sequence[Stmt]) -> bool:
    """Whether a thread loop reads what it accumulates in ``acc``; then all loops that update it do so in order."""
    name, names = acc.vars[0].name, {v.name for v in acc.vars}
    loops = _thread_loops(rest, name)
    if not any(read(loop.body) & names for loop in loops):
        return False
    for loop in loops:
        s.stmt = loop
        if loop.kind.key:
            s.fail(f"a scan along y: {name} is read before all threads have added to it")
        if any(isinstance(i, For) and i.kind.name == "thread" for i in statements(loop.body)):
            s.fail(f"a thread loop inside {loop.axis}, which scans {name}")
        if loop.kind.width > 1 and (why := walk_in_order(loop, name)):
            s.fail(f"{why}: it is read before all threads have added to it")
        for inner in loop.body:
            if isinstance(inner, For) and any(
                isinstance(u, Update) and u.vars[0].name == name for u in inner.body
            ):
                most = [
                    m
                    for m in (upper_bound(inner.axis.extent), interval(inner.axis.extent)[1])
                    if m is not None
                ]
                if loop.kind.width > 1 and (not most or min(most) > inner.kind.width):
                    s.fail(
                        f"{name} is scanned in {inner.axis}, which may have more than {inner.kind.width} iterations"
                    )
    return True


def _thread_loops(body: Sequence[Stmt], name: str) -> list[For]:
    """The outermost thread loops in ``body`` that update ``name``."""
    found: list[For] = []
    for stmt in body:
        if isinstance(stmt, For) and stmt.kind.name == "thread":
            if any(isinstance(u, Update) and u.vars[0].name == name for u in statements(stmt.body)):
                found.append(stmt)
        elif isinstance(stmt, For | If):
            found += _thread_loops(stmt.body, name)
    return found


def _is_of_threads(s: _State, stmt: Stmt, names: set[str]) -> bool:
    """Whether ``stmt`` updates an element whose leading index is a thread axis."""
    if not (isinstance(stmt, Store) and stmt.buffer.name in names and stmt.index):
        return False
    threads = {
        f.axis.name for f in statements(s.kernel.body) if isinstance(f, For) and f.kind.name == "thread"
    }
    return _axis(stmt.index[0]) in threads


def _across(stmt: Stmt, names: set[str], inside: bool = False) -> bool:
    """Whether ``stmt`` updates one of ``names`` in a thread loop."""
    if isinstance(stmt, Update):
        return inside and stmt.vars[0].name in names
    if isinstance(stmt, Store):
        return inside and bool(stmt.reducer) and stmt.buffer.name in names
    if isinstance(stmt, For | If):
        inner = inside or (isinstance(stmt, For) and stmt.kind.name == "thread")
        return any(_across(i, names, inner) for i in stmt.body)
    return False


def _reads(stmt: Stmt, names: set[str]) -> bool:
    for expr in exprs(stmt):
        for part in parts(expr):
            if isinstance(part, Var) and part.name in names:
                return True
            if isinstance(part, Load) and part.buffer.name in names:
                return True
    return any(isinstance(a, Opaque) and a.name in names for i in indices((stmt,)) for a in atoms(i))


def _varies(s: _State, index: Index) -> bool:
    return any(isinstance(a, Axis | Opaque) and a.name in s.varying for a in atoms(index))


# ---------------------------------------------------------------- memory of a thread


def _local(s: _State, name: str, places: list[tuple[Index, ...]]) -> None:
    """Leading indices are the thread axes themselves, in every access or in none; no other index has one of outside."""
    outside = {axis for axis, d in s.axes.items() if d not in s.declared[name]}
    count = 0
    while places and count < len(places[0]):
        found = {s.axes.get(_axis(p[count])) if _axis(p[count]) in outside else None for p in places}
        if len(found) != 1 or None in found:
            break
        count += 1
    for place in places:
        for index in place[count:]:
            for atom in atoms(index):
                if isinstance(atom, Axis) and atom.name in outside:
                    s.fail(
                        f"{name} is memory of each thread; the thread axis {atom} must be a leading index of every access"
                    )


def _axis(index: Index) -> str:
    """The name of the axis that ``index`` is, if it is one."""
    for atom in atoms(index):
        if isinstance(atom, Axis):
            return atom.name if index == ix(atom) else ""
    return ""
