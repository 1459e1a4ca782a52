"""What the turns of a thread along a row have in common, computed before the branch that each of them is behind.

A row of unknown length is ``for o in 9 unroll { for t in min(512, n - o*512) thread(512) { … x[o*512 + t] … } }``: nine branches,
nine addresses.  All addresses are one pointer and a number, and all conditions one difference and a number: ``n - t > o*512``.

Where the row may be of any length, the turns are a loop, and all but the last need no condition: they are a loop of their own,
which ptxas unrolls with all loads in front.
"""

from collections.abc import Sequence

from lowc.backends.nvptx import access
from lowc.backends.nvptx.thread import Lanes, Thread, operand, sized
from lowc.ir.index import Axis, Index, Min, Opaque, atoms, constant, depends_on, floordiv, ix, maximum, split
from lowc.ir.nodes import For, If, Load, Op, Stmt, Store
from lowc.ir.walk import exprs, names, parts, statements


def full(loop: For) -> Index | None:
    """How many turns of ``for o in ceil(n / 512) { for t in min(512, n - o*512) thread(512) { … } }`` all threads take part in;
    at most one more follows.  None if ``loop`` is anything else."""
    inner = loop.body[0] if len(loop.body) == 1 else None
    if not isinstance(inner, For) or inner.kind.name != "thread" or constant(loop.axis.extent) is not None:
        return None
    width = inner.kind.width
    step, count = split(_uncapped(inner.axis.extent, width), loop.axis)
    if constant(step) != -width or depends_on(count, loop.axis):
        return None
    return maximum(floordiv(count, ix(width)), 0) if loop.axis.extent == floordiv(count + (width - 1), ix(width)) else None


GROUP = 8
"""Turns in one iteration of a loop over light ones, so that as many loads are under way: ptxas takes four by itself."""
LIGHT = 16  # operations of a turn, over all lanes


def light(loop: For) -> bool:
    """Whether a turn of ``loop`` is little but a load or two."""
    inside = statements(loop.body)
    if any(isinstance(s, If) for s in inside):
        return False
    lanes = max([s.kind.width for s in inside if isinstance(s, For) and s.kind.name == "vector"], default=1)
    computed = [p for s in inside for e in exprs(s) for p in parts(e)]
    loads = sum(isinstance(p, Load) for p in computed)
    operations = lanes * sum(isinstance(p, Op) for p in computed)
    return 0 < loads <= 2 and operations <= LIGHT


def within(t: Thread, tid: str, extent: Index, width: int) -> str:
    """Whether the number of one of ``width`` threads is below ``extent``."""
    whole = _uncapped(extent, width)
    number = sum(c for m, c in whole.terms if not m)
    common = operand(t, whole - number, bits=32)[0] if _unrolled(t, whole) and t.fits_in_parts(whole) else ""
    if common[:1] != "%":
        end, bits = operand(t, extent)
        return t.b.pure(f"icmp slt i{bits} {sized(t.b, tid, 32, bits)}, {end}")
    left = t.b.pure(f"sub i32 {common}, {tid}")
    return t.b.pure(f"icmp sgt i32 {left}, {-number}")


def _unrolled(t: Thread, extent: Index) -> bool:
    """Whether what ``extent`` has of turns is a number, not the axis of a loop in the code, so that turns have a difference in
    common."""
    axes = [a for a in atoms(extent) if isinstance(a, Axis)]
    return all(isinstance(t.axes[a.name], int) or a.name in t.blocks for a in axes)


def _uncapped(extent: Index, width: int) -> Index:
    """``n`` of ``min(width, n)``, below which a thread is as well if it is below the minimum."""
    atom = extent.terms[0][0][0] if len(extent.terms) == 1 and len(extent.terms[0][0]) == 1 else None
    if not isinstance(atom, Min) or extent != ix(atom):
        return extent
    return atom.b if constant(atom.a) == width else atom.a if constant(atom.b) == width else extent


def prepare(t: Thread, body: Sequence[Stmt]) -> None:
    """Computes the addresses of ``body`` as far as they are known before it."""
    inside = names(body)
    for stmt in body:
        if isinstance(stmt, For) and stmt.kind.name == "vector" and t.lanes is None:
            t.lanes = Lanes(stmt.axis, stmt.kind.width, 0)
            _addresses(t, stmt.body, inside - {stmt.axis.name})
            t.lanes = None
        else:
            _addresses(t, (stmt,), inside)


def _addresses(t: Thread, body: Sequence[Stmt], unknown: set[str]) -> None:
    for stmt in body:
        if isinstance(stmt, For | If):
            continue
        accesses: list[Load | Store] = [p for e in exprs(stmt) for p in parts(e) if isinstance(p, Load)]
        if isinstance(stmt, Store):
            accesses.append(stmt)
        for each in accesses:
            place = each.index[0]
            if each.buffer.space == "global" and not any(
                isinstance(a, Opaque) or (isinstance(a, Axis) and a.name in unknown) for a in atoms(place)
            ):
                access.prepare(t, each.buffer, place)
