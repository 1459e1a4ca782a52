"""Which loops of a kernel the interpreter may run for all iterations at once."""

from collections.abc import Sequence
from dataclasses import dataclass

from lowc.ir.index import Axis, Index, Opaque, atoms, ix, prove_nonneg, split
from lowc.ir.nodes import Acc, Alloc, Expr, For, FromIndex, If, Let, Load, Stmt, Store, Update, Var
from lowc.ir.walk import parts, statements


@dataclass(slots=True)
class Lanes:
    """``parallel``: ids of the loops that may run at once; ``scans``: for each of them, the accumulators that are read while they
    run; ``scanned``: ids of the updates of those, which then give prefixes.
    """

    parallel: set[int]
    scans: dict[int, list[str]]
    scanned: set[int]


def at_once(body: Sequence[Stmt]) -> Lanes:
    """The loops in ``body`` whose iterations may run at once, statement by statement.

    That is so where extents inside do not vary with the iteration, accumulators that are read between updates (scans) have one
    update and are read after it, and no two iterations touch an element that either writes, a single store that keeps serial
    order excepted.
    """
    lanes = Lanes(set(), {}, set())
    _visit(body, lanes)
    return lanes


@dataclass(frozen=True, slots=True)
class Access:
    index: tuple[Index, ...]
    store: bool
    serial: bool  # under a loop that runs serially, inside the loop in question


@dataclass(slots=True)
class Facts:
    """What a block does, as seen from the loop around it."""

    accesses: dict[str, list[Access]]
    bound: set[str]  # names of values that it computes
    extents: list[Index]
    declared: set[str]
    updated: set[str]
    read: set[str]


def _visit(body: Sequence[Stmt], lanes: Lanes) -> Facts:
    """Adds the loops in ``body`` to ``lanes``."""
    facts = Facts({}, set(), [], set(), set(), set())
    local: set[str] = set()
    for stmt in body:
        if isinstance(stmt, For | If):
            inner = _visit(stmt.body, lanes)
            serial = False
            if isinstance(stmt, For):
                facts.extents.append(stmt.axis.extent)
                serial = not _may_run_at_once(stmt, inner, lanes)
                if not serial:
                    lanes.parallel.add(id(stmt))
            for name, accesses in inner.accesses.items():
                facts.accesses.setdefault(name, []).extend(
                    Access(a.index, a.store, a.serial or serial) for a in accesses
                )
            for mine, theirs in (
                (facts.bound, inner.bound),
                (facts.declared, inner.declared),
                (facts.updated, inner.updated),
                (facts.read, inner.read),
            ):
                mine |= theirs
            facts.extents += inner.extents
        if isinstance(stmt, Alloc):
            local.add(stmt.buffer.name)
        _note(stmt, facts)
    for name in local:
        facts.accesses.pop(name, None)
    return facts


def _note(stmt: Stmt, facts: Facts) -> None:
    """Adds what ``stmt`` itself does."""
    roots: tuple[Expr | None, ...] = ()
    indices: list[Index] = []
    if isinstance(stmt, Let):
        facts.bound.add(stmt.var.name)
        roots = (stmt.value,)
    elif isinstance(stmt, Acc):
        facts.bound |= {v.name for v in stmt.vars}
        facts.declared |= {v.name for v in stmt.vars}
    elif isinstance(stmt, Update):
        facts.bound |= {v.name for v in stmt.vars}
        facts.updated |= {v.name for v in stmt.vars}
        roots = (*stmt.values, stmt.mask)
    elif isinstance(stmt, Store):
        facts.accesses.setdefault(stmt.buffer.name, []).append(Access(stmt.index, True, False))
        indices.extend(stmt.index)
        roots = (stmt.value, stmt.mask)
    elif isinstance(stmt, If):
        roots = (stmt.cond,)
    for expr in [part for root in roots if root is not None for part in parts(root)]:
        if isinstance(expr, Load):
            facts.accesses.setdefault(expr.buffer.name, []).append(Access(expr.index, False, False))
            indices.extend(expr.index)
        elif isinstance(expr, Var):
            facts.read.add(expr.name)
        elif isinstance(expr, FromIndex):
            indices.append(expr.index)
    facts.read |= {a.name for i in indices for a in atoms(i) if isinstance(a, Opaque)}


def _may_run_at_once(loop: For, body: Facts, lanes: Lanes) -> bool:
    axis = loop.axis
    for extent in body.extents:
        for atom in atoms(extent):
            if atom == axis or (isinstance(atom, Opaque) and atom.name in body.bound):
                return False
    if not all(_apart(axis, accesses) for accesses in body.accesses.values()):
        return False
    running = (body.updated - body.declared) & body.read
    updates = [s for s in loop.body if isinstance(s, Update) and running & {v.name for v in s.vars}]
    names = [v.name for u in updates for v in u.vars]
    if len(set(names)) != len(names) or not running <= set(names):
        return False
    for update in updates:
        if not _only_read_after(loop.body, update):
            return False
    if updates:
        lanes.scans[id(loop)] = names
        lanes.scanned.update(map(id, updates))
    return True


def _only_read_after(body: Sequence[Stmt], update: Update) -> bool:
    """Whether the accumulators of ``update``, a statement of ``body``, are read and updated nowhere else before its end."""
    names = {v.name for v in update.vars}
    after = False
    for stmt in body:
        facts = Facts({}, set(), [], set(), set(), set())
        for each in statements([stmt]):
            _note(each, facts)
        if not after and facts.read & names:
            return False
        if stmt is update:
            after = True
        elif facts.updated & names:
            return False
    return True


def _apart(axis: Axis, accesses: list[Access]) -> bool:
    """Whether accesses to one buffer are the same in whatever order the iterations of ``axis`` make them."""
    if not any(a.store for a in accesses):
        return True
    if len(accesses) == 1 and not accesses[0].serial:
        return True
    return any(_slices(axis, [a.index[d] for a in accesses]) for d in range(len(accesses[0].index)))


def _slices(axis: Axis, indices: list[Index]) -> bool:
    """Whether each of ``indices`` is ``axis * c + r`` for one c, and iterations touch different elements as ``r`` stays small.

    Small is ``0 <= r < c``, or so modulo ``c * extent``.
    """
    step = split(indices[0], axis)[0]
    for index in indices:
        coefficient, rest = split(index, axis)
        if coefficient != step or any(a == axis for a in atoms(rest)):
            return False
        if any(isinstance(a, Opaque) for a in atoms(rest)):
            return False
        if prove_nonneg(rest) and prove_nonneg(step - 1 - rest):
            continue
        if not prove_nonneg(step - 1) or (index % (step * axis.extent)) // step != ix(axis):
            return False
    return prove_nonneg(step - 1)
