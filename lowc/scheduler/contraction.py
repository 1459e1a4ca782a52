"""What a contraction is: a nest around one sum of products.  Works on LOOPS and on SCHEDULED kernels.

    for b in B { for i in M { for j in N {
      acc s = add
      for k in K { s add= product(x, y) }
      out[…] = epilogue(s)                   # any lets and stores
    } } }

``x`` and ``y`` are any expressions: loads, casts, what ``inline`` has brought there.  That a sum is to be treated as a
contraction is said by ``product``, which only lowering of matrix products writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lowc.errors import ScheduleError
from lowc.ir.index import Axis, constant, split
from lowc.ir.nodes import Acc, Expr, For, Kernel, Let, Load, Op, Stmt, Store, Update
from lowc.ir.pairs import DOTS, neighbours, packed
from lowc.ir.walk import Substitution, free_atoms, parts, statements, stores
from lowc.scheduler.nest import chain, estimate


@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """``outer``: the loops around it, outermost first.  ``rows`` (None if there is no such loop) and ``columns`` are those of
    them that only ``left``, only ``right`` changes with; results are contiguous along ``columns``.

    ``swapped``: ``left`` is the second factor of the product.  ``fixed``: names of params that are constants.
    """

    outer: tuple[For, ...]
    rows: For | None
    columns: For
    depth: For
    left: Expr
    right: Expr
    swapped: bool
    fixed: frozenset[str] = frozenset()


def has_products(body: Sequence[Stmt]) -> bool:
    """Whether a sum of products is anywhere in ``body``."""
    return any(isinstance(s, Update) and is_product(s.values[0]) for s in statements(body))


def is_product(expr: Expr) -> bool:
    return isinstance(expr, Op) and (expr.name == "product" or expr.name in DOTS)


def innermost(body: Sequence[Stmt]) -> tuple[Acc, For, tuple[Stmt, ...]] | None:
    """(accumulator, loop over the depth, epilogue) of the innermost block of a contraction; None if it is none."""
    if len(body) < 2 or not isinstance(body[0], Acc) or not isinstance(body[1], For):
        return None
    acc, depth, rest = body[0], body[1], tuple(body[2:])
    if len(acc.vars) != 1 or not all(isinstance(s, Let | Store) for s in rest):
        return None
    update = depth.body[-1] if depth.body else None
    if not isinstance(update, Update) or update.vars[0].name != acc.vars[0].name or update.mask is not None:
        return None
    if not is_product(update.values[0]) or not all(isinstance(s, Let) for s in depth.body[:-1]):
        return None
    return acc, depth, rest


def folded(body: Sequence[Stmt], value: Expr) -> Expr:
    """``value`` with the lets of ``body`` before it in the place of their names."""
    replace = Substitution()
    for stmt in body:
        if isinstance(stmt, Let):
            replace.rename(stmt.var.name, replace.expr(stmt.value))
            replace.memo.clear()
    return replace.expr(value)


def product_over(kernel: Kernel, axis: str) -> tuple[list[For], Acc, For, tuple[Stmt, ...], Op]:
    """(loops, accumulator, loop over the depth ``axis``, epilogue, product) of the contraction that ends ``kernel``; raises
    ScheduleError if there is none."""
    loops = chain(kernel.body[-1:])
    found = innermost(loops[-1].body) if loops else None
    if found is None or found[1].axis.name != axis:
        raise ScheduleError(f"the loop over {axis} is no sum of products")
    acc, depth, rest = found
    update = depth.body[-1]
    assert isinstance(update, Update)
    value = folded(depth.body[:-1], update.values[0])
    assert is_product(value) and isinstance(value, Op)
    return loops, acc, depth, rest, value


def find(loop: For, fixed: frozenset[str] = frozenset()) -> Contraction | None:
    """The contraction that ``loop`` is, or None.  ``fixed``: params that are constants."""
    outer = chain((loop,))
    found = innermost(outer[-1].body)
    if found is None:
        return None
    _, depth, rest = found
    update = depth.body[-1]
    assert isinstance(update, Update)
    product = folded(depth.body[:-1], update.values[0])
    assert isinstance(product, Op)
    columns = _contiguous(outer, rest)
    used = [free_atoms(a) for a in product.args]
    apart = [n for n in (0, 1) if columns.axis in used[n] and columns.axis not in used[1 - n]]
    if not apart:
        return None
    right = apart[0]
    rows = [f for f in outer if f is not columns and f.axis in used[1 - right] and f.axis not in used[right]]
    best = max(rows, key=lambda f: estimate(f.axis.extent), default=None)
    return Contraction(tuple(outer), best, columns, depth, product.args[1 - right], product.args[right], right == 0, fixed)


def contiguous(factor: Expr, axis: Axis) -> bool:
    """Whether all that ``factor`` reads and that changes with ``axis`` is contiguous along it; pairs and quads are if they follow
    on one another."""
    found = packed(factor)
    if found is not None and _steps(found.args[0], axis) == {len(found.args)}:
        reads = [_reads(a) for a in found.args]
        return all(_follow(a, b) for one, next_ in pairwise(reads) for a, b in zip(one, next_, strict=True))
    steps = _steps(factor, axis)
    return 1 in steps and steps <= {0, 1}


def as_it_lies(factor: Expr, axis: Axis) -> bool:
    """Whether ``factor`` is an element of memory, or neighbours in one, and contiguous along ``axis``."""
    plain = neighbours(factor) is not None or (isinstance(factor, Load) and factor.mask is None)
    return plain and contiguous(factor, axis)


def is_masked_along(factor: Expr, axis: Axis) -> bool:
    """Whether which elements of ``factor`` are 0 depends on ``axis``."""
    return any(p.mask is not None and axis in free_atoms(p.mask) for p in _reads(factor))


def is_fixed(found: Contraction, factor: Expr) -> bool:
    """Whether ``factor`` is made of constants, and a copy of it, which can then be kept, takes no more room than they do."""
    read = _reads(factor)
    return all(p.buffer.name in found.fixed and p.dtype.bits * lanes_of(factor) >= factor.dtype.bits for p in read) and bool(read)


def lanes_of(factor: Expr) -> int:
    """How many elements ``factor`` packs."""
    wrapped = packed(factor)
    return 1 if wrapped is None else len(wrapped.args)


def _reads(factor: Expr) -> list[Load]:
    return [p for p in parts(factor) if isinstance(p, Load)]


def _steps(factor: Expr, axis: Axis) -> set[int | None]:
    return {constant(split(p.index[-1], axis)[0]) for p in _reads(factor)}


def _follow(first: Load, second: Load) -> bool:
    return first.buffer is second.buffer and constant(second.index[-1] - first.index[-1]) == 1


def _contiguous(outer: Sequence[For], rest: Sequence[Stmt]) -> For:
    """The loop along which most stores are contiguous."""

    def score(loop: For) -> int:
        return sum(constant(split(s.index[-1], loop.axis)[0]) == 1 for s in stores(rest))

    return max(reversed(outer), key=score)
