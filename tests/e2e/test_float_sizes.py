"""Sizes that go through floats, and floats and truth values that go in and out of graphs: one artifact, no part left to torch."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn import functional as F


@pytest.fixture(autouse=True)
def capturing() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield
    torch._dynamo.reset()


def share(x: Tensor) -> Tensor:
    k = int(x.shape[0] * 0.3)
    return x[:k].sin() * x[:k]


def in_order(x: Tensor) -> Tensor:
    """torch holds ``TruncToInt(7.0*n)``."""
    k = int(x.shape[0] * 0.7 * 10.0)
    return x.new_ones(k).cumsum(0) + x.sum()


def rounded(x: Tensor) -> Tensor:
    n = x.shape[0]
    return x[: round(n * 0.5)].exp().sum() + x[math.ceil(n * 1.5 / 4) :].cumsum(0).mean() * math.sqrt(n)


def nested(x: Tensor) -> Tensor:
    return F.interpolate(F.interpolate(x[None, None], scale_factor=0.7, mode="linear"), scale_factor=1.3, mode="linear")


def bilinear(x: Tensor) -> Tensor:
    return F.interpolate(x.expand(3, -1)[None, None] * x.view(1, 1, 1, -1), scale_factor=0.7, mode="bilinear")


def nearest(x: Tensor) -> Tensor:
    return F.interpolate(x[None, None], scale_factor=0.7) * 2


def of_data(x: Tensor) -> Tensor:
    found = x.nonzero()
    return found[: int(found.shape[0] * 0.4)] + 1


def largest(x: Tensor) -> tuple[Tensor, Tensor]:
    k = max(1, int(x.shape[0] * 0.1))
    return torch.topk(x, k)[0], x[k:].sum()


def numbers(x: Tensor) -> tuple[Any, ...]:
    n = x.shape[0]
    return x * 2, n * 0.5, n > 35, (x.sum() > 0).item(), x[:1].item()


def scalars(x: Tensor) -> tuple[Tensor, ...]:
    """Ops that take a float as a plain number."""
    n = x.shape[0]
    return F.leaky_relu(x, 1 / n), torch.arange(0, n * 0.5, 0.5) + 1, x.std(correction=n * 0.1), x.add(x, alpha=n * 0.5)


SIZES = (20, 31, 50, 70, 190)
FUNCTIONS = (share, in_order, rounded, nested, bilinear, nearest, of_data, largest, numbers, scalars)


def flat(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_like_eager(function: Callable[..., Any]) -> None:
    compiled = torch.compile(function, backend="lowc", dynamic=True, options={"check": True})
    for n in SIZES:
        x = torch.randn(n, generator=torch.Generator().manual_seed(n))
        ours, eager = flat(compiled(x)), flat(function(x))
        assert [type(r) for r in ours] == [type(r) for r in eager]
        for a, b in zip(ours, eager, strict=True):
            torch.testing.assert_close(a, b)
    assert not counters["lowc"]["graphs_unsupported"]
    assert function is scalars or counters["lowc"]["graphs"] == 1


@pytest.mark.parametrize("function", [share, nested, bilinear, rounded], ids=lambda f: f.__name__)
def test_gradients(function: Callable[[Tensor], Tensor]) -> None:
    compiled = torch.compile(function, backend="lowc", dynamic=True, options={"check": True})
    for n in SIZES:
        x = torch.randn(n, generator=torch.Generator().manual_seed(n), requires_grad=True)
        found = torch.autograd.grad(compiled(x).sum(), x)
        torch.testing.assert_close(found, torch.autograd.grad(function(x).sum(), x))
    assert counters["lowc"]["graphs"] == 2
    assert not counters["lowc"]["graphs_unsupported"]


def test_rounds_in_the_order_of_the_program() -> None:
    """For some of these sizes torch's own expression, 7.0*n, gives another number than Python."""
    order = [int(n * 0.7 * 10.0) for n in range(2, 600)]
    assert order != [int(n * 7.0) for n in range(2, 600)]
    compiled = torch.compile(in_order, backend="lowc", dynamic=True)
    odd = next(n for n in range(7, 600) if int(n * 0.7 * 10.0) != int(n * 7.0))
    for n in (6, odd):
        assert compiled(torch.ones(n)).shape[0] == int(n * 0.7 * 10.0)
    assert counters["lowc"]["graphs"] == 1


def test_in_line_in_the_host_program(compiler_auto: Any) -> None:
    """Nothing is called, and what follows can be placed in the workspace."""
    compiler_auto.compile(share, dynamic=True)(torch.randn(40))
    (program,) = compiler_auto.programs
    assert not program.host.ops
    assert " = math.trunc((float(s" in program.source
    assert program.source.index("math.trunc") < program.source.index("empty(")
