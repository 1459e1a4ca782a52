"""fold: LOOPS → LOOPS.  A let that is used once, by the statement right behind it, is written into that statement.

Before:  t = x[i] * 2            after:   y[i] = exp(x[i] * 2)
         y[i] = exp(t)

Apart from that, a division by a power of two becomes the product that it equals bit for bit.  Otherwise nothing changes but
how the program reads and how many names later passes carry.  Expressions stay below ``DEPTH`` levels, so
that no later pass recurses far.  A let that is used as a coordinate stays.
"""

from collections.abc import Sequence
from math import frexp

from lowc.ir.index import Opaque, atoms
from lowc.ir.nodes import Const, Expr, For, If, Kernel, Let, Module, Op, Stmt, Var
from lowc.ir.walk import depth, exprs, indices, make_kernel, map_exprs, parts, rewrite, statements
from lowc.options import Options
from lowc.scheduler.nest import map_kernels
from lowc.target import Target

DEPTH = 10


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with single-use lets written where they are used."""
    return map_kernels(module, _fold)


def _fold(kernel: Kernel) -> Kernel:
    return make_kernel(kernel.name, _block(kernel.body, _uses(kernel.body)), kernel.params)


def _uses(body: Sequence[Stmt]) -> dict[str, int]:
    """How often each variable is used; a use as a coordinate counts as many."""
    found: dict[str, int] = {}
    for stmt in statements(body):
        for expr in exprs(stmt):
            for part in _occurrences(expr):
                found[part.name] = found.get(part.name, 0) + 1
    for index in indices(body):
        for atom in atoms(index):
            if isinstance(atom, Opaque):
                found[atom.name] = 100
    return found


def _occurrences(expr: Expr) -> list[Var]:
    """Every use of a variable in ``expr``; one in a part that is itself used twice counts twice (up to a few)."""
    counts: dict[int, int] = {}
    for part in parts(expr):
        for child in getattr(part, "args", ()) if not hasattr(part, "buffer") else ():
            counts[id(child)] = counts.get(id(child), 0) + 1
    shared = any(n > 1 for n in counts.values())
    found = [p for p in parts(expr) if isinstance(p, Var)]
    return found * 2 if shared and found else [v for v in found for _ in range(max(1, counts.get(id(v), 1)))]


def _block(body: Sequence[Stmt], uses: dict[str, int]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    halves: dict[int, Expr] = {}
    for stmt in body:
        stmt = map_exprs(stmt, lambda e: rewrite(e, _product, halves))
        if isinstance(stmt, For):
            stmt = For(stmt.axis, _block(stmt.body, uses), stmt.kind)
        elif isinstance(stmt, If):
            stmt = If(stmt.cond, _block(stmt.body, uses))
        elif out and isinstance(out[-1], Let) and uses.get(out[-1].var.name) == 1:
            let = out[-1]
            mine = [p for e in exprs(stmt) for p in parts(e) if isinstance(p, Var) and p.name == let.var.name]
            if mine and depth(let.value, DEPTH) + max(depth(e, DEPTH) for e in exprs(stmt)) < DEPTH:
                out.pop()
                memo: dict[int, Expr] = {id(p): let.value for p in mine}
                stmt = map_exprs(stmt, lambda e: rewrite(e, lambda p: p, memo))  # noqa: B023
        out.append(stmt)
    return tuple(out)


def _product(expr: Expr) -> Expr:
    """x / 2**n as x * 2**-n: both round the same number once, where 2**-n is a normal number."""
    if isinstance(expr, Op) and expr.name == "div" and isinstance(expr.args[1], Const):
        mantissa, exponent = frexp(float(expr.args[1].value))
        if abs(mantissa) == 0.5 and abs(exponent) < 100 and expr.dtype.bits >= 32:
            return Op("mul", (expr.args[0], Const(1.0 / float(expr.args[1].value), expr.dtype)), expr.dtype)
    return expr
