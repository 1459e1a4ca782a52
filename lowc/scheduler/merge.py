"""Putting one kernel body behind another under common loops: what ``fuse`` is made of.  LOOPS level.

``merge(a, b)`` gives the statements of ``a`` then ``b`` with loops of equal extent joined wherever each iteration of b's loop
needs nothing of a's loop but what the same iteration has done, from the outermost level inwards:

    for i in N { for k in K { e[i, k] = … } }          for i in N {
    for i in N { acc s = add; for k in K               acc s = add
                 { s add= e[i, k] }; r[i] = s }    →   for k in K { e[i, k] = …; s add= e[i, k] }
                                                       r[i] = s }
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lowc.ir.index import Axis, Index, Opaque, atoms, constant, ix
from lowc.ir.nodes import Acc, Alloc, For, FromIndex, If, Let, Load, Stmt, Store, Update, Var
from lowc.ir.walk import Substitution, exprs, parts
from lowc.scheduler.nest import plain_axis


@dataclass(slots=True)
class Effects:
    """What a statement needs and changes, bodies included: variable names, and accesses by ``id`` of their buffer."""

    defines: set[str] = field(default_factory=set[str])
    needs: set[str] = field(default_factory=set[str])
    reads: dict[int, list[tuple[Index, ...]]] = field(default_factory=dict[int, list[tuple[Index, ...]]])
    writes: dict[int, list[tuple[Index, ...]]] = field(default_factory=dict[int, list[tuple[Index, ...]]])
    updates: set[str] = field(default_factory=set[str])


Cache = dict[int, tuple[Stmt, Effects]]
"""Effects by ``id`` of the statement, which is kept alive beside them."""


def effects(stmt: Stmt, cache: Cache) -> Effects:
    """The Effects of ``stmt``."""
    known = cache.get(id(stmt))
    if known is None:
        found = Effects()
        _collect((stmt,), found)
        known = cache[id(stmt)] = (stmt, found)
    return known[1]


def together(a: Effects, b: Effects) -> Effects:
    """The Effects of two statements."""
    out = Effects(a.defines | b.defines, a.needs | b.needs, dict(a.reads), dict(a.writes), a.updates | b.updates)
    for mine, theirs in ((out.reads, b.reads), (out.writes, b.writes)):
        for buffer, accesses in theirs.items():
            mine[buffer] = [*mine[buffer], *accesses] if buffer in mine else accesses
    return out


def _collect(stmts: Sequence[Stmt], found: Effects) -> None:
    for stmt in stmts:
        if isinstance(stmt, For | If):
            if isinstance(stmt, For):
                _need(found, (stmt.axis.extent,))
            _collect(stmt.body, found)
        elif isinstance(stmt, Let):
            found.defines.add(stmt.var.name)
        elif isinstance(stmt, Acc):
            found.defines.update(v.name for v in stmt.vars)
        elif isinstance(stmt, Alloc):
            found.writes.setdefault(id(stmt.buffer), [])
            _need(found, stmt.buffer.shape)
        elif isinstance(stmt, Update):
            found.updates.update(v.name for v in stmt.vars)
            found.needs.update(v.name for v in stmt.vars)
        elif isinstance(stmt, Store):
            found.writes.setdefault(id(stmt.buffer), []).append(stmt.index)
            _need(found, stmt.index)
            if stmt.reducer:
                found.reads.setdefault(id(stmt.buffer), []).append(stmt.index)
        for expr in exprs(stmt):
            for part in parts(expr):
                if isinstance(part, Var):
                    found.needs.add(part.name)
                elif isinstance(part, Load):
                    found.reads.setdefault(id(part.buffer), []).append(part.index)
                    _need(found, part.index)
                elif isinstance(part, FromIndex):
                    _need(found, (part.index,))


def _need(found: Effects, indices: Sequence[Index]) -> None:
    found.needs.update(a.name for index in indices for a in atoms(index) if isinstance(a, Opaque))


def depends(later: Effects, earlier: Effects) -> bool:
    """Whether ``later`` may not run before ``earlier``."""
    if later.needs & (earlier.defines | earlier.updates) or later.updates & earlier.needs:
        return True
    return (
        not later.reads.keys().isdisjoint(earlier.writes)
        or not later.writes.keys().isdisjoint(earlier.writes)
        or not later.writes.keys().isdisjoint(earlier.reads)
    )


def merge(first: Sequence[Stmt], second: Sequence[Stmt], cache: Cache) -> tuple[list[Stmt], int]:
    """The statements of ``first`` then ``second``, loops joined; and how many loops were.

    Names of the two must differ (axes included).
    """
    block = list(first)
    facts = [effects(s, cache) for s in block]
    joined = 0
    for stmt in second:
        if isinstance(stmt, For):
            done = _join_into(block, facts, stmt, cache)
            if done:
                joined += done
                continue
        block.append(stmt)
        facts.append(effects(stmt, cache))
    return block, joined


def _join_into(block: list[Stmt], facts: list[Effects], loop: For, cache: Cache) -> int:
    """Joins ``loop`` with the nearest loop of ``block`` that allows it, in place; the number of loops joined."""
    mine = effects(loop, cache)
    for position in range(len(block) - 1, -1, -1):
        host = block[position]
        if isinstance(host, For) and host.kind == loop.kind and host.axis.extent == loop.axis.extent:
            between = range(position + 1, len(block))
            before = _needed(between, facts, mine)
            if not any(depends(facts[n], facts[position]) for n in before) and _same_iteration(
                facts[position], host.axis, mine, loop.axis
            ):
                renamed = Substitution({loop.axis: ix(host.axis)}).body(loop.body)
                body, inner = merge(host.body, renamed, cache)
                new = For(host.axis, tuple(body), host.kind)
                fused = together(facts[position], effects(For(host.axis, renamed), cache))
                cache[id(new)] = (new, fused)
                order = [*range(position), *before, position, *(n for n in between if n not in before)]
                block[:] = [new if n == position else block[n] for n in order]
                facts[:] = [fused if n == position else facts[n] for n in order]
                return 1 + inner
        if depends(mine, facts[position]) and not isinstance(host, Acc | Let):
            return 0
    return 0


def _needed(between: Sequence[int], facts: list[Effects], mine: Effects) -> list[int]:
    """Those of the statements ``between`` that must stay before a statement with effects ``mine``."""
    kept: list[int] = []
    pending = [mine]
    for number in reversed(between):
        if any(depends(p, facts[number]) for p in pending):
            kept.append(number)
            pending.append(facts[number])
    return kept[::-1]


def _same_iteration(host: Effects, host_axis: Axis, mine: Effects, axis: Axis) -> bool:
    """Whether a joined iteration sees of the host loop all that it would have seen after the whole loop."""
    if mine.needs & host.updates or mine.updates & host.needs:
        return False
    if constant(axis.extent) == 1:
        return True
    for buffer, written in host.writes.items():
        if not all(_meet(w, host_axis, a, axis) for w in written for a in _accesses(mine, buffer)):
            return False
    for buffer, read in host.reads.items():
        if not all(_meet(r, host_axis, w, axis) for r in read for w in mine.writes.get(buffer, ())):
            return False
    return True


def _accesses(found: Effects, buffer: int) -> list[tuple[Index, ...]]:
    return [*found.reads.get(buffer, ()), *found.writes.get(buffer, ())]


def _meet(a: tuple[Index, ...], axis_a: Axis, b: tuple[Index, ...], axis_b: Axis) -> bool:
    """Whether the two accesses touch one element only in equal iterations: some dimension is the axis itself in both."""
    return any(plain_axis(x) == axis_a and plain_axis(y) == axis_b for x, y in zip(a, b, strict=True))
