"""What a loop reduces into from outside of it: accumulators and arrays of them, and what can stand for them within a part."""

from collections.abc import Sequence

from lowc.ir.index import Index, constant, split
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import Acc, Alloc, Buffer, For, Load, Store, Update, Var
from lowc.ir.scan import outer_updates, running
from lowc.ir.walk import Substitution, statements, stores
from lowc.scheduler.nest import touched
from lowc.scheduler.rename import fresh


def outer_sums(loop: For) -> list[Update]:
    """Those of ``outer_updates`` that sum up floats, scans excepted."""
    updates = [u for u in outer_updates(loop) if u.reducer == "add" and u.vars[0].dtype.kind == "f"]
    scans = {u.vars[0].name for u in running(loop)}
    return [u for u in updates if u.vars[0].name not in scans]


def outer_rows(loop: For) -> list[Buffer]:
    """Arrays of float sums in local memory, declared outside ``loop``, that the loop only adds to, each along an axis inside."""
    return [row for row, reducer in reduced_rows(loop) if reducer == "add" and row.dtype.kind == "f"]


def reduced_rows(loop: For) -> list[tuple[Buffer, str]]:
    """Arrays in local memory, declared outside ``loop``, in which the loop only reduces, each along an axis inside; how."""
    inside = {id(s.buffer) for s in statements(loop.body) if isinstance(s, Alloc)}
    accesses: dict[int, list[Load | Store]] = {}
    for access in touched(loop.body):
        if access.buffer.space == "local" and id(access.buffer) not in inside:
            accesses.setdefault(id(access.buffer), []).append(access)
    found: list[tuple[Buffer, str]] = []
    for group in accesses.values():
        reducers = {a.reducer if isinstance(a, Store) else "" for a in group}
        if len(reducers) == 1 and "" not in reducers and row_loop(loop, group[0].buffer) is not None:
            found.append((group[0].buffer, reducers.pop()))
    return found


def row_loop(loop: For, row: Buffer) -> For | None:
    """The loop inside ``loop`` along whose axis each store to ``row`` goes, in rows that other loops inside number; None where
    one of them is unrolled: such an array is registers, and there are none for a second one."""
    places = {s.index[0] for s in stores(loop.body) if s.buffer is row}
    inside = [s for s in statements(loop.body) if isinstance(s, For)]
    axes = {s.axis for s in inside if s.kind.name != "unroll"}
    for stmt in inside:
        parts_ = [split(place, stmt.axis) for place in places]
        if all(constant(step) == 1 and axes.issuperset(index_atoms(rest)) for step, rest in parts_):
            return stmt
    return None


def own_accumulators(updates: Sequence[Update], taken: set[str]) -> tuple[list[Acc], Substitution]:
    """Accumulators that can stand for those of ``updates``, and the renaming from the one to the other."""
    accs: list[Acc] = []
    renamed: dict[str, Var] = {}
    for update in updates:
        own = tuple([Var(fresh(f"{v.name}_p", taken), v.dtype) for v in update.vars])
        renamed.update({v.name: p for v, p in zip(update.vars, own, strict=True)})
        accs.append(Acc(own, update.reducer))
    return accs, Substitution(variables=renamed)


def own_rows(rows: Sequence[Buffer], rename: Substitution, taken: set[str]) -> dict[int, Buffer]:
    """By ``id``, arrays that can stand for ``rows``; ``rename`` puts them in their places."""
    own = {id(r): Buffer(fresh(f"{r.name}_p", taken), r.dtype, r.shape, r.strides, r.space) for r in rows}

    def access(buffer: Buffer, index: tuple[Index, ...]) -> tuple[Buffer, tuple[Index, ...]]:
        return own.get(id(buffer), buffer), index

    rename.access = access
    return own
