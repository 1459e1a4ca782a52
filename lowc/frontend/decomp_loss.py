"""Losses and their gradients, and dropout, as arithmetic that fuses with what is around them.

Gradients of losses over classes compare a class number with the target instead of scattering into zeros.  Results are
contiguous, as ATen's are.  f16 and bf16 are rounded once, at the end.
"""

from typing import Any

import torch
from torch import Tensor

from lowc.frontend.decomp_norm import widen

_NONE, _MEAN = 0, 1


def _classes(self: Tensor) -> int:
    """The dimension of the classes."""
    return 1 if self.dim() > 1 else 0


def _class_weight(self: Tensor, weight: Tensor | None, target: Tensor) -> Tensor | None:
    """The weight of each target's class; ``target`` keeps the dimension of the classes, with size 1."""
    if weight is None:
        return None
    shape = [1] * self.dim()
    shape[_classes(self)] = self.shape[_classes(self)]
    return torch.gather(widen(weight).view(shape).expand(self.shape), _classes(self), target)


def nll_loss(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """(loss, total weight), the latter 0 without a reduction."""
    dim = _classes(self)
    target = target.unsqueeze(dim)
    counts = target != ignore_index
    safe = torch.where(counts, target, 0)
    picked = -torch.gather(widen(self), dim, safe)
    factor = _class_weight(self, weight, safe)
    picked = torch.where(counts, picked if factor is None else picked * factor, 0.0).squeeze(dim)
    if reduction == _NONE and self.dim() > 1:
        return picked.to(self.dtype), self.new_zeros(())
    total = torch.sum(counts.to(picked.dtype) if factor is None else torch.where(counts, factor, 0.0))
    loss = torch.sum(picked)
    if reduction == _MEAN:
        loss = loss / total
    return loss.to(self.dtype), total.to(self.dtype)


def nll_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    dim = _classes(self)
    target = target.unsqueeze(dim)
    grad = widen(grad_output)
    if reduction == _MEAN:
        grad = grad / widen(total_weight)
    elif reduction == _NONE and self.dim() > 1:
        grad = grad.unsqueeze(dim)
    shape = [1] * self.dim()
    shape[dim] = self.shape[dim]
    number = torch.arange(self.shape[dim], device=self.device).view(shape)
    if weight is not None:
        grad = grad * widen(weight).view(shape)
    hit = (number == target) & (target != ignore_index)
    return torch.where(hit, -grad, 0.0).to(self.dtype).contiguous()


def _mean_factor(x: Tensor, reduction: int) -> Any:
    """What gradients are divided by."""
    return x.numel() if reduction == _MEAN else 1


def mse_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int) -> Tensor:
    slope = (widen(self) - widen(target)) * 2 / _mean_factor(self, reduction)
    return (slope * widen(grad_output)).to(self.dtype).contiguous()


def smooth_l1_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    x = widen(self) - widen(target)
    inner = x / beta if beta else torch.sign(x)
    slope = torch.where(x <= -beta, -1.0, torch.where(x >= beta, 1.0, inner))
    return (slope / _mean_factor(self, reduction) * widen(grad_output)).to(self.dtype).contiguous()


def huber_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, delta: float
) -> Tensor:
    x = widen(self) - widen(target)
    slope = torch.where(x <= -delta, -delta, torch.where(x >= delta, delta, x))
    return (slope / _mean_factor(self, reduction) * widen(grad_output)).to(self.dtype).contiguous()


def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """The mask is one random op; the rest is arithmetic."""
    if train is False:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    keep = 1.0 - p
    blank = torch.empty(input.shape, dtype=torch.bool, device=input.device)
    mask = torch.ops.aten.bernoulli.p(blank, keep)
    return input * mask * (0.0 if keep == 0 else 1.0 / keep), mask


def eager_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """With the mask that eager draws: on a GPU that is one op with the rest."""
    return native_dropout(input, p, train) if input.device.type == "cpu" else NotImplemented
