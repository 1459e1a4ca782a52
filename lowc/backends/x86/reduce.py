"""Combining accumulators: two of them, the lanes of one, and all prefixes of its lanes."""

from lowc.backends.llvm.builder import Builder
from lowc.backends.llvm.reduce import Values, identities
from lowc.backends.llvm.reduce import combine as pairs
from lowc.backends.x86.operations import Val, apply

__all__ = ["Values", "across_lanes", "combine", "identities", "lane", "prefixes", "repeat_last", "shuffled"]


def combine(b: Builder, reducer: str, a: Values, c: Values, ops: frozenset[str]) -> Values:
    """``a`` and ``c``, of which ``a`` is the older, as one."""
    return pairs(b, reducer, a, c, lambda name, x, y: apply(b, name, [x, y], x.dtype, ops))


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
