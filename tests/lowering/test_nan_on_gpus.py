"""Where eager's kernels for a GPU treat NaN in another way than those for a CPU, lowering for a GPU does as they do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lowc.ir.elsewhere import on_gpu
from lowc.lowering import lower
from tests.lowering.harness import run, trace

aten: Any = torch.ops.aten
NAN, INF = float("nan"), float("inf")
X = torch.tensor([NAN, -4.0, -3.0, -1.0, -0.5, -0.0, 0.5, 1.0, 3.0, INF, -INF, NAN])
G = torch.linspace(0.5, 1.5, 12)


def hardtanh_backward(g: Tensor, x: Tensor) -> Tensor:
    return aten.hardtanh_backward.default(g, x, -1.0, 1.0)


def hardswish_backward(g: Tensor, x: Tensor) -> Tensor:
    return aten.hardswish_backward.default(g, x)


def elu_backward(g: Tensor, x: Tensor) -> Tensor:
    return aten.elu_backward.default(g, 1.5, 1.0, 1.0, False, x)


def elu_backward_of_result(g: Tensor, y: Tensor) -> Tensor:
    return aten.elu_backward.default(g, 1.5, 1.0, 1.0, True, y)


PASSED_ON = (hardtanh_backward, hardswish_backward, elu_backward, elu_backward_of_result)


def lowered(function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    return run(lower(on_gpu(trace(function, args))), list(args))[0]


@pytest.mark.parametrize("function", PASSED_ON)
def test_the_gradient_of_nan_is_passed_on(function: Callable[..., Tensor]) -> None:
    """Activation{Hardtanh,Hardswish,Elu}Kernel.cu ask where the gradient is cut or bent, which at NaN it is not."""
    expected = torch.where(X.isnan(), G, function(G, X.nan_to_num(0.0, INF, -INF)))
    torch.testing.assert_close(lowered(function, G, X), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("p", [0.0, INF])
def test_nan_among_distances(p: float) -> None:
    """DistanceKernel.cu: NaN differs from 0, and is no larger than what was found before."""
    x, y = torch.tensor([[1.0, NAN, 2.0], [NAN, NAN, NAN]]), torch.tensor([[1.0, 5.0, NAN], [3.0, -1.0, 2.5]])
    found = lowered(lambda x, y: aten._cdist_forward.default(x, y, p, None), x, y)
    expected = [[2.0, 3.0], [3.0, 3.0]] if p == 0.0 else [[0.0, 2.0], [0.0, 0.0]]
    assert found.tolist() == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_as_eager_there() -> None:
    x, g = X.cuda(), G.cuda()
    for function in PASSED_ON:
        ours = torch.compile(function, backend="lowc", options={"strict_errors": True})(g, x)
        torch.testing.assert_close(ours, function(g, x), rtol=1e-6, atol=0, equal_nan=True)
    for p in (0.0, 1.0, 2.0, 3.0, INF):
        far = torch.compile(lambda x, y, p=p: torch.cdist(x, y, p), backend="lowc", options={"strict_errors": True})
        a, b = x.view(4, 3), x.flip(0).view(4, 3)
        torch.testing.assert_close(far(a, b), torch.cdist(a, b, p), rtol=1e-5, atol=0, equal_nan=True)
