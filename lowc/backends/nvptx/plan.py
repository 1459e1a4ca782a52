"""What must be known of a whole kernel before its first statement is emitted: threads, and what is combined across them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lowc.errors import CodegenError
from lowc.ir.index import Axis, Index, Opaque, atoms, ix
from lowc.ir.nodes import Acc, Alloc, Barrier, Expr, For, If, Kernel, Let, Load, Stmt, Store, Update, Var
from lowc.ir.relays import exchanges, has_relay
from lowc.ir.scan import outer_updates, running, walk_in_order
from lowc.ir.tiles import GROUP
from lowc.ir.walk import exprs, indices, parts, statements

MAX_THREADS = 1024
Dims = frozenset[str]
NONE: Dims = frozenset()


def dimension(loop: For) -> str:
    """Of a thread loop: x or y."""
    return loop.kind.key or "x"


@dataclass(slots=True)
class Plan:
    """``threads`` of each dimension.  ``over``: by the name of an accumulator (the first of its pair) or array, the dimensions
    that it is combined over.

    ``collective``: ids of statements in which threads wait for one another, so that all must walk through.  ``distributed``:
    by the name of a @local buffer, how many of its leading indices are threads.  ``varying``: axes and lets that differ from
    thread to thread.  ``indexing``: axes that index @local memory.  ``scans``: by the id of a thread loop, the accumulators of
    which it holds prefixes; they are whole in every thread between the loops, and so not in ``over``.
    """

    threads: dict[str, int] = field(default_factory=lambda: {"x": 1, "y": 1})
    over: dict[str, Dims] = field(default_factory=dict[str, Dims])
    collective: set[int] = field(default_factory=set[int])
    distributed: dict[str, int] = field(default_factory=dict[str, int])
    varying: set[str] = field(default_factory=set[str])
    indexing: set[str] = field(default_factory=set[str])
    scans: dict[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])


@dataclass(slots=True)
class _Walk:
    """``exchanging``: in an instruction by which threads read what others hold, which is no access to memory of their own."""

    plan: Plan
    exchanging: bool = False
    declared: dict[str, Dims] = field(default_factory=dict[str, Dims])
    axes: dict[str, str] = field(default_factory=dict[str, str])
    locals: dict[str, list[tuple[Index, ...]]] = field(default_factory=dict[str, list[tuple[Index, ...]]])


def plan(kernel: Kernel) -> Plan:
    """Raises CodegenError for threads that cannot be."""
    found = Plan()
    for loop in statements(kernel.body):
        if isinstance(loop, For) and loop.kind.name == "thread":
            d, width = dimension(loop), loop.kind.width
            even = width > 0 and not width & (width - 1)
            if d not in found.threads or not (even or (width > 0 and width % GROUP == 0 and has_relay(kernel.body))):
                raise CodegenError(
                    f"thread({width}, {d}): threads are counted in powers of two, along x or y"
                )
            if found.threads[d] not in (1, width):
                raise CodegenError(f"loops over {found.threads[d]} and over {width} threads in {d}")
            found.threads[d] = width
    if found.threads["x"] * found.threads["y"] > MAX_THREADS:
        raise CodegenError(f"{found.threads['x']} x {found.threads['y']} threads are too many")
    walk = _Walk(found)
    _visit(walk, kernel.body, NONE)
    for name, places in walk.locals.items():
        _distribute(walk, name, places)
    used = frozenset(d for d, n in found.threads.items() if n > 1)
    found.over = {name: dims & used for name, dims in found.over.items()}
    if any(n & (n - 1) for n in found.threads.values()) and any(found.over.values()):
        raise CodegenError("accumulators are combined across threads that are no power of two")
    _scans(found, kernel)
    _mark(found, kernel.body)
    return found


def _visit(w: _Walk, body: Sequence[Stmt], dims: Dims) -> None:
    for stmt in body:
        for expr in () if w.exchanging else exprs(stmt):
            for part in parts(expr):
                if isinstance(part, Load) and part.buffer.space == "local":
                    w.locals[part.buffer.name].append(part.index)
        if isinstance(stmt, Let):
            if dims:
                w.plan.varying.add(stmt.var.name)
        elif isinstance(stmt, Acc):
            w.declared[stmt.vars[0].name] = dims
        elif isinstance(stmt, Alloc):
            w.declared[stmt.buffer.name] = dims
            if stmt.buffer.space == "local":
                w.locals[stmt.buffer.name] = []
        elif isinstance(stmt, Update):
            _updated(w, stmt.vars[0].name, dims)
        elif isinstance(stmt, Store):
            if stmt.buffer.space == "local":
                w.locals[stmt.buffer.name].append(stmt.index)
                if stmt.reducer:
                    _updated(w, stmt.buffer.name, dims)
        elif isinstance(stmt, For):
            inner = dims
            if stmt.kind.name == "thread":
                inner = dims | {dimension(stmt)}
                w.axes[stmt.axis.name] = dimension(stmt)
                w.plan.varying.add(stmt.axis.name)
                if inner == dims:
                    raise CodegenError(f"thread loops of {dimension(stmt)} in one another")
            exchanging, w.exchanging = w.exchanging, w.exchanging or (stmt.kind.name == "thread" and exchanges(stmt))
            _visit(w, stmt.body, inner)
            w.exchanging = exchanging
        elif isinstance(stmt, If):
            _visit(w, stmt.body, dims)


def _updated(w: _Walk, name: str, dims: Dims) -> None:
    w.plan.over[name] = w.plan.over.get(name, NONE) | (dims - w.declared[name])


def _distribute(w: _Walk, name: str, places: list[tuple[Index, ...]]) -> None:
    """Counts the leading indices that are the thread axis itself, in every access."""
    count, gone = 0, set[str]()
    while places and count < len(places[0]):
        found = {w.axes.get(_axis(p[count])) for p in places}
        if len(found) != 1:
            break
        (d,) = found
        if d is None or d in w.declared[name] or d in gone:
            break
        gone.add(d)
        count += 1
    w.plan.distributed[name] = count
    w.plan.over[name] = w.plan.over.get(name, NONE) - gone
    for place in places:
        for index in place[count:]:
            for atom in atoms(index):
                axis = getattr(atom, "name", "")
                if axis in w.axes and w.axes[axis] not in w.declared[name]:
                    raise CodegenError(
                        f"{name} is memory of a thread, and indexed by the thread axis {axis} in some places only"
                    )
                w.plan.indexing.add(axis)


def _scans(p: Plan, kernel: Kernel) -> None:
    """Finds the thread loops that read what threads accumulate together."""
    loops = [s for s in statements(kernel.body) if isinstance(s, For) and s.kind.name == "thread"]
    scanned = {u.vars[0].name for s in loops for u in running(s) if p.over.get(u.vars[0].name)}
    for loop in loops:
        found = frozenset(u.vars[0].name for u in outer_updates(loop)) & scanned
        for name in sorted(found):
            if p.over[name] != {"x"} or dimension(loop) != "x":
                raise CodegenError(
                    f"{name} is scanned along {', '.join(sorted(p.over[name]))}; scans are along x"
                )
            if why := walk_in_order(loop, name):
                raise CodegenError(why)
        if found:
            p.scans[id(loop)] = found
    for name in scanned:
        p.over[name] = NONE


def _axis(index: Index) -> str:
    """The name of the axis that ``index`` is, if it is one."""
    for atom in atoms(index):
        if isinstance(atom, Axis):
            return atom.name if index == ix(atom) else ""
    return ""


def _mark(p: Plan, body: Sequence[Stmt]) -> bool:
    """Whether threads wait for one another in ``body``; notes the statements where they do."""
    any_ = False
    for stmt in body:
        waits = isinstance(stmt, Barrier)
        if isinstance(stmt, Acc):
            waits = bool(p.over.get(stmt.vars[0].name))
        elif isinstance(stmt, Alloc):
            waits = bool(p.over.get(stmt.buffer.name)) or (
                stmt.buffer.space == "shared" and bool(stmt.reducer)
            )
        elif isinstance(stmt, For | If):
            waits = _mark(p, stmt.body)
            if waits and isinstance(stmt, For) and id(stmt) in p.scans:
                raise CodegenError(f"threads that wait for one another inside the scan over {stmt.axis}")
            waits = waits or id(stmt) in p.scans
        if waits:
            p.collective.add(id(stmt))
            any_ = True
    return any_


def updates(stmt: Stmt, name: str) -> bool:
    """Whether ``stmt`` updates the accumulator or array ``name``."""
    for s in statements((stmt,)):
        if isinstance(s, Update) and s.vars[0].name == name:
            return True
        if isinstance(s, Store) and s.reducer and s.buffer.name == name:
            return True
    return False


def scans(loop: For) -> bool:
    """Whether ``loop`` updates and reads an accumulator of outside, or has a loop inside whose extent or coordinates it cannot
    take for several lanes at once."""
    inside = statements(loop.body)
    own = {v.name for s in inside if isinstance(s, Acc) for v in s.vars}
    updated = {v.name for s in inside if isinstance(s, Update) for v in s.vars} - own
    depends = {loop.axis.name}
    for s in inside:
        if isinstance(s, Let) and _reads(s.value, depends):
            depends.add(s.var.name)
        if isinstance(s, Acc):
            depends.update(v.name for v in s.vars)
    for s in inside:
        if isinstance(s, For) and any(getattr(a, "name", "") in depends for a in atoms(s.axis.extent)):
            return True
        if any(isinstance(p, Var) and p.name in updated for e in exprs(s) for p in parts(e)):
            return True
    names = {a.name for i in indices(loop.body) for a in atoms(i) if isinstance(a, Opaque)}
    return bool(names & updated)


def _reads(expr: Expr, names: set[str]) -> bool:
    for part in parts(expr):
        if isinstance(part, Var) and part.name in names:
            return True
        if isinstance(part, Load):
            found = part.index
        elif hasattr(part, "index"):
            found = (part.index,)  # type: ignore[attr-defined]
        else:
            continue
        if any(getattr(a, "name", "") in names for i in found for a in atoms(i)):
            return True
    return False
