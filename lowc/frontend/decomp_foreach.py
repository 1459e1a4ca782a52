"""``aten._foreach_*``, which optimisers call, as the single-tensor ops that they stand for."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

_UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round rsqrt "
    "sigmoid sign sin sinh sqrt tan tanh trunc"
).split()


def _scaled(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """addcmul and addcdiv, whose factor may be a number or a 0-d tensor."""

    def single(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any = 1) -> Tensor:
        if isinstance(value, Tensor):
            return op(self, tensor1 * value.to(tensor1.dtype), tensor2)
        return op(self, tensor1, tensor2, value=value)

    return single


def _bounded(tensors: Callable[..., Tensor], scalar: str) -> Callable[..., Tensor]:
    """maximum and the like, which take a number as a bound of clamp."""

    def single(self: Tensor, other: Any) -> Tensor:
        return tensors(self, other) if isinstance(other, Tensor) else torch.clamp(self, **{scalar: other})

    return single


_SINGLE: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    **{name: (getattr(torch, name), ("default",)) for name in _UNARY},
    "zero": (torch.zeros_like, ("default",)),
    "clone": (torch.clone, ("default",)),
    "copy": (torch.ops.aten.copy.default, ("default",)),
    "add": (torch.add, ("List", "Scalar", "ScalarList", "Tensor")),
    "sub": (torch.sub, ("List", "Scalar", "ScalarList")),
    "mul": (torch.mul, ("List", "Scalar", "ScalarList", "Tensor")),
    "div": (torch.div, ("List", "Scalar", "ScalarList", "Tensor")),
    "pow": (torch.pow, ("List", "Scalar", "ScalarList", "ScalarAndTensor")),
    "lerp": (torch.lerp, ("List", "Scalar", "ScalarList")),
    "maximum": (_bounded(torch.maximum, "min"), ("List", "Scalar", "ScalarList")),
    "minimum": (_bounded(torch.minimum, "max"), ("List", "Scalar", "ScalarList")),
    "clamp_min": (_bounded(torch.maximum, "min"), ("List", "Scalar", "ScalarList")),
    "clamp_max": (_bounded(torch.minimum, "max"), ("List", "Scalar", "ScalarList")),
    "addcmul": (_scaled(torch.addcmul), ("Scalar", "ScalarList", "Tensor")),
    "addcdiv": (_scaled(torch.addcdiv), ("Scalar", "ScalarList", "Tensor")),
    "norm": (lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype), ("Scalar",)),
}


def foreach_decompositions() -> dict[str, tuple[Any, Callable[..., Any]]]:
    """The functional overloads of list ops, and what they become, by their names ("aten._foreach_add.List")."""
    table: dict[str, tuple[Any, Callable[..., Any]]] = {}
    for name, (single, overloads) in _SINGLE.items():
        packet = getattr(torch.ops.aten, f"_foreach_{name}", None)
        for overload in overloads:
            op = getattr(packet, overload, None)
            if op is not None:
                table[f"aten._foreach_{name}.{overload}"] = op, _for_each(op, single)
    return table


def _for_each(op: Any, single: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    """Calls ``single`` with the elements of the arguments that are lists (or a tensor of factors), and the others as they are."""

    def decomposed(*args: Any, **kwargs: Any) -> list[Tensor]:
        names, spread = _arguments(op)
        positional = dict(zip(names, args, strict=False)) | {n: v for n, v in kwargs.items() if n in names}
        others = {n: v for n, v in kwargs.items() if n not in names}
        count = next(len(v) for n, v in positional.items() if n in spread)
        return [
            single(*(v[i] if n in spread else v for n, v in positional.items()), **others)
            for i in range(count)
        ]

    return decomposed


@cache
def _arguments(op: Any) -> tuple[list[str], set[str]]:
    """(the arguments of ``op`` that are not by name only, those that have an element for each tensor).  Asked when an op is used:
    few are, and each process makes the table of all."""
    names = [a.name for a in op._schema.arguments if not a.kwarg_only]
    spread = {a.name for a in op._schema.arguments if str(a.type) in ("List[Tensor]", "List[number]")}
    if "Tensor scalars" in str(op._schema):
        spread.add("scalars")
    return names, spread
