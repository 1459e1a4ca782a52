"""What the planted faults harm: functions of several kernels, of which one goes wrong."""

import torch
import torch.nn.functional as F
from torch import Tensor


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def chosen(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A matrix product, pointwise ops, a reduction of rows."""
    y = torch.tanh(x @ w + b)
    z = torch.maximum(y, b * 0.5)
    return (z * 2.0).sum(1) + x[:, 0]


def chosen_inputs() -> tuple[Tensor, ...]:
    return numbers(37, 24), numbers(24, 19, seed=1), numbers(19, seed=2)


def softmax(x: Tensor) -> Tensor:
    shifted = x - x.amax(1, keepdim=True)
    powers = shifted.exp()
    return powers / powers.sum(1, keepdim=True)


def softmax_inputs() -> tuple[Tensor]:
    return (numbers(33, 70),)


def padded(x: Tensor, w: Tensor) -> Tensor:
    y = F.pad((x * 3.0).exp(), (2, 1))
    return (y @ w).relu() + 1.0


def padded_inputs() -> tuple[Tensor, Tensor]:
    return numbers(12, 21), numbers(24, 9, seed=1)


def scaled(x: Tensor, w: Tensor) -> Tensor:
    y = (x @ w).sigmoid()
    return (y / 8.0 + y.mean(1, keepdim=True)).sin()


def scaled_inputs() -> tuple[Tensor, Tensor]:
    return numbers(20, 30), numbers(30, 17, seed=1)


def columns(x: Tensor, w: Tensor) -> Tensor:
    y = (x @ w).cos()
    return y * 2.0 + y.sum(0)


def columns_inputs() -> tuple[Tensor, Tensor]:
    return numbers(300, 16), numbers(16, 75, seed=1)


def long_rows(x: Tensor) -> Tensor:
    return (x * x).sum(1).sqrt() + x[:, 1]


def long_rows_inputs() -> tuple[Tensor]:
    return (numbers(3, 50000),)


def looked_up(i: Tensor, w: Tensor, v: Tensor) -> Tensor:
    y = F.embedding(i, w).sin() * 0.5
    return (y @ v).exp()


def looked_up_inputs() -> tuple[Tensor, ...]:
    return torch.arange(40) % 11, numbers(11, 48, seed=1), numbers(48, 5, seed=2)


def turned(x: Tensor, w: Tensor) -> Tensor:
    y = (x @ w).clamp(max=0.5)
    return (y.sin() * 2.0).t() + y.sum(1)


def turned_inputs() -> tuple[Tensor, Tensor]:
    return numbers(21, 30), numbers(30, 21, seed=1)
