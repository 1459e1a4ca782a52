"""Functions of elements: what an op that takes functions, as ``flex_attention``, computes of a score and where it is, as text.

A node of a graph has a function as a string among its arguments, so that graphs need no place for functions.  The text is a
Python literal: for each function (number of parameters, lines, result), a line being (op, arguments, keywords, dtype, shape) with
one tensor as its result.  Arguments are numbers, strings, None, lists, and pairs:

    ("%", 2)          parameter 2 or, counted on behind the parameters, the result of a line
    ("tensor", 0)     of the tensors that the node takes
    ("size", 0)       of the sizes that it takes
    ("dtype", "f32"), ("float", "0x1.8p+1")

    s + slopes[h] * 2  →  (5, [("aten.index.Tensor", [("tensor", 3), [("%", 2)]], {}, "f32", []),
                               ("aten.mul.Tensor", [("%", 5), 2], {}, "f32", []), ("aten.add.Tensor", …)], ("%", 7))
"""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Line:
    """A call of the op ``target``; its result has ``dtype``, by lowc's name, and ``shape``, of numbers and sizes."""

    target: str
    args: Sequence[Any]
    kwargs: dict[str, Any]
    dtype: str
    shape: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Function:
    """Of ``parameters`` numbers; ``result``: an argument."""

    parameters: int
    lines: tuple[Line, ...]
    result: Any


def text(functions: Sequence[Function], *others: float | str) -> str:
    """``functions`` and other things that a call is told."""
    made = [(f.parameters, [(n.target, n.args, n.kwargs, n.dtype, n.shape) for n in f.lines], f.result) for f in functions]
    return repr((made, [marked(o) if isinstance(o, float) else o for o in others]))


def marked(number: float) -> tuple[str, str]:
    """A float as an argument: exact, and a literal if it is infinite or NaN."""
    return "float", number.hex()


@lru_cache(1 << 8)
def parsed(call: str) -> tuple[tuple[Function, ...], tuple[Any, ...]]:
    """What ``text`` was given."""
    made, others = ast.literal_eval(call)
    functions = [Function(count, tuple([Line(*line) for line in lines]), result) for count, lines, result in made]
    return tuple(functions), tuple([resolved(o, {}) for o in others])


def resolved(arg: Any, kinds: dict[str, Callable[[Any], Any]], several: type = tuple) -> Any:
    """``arg`` with what ``kinds`` makes of pairs, by their first; lists as ``several``."""
    if isinstance(arg, list):
        return several([resolved(a, kinds, several) for a in cast("list[Any]", arg)])
    if isinstance(arg, tuple):
        kind, what = cast("tuple[str, Any]", arg)
        return float.fromhex(what) if kind == "float" else kinds[kind](what)
    return arg


def depends(function: Function, parameter: int) -> bool:
    """Whether the result of ``function`` is made of ``parameter``."""
    found: set[int] = set()

    def number(n: int) -> None:
        if n not in found:
            found.add(n)
            if n >= function.parameters:
                line = function.lines[n - function.parameters]
                for arg in (*line.args, *line.kwargs.values()):
                    resolved(arg, kinds)

    kinds: dict[str, Callable[[Any], Any]] = {"%": number, "tensor": str, "size": str, "dtype": str}
    resolved(function.result, kinds)
    return parameter in found
