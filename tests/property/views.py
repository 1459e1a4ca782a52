"""Tensor values of random programs: a buffer seen through permutes, slices, flips and reshapes."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from lowc.ir.index import (
    ONE,
    ZERO,
    Index,
    constant,
    evaluate,
    ix,
    prove_nonneg,
)
from lowc.ir.nodes import Buffer
from lowc.ir.types import DType

Coords = tuple[Index, ...]


@dataclass(frozen=True)
class Value:
    """A view of a buffer; ``strides`` is None where it is no strided window."""

    buffer: Buffer
    shape: Coords
    coords: Callable[[Coords], Coords]
    strides: Coords | None
    offset: Index
    taint: bool = False

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype


def contiguous(shape: Sequence[Index]) -> Coords:
    strides: list[Index] = []
    step = ONE
    for extent in reversed(shape):
        strides.append(step)
        step = step * (ONE if constant(extent) == 0 else extent)
    return tuple(reversed(strides))


def is_one(extent: Index) -> bool:
    return constant(extent) == 1


def whole(buffer: Buffer, taint: bool = False) -> Value:
    return Value(buffer, buffer.shape, lambda c: c, buffer.strides, ZERO, taint)


def size(shape: Sequence[Index]) -> int:
    """How many elements a value has; a symbol counts as 9."""
    return prod(evaluate(extent, {"s0": 9, "s1": 9}) for extent in shape)


def broadcast(shape: Coords, target: Coords) -> Callable[[Coords], Coords] | None:
    """The map from coordinates in ``target`` to those in ``shape``, or None if it does not broadcast."""
    skipped = len(target) - len(shape)
    if skipped < 0 or any(n != t and not is_one(n) for n, t in zip(shape, target[skipped:], strict=True)):
        return None
    return lambda c: tuple(ZERO if is_one(n) else c[skipped + d] for d, n in enumerate(shape))


def random_view(rng: random.Random, base: Value) -> Value | None:
    """``base`` seen otherwise: permuted, sliced, flipped, reshaped, expanded."""
    shape, steps = base.shape, base.strides
    dim = rng.randrange(len(shape))
    size = shape[dim]
    kind = rng.choice(
        ["permute", "slice", "slice", "flip", "merge", "merge", "divide", "divide", "expand", "select"]
    )
    if kind == "permute":
        order = list(range(len(shape)))
        rng.shuffle(order)
        inverse = [order.index(d) for d in range(len(shape))]
        strides = None if steps is None else tuple(steps[d] for d in order)
        return _remap(base, tuple(shape[d] for d in order), lambda c: tuple(c[p] for p in inverse), strides)
    if kind == "slice":
        step = rng.choice([1, 1, 2, 3])
        begin = rng.choice([n for n in (0, 1, 2) if prove_nonneg(size - n)])
        length = (size - begin + (step - 1)) // ix(step)
        strides = None if steps is None else _replaced(steps, dim, steps[dim] * step)
        offset = ZERO if steps is None else steps[dim] * begin
        mapping = _at(dim, lambda c: c * step + begin)
        return _remap(base, _replaced(shape, dim, length), mapping, strides, offset)
    if kind == "flip":
        return _remap(base, shape, _at(dim, lambda c: size - 1 - c), None)
    if kind == "select" and prove_nonneg(size - 1):
        strides = None if steps is None else steps[:dim] + steps[dim + 1 :]
        offset = ZERO if steps is None else steps[dim] * (size - 1)
        mapping = lambda c: (*c[:dim], size - 1, *c[dim:])  # noqa: E731
        return _remap(base, shape[:dim] + shape[dim + 1 :], mapping, strides, offset)
    if kind == "expand":
        count = ix(rng.choice([1, 2, 3]))
        strides = None if steps is None else (*steps[:dim], ZERO, *steps[dim:])
        mapping = lambda c: (*c[:dim], *c[dim + 1 :])  # noqa: E731
        return _remap(base, (*shape[:dim], count, *shape[dim:]), mapping, strides)
    if kind == "merge" and dim + 1 < len(shape):
        inner = shape[dim + 1]
        if steps is not None and steps[dim] == steps[dim + 1] * inner:
            strides = (*steps[:dim], *steps[dim + 1 :])
        else:
            strides = None
        merged = (*shape[:dim], size * inner, *shape[dim + 2 :])
        mapping = lambda c: (*c[:dim], c[dim] // inner, c[dim] % inner, *c[dim + 1 :])  # noqa: E731
        return _remap(base, merged, mapping, strides)
    if kind == "divide":
        number = constant(size)
        factors = [n for n in (2, 3, 4, 8) if number is not None and number % n == 0 and number]
        if not factors:
            return None
        inner = ix(rng.choice(factors))
        strides = None if steps is None else (*steps[:dim], steps[dim] * inner, *steps[dim:])
        mapping = lambda c: (*c[:dim], c[dim] * inner + c[dim + 1], *c[dim + 2 :])  # noqa: E731
        return _remap(base, (*shape[:dim], size // inner, inner, *shape[dim + 1 :]), mapping, strides)
    return None


def _remap(
    base: Value,
    shape: Coords,
    mapping: Callable[[Coords], Coords],
    strides: Coords | None,
    offset: Index = ZERO,
) -> Value:
    inner = base.coords
    return Value(base.buffer, shape, lambda c: inner(mapping(c)), strides, base.offset + offset, base.taint)


def _at(dim: int, change: Callable[[Index], Index]) -> Callable[[Coords], Coords]:
    return lambda c: _replaced(c, dim, change(c[dim]))


def _replaced(items: Coords, place: int, item: Index) -> Coords:
    return (*items[:place], item, *items[place + 1 :])
