"""recompute: LOOPS → LOOPS.  Inside a kernel, a stored value that is read seldom, or is cheap, is computed again instead.

Before:  for j in 16384 { p[i, j] = x[i, j] - m - s }        after:   loss = -(x[i, t] - m - s)
         loss = -p[i, t]

For temps that only this kernel touches, stored once, in a loop whose outer loops also hold all the loads.  What the value
is made of must still be there and unchanged: lets from outside that loop, accumulators that nothing updates from it on, and
buffers that the kernel does not write.  The store then serves nothing; ``forward.prune_body`` removes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lowc.ir.index import Atom, Axis, Index, Opaque, constant
from lowc.ir.nodes import (
    Acc,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Launch,
    Let,
    Load,
    Module,
    Stmt,
    Store,
    Update,
    Var,
)
from lowc.ir.walk import (
    Substitution,
    buffers,
    exprs,
    free_atoms,
    loads,
    make_kernel,
    map_exprs,
    names,
    parts,
    rewrite,
    statements,
    stores,
    with_mask,
    zero_outside,
)
from lowc.options import Options
from lowc.scheduler.forward import prune_body
from lowc.scheduler.nest import estimate, plain_axis, private, prune, weight
from lowc.scheduler.rename import fresh
from lowc.target import Target

CHEAP = 3  # cheap instructions that cost about what a load from the nearest cache does


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with cheap or seldom-read private temps computed where they are read."""
    own = private(module)
    steps = [_recompute(s, own.get(number, ())) if isinstance(s, Launch) else s for number, s in enumerate(module.steps)]
    return prune(module, steps)


@dataclass(frozen=True, slots=True, eq=False)
class _Definition:
    """``buffer[index] = value`` after ``lets``; ``inner`` are the loops around it that the loads are not in."""

    buffer: Buffer
    index: tuple[Index, ...]
    lets: tuple[Let, ...]
    value: Expr
    inner: tuple[Axis, ...]


def _recompute(step: Launch, own: Sequence[Buffer]) -> Launch:
    body = step.kernel.body
    for buffer in own:
        found = _definition(body, buffer)
        if found is not None and _pays(found, body):
            body = _replace(body, found, names(body) | {p.name for p in step.kernel.params})
    if body is step.kernel.body:
        return step
    alive = {id(b) for b in step.kernel.params if not any(b is o for o in own)}
    alive |= {id(load.buffer) for load in loads(body)}
    body = prune_body(body, alive, {p.name for p in step.kernel.params})
    params = [b for b in buffers(body) if b.space == "global"]
    return Launch(make_kernel(step.kernel.name, body, params), tuple(params), step.origin)


def _definition(body: Sequence[Stmt], buffer: Buffer) -> _Definition | None:
    """Where ``buffer`` is stored, if that is one plain store that can be repeated where it is loaded."""
    mine = [s for s in stores(body) if s.buffer is buffer]
    if len(mine) != 1 or mine[0].mask is not None or mine[0].reducer:
        return None
    path = _path(body, mine[0])
    if path is None:
        return None
    store = mine[0]
    level = 0
    block: Sequence[Stmt] = body
    while level < len(path) and _holds_all(path[level], block, buffer):
        block = path[level].body
        level += 1
    inner = tuple(loop.axis for loop in path[level:])
    if not inner:
        return None
    plain = [plain_axis(i) for i in store.index]
    if not all(axis in plain for axis in inner):
        return None
    lets: list[Let] = []
    for loop in path[level:]:
        for stmt in loop.body:
            if isinstance(stmt, Let):
                lets.append(stmt)
    written = {id(s.buffer) for s in stores(body)}
    needed = _needed(store.value, lets)
    changed = _changed(block, path[level])
    for expr in (store.value, *(let.value for let in needed)):
        if any(isinstance(p, Load) and id(p.buffer) in written for p in parts(expr)):
            return None
        for atom in free_atoms(expr):
            if isinstance(atom, Opaque) and atom.name in changed:
                return None
    return _Definition(buffer, store.index, tuple(needed), store.value, inner)


def _path(body: Sequence[Stmt], wanted: Store) -> list[For] | None:
    """The loops around ``wanted``, outermost first; None if a condition is among them."""
    for stmt in body:
        if stmt is wanted:
            return []
        if isinstance(stmt, For) and (inner := _path(stmt.body, wanted)) is not None:
            return [stmt, *inner]
    return None


def _holds_all(loop: For, block: Sequence[Stmt], buffer: Buffer) -> bool:
    return not any(load.buffer is buffer for s in block if s is not loop for load in loads((s,)))


def _needed(value: Expr, lets: Sequence[Let]) -> list[Let]:
    """Those of ``lets`` that ``value`` needs, in order."""
    needed: list[Let] = []
    wanted = {a.name for a in free_atoms(value) if isinstance(a, Opaque)}
    for let in reversed(lets):
        if let.var.name in wanted:
            needed.append(let)
            wanted |= {a.name for a in free_atoms(let.value) if isinstance(a, Opaque)}
    return needed[::-1]


def _changed(block: Sequence[Stmt], loop: For) -> set[str]:
    """Accumulators whose value while ``loop`` of ``block`` runs may not be their value later: set in it, updated from it on."""
    place = next(n for n, stmt in enumerate(block) if stmt is loop)
    found = {v.name for s in statements((loop,)) if isinstance(s, Acc) for v in s.vars}
    return found | {v.name for s in statements(block[place:]) if isinstance(s, Update) for v in s.vars}


def _pays(found: _Definition, body: Sequence[Stmt]) -> bool:
    cost = weight(found.value) + sum(weight(let.value) for let in found.lets)
    made = 1
    for axis in found.inner:
        made *= max(1, estimate(axis.extent))
    read = _reads(body, found.buffer, found.inner)
    sources = sum(
        len({id(p.buffer) for p in parts(e) if isinstance(p, Load) and not all(constant(i) is not None for i in p.index)})
        for e in (found.value, *(let.value for let in found.lets))
    )
    if read * max(1, cost) * 4 <= made:
        return True
    return cost <= CHEAP and sources <= 2 and read <= 3 * made


def _reads(body: Sequence[Stmt], buffer: Buffer, inner: Sequence[Axis]) -> int:
    """Loads of ``buffer`` for each iteration of the loops that hold both store and loads."""
    return _count(body, buffer, 1) // max(1, _common(body, buffer, inner))


def _count(body: Sequence[Stmt], buffer: Buffer, times: int) -> int:
    total = 0
    for stmt in body:
        if isinstance(stmt, For):
            total += _count(stmt.body, buffer, times * max(1, estimate(stmt.axis.extent)))
        elif isinstance(stmt, If):
            total += _count(stmt.body, buffer, times)
        total += times * sum(isinstance(p, Load) and p.buffer is buffer for e in exprs(stmt) for p in parts(e))
    return total


def _common(body: Sequence[Stmt], buffer: Buffer, inner: Sequence[Axis]) -> int:
    store = next(s for s in stores(body) if s.buffer is buffer)
    total = 1
    for loop in _path(body, store) or []:
        if loop.axis not in inner:
            total *= max(1, estimate(loop.axis.extent))
    return total


def _replace(body: Sequence[Stmt], found: _Definition, taken: set[str]) -> tuple[Stmt, ...]:
    """``body`` with each load of the buffer computed anew; one let for equal loads of a block."""
    out: list[Stmt] = []
    known: dict[tuple[Index, ...], Expr] = {}
    for stmt in body:
        if isinstance(stmt, For):
            out.append(For(stmt.axis, _replace(stmt.body, found, taken), stmt.kind))
            continue
        if isinstance(stmt, If):
            out.append(If(stmt.cond, _replace(stmt.body, found, taken)))
            continue

        def part(p: Expr) -> Expr:
            if not isinstance(p, Load) or p.buffer is not found.buffer:
                return p
            if p.mask is None and p.index in known:
                return known[p.index]
            value = _instance(found, p, out, taken)
            if p.mask is None:
                known[p.index] = value
            return value

        out.append(map_exprs(stmt, lambda e: rewrite(e, part, {})))  # noqa: B023
    return tuple(out)


def _instance(found: _Definition, load: Load, out: list[Stmt], taken: set[str]) -> Expr:
    place: dict[Atom, Index] = {}
    for stored, wanted in zip(found.index, load.index, strict=True):
        axis = plain_axis(stored)
        if axis is not None and axis in found.inner:
            place[axis] = wanted
    replace = Substitution(place)
    for let in found.lets:
        var = Var(fresh(let.var.name, taken), let.var.dtype)
        value = replace.expr(let.value)
        out.append(Let(var, value if load.mask is None else with_mask(value, load.mask, {})))
        replace.rename(let.var.name, var)
        replace.memo.clear()
    value = replace.expr(found.value)
    value = value if load.mask is None else zero_outside(with_mask(value, load.mask, {}), load.mask)
    if isinstance(value, Var | Const):
        return value
    var = Var(fresh(f"r_{found.buffer.name}", taken), value.dtype)
    out.append(Let(var, value))
    return var
