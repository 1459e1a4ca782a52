"""What a run of a program gave, and how two tensors differ."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

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
    weights = torch.linspace(0.5, 1.5, end.numel(), dtype=torch.float64, device="cpu")
    return weights.reshape(end.shape).to(end.dtype).to(end.device)


def made_on(device: str) -> AbstractContextManager[Any]:
    """Within it ``torch.zeros`` and its like are made on ``device``."""
    return nullcontext() if device == "cpu" else torch.device(device)


def run_on(device: str, program: Program, call: Callable[..., Sequence[Tensor]]) -> Ran:
    """A run with the inputs, and what ``call`` makes anew, on ``device``; its values are brought to the CPU."""
    if device == "cpu":
        return run(program, call)
    with made_on(device):
        there = run(program, call, make_inputs(program.inputs, device=device))
    return Ran([home(x) for x in there.values], there.windows, there.results, there.forward)


def home(x: Tensor | None) -> Tensor | None:
    """``x`` on the CPU as it lies in memory: strides and all (``x.cpu()`` would make what overlaps itself contiguous)."""
    if x is None:
        return None
    count = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    memory = x.detach().as_strided((count,), (1,), x.storage_offset()).to("cpu", copy=True)
    return memory.as_strided(x.shape, x.stride(), 0).requires_grad_(x.requires_grad)


def differs(a: Tensor | None, b: Tensor | None) -> Tensor:
    """Where two tensors are not the same bits; one NaN is as good as another."""
    assert a is not None and b is not None
    a, b = a.detach(), b.detach()
    if not a.is_floating_point():
        return a != b
    return ((a != b) | (a.signbit() != b.signbit())) & ~(a.isnan() & b.isnan())


def same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is None or not bool(differs(a, b).any())
