"""Accumulators: identities, combining two of them, and combining the lanes of one."""

from lowc.backends.llvm.builder import Builder
from lowc.backends.x86.operations import Val, apply, binary, const, select
from lowc.ir.nodes import Var
from lowc.ir.ops import FIRST_INDEX, REDUCERS, identity
from lowc.ir.types import bool_

Values = list[Val]


def identities(variables: tuple[Var, ...], reducer: str, lanes: int) -> Values:
    """What the accumulators start from."""
    first = const(identity(reducer, variables[0].dtype), variables[0].dtype, lanes)
    if len(variables) == 1:
        return [first]
    return [first, const(FIRST_INDEX, variables[1].dtype, lanes)]


def combine(b: Builder, reducer: str, a: Values, c: Values, ops: frozenset[str]) -> Values:
    """Accumulators ``a`` and ``c`` as one; a pair keeps the first NaN, else the first best value."""
    row = REDUCERS[reducer]
    if row.arity == 1:
        return [apply(b, row.op, [a[0], c[0]], a[0].dtype, ops)]
    (value, index), (new, at) = a, c
    wins = binary(b, "gt" if reducer == "argmax" else "lt", new, value)
    ties = binary(b, "eq", new, value)
    if value.dtype.kind == "f":
        old_nan = Val(b.pure(f"fcmp uno {value.type} {value.text}, {value.text}"), bool_, value.lanes)
        new_nan = Val(b.pure(f"fcmp uno {new.type} {new.text}, {new.text}"), bool_, new.lanes)
        old_fine = binary(b, "xor", old_nan, const(True, bool_, old_nan.lanes))
        wins = binary(b, "or", binary(b, "and", wins, old_fine), binary(b, "and", new_nan, old_fine))
        ties = binary(b, "or", ties, binary(b, "and", new_nan, old_nan))
    earlier = binary(b, "lt", at, index)
    take = binary(b, "or", wins, binary(b, "and", ties, earlier))
    return [select(b, take, new, value), select(b, take, at, index)]


def across_lanes(b: Builder, reducer: str, values: Values, ops: frozenset[str]) -> Values:
    """The lanes of accumulators combined into one of each: halves against halves."""
    lanes = values[0].lanes
    while lanes > 1:
        lanes //= 2
        low, high = ([_half(b, v, start, lanes) for v in values] for start in (0, lanes))
        values = combine(b, reducer, low, high, ops)
    return [Val(b.pure(f"extractelement {v.type} {v.text}, i64 0"), v.dtype) for v in values]


def _half(b: Builder, value: Val, start: int, lanes: int) -> Val:
    order = ", ".join(f"i32 {start + n}" for n in range(lanes))
    text = b.pure(f"shufflevector {value.type} {value.text}, {value.type} poison, <{lanes} x i32> <{order}>")
    return Val(text, value.dtype, lanes)
