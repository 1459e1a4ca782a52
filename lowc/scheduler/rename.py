"""Keeping names apart: names are unique in a kernel, so what moves from one into another may have to be renamed."""

from collections.abc import Sequence

from lowc.ir.index import Atom, Axis, Index, Opaque, constant, floordiv, ix, mod
from lowc.ir.nodes import Acc, Expr, For, FromIndex, Let, Stmt, Var
from lowc.ir.types import i64
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


def renewed(place: Substitution, body: Sequence[Stmt], taken: set[str]) -> tuple[Stmt, ...]:
    """``body`` through ``place``, its bound names made fresh."""
    for stmt in statements(body):
        if isinstance(stmt, For):
            place.atoms[stmt.axis] = ix(Axis(fresh(stmt.axis.name, taken), stmt.axis.extent))
        elif isinstance(stmt, Let):
            place.rename(stmt.var.name, Var(fresh(stmt.var.name, taken), stmt.var.dtype))
        elif isinstance(stmt, Acc):
            for var in stmt.vars:
                place.rename(var.name, Var(fresh(var.name, taken), var.dtype))
    return place.body(tuple(body))


def let(wanted: str, value: Expr, taken: set[str], body: list[Stmt]) -> Var:
    """A name for ``value``, by a let at the end of ``body``."""
    var = Var(fresh(wanted, taken), value.dtype)
    body.append(Let(var, value))
    return var


def coordinate(wanted: str, index: Index, taken: set[str], body: list[Stmt]) -> Index:
    """``index`` as the coordinate that a let at the end of ``body`` holds, unless it is a number."""
    if constant(index) is not None:
        return index
    return ix(Opaque(let(wanted, FromIndex(index, i64), taken, body).name))


def coordinates(
    number: Index, axes: Sequence[Axis], suffix: str, taken: set[str], body: list[Stmt]
) -> dict[Atom, Index]:
    """Where ``number``, which counts along all of ``axes``, is along each; the last one is the fastest."""
    found: dict[Atom, Index] = {}
    for axis in reversed(axes):
        here = number if axis is axes[0] else mod(number, axis.extent)
        found[axis] = coordinate(f"{axis.name}_{suffix}", here, taken, body)
        number = floordiv(number, axis.extent)
    return found
