"""Whether iterations of a loop may run at once: what they update, and where in memory they meet."""

from collections.abc import Sequence
from math import gcd

from lowc.errors import ScheduleError
from lowc.ir.index import Atom, Axis, Index, Opaque, constant, ix, mod, prove_nonneg, split, substitute
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import Alloc, Buffer, Const, For, FromIndex, Kind, Let, Load, Op, Store
from lowc.ir.scan import outer_updates, running
from lowc.ir.walk import statements
from lowc.scheduler.nest import touched


def bind(loop: For, kind: Kind) -> For:
    """``loop`` with its axis bound; raises ScheduleError if its iterations are not independent."""
    if kind.name in ("parallel", "vector") and (why := conflict(loop, kind)):
        raise ScheduleError(f"the loop over {loop.axis.name} cannot be {kind.name}: {why}")
    return For(loop.axis, loop.body, kind)


def conflict(loop: For, kind: Kind) -> str:
    """Why iterations of ``loop`` may not run at once; empty if they may."""
    updates = outer_updates(loop)
    if updates and (kind.name == "parallel" or running(loop)):
        return f"it updates {updates[0].vars[0].name}"
    return meeting(loop)


def meeting(loop: For, apart: Sequence[Buffer] = ()) -> str:
    """Where in memory iterations of ``loop`` meet, whatever they do to accumulators and in the buffers ``apart``; empty if
    nowhere."""
    inside = {id(s.buffer) for s in statements(loop.body) if isinstance(s, Alloc)} | set(map(id, apart))
    inner = _bound_inside(loop)
    accesses: dict[int, list[Load | Store]] = {}
    for access in touched(loop.body):
        if id(access.buffer) not in inside:
            accesses.setdefault(id(access.buffer), []).append(access)
    ranges = _checked(loop)
    for group in accesses.values():
        written = [a for a in group if isinstance(a, Store)]
        if written and not _separate(loop.axis, inner, group, ranges):
            return f"iterations meet in {written[0].buffer.name}"
    return ""


def _bound_inside(loop: For) -> set[Atom]:
    """What changes within one iteration of ``loop``: inner axes, and data coordinates."""
    found: set[Atom] = set()
    for stmt in statements(loop.body):
        if isinstance(stmt, For):
            found.add(stmt.axis)
        elif isinstance(stmt, Let):
            found.add(Opaque(stmt.var.name))
    return found


def _checked(loop: For) -> dict[Atom, Index]:
    """For each let in ``loop`` whose value a check keeps below a size: an axis of that extent, which has its range."""
    found: dict[Atom, Index] = {}
    for stmt in statements(loop.body):
        if isinstance(stmt, Let) and isinstance(stmt.value, Op) and stmt.value.name == "check_index":
            size = stmt.value.args[1]
            if isinstance(size, FromIndex):
                found[Opaque(stmt.var.name)] = ix(Axis(f"{stmt.var.name}?", size.index))
            elif isinstance(size, Const):
                found[Opaque(stmt.var.name)] = ix(Axis(f"{stmt.var.name}?", ix(int(size.value))))
    return found


def _separate(axis: Axis, inner: set[Atom], group: Sequence[Load | Store], ranges: dict[Atom, Index]) -> bool:
    """Whether accesses of different iterations of ``axis`` surely touch different elements.

    Each address must be ``c*axis + fixed + below + above`` with one c and one fixed part for all, ``0 <= below < c``, and above a
    multiple of ``c*extent``, or of a larger number, be it fixed or not: then the address tells the iteration.
    """
    if constant(axis.extent) == 1:
        return True
    stride, base = split(group[0].index[0], axis)
    if not stride.terms or not inner.isdisjoint(index_atoms(stride)):
        return False
    base = _part(base, inner, False)
    parts = [(_part(rest, inner, False) - base, _part(rest, inner, True)) for rest in (split(g.index[0], axis)[1] for g in group)]
    reach = _reach(stride * axis.extent, [c for both in parts for index in both for _, c in index.terms])
    for access in group:
        coefficient, rest = split(access.index[0], axis)
        if coefficient != stride or axis in index_atoms(rest):
            return False
        apart = _part(rest, inner, False) - base
        below = Index(tuple([t for t in apart.terms if mod(Index((t,)), reach).terms]))
        for term in _part(rest, inner, True).terms:
            single = Index((term,))
            if not mod(single, reach).terms:
                continue
            single = substitute(single, ranges) if ranges else single
            if any(isinstance(a, Opaque) for a in index_atoms(single)):
                return False
            below = below + single
        if below.terms and not _within(below, stride) and not _within(below + _short_of(base, stride), stride):
            return False
    return True


def _reach(least: Index, coefficients: Sequence[int]) -> Index:
    """What all large coefficients are multiples of, if that is a number and no less than ``least``, else ``least``:
    rows may be further apart than they are long."""
    number = constant(least)
    if number is None or number < 1:
        return least
    return ix(max(number, gcd(*(c for c in coefficients if abs(c) >= number))))


def _within(index: Index, size: Index) -> bool:
    """Whether ``0 <= index < size`` is certain."""
    return prove_nonneg(index) and prove_nonneg(size - 1 - index)


def _short_of(base: Index, stride: Index) -> Index:
    """The terms of a fixed part that are no multiples of ``stride``.  Adding them to what moves may say that there is anything at
    all: ``i < 64`` is within ``64*q`` only where ``q > 0``, while ``64*o + i`` with ``o < q`` is."""
    return Index(tuple([t for t in base.terms if mod(Index((t,)), stride).terms]))


def _part(index: Index, inner: set[Atom], moving: bool) -> Index:
    """The terms of ``index`` that change within an iteration, or those that do not."""
    return Index(tuple([t for t in index.terms if moving != inner.isdisjoint(index_atoms(Index((t,))))]))
