"""forward: LOOPS → LOOPS.  What an iteration has stored it reads from its name; what nobody reads is not stored.

Before:  t[i] = x[i] + 1           after:   v = x[i] + 1
         y[i] = t[i] * t[i]                 y[i] = v * v

Drops stores to temps that nothing reads any more, and then lets, accumulators and loops without a purpose; checks stay.
"""

from collections.abc import Sequence

from lowc.ir.index import Index
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
    Stmt,
    Store,
    Update,
    Var,
)
from lowc.ir.scan import read
from lowc.ir.walk import (
    buffers,
    exprs,
    has_check,
    loads,
    make_kernel,
    map_exprs,
    map_statements,
    names,
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
            _forget(known, {id(s.buffer) for s in stores(stmt.body)}, _updated(stmt.body))
            inner = _block(stmt.body, known, taken)
            out.append(For(stmt.axis, inner, stmt.kind) if isinstance(stmt, For) else If(stmt.cond, inner))
            continue
        memo: dict[int, Expr] = {}
        stmt = map_exprs(stmt, lambda e: rewrite(e, lambda p: _known_value(p, known), memo))  # noqa: B023
        if isinstance(stmt, Store):
            _forget(known, {id(stmt.buffer)}, set())
            if stmt.mask is None and not stmt.reducer:
                value = stmt.value
                if not isinstance(value, Var | Const):
                    value = Var(fresh(f"v_{stmt.buffer.name}", taken), value.dtype)
                    out.append(Let(value, stmt.value))
                    stmt = Store(stmt.buffer, stmt.index, value)
                known[id(stmt.buffer), stmt.index] = value
        elif isinstance(stmt, Update):
            _forget(known, set(), _updated((stmt,)))
        out.append(stmt)
    return tuple(out)


def _updated(body: Sequence[Stmt]) -> set[str]:
    """The accumulators that ``body`` updates."""
    return {v.name for s in statements(body) if isinstance(s, Update) for v in s.vars}


def _forget(known: Known, changed: set[int], updated: set[str]) -> None:
    """Drops what is known of the buffers ``changed``, and the values that are one of the accumulators ``updated``."""
    for key, value in list(known.items()):
        if key[0] in changed or (isinstance(value, Var) and value.name in updated):
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
    body = prune_body(step.kernel.body, alive, {p.name for p in step.kernel.params})
    if len(body) == len(step.kernel.body) and all(a is b for a, b in zip(body, step.kernel.body, strict=True)):
        return step
    params = buffers(body)
    return Launch(make_kernel(step.kernel.name, body, params), tuple(params), step.origin)


def prune_body(body: Sequence[Stmt], alive: set[int], taken: set[str]) -> tuple[Stmt, ...]:
    """``body`` without stores to global buffers whose ``id`` is not in ``alive``, and without what then serves nothing.

    ``taken``: names in use, beside those bound in ``body``.
    """
    taken = taken | names(body)

    def without_store(stmt: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(stmt, Store) or stmt.buffer.space != "global" or id(stmt.buffer) in alive:
            return (stmt,)
        return _checks(stmt, taken)

    new = map_statements(body, without_store)
    needed = _needed_names(new)
    while any(_is_unused(s, needed) for s in statements(new)):
        new = map_statements(new, lambda s: _checks(s, taken) if _is_unused(s, needed) else (s,))  # noqa: B023
        needed = _needed_names(new)
    return new


def _checks(stmt: Stmt, taken: set[str]) -> tuple[Stmt, ...]:
    """What stays of a statement that serves nothing: its checks."""
    wanted = f"checked_{stmt.buffer.name}" if isinstance(stmt, Store) else "checked"
    return tuple([Let(Var(fresh(wanted, taken), e.dtype), e) for e in exprs(stmt) if has_check(e)])


def _needed_names(body: Sequence[Stmt]) -> set[str]:
    return read(body) | {load.buffer.name for load in loads(body) if load.buffer.space != "global"}


def _is_unused(stmt: Stmt, needed: set[str]) -> bool:
    """Whether nothing reads what ``stmt`` makes, or nothing is left in its body."""
    if isinstance(stmt, Let):
        return stmt.var.name not in needed and not has_check(stmt.value)
    if isinstance(stmt, Acc | Update):
        return not any(v.name in needed for v in stmt.vars)
    if isinstance(stmt, Alloc | Store):
        return stmt.buffer.space != "global" and stmt.buffer.name not in needed
    return isinstance(stmt, For | If) and not stmt.body
