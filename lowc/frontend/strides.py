"""How results of ATen lie, where a rule tells, so that no fake tensor need be asked: of an op that a process has not asked about
before, that takes a millisecond, and there are a dozen such ops in any model with convolutions.

The rules are those of ATen's kernels (aten/src/ATen/TensorIterator.cpp, ``reorder_dimensions`` and ``fast_set_up``;
native/ReduceOpsUtils.h, ``resize_reduction``; native/Convolution.cpp); tests compare them with what ATen does.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, fx

POINTWISE = frozenset(
    "abs add ceil clamp clamp_max clamp_min cos div eq erf exp expm1 floor ge gelu gt hardtanh le leaky_relu log log1p "
    "logical_and logical_not lt maximum minimum mul ne neg pow reciprocal relu rsqrt sigmoid silu sin sqrt sub tanh "
    "threshold_backward where".split()
)
"""Ops that are one TensorIterator each."""

REDUCTIONS = frozenset("amax amin any mean prod sum var var_mean".split())
"""Ops whose results are contiguous, whatever they take."""

_POINTWISE, _REDUCTION, _CONVERSION = "pointwise", "reduction", "conversion"

_LAST = torch.channels_last
_CONVOLUTION = torch.ops.aten.convolution.default
_GRADIENTS = torch.ops.aten.convolution_backward.default
_REVERSED = torch.ops.aten.threshold_backward.default
"""The operand that ATen names last is the first of its loop."""


def dense(shape: Sequence[int], form: torch.memory_format = torch.contiguous_format) -> tuple[int, ...]:
    """The strides of an image of ``shape``, (batch, channels, height, width), in ``form``."""
    _, channels, height, width = shape
    image = channels * height * width
    return (image, 1, width * channels, channels) if form == _LAST else (image, height * width, width, 1)


def is_pointwise(node: fx.Node) -> bool:
    """Whether ``node`` is an op that is known to be one TensorIterator."""
    return _kind(node.target) == _POINTWISE


def stay(node: fx.Node, old: Any) -> bool:
    """Whether the results of ``node``, which had the types ``old``, lie as they did, however its operands lie now."""
    if _kind(node.target) != _REDUCTION:
        return False
    values = old if isinstance(old, tuple | list) else (old,)
    return all(_is_known(v) and v.is_contiguous() for v in values)


def of_result(node: fx.Node, old: Any) -> tuple[int, ...] | None:
    """The strides of the result of ``node``, an image that had the type ``old``; None if no rule tells.

    The first operand of the same shape decides, contiguous or in ``channels_last``, unless one before has two dimensions that
    could be ordered.
    """
    kind = _kind(node.target)
    if kind is None or kind == _REDUCTION or not _is_known(old):
        return None
    if old.dim() != 4 or min(old.shape[1:]) < 2 or not (old.is_contiguous() or old.is_contiguous(memory_format=_LAST)):
        return None
    if node.kwargs.keys() != {"dtype"} if kind == _CONVERSION else not all(map(_is_number, node.kwargs.values())):
        return None
    operands = node.all_input_nodes
    for operand in reversed(operands) if node.target is _REVERSED else operands:
        value: Any = operand.meta.get("val")
        if not _is_known(value):
            return None
        if value.shape == old.shape:
            strides = value.stride()
            return strides if strides in (dense(value.shape), dense(value.shape, _LAST)) else None
        if sum(n > 1 for n in value.shape) > 1:
            return None
    return None


def of_convolution(node: fx.Node, old: Any) -> tuple[tuple[int, ...] | None, ...] | None:
    """The strides of each result of ``node`` (None: there is none), which had the types ``old``, if that is a convolution in two
    dimensions or its gradients; None if torch has to be asked.

    They are in the memory format of the backend that ATen takes, which hangs on flags and threads of the process.
    """
    forward = node.target is _CONVOLUTION
    if not forward and node.target is not _GRADIENTS:
        return None
    results = [old] if forward else old
    args: Any = fx.map_arg(node.args[:9] if forward else node.args[1:10], lambda n: n.meta["val"])
    taken, weight, bias, *numbers = args
    transposed = numbers[3]
    if transposed or not all(v is None or (_is_known(v) and v.dim() == 4 and v.numel()) for v in (taken, weight, *results[:2])):
        return None
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    given = dict(zip(names, numbers, strict=True)) | {"bias": bias if forward else None, "bias_sizes": None if forward else bias}
    try:  # as a fake tensor asks, too
        backend = torch._C._select_conv_backend(taken, weight, **given)
        form = torch._C._conv_determine_backend_memory_format(taken, weight, backend)
    except (AttributeError, TypeError, RuntimeError):
        return None
    return tuple(v if v is None else dense(v.shape, form) if v.dim() == 4 else (1,) for v in results)


def _is_known(value: Any) -> bool:
    """Whether ``value`` is a tensor on a CPU or a GPU whose sizes and strides are numbers."""
    if not isinstance(value, Tensor) or value._has_symbolic_sizes_strides:
        return False
    return value.layout == torch.strided and value.device.type in ("cpu", "cuda")


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


@lru_cache(1 << 10)
def _kind(target: Any) -> str | None:
    """Which rule there is for the op ``target``."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or target._schema.is_mutable:
        return None
    name = target._schema.name.removeprefix("aten::")
    if any(result.alias_info is not None for result in target._schema.returns):
        return None
    if name == "_to_copy":
        return _CONVERSION
    return _POINTWISE if name in POINTWISE else _REDUCTION if name in REDUCTIONS else None
