"""Keeping names apart: names are unique in a kernel, so what moves from one into another may have to be renamed."""

from collections.abc import Sequence

from lowc.ir.index import Axis, ix
from lowc.ir.nodes import Acc, For, Let, Stmt, Var
from lowc.ir.walk import Substitution, names, statements


def fresh(wanted: str, taken: set[str]) -> str:
    name, number = wanted, 0
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name)
    return name


def apart(body: Sequence[Stmt], taken: set[str]) -> tuple[Stmt, ...]:
    """``body`` with every bound name that is in ``taken`` renamed."""
    own = names(body)
    clashes = own & taken
    if not clashes:
        return tuple(body)
    used = own | taken
    replace = Substitution()
    for stmt in statements(body):
        if isinstance(stmt, For) and stmt.axis.name in clashes:
            replace.atoms[stmt.axis] = ix(Axis(fresh(stmt.axis.name, used), stmt.axis.extent))
        elif isinstance(stmt, Let) and stmt.var.name in clashes:
            replace.rename(stmt.var.name, Var(fresh(stmt.var.name, used), stmt.var.dtype))
        elif isinstance(stmt, Acc):
            for var in stmt.vars:
                if var.name in clashes:
                    replace.rename(var.name, Var(fresh(var.name, used), var.dtype))
    return replace.body(body)
