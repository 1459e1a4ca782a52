"""What a replayed call returns: the captured call's outputs, copied out of the graph's memory, or views of this call's inputs.

Outputs that share memory in the captured call share memory in what is returned.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lowc.runtime.tensors import cast_view

# From the arguments of a call (and what steps before have made) to one output.
Step = Callable[[Sequence[Any], dict[int, torch.Tensor]], Any]


def recipe(outputs: Sequence[Any], inside: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
    """A function from the arguments of a call to its outputs.  ``outputs``: of the captured call with arguments ``inside``."""
    inputs = {_storage(a): n for n, a in enumerate(inside) if isinstance(a, torch.Tensor) and a.numel()}
    count: dict[int, int] = {}
    for out in outputs:
        if isinstance(out, torch.Tensor):
            count[_storage(out)] = count.get(_storage(out), 0) + 1
    steps = [_step(out, inside, inputs, count) for out in outputs]

    def results(args: Sequence[Any]) -> list[Any]:
        made: dict[int, torch.Tensor] = {}
        return [step(args, made) for step in steps]

    return results


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _step(out: Any, inside: Sequence[Any], inputs: dict[int, int], count: dict[int, int]) -> Step:
    if not isinstance(out, torch.Tensor):
        return lambda args, made: out
    storage = _storage(out)
    if out.numel() and storage in inputs:
        return _of_input(out, inside[inputs[storage]], inputs[storage])
    if out.numel() and (count[storage] > 1 or torch._debug_has_internal_overlap(out)):
        return _of_copied_storage(out, storage)
    shape, strides, dtype, device = out.shape, out.stride(), out.dtype, out.device
    return lambda args, made: torch.empty_strided(shape, strides, dtype=dtype, device=device).copy_(out)


def _of_input(out: torch.Tensor, given: torch.Tensor, number: int) -> Step:
    if out is given:
        return lambda args, made: args[number]
    dtype, shape, strides = out.dtype, out.shape, out.stride()
    moved = int(out.storage_offset()) * dtype.itemsize - int(given.storage_offset()) * given.dtype.itemsize
    return lambda args, made: cast_view(args[number], dtype, shape, strides, moved // dtype.itemsize)


def _of_copied_storage(out: torch.Tensor, storage: int) -> Step:
    dtype, shape, strides, start = out.dtype, out.shape, out.stride(), int(out.storage_offset())
    memory = torch.empty(0, dtype=torch.uint8, device=out.device).set_(out.untyped_storage())

    def step(args: Sequence[Any], made: dict[int, torch.Tensor]) -> torch.Tensor:
        if storage not in made:
            made[storage] = memory.clone()
        return cast_view(made[storage], dtype, shape, strides, start)

    return step
