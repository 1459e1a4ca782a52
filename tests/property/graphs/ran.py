"""What a run of a program gave, and how two tensors differ."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.property.graphs.program import Program, make_inputs


@dataclass(frozen=True)
class Ran:
    """Results, then the inputs as they are afterwards, then gradients.  ``windows``: for each result, the number of the input
    whose storage it has."""

    values: list[Tensor | None]
    windows: list[int | None]
    results: int
    forward: int


def run(program: Program, call: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor] | None = None) -> Ran:
    given = list(inputs) if inputs is not None else make_inputs(program.inputs)
    with torch.set_grad_enabled(program.grad):
        results = list(call(*given))
    return ran(results, given)


def ran(results: list[Tensor], given: list[Tensor]) -> Ran:
    places = [x.untyped_storage().data_ptr() if x.numel() else None for x in given]
    windows = [_find(places, r.untyped_storage().data_ptr()) if r.numel() else None for r in results]
    found: list[Tensor | None] = [*results, *(x.detach() for x in given)]
    forward = len(found)
    wanted = [x for x in given if x.is_leaf and x.requires_grad]
    ends = [r for r in results if r.requires_grad]
    if wanted and ends:
        found += torch.autograd.grad(ends, wanted, [_cotangent(e) for e in ends], allow_unused=True)
    return Ran(found, windows, len(results), forward)


def _find(places: list[int | None], place: int) -> int | None:
    return places.index(place) if place in places else None


def _cotangent(end: Tensor) -> Tensor:
    return torch.linspace(0.5, 1.5, end.numel(), dtype=torch.float64).reshape(end.shape).to(end.dtype)


def differs(a: Tensor | None, b: Tensor | None) -> Tensor:
    """Where two tensors are not the same bits; one NaN is as good as another."""
    assert a is not None and b is not None
    a, b = a.detach(), b.detach()
    if not a.is_floating_point():
        return a != b
    return ((a != b) | (a.signbit() != b.signbit())) & ~(a.isnan() & b.isnan())


def same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is None or not bool(differs(a, b).any())
