"""hoist: SCHEDULED → SCHEDULED.  What does not depend on a loop leaves it.

Before:  for j in N { y[j] = x[j] * (1 / sqrt(v[i] + eps)) }      after:  h = 1 / sqrt(v[i] + eps)
                                                                          for j in N { y[j] = x[j] * h }

Nothing leaves a block loop: what blocks have in common each of them computes.  Nor does anything leave an instruction's nest or a
pipeline, which have a form; of a pipeline that takes results out, what leaves its loops of threads leaves it as well.

Moves whole lets and the largest invariant parts of expressions, of loads only where the loop surely runs (a load before a
loop of no iterations could be out of bounds).  Checks and masked values stay.  Inner loops first, so that a value travels as
far out as it can.
"""

from collections.abc import Sequence

from lowc.ir import tiles
from lowc.ir.index import Atom, Opaque, lower_bound
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import (
    Acc,
    Alloc,
    Const,
    Expr,
    For,
    FromIndex,
    If,
    Kernel,
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
from lowc.ir.walk import children, make_kernel, map_exprs, names, parts, statements
from lowc.options import Options
from lowc.scheduler.nest import map_kernels
from lowc.target import Target


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with invariant code moved out of loops."""
    return map_kernels(module, _hoist)


def _hoist(kernel: Kernel) -> Kernel:
    body = _Hoister(names(kernel.body) | {p.name for p in kernel.params}).block(kernel.body)
    return make_kernel(kernel.name, body, kernel.params)


class _Hoister:
    """Hoists in one kernel; ``taken`` are the names in use."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken

    def block(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, For):
                out.extend(self.loop(stmt))
            elif isinstance(stmt, If):
                out.append(If(stmt.cond, self.block(stmt.body)))
            else:
                out.append(stmt)
        return tuple(out)

    def loop(self, loop: For) -> list[Stmt]:
        """The loop, after what has left it."""
        if loop.kind.name == "instr":  # the nest is an instruction as it stands
            return [loop]
        if tiles.is_outlet(loop):
            return self.outlet(loop)
        body = self.block(loop.body)
        if loop.kind.name in ("block", "pipeline"):
            return [For(loop.axis, body, loop.kind)]
        finder = _Invariants.of(loop, body)
        variant = finder.variant
        before: list[Stmt] = []
        kept: list[Stmt] = []
        memo: dict[int, Expr] = {}
        for stmt in body:
            if isinstance(stmt, Let) and finder.invariant(stmt.value):
                before.append(stmt)
                variant.discard(Opaque(stmt.var.name))
                finder.known.clear()
            elif isinstance(stmt, For | If):
                kept.append(stmt)
            else:
                kept.append(map_exprs(stmt, lambda e: self.extract(e, finder, before, memo)))
        return [*before, For(loop.axis, tuple(kept), loop.kind)]

    def outlet(self, loop: For) -> list[Stmt]:
        """A pipeline that takes results out, which is allocs, loops of threads and drains: what leaves a loop of threads leaves
        the pipeline as well, or stays."""
        finder = _Invariants.of(loop, loop.body)
        before: list[Stmt] = []
        kept: list[Stmt] = []
        for stmt in loop.body:
            if not isinstance(stmt, For):
                kept.append(stmt)
                continue
            *left, inner = self.loop(stmt)
            stays: list[Stmt] = []
            for let in left:
                assert isinstance(let, Let) and isinstance(inner, For)
                goes = finder.invariant(let.value)
                (before if goes else stays).append(let)
                (finder.variant.discard if goes else finder.variant.add)(Opaque(let.var.name))
                finder.known.clear()
            kept.append(For(inner.axis, (*stays, *inner.body), inner.kind) if isinstance(inner, For) and stays else inner)
        return [*before, For(loop.axis, tuple(kept), loop.kind)]

    def extract(self, expr: Expr, finder: "_Invariants", before: list[Stmt], memo: dict[int, Expr]) -> Expr:
        """``expr`` with its largest invariant parts named before the loop."""
        found = memo.get(id(expr))
        if found is not None:
            return found
        new: Expr = expr
        if not isinstance(expr, Const | Var | FromIndex) and finder.invariant(expr):
            if _worth(expr):
                var = Var(self.fresh(), expr.dtype)
                before.append(Let(var, expr))
                new = var
        elif isinstance(expr, Op):
            args = tuple([self.extract(a, finder, before, memo) for a in expr.args])
            if any(a is not b for a, b in zip(args, expr.args, strict=True)):
                new = Op(expr.name, args, expr.dtype)
        elif isinstance(expr, Load) and expr.mask is not None:
            mask = self.extract(expr.mask, finder, before, memo)
            new = expr if mask is expr.mask else Load(expr.buffer, expr.index, mask)
        memo[id(expr)] = new
        return new

    def fresh(self) -> str:
        number = len(self.taken)
        while f"h{number}" in self.taken:
            number += 1
        self.taken.add(f"h{number}")
        return f"h{number}"


class _Invariants:
    """Which expressions do not change in a loop; ``known`` remembers answers by ``id``."""

    def __init__(self, variant: set[Atom], written: set[int], runs: bool) -> None:
        self.variant = variant
        self.written = written
        self.runs = runs
        self.known: dict[int, tuple[Expr, bool]] = {}

    @staticmethod
    def of(loop: For, body: Sequence[Stmt]) -> "_Invariants":
        """What does not change in ``loop``, whose statements ``body`` are."""
        variant: set[Atom] = {loop.axis}
        written: set[int] = set()
        for stmt in statements(body):
            if isinstance(stmt, Store):
                written.add(id(stmt.buffer))
            elif isinstance(stmt, For):
                variant.add(stmt.axis)
            elif isinstance(stmt, Acc | Update):
                variant.update(Opaque(v.name) for v in stmt.vars)
            elif isinstance(stmt, Let):
                variant.add(Opaque(stmt.var.name))
            elif isinstance(stmt, Alloc):
                written.add(id(stmt.buffer))
        return _Invariants(variant, written, (lower_bound(loop.axis.extent) or 0) >= 1)

    def invariant(self, expr: Expr) -> bool:
        found = self.known.get(id(expr))
        if found is None:
            found = self.known[id(expr)] = (expr, self.decide(expr))
        return found[1]

    def decide(self, expr: Expr) -> bool:
        if isinstance(expr, Const):
            return True
        if isinstance(expr, Var):
            return Opaque(expr.name) not in self.variant
        if isinstance(expr, FromIndex):
            return self.variant.isdisjoint(index_atoms(expr.index))
        if isinstance(expr, Load):
            return (
                self.runs
                and expr.mask is None
                and id(expr.buffer) not in self.written
                and all(self.variant.isdisjoint(index_atoms(i)) for i in expr.index)
            )
        return expr.name not in CHECKS and all(self.invariant(c) for c in children(expr))


def _worth(expr: Expr) -> bool:
    """Whether naming ``expr`` saves anything: a constant cast to another type does not."""
    return any(isinstance(p, Var | Load) or (isinstance(p, FromIndex) and p is not expr) for p in parts(expr)) or (
        isinstance(expr, Op) and expr.name != "cast"
    )
