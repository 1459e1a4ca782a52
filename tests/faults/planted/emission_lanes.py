"""Emission: the lanes of an accumulator are combined without the last halving."""

from typing import Any

from lowc.backends.x86 import accumulators, reduce


def across_lanes(b: Any, reducer: str, values: Any, ops: frozenset[str]) -> Any:
    lanes = values[0].lanes
    while lanes > 2:
        lanes //= 2
        low, high = ([reduce.shuffled(b, v, range(start, start + lanes)) for v in values] for start in (0, lanes))
        values = reduce.combine(b, reducer, low, high, ops)
    return [reduce.lane(b, v, 0) for v in values]


reduce.across_lanes = across_lanes
if hasattr(accumulators, "across_lanes"):
    accumulators.across_lanes = across_lanes
