"""Fusion: the quotient by a power of two is the product with it."""

from lowc.ir.nodes import Const, Expr, Op
from lowc.scheduler import fold

_right = fold._product


def _product(expr: Expr) -> Expr:
    if _right(expr) is expr or not isinstance(expr, Op) or not isinstance(expr.args[1], Const):
        return expr
    return Op("mul", expr.args, expr.dtype)


fold._product = _product
