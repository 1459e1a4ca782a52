"""Pairs of bf16 in 32 bits (op ``pair``): what is known of them without evaluating any."""

from lowc.ir.index import constant
from lowc.ir.nodes import Expr, Load, Op


def neighbours(expr: Expr) -> Load | None:
    """The first of two elements that follow on one another in memory, if ``expr`` is a pair of such, read under no mask: the pair
    is then 32 bits of memory as they lie."""
    if not isinstance(expr, Op) or expr.name != "pair":
        return None
    first, second = expr.args
    if not isinstance(first, Load) or not isinstance(second, Load) or first.buffer is not second.buffer:
        return None
    if first.mask is not None or second.mask is not None or first.index[:-1] != second.index[:-1]:
        return None
    return first if constant(second.index[-1] - first.index[-1]) == 1 else None
