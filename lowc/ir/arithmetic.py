"""Sizes that Python computes with floats, as ``int(n * 0.3)``: what the extern step ``lowc.size.default`` does.

An Index is exact and cannot say it.  So such a size is a symbol of its own, the result of a step whose one argument is the
computation: a number, an Index over other sizes, or a tuple of a function's name and its operands.

    f0 = extern lowc.size.default(("trunc", ("mul", ("float", idx(s0)), 0.3)))

It means what Python means by it: integers of any size, f64 floats that round after each operation in the order written, and
Python's exceptions.  The host program does it in line, ``f0 = math.trunc((float(s0) * 0.3))``.
"""

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from lowc.ir import index
from lowc.ir.index import Index, Symbol, atoms
from lowc.ir.nodes import Arg, Extern, Step

TARGET = "lowc.size.default"


def _divide(a: float, b: float) -> float:
    return a / b


def _floor_divide(a: float, b: float) -> float:
    return a // b


def _power(a: float, b: float) -> Any:
    return a**b


class Function(NamedTuple):
    """``form``: as Python writes it, one ``{}`` for each operand."""

    form: str
    function: Callable[..., Any]


FUNCTIONS = {
    "float": Function("float({})", float),
    "add": Function("({} + {})", operator.add),
    "sub": Function("({} - {})", operator.sub),
    "mul": Function("({} * {})", operator.mul),
    "truediv": Function("({} / {})", _divide),
    "floordiv": Function("({} // {})", _floor_divide),
    "mod": Function("({} % {})", operator.mod),
    "pow": Function("({} ** {})", _power),
    "neg": Function("(-{})", operator.neg),
    "abs": Function("abs({})", abs),
    "min": Function("min({}, {})", min),
    "max": Function("max({}, {})", max),
    "round": Function("round({})", round),
    **{
        name: Function(f"math.{name}({{}})", getattr(math, name))
        for name in ("trunc", "floor", "ceil", "sqrt", "exp", "log", "log2", "sin", "cos", "tan", "tanh", "atan")
    },
}


def is_size(step: Step) -> bool:
    """Whether ``step`` is such a computation, which calls nothing outside the host program."""
    return isinstance(step, Extern) and step.target == TARGET


def fault(step: Extern) -> str:
    """What is wrong with the form of a step, or nothing."""
    if len(step.args) != 1 or step.kwargs or len(step.results) != 1 or not isinstance(step.results[0], Symbol):
        return f"{TARGET} takes one computation and gives one symbol"
    return wrong(step.args[0])


def wrong(tree: Arg) -> str:
    """What is wrong with a computation, or nothing."""
    if isinstance(tree, Index) or (isinstance(tree, int | float) and not isinstance(tree, bool)):
        return "" if not isinstance(tree, float) or math.isfinite(tree) else f"{tree} is no finite number"
    if not isinstance(tree, tuple) or not tree or tree[0] not in FUNCTIONS:
        return f"{tree!r} is no arithmetic that is known"
    operands = tree[1:]
    if FUNCTIONS[str(tree[0])].form.count("{}") != len(operands):
        return f"{tree[0]} of {len(operands)} operands"
    return next((found for found in map(wrong, operands) if found), "")


def text(tree: Arg) -> str:
    """``tree`` as Python writes it."""
    if isinstance(tree, tuple):
        return FUNCTIONS[str(tree[0])].form.format(*map(text, tree[1:]))
    written = index.text(tree) if isinstance(tree, Index) else repr(tree)
    return written if written.isidentifier() or written.replace(".", "").isdigit() else f"({written})"


def symbols(tree: Arg) -> Iterator[Symbol]:
    """The sizes that ``tree`` is computed from."""
    if isinstance(tree, tuple):
        for operand in tree[1:]:
            yield from symbols(operand)
    elif isinstance(tree, Index):
        yield from (atom for atom in atoms(tree) if isinstance(atom, Symbol))


def evaluate(tree: Arg, sizes: Mapping[str, int]) -> Any:
    """The value of ``tree`` where sizes have the values ``sizes``, by name.  Raises what Python raises (OverflowError for the
    ``trunc`` of an infinity, say)."""
    if isinstance(tree, tuple):
        return FUNCTIONS[str(tree[0])].function(*(evaluate(operand, sizes) for operand in tree[1:]))
    return index.evaluate(tree, dict(sizes)) if isinstance(tree, Index) else tree


def known_from(steps: tuple[Step, ...], given: set[Symbol]) -> set[Symbol]:
    """``given``, and the sizes that such steps compute from these alone: they can be known before the first step."""
    known = set(given)
    for step in steps:
        if isinstance(step, Extern) and is_size(step) and known.issuperset(symbols(step.args[0])):
            known.update(r for r in step.results if isinstance(r, Symbol))
    return known
