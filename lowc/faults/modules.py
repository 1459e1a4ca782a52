"""A module run by the interpreter on tensors, without the host program that calls would go through."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lowc.faults.cut import Case
from lowc.faults.reference import literal
from lowc.frontend.dtypes import TORCH_OF, dtype_of
from lowc.ir import interp
from lowc.ir.index import Index
from lowc.ir.nodes import Buffer, Extern, Launch, Module
from lowc.ir.numeric import from_storage, storage_dtype
from lowc.ir.types import DType
from lowc.ir.walk import stores
from lowc.runtime import externs

Watch = dict[int, dict[str, Any]]
"""For each step's number: what the buffers that it writes hold after it."""


def interpret(module: Module, inputs: Sequence[Any], watch: Watch | None = None) -> list[Any]:
    """The results of ``module``; what it writes to ``inputs`` is in them afterwards.  Raises IndexError and ZeroDivisionError for
    checks that fail, InterpError for a module that reads or writes where nothing is."""
    storages: list[Any] = []
    sizes: dict[str, int] = {}
    for item, value in zip(module.inputs, inputs, strict=False):
        if isinstance(item, Buffer):
            storages.append(_storage(value))
            interp.find_sizes(sizes, item, value.shape)
        else:
            storages.append(value)

    def note(number: int, held: Mapping[str, Any]) -> None:
        if watch is not None:
            watch[number] = {name: held[name].copy() for name in written(module, number) if name in held}

    found = interp.run_module(module, storages, _extern, sizes, after=note)
    return [_result(out, value) for out, value in zip(module.outputs, found, strict=True)]


def written(module: Module, number: int) -> list[str]:
    """The buffers of the module that its step ``number`` writes to."""
    step = module.steps[number]
    if isinstance(step, Extern):
        return [b.name for b in (*step.results, *step.writes) if isinstance(b, Buffer)]
    names = {s.buffer.name for s in stores(step.kernel.body)}
    return [b.name for p, b in zip(step.kernel.params, step.args, strict=True) if p.name in names]


def first_apart(case: Case, before: Module, after: Module) -> tuple[str, tuple[str, ...]] | None:
    """(kernel, its ops) of the first step of ``after`` that leaves something else in a buffer than ``before`` does at its end.

    None if it cannot be told.
    """
    seen: tuple[Watch, Watch] = ({}, {})
    for module, watch in zip((before, after), seen, strict=True):
        try:
            interpret(module, case.copies(), watch)
        except Exception:
            pass  # what was seen up to there counts
    last: dict[str, Any] = {}
    for held in seen[0].values():
        last |= held
    dtypes = {b.name: b.dtype for b in (*after.inputs, *after.temps) if isinstance(b, Buffer)}
    for number, step in enumerate(after.steps):
        if number not in seen[1]:
            return _named(step)
        for name, value in seen[1][number].items():
            if name in last and name in dtypes and _apart(last[name], value, dtypes[name]):
                if all(name not in seen[1].get(k, {}) for k in range(number + 1, len(after.steps))):
                    return _named(step)
    return None


def only_launch(module: Module) -> tuple[str, tuple[str, ...]]:
    """(names of the kernels of ``module``, their ops)."""
    launches = [s for s in module.steps if isinstance(s, Launch)]
    return ", ".join(s.kernel.name for s in launches), tuple(o for s in module.steps for o in s.origin)


def _named(step: Launch | Extern) -> tuple[str, tuple[str, ...]]:
    return (step.kernel.name if isinstance(step, Launch) else step.target), step.origin


def _apart(a: Any, b: Any, dtype: DType) -> bool:
    """Whether two storages differ by more than sums in another order would; gaps, which hold anything, count as well."""
    if a.shape != b.shape:
        return False
    x, y = from_storage(a, dtype), from_storage(b, dtype)
    if x.dtype.kind not in "fc":
        return bool((x != y).any())
    with np.errstate(all="ignore"):
        scale = np.abs(np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)).max(initial=0.0)
        near = np.isclose(x, y, rtol=1e-2 if dtype.name in ("f16", "bf16") else 1e-4, atol=1e-5 * float(scale), equal_nan=True)
    return not bool(near.all())


def _storage(value: torch.Tensor) -> Any:
    """The memory of a tensor from its first element on, as the interpreter has it."""
    value = value.detach()
    count = interp.storage_size(value.shape, value.stride())
    flat = torch.as_strided(value, (count,), (1,), value.storage_offset())
    return _bits(flat).numpy().view(_numpy(value.dtype))


def _bits(value: torch.Tensor) -> torch.Tensor:
    if value.dtype == torch.bfloat16:
        return value.view(torch.int16)
    if value.is_floating_point() and value.element_size() == 1:
        return value.view(torch.uint8)
    return value


def _numpy(dtype: torch.dtype) -> np.dtype[Any]:
    return np.dtype(storage_dtype(dtype_of(dtype)))


def _tensor(array: Any, dtype: DType) -> torch.Tensor:
    """A tensor on the memory of an array in storage form."""
    wanted = TORCH_OF[dtype]
    if wanted == torch.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(wanted)
    made = torch.from_numpy(array)
    return made if made.dtype == wanted else made.view(wanted)


def _result(out: Any, value: Any) -> Any:
    if not hasattr(value, "dtype"):
        return value
    made = _tensor(np.ascontiguousarray(value).reshape(value.shape), out.dtype)
    steps = [s // value.itemsize for s in value.strides]
    return torch.empty_strided(made.shape, steps, dtype=made.dtype).copy_(made) if made.numel() else made


def _extern(step: Extern, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Calls ATen on the interpreter's memory."""
    call = externs.resolve(step.target, len(step.results))
    with torch.no_grad():
        made = call(*map(_argument, args), **{name: _argument(value) for name, value in kwargs.items()})
    results = tuple(made) if isinstance(made, tuple | list) else (made,)
    return [None if item is None else _received(item, value) for item, value in zip(step.results, results, strict=False)]


def _argument(value: Any) -> Any:
    if isinstance(value, interp.Tensor):
        return _tensor(value.array, value.dtype)
    if isinstance(value, tuple):
        return [_argument(v) for v in value]
    if isinstance(value, DType):
        return TORCH_OF[value]
    return literal(value, {}) if isinstance(value, str | Index) else value


def _received(item: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and isinstance(item, Buffer):
        return interp.Tensor(_bits(value.detach()).numpy().view(_numpy(value.dtype)), item.dtype)
    return value.item() if isinstance(value, torch.Tensor) else value
