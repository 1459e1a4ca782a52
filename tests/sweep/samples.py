"""What is tried: for an OpInfo and a dtype its samples, and the same samples with other layouts and values.

Samples that differ in values only (the same shapes, strides, dtypes and other arguments) are tried once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

DTYPES = (
    "float32 int64 bool float16 bfloat16 float64 int32 uint8 int8 int16 complex64 complex128 uint16 uint32 uint64 "
    "complex32 float8_e4m3fn float8_e5m2"
).split()


@dataclass(frozen=True)
class Case:
    """One call: ``leaves`` are the flat arguments; ``function(*tensors)`` puts tensors in their places and calls the op.

    ``number``: which sample; ``variant``: "" for the sample as it is, or how its tensors were changed.
    """

    number: int
    variant: str
    leaves: tuple[Any, ...]
    spec: Any
    op: Callable[..., Any]
    finish: Callable[[Any], Any]

    @property
    def places(self) -> list[int]:
        return [n for n, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)]

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]

    def function(self, *tensors: Tensor) -> tuple[Any, ...]:
        """The tensors among the results."""
        return _call(self, self.leaves, tensors)

    def widened(self, *tensors: Tensor) -> tuple[Any, ...]:
        """The same where dtypes among the arguments are float64 or complex128 instead of narrower ones."""
        return _call(self, tuple(WIDER.get(x, x) if isinstance(x, torch.dtype) else x for x in self.leaves), tensors)

    def signature(self) -> str:
        return repr([_signature(leaf) for leaf in self.leaves]) + str(self.spec)


WIDER = {d: torch.float64 for d in (torch.float32, torch.float16, torch.bfloat16)} | {
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}


def _call(case: Case, given: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> tuple[Any, ...]:
    leaves = list(given)
    for place, tensor in zip(case.places, tensors, strict=True):
        leaves[place] = tensor
    first, args, kwargs = tree_unflatten(leaves, case.spec)
    results = case.finish(case.op(first, *args, **kwargs))
    return tuple(r for r in tree_flatten(results)[0] if isinstance(r, Tensor))


def _signature(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        strided = leaf.layout == torch.strided
        return (tuple(leaf.shape), leaf.stride() if strided else leaf.layout, leaf.dtype, leaf.requires_grad)
    if isinstance(leaf, torch.Generator):
        return "generator"
    return leaf


@cache
def entries() -> dict[str, Any]:
    """OpInfos by name, as "add" or "div.floor_rounding"."""
    from torch.testing._internal import common_methods_invocations as invocations

    # Some ops set a seed of their own inside the call, which no traced graph can hold; ``trial.run`` sets it outside.
    invocations.wrapper_set_seed = _unseeded  # type: ignore[assignment]
    return {name_of(op): op for op in invocations.op_db}


def _unseeded(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def name_of(op: Any) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def cases(
    op: Any, dtype: torch.dtype, grad: bool, limit: int | None, layouts: int, device: str = "cpu"
) -> Iterator[Case]:
    """The first ``limit`` distinct samples of ``op``, and the variants of the first ``layouts`` of them."""
    torch.manual_seed(0)
    seen: set[str] = set()
    tried = 0
    for number, sample in enumerate(op.sample_inputs(device, dtype, requires_grad=grad)):
        leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        finish = sample.output_process_fn_grad if grad else _unchanged
        case = Case(number, "", tuple(leaves), spec, op.op, finish)
        if case.signature() in seen:
            continue
        tried += 1
        seen.add(case.signature())
        yield case
        if tried <= layouts:
            for changed in _variants(case):
                if changed.variant in ("nan", "zeros") or changed.signature() not in seen:
                    seen.add(changed.signature())
                    yield changed
        if tried == limit:
            return


def _unchanged(result: Any) -> Any:
    return result


# ---------------------------------------------------------------- variants


def _variants(case: Case) -> Iterator[Case]:
    if not case.tensors or any(t.layout != torch.strided for t in case.tensors):
        return
    for name, change in VARIANTS.items():

        def changed(leaf: Any, change: Callable[[Tensor], Tensor] = change) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return change(leaf.detach()).requires_grad_(leaf.requires_grad)

        leaves = tuple(tree_map(changed, leaf) for leaf in case.leaves)
        yield Case(case.number, name, leaves, case.spec, case.op, case.finish)


def transposed(x: Tensor) -> Tensor:
    """The first dimension innermost."""
    return x.transpose(0, -1).contiguous().transpose(0, -1) if x.dim() > 1 else x


def sliced(x: Tensor) -> Tensor:
    """Every second element of rows that start at an offset."""
    if not x.dim():
        return torch.stack((x, x))[1]
    room = x.new_zeros([n + 1 for n in x.shape[:-1]] + [2 * x.shape[-1] + 1])
    window = room[(slice(1, None),) * (x.dim() - 1) + (slice(1, None, 2),)]
    return window.copy_(x)


def expanded(x: Tensor) -> Tensor:
    """One row again and again, with stride 0."""
    return x[:1].expand(x.shape) if x.dim() and x.shape[0] else x


def channels_last(x: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()]) if x.dim() in formats else x


def empty(x: Tensor) -> Tensor:
    return x[:0] if x.dim() else x


def scalar(x: Tensor) -> Tensor:
    return x.flatten()[0].clone() if x.numel() else x


def single(x: Tensor) -> Tensor:
    return x[(slice(0, 1),) * x.dim()].clone()


def with_nan(x: Tensor) -> Tensor:
    """NaN, infinities and both zeros among the values."""
    return _sprinkled(x, (float("nan"), float("inf"), -float("inf"), -0.0, 0.0))


def with_zeros(x: Tensor) -> Tensor:
    return _sprinkled(x, (-0.0, 0.0, 1.0))


def _sprinkled(x: Tensor, values: tuple[float, ...]) -> Tensor:
    if not x.is_floating_point() or x.dtype.itemsize < 2:
        return x
    flat = x.clone(memory_format=torch.contiguous_format).flatten()
    for n in range(0, flat.numel(), 2):
        flat[n] = values[n // 2 % len(values)]
    return flat.view(x.shape)


VARIANTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": transposed,
    "sliced": sliced,
    "expanded": expanded,
    "channels_last": channels_last,
    "empty": empty,
    "scalar": scalar,
    "single": single,
    "nan": with_nan,
    "zeros": with_zeros,
}


def copied(x: Tensor) -> Tensor:
    """A leaf with the same strides, also where they overlap, and a storage of its own."""
    if x.layout != torch.strided or x.is_nested:
        return x.detach().clone().requires_grad_(x.requires_grad)
    new = torch.empty(0, dtype=x.dtype, device=x.device)
    new.set_(x.untyped_storage().clone(), x.storage_offset(), x.shape, x.stride())
    if x.is_conj():
        new = torch._conj(new)
    if x.is_neg():
        new = torch._neg_view(new)
    return new.requires_grad_(x.requires_grad)


def first(op: Any, dtype: torch.dtype, count: int) -> list[Any]:
    return list(islice(op.sample_inputs("cpu", dtype), count))
