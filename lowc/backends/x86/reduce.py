"""Combining accumulators: two of them, the lanes of one, and all prefixes of its lanes."""

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
    """Accumulators ``a`` and ``c`` as one; a pair keeps the first NaN, else the first best value.

    ``a`` is the older one: max and min are written so that the chain of instructions from it is short.  Which
    of 0.0 and -0.0 they keep depends on the grouping.
    """
    row = REDUCERS[reducer]
    if row.arity == 1:
        return [apply(b, row.op, [c[0], a[0]] if row.op in ("max", "min") else [a[0], c[0]], a[0].dtype, ops)]
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


def across_lanes(b: Builder, reducer: str, values: Values, ops: frozenset[str]) -> Values:
    """The lanes of accumulators combined into one of each: halves against halves."""
    lanes = values[0].lanes
    while lanes > 1:
        lanes //= 2
        low, high = ([shuffled(b, v, range(start, start + lanes)) for v in values] for start in (0, lanes))
        values = combine(b, reducer, low, high, ops)
    return [lane(b, v, 0) for v in values]


def prefixes(b: Builder, reducer: str, values: Values, neutral: Values, ops: frozenset[str]) -> Values:
    """In each lane, all lanes up to it combined: log2(lanes) steps, each adding what lies 1, 2, 4, … lanes
    below (Hillis and Steele, Data parallel algorithms, CACM 1986).  ``neutral``: the identities.
    """
    lanes, distance = values[0].lanes, 1
    while distance < lanes:
        order = [n - distance if n >= distance else lanes for n in range(lanes)]
        below = [shuffled(b, v, order, i) for v, i in zip(values, neutral, strict=True)]
        values = combine(b, reducer, below, values, ops)
        distance *= 2
    return values


def shuffled(b: Builder, x: Val, order: "range | list[int]", other: Val | None = None) -> Val:
    """Lanes of ``x`` (and, from its number of lanes on, of ``other``) in ``order``."""
    mask = ", ".join(f"i32 {n}" for n in order)
    second = other.text if other is not None else "poison"
    text = b.pure(f"shufflevector {x.type} {x.text}, {x.type} {second}, <{len(order)} x i32> <{mask}>")
    return Val(text, x.dtype, len(order))


def repeat_last(b: Builder, x: Val) -> Val:
    """The last lane of ``x`` in every lane."""
    return shuffled(b, x, [x.lanes - 1] * x.lanes)


def lane(b: Builder, x: Val, number: int) -> Val:
    """One lane of ``x``."""
    return Val(b.pure(f"extractelement {x.type} {x.text}, i64 {number}"), x.dtype)
