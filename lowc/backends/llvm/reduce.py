"""What accumulators start from, and two of them as one."""

from collections.abc import Callable

from lowc.backends.llvm.builder import Builder
from lowc.backends.llvm.values import Val, binary, const, select
from lowc.ir.nodes import Var
from lowc.ir.ops import FIRST_INDEX, REDUCERS, identity
from lowc.ir.types import bool_

Values = list[Val]
Combine = Callable[[str, Val, Val], Val]
"""A target's code for an op of two arguments of one dtype."""


def identities(variables: tuple[Var, ...], reducer: str, lanes: int) -> Values:
    """What the accumulators start from."""
    first = const(identity(reducer, variables[0].dtype), variables[0].dtype, lanes)
    if len(variables) == 1:
        return [first]
    return [first, const(FIRST_INDEX, variables[1].dtype, lanes)]


def combine(b: Builder, reducer: str, a: Values, c: Values, apply: Combine) -> Values:
    """Accumulators ``a`` and ``c`` as one; a pair keeps the first NaN, else the first best value.

    ``a`` is the older one: max and min are written so that the chain of instructions from it is short.  Which
    of 0.0 and -0.0 they keep depends on the grouping.
    """
    row = REDUCERS[reducer]
    if row.arity == 1:
        return [apply(row.op, c[0], a[0]) if row.op in ("max", "min") else apply(row.op, a[0], c[0])]
    (value, index), (new, at) = a, c
    wins = binary(b, "gt" if reducer == "argmax" else "lt", new, value)
    ties = binary(b, "eq", new, value)
    if value.dtype.kind == "f":
        old_nan = Val(b.pure(f"fcmp uno {value.type} {value.text}, {value.text}"), bool_, value.lanes)
        new_nan = Val(b.pure(f"fcmp uno {new.type} {new.text}, {new.text}"), bool_, new.lanes)
        old_fine = binary(b, "xor", old_nan, const(True, bool_, old_nan.lanes))
        wins = binary(b, "or", wins, binary(b, "and", new_nan, old_fine))
        ties = binary(b, "or", ties, binary(b, "and", new_nan, old_nan))
    earlier = binary(b, "lt", at, index)
    take = binary(b, "or", wins, binary(b, "and", ties, earlier))
    return [select(b, take, new, value), select(b, take, at, index)]
