"""Normalisations, and the gradients of softmax, in terms of sums, maxima and arithmetic.

Statistics are taken in f32 for f16 and bf16 and in two passes (mean, then squared distances), the result is rounded once, as
ATen's own kernels do.  Each function has the signature of its ATen op and returns NotImplemented where it does not apply.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import guard_or_false

_NARROW = (torch.float16, torch.bfloat16)


def widen(x: Tensor) -> Tensor:
    """``x`` in the dtype that sums over it are taken in."""
    return x.to(torch.float32) if x.dtype in _NARROW else x


def mean_of(x: Tensor, dims: list[int]) -> Tensor:
    """The mean over ``dims``, which stay with size 1."""
    return torch.mean(x, dims, keepdim=True)


def variance_and_mean(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    """The biased variance and the mean over ``dims``, which stay with size 1."""
    return torch.var_mean(x, dims, correction=0, keepdim=True)


def _is_empty(x: Tensor) -> bool:
    """Whether ``x`` is known to have no elements; for a size that comes from data the sums below have to do."""
    return guard_or_false(x.numel() == 0)


def _is_real(*tensors: Tensor | None) -> bool:
    return all(t is None or t.dtype.is_floating_point for t in tensors)


# ---------------------------------------------------------------- softmax


def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """In parts, so that the partitioner can keep two numbers a row for the backward pass instead of the result."""
    if not _is_real(x) or x.dim() == 0 or _is_empty(x):
        return NotImplemented
    wide = widen(x)
    shifted = wide - torch.amax(wide, dim, keepdim=True)
    out = shifted - torch.log(torch.sum(torch.exp(shifted), dim, keepdim=True))
    return (out if half_to_float else out.to(x.dtype)).contiguous()


def softmax_backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    if not _is_real(grad_output, output):
        return NotImplemented
    if _is_empty(output):
        return torch.zeros(output.shape, dtype=input_dtype, device=output.device)
    grad, y = widen(grad_output), widen(output)
    out = (grad - torch.sum(grad * y, dim, keepdim=True)) * y
    return out.to(input_dtype).contiguous()


def log_softmax_backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    if not _is_real(grad_output, output):
        return NotImplemented
    if _is_empty(output):
        return torch.zeros(output.shape, dtype=input_dtype, device=output.device)
    grad, y = widen(grad_output), widen(output)
    out = grad - torch.exp(y) * torch.sum(grad, dim, keepdim=True)
    return out.to(input_dtype).contiguous()


# ---------------------------------------------------------------- layer norm


def layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    if not _is_real(input, weight, bias) or _is_empty(input):
        return NotImplemented
    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    x = widen(input)
    variance, mean = variance_and_mean(x, dims)
    rstd = torch.rsqrt(variance + eps)
    out = (x - mean) * rstd
    if weight is not None:
        out = out * weight
    if bias is not None:
        out = out + bias
    statistics = _statistics_dtype(input, weight, bias)
    return out.to(input.dtype).contiguous(), mean.to(statistics), rstd.to(statistics)


def _statistics_dtype(x: Tensor, *parameters: Tensor | None) -> torch.dtype:
    """What ATen keeps means in: on the CPU the dtype of the parameters, or x's if there are none."""
    if x.device.type != "cpu":
        return widen(x).dtype
    for parameter in parameters:
        if parameter is not None:
            return parameter.dtype
    return x.dtype


def layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if not _is_real(grad_out, input, weight, bias) or _is_empty(input):
        return NotImplemented
    outer = list(range(input.dim() - len(normalized_shape)))
    inner = list(range(len(outer), input.dim()))
    grad, scale = widen(grad_out), widen(rstd)
    normal = (widen(input) - widen(mean)) * scale
    d_input = d_weight = d_bias = None
    if output_mask[0]:
        g = grad if weight is None else grad * weight
        d_input = (
            (scale * (g - mean_of(g, inner) - normal * mean_of(g * normal, inner)))
            .to(input.dtype)
            .contiguous()
        )
    if output_mask[1] and weight is not None:
        d_weight = _sum_outer(grad * normal, outer).to(weight.dtype)
    if output_mask[2] and bias is not None:
        d_bias = _sum_outer(grad, outer).to(bias.dtype)
    return d_input, d_weight, d_bias


def _sum_outer(x: Tensor, dims: list[int]) -> Tensor:
    return torch.sum(x, dims) if dims else x.clone()


# ---------------------------------------------------------------- RMS norm


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    if not _is_real(input, weight) or _is_empty(input):
        return NotImplemented
    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    x = widen(input)
    rstd = torch.rsqrt(mean_of(x * x, dims) + (torch.finfo(x.dtype).eps if eps is None else eps))
    out = x * rstd
    if weight is not None:
        out = out * weight
    if _format_of(input) == torch.contiguous_format:  # whatever strides the input has
        out, rstd = out.contiguous(), rstd.contiguous()
    return out.to(input.dtype), rstd


# ---------------------------------------------------------------- batch norm

_BatchNorm = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]


def batch_norm_functional(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> _BatchNorm:
    """(result, saved mean, saved 1/deviation, new running mean, new running variance)."""
    if not _is_real(input, weight, bias, running_mean, running_var) or _is_empty(input):
        return NotImplemented
    statistics = _statistics_dtype(input, weight, bias, running_mean)
    if not training:
        assert running_mean is not None and running_var is not None
        rstd = torch.rsqrt(widen(running_var) + eps)
        out = _normalised(input, widen(running_mean), rstd, weight, bias)
        if input.device.type == "cpu":
            none = torch.empty((0,), dtype=statistics, device=input.device)
            kept = none, none.clone()
        else:  # ATen's kernels for GPUs hand out what they divide by
            kept = running_mean.to(statistics, copy=True), rstd.to(statistics)
        return out, *kept, running_mean.clone(), running_var.clone()
    x = widen(input)
    variance, mean = torch.var_mean(x, _all_but_channels(input), correction=0)
    rstd = torch.rsqrt(variance + eps)
    count = input.numel() // input.shape[1]
    new_mean = new_var = None
    if running_mean is not None:
        new_mean = (momentum * mean + (1 - momentum) * running_mean).to(running_mean.dtype)
    if running_var is not None:
        unbiased = variance * count / (count - 1)
        new_var = (momentum * unbiased + (1 - momentum) * running_var).to(running_var.dtype)
    out = _normalised(input, mean, rstd, weight, bias)
    return out, mean.to(statistics), rstd.to(statistics), new_mean, new_var


def batch_norm_no_stats(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    made: Any = (
        batch_norm_functional(input, weight, bias, None, None, True, momentum, eps)
        if training
        else NotImplemented
    )
    return made if made is NotImplemented else made[:3]


def batch_norm_no_training(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    made: Any = batch_norm_functional(input, weight, bias, running_mean, running_var, False, momentum, eps)
    return made if made is NotImplemented else made[:3]


def _all_but_channels(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def _normalised(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    out = (widen(x) - _by_channel(mean, x.dim())) * _by_channel(rstd, x.dim())
    if weight is not None:
        out = out * _by_channel(weight, x.dim())
    if bias is not None:
        out = out + _by_channel(bias, x.dim())
    return out.to(x.dtype).contiguous(memory_format=_format_of(x))


def batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if not _is_real(grad_out, input, weight) or _is_empty(input):
        return NotImplemented
    rank, outer = input.dim(), _all_but_channels(input)
    if train:
        assert save_mean is not None and save_invstd is not None
        mean, rstd = save_mean, save_invstd
    else:
        assert running_mean is not None and running_var is not None
        mean, rstd = running_mean, torch.rsqrt(widen(running_var) + eps)
    grad = widen(grad_out)
    scale = _by_channel(widen(rstd), rank)
    normal = (widen(input) - _by_channel(widen(mean), rank)) * scale
    sum_grad = torch.sum(grad, outer, keepdim=True)
    sum_product = torch.sum(grad * normal, outer, keepdim=True)
    d_input = d_weight = d_bias = None
    if output_mask[0]:
        d = grad
        if train:
            count = input.numel() // input.shape[1]
            d = d - sum_grad / count - normal * (sum_product / count)
        d = d * (scale if weight is None else scale * _by_channel(widen(weight), rank))
        d_input = d.to(input.dtype).contiguous(memory_format=_format_of(input))
    parameter = input.dtype if weight is None else weight.dtype
    if output_mask[1]:
        d_weight = sum_product.view(-1).to(parameter)
    if output_mask[2]:
        d_bias = sum_grad.view(-1).to(parameter)
    return d_input, d_weight, d_bias


# ---------------------------------------------------------------- group norm


def group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if not _is_real(input, weight, bias) or _is_empty(input):
        return NotImplemented
    dims = list(range(2, input.dim() + 1))
    x = widen(_in_groups(input, group))
    variance, mean = variance_and_mean(x, dims)
    rstd = torch.rsqrt(variance + eps)
    out = ((x - mean) * rstd).view(input.shape)
    if weight is not None:
        out = out * _by_channel(weight, input.dim())
    if bias is not None:
        out = out + _by_channel(bias, input.dim())
    statistics = _statistics_dtype(input, weight, bias)
    out = out.to(input.dtype).contiguous(memory_format=_format_of(input))
    return out, mean.to(statistics).view(N, group), rstd.to(statistics).view(N, group)


def _in_groups(x: Tensor, group: int) -> Tensor:
    """(N, C, ...) as (N, group, C / group, ...), without a copy in any layout."""
    return x.unflatten(1, (group, x.shape[1] // group))


def _by_channel(parameter: Tensor, rank: int) -> Tensor:
    return parameter.view(1, -1, *[1] * (rank - 2))


def _format_of(x: Tensor) -> torch.memory_format:
    return suggest_memory_format(x)


def group_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if not _is_real(grad_out, input, weight) or _is_empty(input):
        return NotImplemented
    rank = input.dim()
    inner, outer = list(range(2, rank + 1)), [0, *range(2, rank)]
    ones = [1] * (rank - 1)
    grad, scale = widen(grad_out), widen(rstd).view(N, group, *ones)
    normal = (widen(_in_groups(input, group)) - widen(mean).view(N, group, *ones)) * scale
    d_input = d_weight = d_bias = None
    if output_mask[0]:
        g = _in_groups(grad if weight is None else grad * _by_channel(weight, rank), group)
        d = scale * (g - mean_of(g, inner) - normal * mean_of(g * normal, inner))
        d_input = d.view(input.shape).to(input.dtype).contiguous(memory_format=_format_of(input))
    if output_mask[1] and weight is not None:
        d_weight = torch.sum(grad * normal.view(input.shape), outer).to(weight.dtype)
    if output_mask[2]:
        d_bias = torch.sum(grad, outer).to(input.dtype if weight is None else weight.dtype)
    return d_input, d_weight, d_bias
