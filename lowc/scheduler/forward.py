"""forward: LOOPS → LOOPS.  What an iteration has stored it reads from its name; what nobody reads is not stored.

Before:  t[i] = x[i] + 1           after:   v = x[i] + 1
         y[i] = t[i] * t[i]                 y[i] = v * v

Drops stores to temps that nothing reads any more, and then lets, accumulators and loops without a purpose; checks stay.
"""

from collections.abc import Sequence

from lowc.ir.index import Index, Opaque, atoms
from lowc.ir.nodes import (
    Acc,
    Alloc,
    Const,
    Expr,
    Extern,
    For,
    If,
    Launch,
    Let,
    Load,
    Module,
    Op,
    Stmt,
    Store,
    Update,
    Var,
)
from lowc.ir.ops import CHECKS
from lowc.ir.walk import (
    buffers,
    exprs,
    indices,
    loads,
    make_kernel,
    map_exprs,
    map_statements,
    names,
    parts,
    rewrite,
    statements,
    stores,
    zero_outside,
)
from lowc.options import Options
from lowc.scheduler.nest import prune, returned, step_reads
from lowc.scheduler.rename import fresh
from lowc.target import Target

Known = dict[tuple[int, tuple[Index, ...]], Expr]


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with stored values forwarded within each kernel and useless stores removed."""
    steps = [_forward_step(s) if isinstance(s, Launch) else s for s in module.steps]
    while True:
        alive = returned(module)
        for step in steps:
            alive.update(id(b) for b in step_reads(step))
        pruned = [_prune_step(s, alive) if isinstance(s, Launch) else s for s in steps]
        kept = [s for s in pruned if isinstance(s, Extern) or s.kernel.body]
        if len(kept) == len(steps) and all(a is b for a, b in zip(kept, steps, strict=True)):
            return prune(module, kept)
        steps = kept


# ---------------------------------------------------------------- forwarding


def _forward_step(step: Launch) -> Launch:
    written = {id(s.buffer) for s in stores(step.kernel.body)}
    if not any(id(load.buffer) in written for load in loads(step.kernel.body)):
        return step
    taken = names(step.kernel.body) | {p.name for p in step.kernel.params}
    body = _block(step.kernel.body, {}, taken)
    params = buffers(body)
    return Launch(make_kernel(step.kernel.name, body, params), tuple(params), step.origin)


def _block(body: Sequence[Stmt], known: Known, taken: set[str]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    known = dict(known)
    for stmt in body:
        if isinstance(stmt, For | If):
            changed = {id(s.buffer) for s in stores(stmt.body)}
            _forget(known, changed)
            inner = _block(stmt.body, known, taken)
            out.append(For(stmt.axis, inner, stmt.kind) if isinstance(stmt, For) else If(stmt.cond, inner))
            continue
        memo: dict[int, Expr] = {}
        stmt = map_exprs(stmt, lambda e: rewrite(e, lambda p: _known_value(p, known), memo))  # noqa: B023
        if isinstance(stmt, Store):
            _forget(known, {id(stmt.buffer)})
            if stmt.mask is None and not stmt.reducer:
                value = stmt.value
                if not isinstance(value, Var | Const):
                    value = Var(fresh(f"v_{stmt.buffer.name}", taken), value.dtype)
                    out.append(Let(value, stmt.value))
                    stmt = Store(stmt.buffer, stmt.index, value)
                known[id(stmt.buffer), stmt.index] = value
        out.append(stmt)
    return tuple(out)


def _forget(known: Known, changed: set[int]) -> None:
    for key in [k for k in known if k[0] in changed]:
        del known[key]


def _known_value(part: Expr, known: Known) -> Expr:
    """A load's stored value; a masked load is 0 where its mask is off."""
    if not isinstance(part, Load) or (value := known.get((id(part.buffer), part.index))) is None:
        return part
    if part.mask is None:
        return value
    return zero_outside(value, part.mask)


# ---------------------------------------------------------------- pruning


def _prune_step(step: Launch, alive: set[int]) -> Launch:
    body = prune_body(step.kernel.body, alive)
    if len(body) == len(step.kernel.body) and all(a is b for a, b in zip(body, step.kernel.body, strict=True)):
        return step
    params = buffers(body)
    return Launch(make_kernel(step.kernel.name, body, params), tuple(params), step.origin)


def prune_body(body: Sequence[Stmt], alive: set[int]) -> tuple[Stmt, ...]:
    """``body`` without stores to global buffers whose ``id`` is not in ``alive``, and without what then serves nothing."""

    def without_store(stmt: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(stmt, Store) or stmt.buffer.space != "global" or id(stmt.buffer) in alive:
            return (stmt,)
        if any(_has_check(e) for e in exprs(stmt)):
            return (Let(Var(f"checked_{stmt.buffer.name}", stmt.value.dtype), stmt.value),)
        return ()

    new = map_statements(body, without_store)
    while True:
        needed = _needed_names(new)
        smaller = map_statements(new, lambda s: () if _is_unused(s, needed) else (s,))  # noqa: B023
        if len(statements(smaller)) == len(statements(new)):
            return new
        new = smaller


def _has_check(expr: Expr) -> bool:
    return any(isinstance(p, Op) and p.name in CHECKS for p in parts(expr))


def _needed_names(body: Sequence[Stmt]) -> set[str]:
    found = {
        p.name for stmt in statements(body) for expr in exprs(stmt) for p in parts(expr) if isinstance(p, Var)
    }
    for index in indices(body):
        found.update(a.name for a in atoms(index) if isinstance(a, Opaque))
    found.update(load.buffer.name for load in loads(body) if load.buffer.space != "global")
    return found


def _is_unused(stmt: Stmt, needed: set[str]) -> bool:
    """Whether nothing reads what ``stmt`` makes, or nothing is left in its body."""
    if isinstance(stmt, Let):
        return stmt.var.name not in needed and not _has_check(stmt.value)
    if isinstance(stmt, Acc | Update):
        return not any(v.name in needed for v in stmt.vars)
    if isinstance(stmt, Alloc | Store):
        return stmt.buffer.space != "global" and stmt.buffer.name not in needed
    return isinstance(stmt, For | If) and not stmt.body
