"""What a kernel or a call of ATen has to do: bytes it must move and floating-point operations, read off the IR at level LOOPS."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from lowc.ir import walk
from lowc.ir.index import Index, Min, Symbol, constant, lower_bound, upper_bound
from lowc.ir.nodes import Expr, Extern, For, Kernel, Load, Op, Stmt, Store, Update, View

# Comparisons, selects, conversions and bit operations are not counted.
_FLOPS = {
    "add": 1,
    "sub": 1,
    "mul": 1,
    "div": 1,
    "neg": 1,
    "abs": 1,
    "min": 1,
    "max": 1,
    "sqrt": 1,
    "fma": 2,
    "mad": 2,
    "product": 1,
    "dot2": 3,
    "dot4": 7,
}


@dataclass(frozen=True, slots=True)
class Cost:
    """``bytes``: each element of a buffer that the kernel reads (or writes) once, however often it does.

    ``flops``: one for each float add, multiply … and each maths function.  Symbolic sizes count as their least value, or 1.
    """

    bytes: int
    flops: int


def of_kernel(kernel: Kernel, bound: bool = False) -> Cost:
    """``bound``: the kernel is at MACHINE, where a loop's extent may be as much as a vector, and is less only at the ends."""
    number = _most if bound else _number
    reads: dict[str, int] = defaultdict(int)
    writes: dict[str, int] = defaultdict(int)
    flops = _walk(kernel.body, 1, reads, writes, number)
    moved = 0
    for buffer in kernel.params:
        size = elements(buffer.shape)
        moved += (min(size, reads[buffer.name]) + min(size, writes[buffer.name])) * buffer.dtype.bytes
    return Cost(moved, flops)


def of_extern(step: Extern) -> Cost:
    """Bytes of tensor arguments and results; multiplications and additions of matrix products (0 for any other op)."""
    views = [a for a in _flat(step.args) if isinstance(a, View)]
    moved = sum(elements(v.shape) * v.dtype.bytes for v in views)
    moved += sum(
        elements(r.shape) * r.dtype.bytes for r in step.results if r is not None and not isinstance(r, Symbol)
    )
    flops = 0
    name = step.target.split(".")[1]
    if name in ("mm", "bmm", "addmm", "baddbmm") and len(views) >= 2:
        left, right = views[-2:]
        flops = 2 * elements(left.shape) * _number(right.shape[-1])
    return Cost(moved, flops)


def _walk(
    body: tuple[Stmt, ...],
    times: int,
    reads: dict[str, int],
    writes: dict[str, int],
    number: Callable[[Index], int],
) -> int:
    """Flops of ``body`` run ``times`` times; adds to the counts of element accesses by buffer name."""
    flops = 0
    for stmt in body:
        seen: set[int] = set()
        for expr in walk.exprs(stmt):
            flops += times * _expression(expr, times, reads, seen)
        match stmt:
            case For():
                flops += _walk(stmt.body, times * number(stmt.axis.extent), reads, writes, number)
            case Update():
                flops += times if stmt.values[0].dtype.kind == "f" else 0
            case Store():
                writes[stmt.buffer.name] += times
                if stmt.reducer:
                    reads[stmt.buffer.name] += times
                    flops += times if stmt.buffer.dtype.kind == "f" else 0
            case _:
                flops += _walk(getattr(stmt, "body", ()), times, reads, writes, number)
    return flops


def _expression(root: Expr, times: int, reads: dict[str, int], seen: set[int]) -> int:
    """Flops of one evaluation; a subexpression that is shared (``seen``) counts once."""
    from lowc.ir.ops import MATHS

    flops, stack = 0, [root]
    while stack:
        expr = stack.pop()
        if id(expr) in seen:
            continue
        seen.add(id(expr))
        if isinstance(expr, Load):
            reads[expr.buffer.name] += times
        elif isinstance(expr, Op) and expr.dtype.kind == "f":
            flops += 1 if expr.name in MATHS else _FLOPS.get(expr.name, 0)
        stack.extend(walk.children(expr))
    return flops


def _flat(args: object) -> list[object]:
    return [leaf for a in args for leaf in _flat(a)] if isinstance(args, tuple) else [args]


def elements(shape: tuple[Index, ...]) -> int:
    total = 1
    for size in shape:
        total *= _number(size)
    return total


def _number(size: Index) -> int:
    """A concrete value for ``size``: symbols and outer axes at their least value, or 1."""
    if (value := constant(size)) is not None:
        return value
    return lower_bound(size) or upper_bound(size) or 1


def _most(size: Index) -> int:
    """The greatest value for ``size`` if it has one, else as ``_number``.

    The last vector of a row is min(what is left, a whole one), and how little may be left is no matter here.
    """
    match size.terms:
        case (((Min() as least,), 1),):
            parts = [p for part in (least.a, least.b) if (p := upper_bound(part)) is not None]
            most = min(parts, default=None)
        case _:
            most = upper_bound(size)
    return _number(size) if most is None else max(most, 0)
