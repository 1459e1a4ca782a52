"""Scans: accumulators that a loop reads while it updates them.  The value is then the inclusive prefix in axis order.

acc s = add
for k in n {
  s add= x[k]
  out[k] = s      # a running read
}
"""

from collections.abc import Sequence

from lowc.ir.index import Opaque, atoms
from lowc.ir.nodes import Acc, For, Stmt, Update, Var
from lowc.ir.walk import exprs, indices, parts, statements


def outer_updates(loop: For) -> list[Update]:
    """The updates in ``loop`` of accumulators that are declared outside it, one for each set of accumulators."""
    inside = {v.name for s in statements(loop.body) if isinstance(s, Acc) for v in s.vars}
    found: dict[str, Update] = {}
    for stmt in statements(loop.body):
        if isinstance(stmt, Update) and stmt.vars[0].name not in inside:
            found.setdefault(stmt.vars[0].name, stmt)
    return list(found.values())


def read(body: Sequence[Stmt]) -> set[str]:
    """Names of lets and accumulators that ``body`` reads, as values or as coordinates."""
    found = {p.name for s in statements(body) for e in exprs(s) for p in parts(e) if isinstance(p, Var)}
    return found | {a.name for i in indices(body) for a in atoms(i) if isinstance(a, Opaque)}


def running(loop: For) -> list[Update]:
    """Those of the ``outer_updates`` of ``loop`` whose accumulators it reads."""
    updates = outer_updates(loop)
    if not updates:
        return []
    names = read(loop.body)
    return [u for u in updates if any(v.name in names for v in u.vars)]


def in_order(body: Sequence[Stmt], update: Update) -> bool:
    """Whether ``update`` is a statement of ``body``, its accumulators are read only after it, and no other updates them."""
    names = {v.name for v in update.vars}
    after = False
    for stmt in body:
        if not after and read((stmt,)) & names:
            return False
        if stmt is update:
            after = True
        elif any(isinstance(s, Update) and s.vars[0].name in names for s in statements((stmt,))):
            return False
    return after


def walk_in_order(loop: For, name: str) -> str:
    """Why threads that share ``loop`` cannot hold prefixes of the accumulator ``name`` of outside; empty if they can.

    Its one update is a statement of the loop, or of a vector loop that is one, and it is read only after it, in there.
    """
    found = [s for s in statements(loop.body) if isinstance(s, Update) and s.vars[0].name == name]
    if len(found) != 1:
        return f"{name} is updated {len(found)} times in {loop.axis}, which reads it"
    names = {v.name for v in found[0].vars}
    around = [s for s in loop.body if isinstance(s, For) and any(u is found[0] for u in s.body)]
    if not any(s is found[0] for s in loop.body) and not (around and around[0].kind.name == "vector"):
        return f"the update of {name}, which is read in {loop.axis}, is no statement of it or of a vector loop in it"
    body = around[0].body if around else loop.body
    if not in_order(body, found[0]) or (
        around and any(s is not around[0] and read((s,)) & names for s in loop.body)
    ):
        return f"{name} is read in {loop.axis} elsewhere than after its update"
    return ""
