"""Several narrow elements in 32 bits (ops ``pair`` and ``quad``): what is known of them without evaluating any."""

from lowc.ir.index import constant
from lowc.ir.nodes import Const, Expr, Load, Op

PACKED = frozenset({"pair", "quad"})
DOTS = frozenset({"dot2", "dot4"})  # and of what they are products of


def neighbours(expr: Expr) -> Load | None:
    """The first of elements that follow on one another in memory, if ``expr`` packs such, read under no mask: the packed value
    is then 32 bits of memory as they lie."""
    if not isinstance(expr, Op) or expr.name not in PACKED:
        return None
    first = expr.args[0]
    if not isinstance(first, Load):
        return None
    for n, other in enumerate(expr.args):
        if not isinstance(other, Load) or first.buffer is not other.buffer or other.mask is not None:
            return None
        if first.index[:-1] != other.index[:-1] or constant(other.index[-1] - first.index[-1]) != n:
            return None
    return first


def packed(expr: Expr) -> Op | None:
    """What packs elements in ``expr``: itself, or what it only changes bits of; None if that is none."""
    while isinstance(expr, Op) and expr.name not in PACKED:
        if expr.name == "bitcast" or (expr.name == "xor" and isinstance(expr.args[1], Const)):
            expr = expr.args[0]
        else:
            return None
    return expr if isinstance(expr, Op) else None
