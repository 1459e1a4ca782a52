"""Variances of columns, as batch norm of ``channels_last`` images has them, as they are lowered for a GPU; interpreted."""

import math

import pytest
import torch
from torch import Tensor

from lowc.ir.nodes import Launch
from tests.e2e.test_flex_attention_gpu import for_gpu


def moments(x: Tensor, correction: int = 0) -> tuple[Tensor, Tensor]:
    return torch.var_mean(x, (0, 2, 3), correction=correction, keepdim=True)


def images(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(shape).to(dtype).to(memory_format=torch.channels_last)


def levels(x: Tensor, correction: int = 0) -> tuple[int, tuple[Tensor, Tensor]]:
    """How many kernels there are, and what they give."""
    torch._dynamo.reset()
    steps, found = for_gpu(lambda x: moments(x, correction), [x])
    assert all(isinstance(s, Launch) for s in steps)
    return len(steps), found


@pytest.mark.parametrize(
    ("shape", "kernels"),
    [
        ((20, 8, 40, 40), 3), ((3, 16, 40, 40), 2), ((20, 5, 15, 15), 2), ((1, 3, 70, 80), 2), ((300, 2, 1, 40), 2),
        ((4, 8, 9, 9), 1),
    ],
)  # fmt: skip
def test_levels(shape: tuple[int, ...], kernels: int) -> None:
    for dtype, distance, correction in ((torch.float32, 0.0, 1), (torch.float32, 1000.0, 0), (torch.bfloat16, 3.0, 0)):
        x = (images(*shape) + distance).to(dtype)
        count, found = levels(x.float() if dtype == torch.float32 else x, correction)
        assert count == kernels
        for mine, exact in zip(found, moments(x.double(), correction), strict=True):
            assert mine.dtype == dtype
            torch.testing.assert_close(mine.double(), exact, rtol=8 * torch.finfo(dtype).eps, atol=8e-8)


@pytest.mark.parametrize("dims", [(1, 2, 3), (2, 3), (3,)])
def test_rows_have_no_levels(dims: tuple[int, ...]) -> None:
    x = torch.randn(2, 5, 70, 80)
    torch._dynamo.reset()
    steps, found = for_gpu(lambda x: torch.var(x, dims), [x])
    assert len(steps) == 1
    torch.testing.assert_close(found.double(), x.double().var(dims), rtol=1e-6, atol=1e-7)


def test_what_is_not_finite_stays_in_its_channel() -> None:
    x = images(20, 6, 30, 30)
    x[3, 1, 4, 5], x[19, 2, 29, 29], x[0, 3] = math.nan, math.inf, 7.25
    count, (variance, mean) = levels(x)
    assert count == 3
    exact = moments(x.double())
    torch.testing.assert_close(variance.double(), exact[0], rtol=1e-6, atol=1e-7, equal_nan=True)
    torch.testing.assert_close(mean.double(), exact[1], rtol=1e-6, atol=1e-7, equal_nan=True)


def test_equal_elements_have_no_variance() -> None:
    _, (variance, mean) = levels(torch.full((20, 4, 33, 35), 0.1).to(memory_format=torch.channels_last))
    assert not variance.any()
    assert torch.equal(mean, torch.full_like(mean, 0.1))
