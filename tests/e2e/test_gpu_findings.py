"""What torch's operator samples and random graphs found on a GPU, beside eager there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="lowc", fullgraph=True, options={"strict_errors": True, **options})


def same_strides(a: Tensor, b: Tensor) -> bool:
    return [s for n, s in zip(a.shape, a.stride(), strict=True) if n > 1] == [
        s for n, s in zip(b.shape, b.stride(), strict=True) if n > 1
    ]


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear"])
def test_interpolation_of_no_images(mode: str) -> None:
    x = torch.empty(0, 3, 4, device=DEVICE)
    assert compiled(lambda x: F.interpolate(x, size=3, mode=mode))(x).shape == (0, 3, 3)


def test_strides_of_rms_norm() -> None:
    x = torch.randn(2, 5, 4, 6, device=DEVICE)
    for given in (x, x.permute(3, 1, 0, 2), x[:, :, ::2], x.contiguous(memory_format=torch.channels_last)):
        ours, eager = compiled(lambda t: F.rms_norm(t, t.shape[2:]))(given), F.rms_norm(given, given.shape[2:])
        assert same_strides(ours, eager)
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("training", [False, True])
def test_statistics_of_batch_norm(training: bool) -> None:
    x, (w, b, m, v) = torch.randn(4, 3, 5, device=DEVICE), torch.rand(4, 3, device=DEVICE) + 0.5

    def normalised(x: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return torch.native_batch_norm(x, w, b, m, v, training, 0.1, 1e-5)

    ours = compiled(normalised)(x, m.clone(), v.clone())
    for mine, theirs in zip(ours, normalised(x, m.clone(), v.clone()), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_gradient_of_average_pooling_knows_the_padding() -> None:
    """Eager's own is wrong there for ``channels_last``: it is compared with that of contiguous images."""
    x = torch.randn(2, 3, 9, 9, dtype=torch.float64, device=DEVICE, requires_grad=True)
    g = torch.randn(2, 3, 9, 9, device=DEVICE)
    (exact,) = torch.autograd.grad(F.avg_pool2d(x, 3, 1, 1), x, g.double())
    y = x.detach().float().contiguous(memory_format=torch.channels_last).requires_grad_()
    (ours,) = torch.autograd.grad(compiled(lambda y: F.avg_pool2d(y, 3, 1, 1))(y), y, g)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("numerics", ["fast", "strict"])
def test_minima_that_a_thread_keeps_in_bf16(numerics: str) -> None:
    x, y = (torch.randn(16, 16, device=DEVICE).bfloat16() for _ in range(2))
    index = torch.randint(0, 16, (16, 16), device=DEVICE)

    def least(x: Tensor, index: Tensor, y: Tensor) -> Tensor:
        return torch.prod(torch.scatter_reduce(x, 1, index, y, "amin", include_self=True))

    ours, eager = compiled(least, numerics=numerics)(x, index, y), least(x, index, y)
    torch.testing.assert_close(ours, eager, rtol=0.02, atol=0.0)
