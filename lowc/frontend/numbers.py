"""Floats and bools among the example inputs of an export that are to be inputs of the program: 0-d tensors in their places.

torch.export takes tensors and integers for inputs; what a float or a bool was is written down as a constant.  Where the dynamic
shapes have ``Dim.DYNAMIC`` in the place of one, the program gets a 0-d tensor instead (f64, bool).  The model sees a float
computed from it (``item``), or the bool tensor itself, by which it cannot branch.
"""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch


def as_tensors(module: torch.nn.Module, inputs: Sequence[Any], dynamic: Any) -> tuple[torch.nn.Module, tuple[Any, ...], Any]:
    """``module``, ``inputs`` and ``dynamic`` (as torch.export takes it) with 0-d tensors for the floats and bools that are
    marked; themselves if there are none.

    The module is a shallow copy, with the same parameters by the same names."""
    if not isinstance(dynamic, list | tuple | dict):
        return module, tuple(inputs), dynamic
    signature = inspect.signature(module.forward)
    try:
        names = list(signature.bind(*inputs).arguments)
    except TypeError:
        return module, tuple(inputs), dynamic
    by_name: dict[str, Any] | None = dynamic if isinstance(dynamic, dict) else None
    marks: list[Any] = list(dynamic) if by_name is None else [by_name.get(name) for name in names]
    chosen = {n: given for n, (given, mark) in enumerate(zip(inputs, marks, strict=False)) if _is_marked(given, mark)}
    if not chosen:
        return module, tuple(inputs), dynamic
    forward = module.forward

    def with_numbers(*args: Any) -> Any:
        return forward(*(_number(arg, chosen[n]) if n in chosen else arg for n, arg in enumerate(args)))

    with_numbers.__signature__ = signature  # the names of the inputs
    made = copy.copy(module)
    made.forward = with_numbers
    tensors = tuple(_tensor(given) if n in chosen else given for n, given in enumerate(inputs))
    if by_name is not None:  # whatever else it names is torch's to judge
        return made, tensors, by_name | {names[n]: None for n in chosen}
    return made, tensors, tuple(None if n in chosen else mark for n, mark in enumerate(marks))


def _is_marked(given: Any, mark: Any) -> bool:
    return isinstance(given, float | bool) and mark is torch.export.Dim.DYNAMIC


def _tensor(given: float) -> torch.Tensor:
    return torch.tensor(given, dtype=torch.bool if isinstance(given, bool) else torch.float64)


def _number(given: torch.Tensor, example: float) -> Any:
    return given if isinstance(example, bool) else given.item()
