"""Accumulators while their loops are being emitted.

A Group stands for what one ``acc`` declares.  It is held in the form that its updates want:

* one value (``lanes`` 0), or one a lane where a vector loop encloses the ``acc``;
* *spread* over the lanes of the vector loops that update it, from the ``acc`` to the last of those loops:
  only then are the lanes combined into one value, however many loops lie between;
* in several ``copies``, which updates in flight at the same time (unrolled, interleaved) use in turn, so
  that they need not wait for one another;
* as a *scan* inside a vector loop that reads it: every lane holds the value so far, ``strip`` the prefixes
  of the strip at hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lowc.backends.llvm.builder import Builder
from lowc.backends.x86.dots import add_product
from lowc.backends.x86.operations import Val, apply, binary, const, select, splat
from lowc.backends.x86.reduce import across_lanes, combine, identities, lane, prefixes, repeat_last
from lowc.errors import CodegenError
from lowc.ir.index import Opaque, constant
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import Acc, For, If, Stmt, Update, Var
from lowc.ir.types import bool_, i32, u32
from lowc.ir.walk import exprs, indices, parts, statements

MAX_COPIES = 8


@dataclass(slots=True)
class Group:
    """``copies``: for each copy, a value for each of ``vars``.  ``depth``: how many unrolled loops enclose
    the ``acc``.
    """

    vars: tuple[Var, ...]
    reducer: str
    lanes: int
    spread: bool
    copies: list[list[Val]]
    depth: int = 0
    scan: bool = False
    strip: list[Val] | None = None
    before: list["list[Val]"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Plan:
    """How the statements after an ``acc`` update it: in vector loops of ``lanes`` (0: none), ``copies`` at
    a time.
    """

    lanes: int
    copies: int


def plan(acc: Acc, rest: Sequence[Stmt]) -> Plan:
    """The form for the accumulators of ``acc``, which ``rest`` updates and reads."""
    names = {v.name for v in acc.vars}
    if any(isinstance(s, For) and scans(s, names) for s in rest):
        return Plan(0, 1)
    found: set[tuple[int, int]] = set()
    _updates(rest, names, 0, 1, found)
    widths = {lanes for lanes, _ in found if lanes}
    if len(widths) != 1:
        return Plan(0, 1) if widths else Plan(0, min(MAX_COPIES, max((c for _, c in found), default=1)))
    return Plan(widths.pop(), min(MAX_COPIES, max(c for _, c in found)))


def scans(loop: For, names: set[str]) -> bool:
    """Whether ``loop`` both updates and reads one of the accumulators ``names``."""
    updated = any(isinstance(s, Update) and s.vars[0].name in names for s in statements(loop.body))
    return updated and reads(loop.body, names)


def reads(body: Sequence[Stmt], names: set[str]) -> bool:
    """Whether ``body`` uses the value of one of ``names``."""
    for stmt in statements(body):
        for expr in exprs(stmt):
            if any(isinstance(p, Var) and p.name in names for p in parts(expr)):
                return True
    return any(isinstance(a, Opaque) and a.name in names for i in indices(body) for a in index_atoms(i))


def _updates(
    body: Sequence[Stmt], names: set[str], lanes: int, copies: int, found: set[tuple[int, int]]
) -> None:
    for stmt in body:
        if isinstance(stmt, Update) and stmt.vars[0].name in names:
            found.add((lanes, copies))
        elif isinstance(stmt, If):
            _updates(stmt.body, names, lanes, copies, found)
        elif isinstance(stmt, For):
            width, extent = lanes, constant(stmt.axis.extent)
            factor = 1
            if stmt.kind.name == "vector":
                width, factor = stmt.kind.width, stmt.kind.interleave
            elif stmt.kind.name == "unroll" and extent is not None:
                factor = max(1, extent)
            _updates(stmt.body, names, width, copies * factor, found)


def declare(acc: Acc, form: Plan, enclosing: int, depth: int) -> Group:
    """The group of ``acc`` at its identities; ``enclosing``: lanes of the vector loop around it (0: none)."""
    lanes = enclosing or form.lanes
    copies = [identities(acc.vars, acc.reducer, lanes) for _ in range(form.copies)]
    return Group(acc.vars, acc.reducer, lanes, bool(form.lanes) and not enclosing, copies, depth)


def widen(g: Group, lanes: int, copies: int) -> None:
    """From one value to one that is spread over ``lanes`` until ``narrow``."""
    g.before.append(g.copies[0])
    g.copies = [identities(g.vars, g.reducer, lanes) for _ in range(copies)]
    g.lanes, g.spread = lanes, True


def narrow(b: Builder, g: Group, ops: frozenset[str]) -> None:
    """The inverse of ``widen``: what was gathered since, combined with what was there."""
    total = across_lanes(b, g.reducer, merged(b, g, ops), ops)
    g.copies = [combine(b, g.reducer, g.before.pop(), total, ops)]
    g.lanes, g.spread = 0, False


def close(b: Builder, g: Group, ops: frozenset[str]) -> None:
    """After the last update: one value (a lane)."""
    values = value(b, g, ops)
    g.copies, g.spread = [values], False
    g.lanes = values[0].lanes


def merged(b: Builder, g: Group, ops: frozenset[str]) -> list[Val]:
    """All copies as one, pair by pair."""
    copies = list(g.copies)
    while len(copies) > 1:
        half = (len(copies) + 1) // 2
        joined = copies[:half]
        for n, other in enumerate(copies[half:]):
            joined[n] = combine(b, g.reducer, joined[n], other, ops)
        copies = joined
    return copies[0]


def value(b: Builder, g: Group, ops: frozenset[str]) -> list[Val]:
    """What reading the accumulators gives."""
    if g.strip is not None:
        return g.strip
    values = merged(b, g, ops)
    if not g.spread:
        return values
    total = across_lanes(b, g.reducer, values, ops)
    return total if not g.before else combine(b, g.reducer, g.before[-1], total, ops)


def update(
    b: Builder, g: Group, copy: int, values: list[Val], mask: Val | None, inside: bool, ops: frozenset[str]
) -> None:
    """``values``, where ``mask`` holds, combined into copy number ``copy``.  ``inside``: a vector loop is
    around.  Two values for one accumulator are factors, the product of which is not rounded before it is added.
    """
    if len(values) > len(g.vars):
        if not g.scan and (not g.spread or inside):
            _add_product(b, g, copy, values, mask, ops)
            return
        dtype = g.vars[0].dtype
        values = [apply(b, "dot4" if dtype == i32 else "dot2" if values[0].dtype == u32 else "mul", values, dtype, ops)]
    lanes = max([v.lanes for v in values] + [mask.lanes if mask is not None else 0])
    if g.scan and g.lanes:
        _scan(b, g, values, mask, ops)
        return
    if lanes > g.lanes:
        raise CodegenError(f"lanes meet in {g.vars[0].name}")
    old = g.copies[copy % len(g.copies)]
    if g.spread and not inside:
        # one value goes into the first lane
        values = [
            _in_first_lane(b, v, neutral)
            for v, neutral in zip(values, identities(g.vars, g.reducer, g.lanes), strict=True)
        ]
    values = [splat(b, v, g.lanes) for v in values]
    new = combine(b, g.reducer, old, values, ops)
    if mask is not None:
        new = [select(b, mask, n, o) for n, o in zip(new, old, strict=True)]
    g.copies[copy % len(g.copies)] = new


def _add_product(
    b: Builder, g: Group, copy: int, factors: list[Val], mask: Val | None, ops: frozenset[str]
) -> None:
    if max([f.lanes for f in factors] + [mask.lanes if mask is not None else 0]) > g.lanes:
        raise CodegenError(f"lanes meet in {g.vars[0].name}")
    (old,) = g.copies[copy % len(g.copies)]
    new = add_product(b, factors, old, ops)
    g.copies[copy % len(g.copies)] = [new if mask is None else select(b, mask, new, old)]


def _in_first_lane(b: Builder, x: Val, neutral: Val) -> Val:
    text = b.pure(f"insertelement {neutral.type} {neutral.text}, {x.type} {x.text}, i64 0")
    return Val(text, x.dtype, neutral.lanes)


def open_scan(b: Builder, g: Group, lanes: int) -> None:
    """At the start of a vector loop that reads ``g``: the value so far in every lane."""
    g.copies = [[splat(b, v, lanes) for v in g.copies[0]]]
    g.lanes, g.scan = lanes, True


def close_scan(b: Builder, g: Group) -> None:
    g.copies = [[lane(b, v, 0) for v in g.copies[0]]]
    g.lanes, g.scan, g.strip = 0, False, None


def _scan(b: Builder, g: Group, values: list[Val], mask: Val | None, ops: frozenset[str]) -> None:
    values = [splat(b, v, g.lanes) for v in values]
    if mask is not None:
        neutral = identities(g.vars, g.reducer, g.lanes)
        values = [select(b, mask, v, n) for v, n in zip(values, neutral, strict=True)]
    inside = prefixes(b, g.reducer, values, identities(g.vars, g.reducer, g.lanes), ops)
    g.strip = combine(b, g.reducer, g.copies[0], inside, ops)
    g.copies = [[repeat_last(b, v) for v in g.strip]]


def any_lane(b: Builder, x: Val) -> str:
    """Whether a bool holds in any lane, as ``i1``."""
    if not x.lanes:
        return x.text
    word = b.pure(f"bitcast {x.type} {x.text} to i{x.lanes}")
    return b.pure(f"icmp ne i{x.lanes} {word}, 0")


def not_(b: Builder, x: Val) -> Val:
    return binary(b, "xor", x, const(True, bool_, x.lanes))
