"""The primitive ``Settle``: an array that is added to once in each place is stored to instead, and need not be set to 0 before.

    alloc s: f32[384] @local = add; … for i in 8 { for j in 48 { s[i*48 + j] add= tile[…] } }; … s[…]
      →  alloc s: f32[384] @local; … for i in 8 { for j in 48 { s[i*48 + j] = tile[…] } }; … s[…]
"""

from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir.index import Axis, constant, split
from lowc.ir.nodes import Alloc, For, Load, Stmt, Store
from lowc.ir.walk import exprs, map_statements, parts, statements


@dataclass(frozen=True, slots=True)
class Settle:
    """The array is called ``array``."""

    array: str


def settle(body: tuple[Stmt, ...], step: Settle) -> tuple[Stmt, ...]:
    """``body`` with that array only stored to; raises ScheduleError."""
    done: list[Store] = []

    def each(stmt: Stmt) -> tuple[Stmt, ...]:
        if isinstance(stmt, For):
            return (For(stmt.axis, _inside(stmt.body, step, done), stmt.kind),)
        return (stmt,)

    out = _inside(map_statements(body, each), step, done)
    if not done:
        raise ScheduleError(f"there is no array {step.array} to which each place is added once")
    return out


def _inside(body: tuple[Stmt, ...], step: Settle, done: list[Store]) -> tuple[Stmt, ...]:
    at = next((n for n, s in enumerate(body) if isinstance(s, Alloc) and s.buffer.name == step.array), None)
    if at is None:
        return body
    alloc = body[at]
    assert isinstance(alloc, Alloc)
    adds = [s for s in statements(body) if isinstance(s, Store) and s.buffer is alloc.buffer]
    first = next((n for n, stmt in enumerate(body) if any(s is a for s in statements((stmt,)) for a in adds)), None)
    if len(adds) != 1 or first is None or alloc.reducer != "add" or adds[0].reducer != "add" or adds[0].mask is not None:
        return body
    (add,) = adds
    if any(_reads(s, alloc) for s in body[: first + 1]) or not _covers(_around(body[first], add), add, alloc):
        return body
    done.append(add)
    stored = Store(add.buffer, add.index, add.value)
    new = map_statements(body[first : first + 1], lambda s: (stored,) if s is add else (s,))
    return (*body[:at], Alloc(alloc.buffer), *body[at + 1 : first], *new, *body[first + 1 :])


def _reads(stmt: Stmt, alloc: Alloc) -> bool:
    return any(
        isinstance(p, Load) and p.buffer is alloc.buffer for s in statements((stmt,)) for e in exprs(s) for p in parts(e)
    )


def _around(stmt: Stmt, wanted: Store) -> list[Axis]:
    """The axes of the loops from ``stmt`` to ``wanted`` in it."""
    found: list[Axis] = []
    while isinstance(stmt, For):
        found.append(stmt.axis)
        stmt = next(s for s in stmt.body if any(x is wanted for x in statements((s,))))
    return found if stmt is wanted else []


def _covers(axes: list[Axis], add: Store, alloc: Alloc) -> bool:
    """Whether over ``axes`` the place of ``add`` is each of the array's once."""
    steps: list[tuple[int, int]] = []
    rest = add.index[0]
    for axis in axes:
        step, rest = split(rest, axis)
        extent, by = constant(axis.extent), constant(step)
        if extent is None or by is None or (by <= 0 and extent != 1):
            return False
        if extent > 1:
            steps.append((by, extent))
    size = 1
    for by, extent in sorted(steps):
        if by != size:
            return False
        size *= extent
    return constant(rest) == 0 and size == constant(alloc.buffer.shape[0])
