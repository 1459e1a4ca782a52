"""The order in which the parts of an expression are evaluated, the same on every target."""

from collections.abc import Callable
from typing import TypeVar

from lowc.ir.nodes import Expr, Op
from lowc.ir.walk import children

T = TypeVar("T")
# the arguments that are evaluated before the op
APART = {"rarely": slice(0, None, 2), "soon": slice(0, 1), "pair": slice(0, 0), "quad": slice(0, 0)}


def evaluate_in_order(root: Expr, memo: dict[int, T], evaluate: Callable[[Expr], T]) -> T:
    """The value of ``root``: ``evaluate`` is called for each part once those of its own parts are in ``memo``, by ``id``.

    What "rarely" guards, what "soon" only announces, and what "pair" and "quad" may read at once is left to ``evaluate``.  (Not
    recursive: expressions may be deep.)
    """
    stack = [root]
    while stack:
        expr = stack[-1]
        if id(expr) in memo:
            stack.pop()
            continue
        first = expr.args[APART[expr.name]] if isinstance(expr, Op) and expr.name in APART else children(expr)
        missing = [c for c in first if id(c) not in memo]
        if missing:
            stack.extend(reversed(missing))
            continue
        memo[id(expr)] = evaluate(expr)
        stack.pop()
    return memo[id(root)]
