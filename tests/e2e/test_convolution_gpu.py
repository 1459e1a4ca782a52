"""Convolutions by lowc's own kernels on an NVIDIA GPU, beside float64.

    python -m pytest -m gpu tests/e2e/test_convolution_gpu.py
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn import functional as F

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
OWN = {"convolution": "own", "strict_errors": True, "check": True, "cache": False}
LAYOUTS = {"rows": torch.contiguous_format, "channels": torch.channels_last}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def off(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def check(function: Callable[..., Tensor], *args: Tensor) -> None:
    """``function`` compiled calls no convolution of ATen's, and is as near to float64 as eager."""
    exact, eager = function(*(a.double() for a in args)), function(*args)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        compiled = torch.compile(function, backend="lowc", fullgraph=True, options=OWN)
        compiled(*args)  # traced with tensors that are not there, by which convolutions are called as well
        with torch.profiler.profile() as seen:
            found = compiled(*args)
    assert not any("convolution" in event.key for event in seen.key_averages() if event.key.startswith("aten::"))
    assert found.stride() == eager.stride() and found.dtype == eager.dtype
    assert off(found, exact) <= max(2 * off(eager, exact), 2 * torch.finfo(args[0].dtype).eps)
    assert counters["lowc"]["graphs_unsupported"] == 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("channels", "size", "taps", "step", "gap"),
    [(24, (19, 23), 3, 1, 1), (7, (9, 40), 5, 2, 1), (33, (14, 14), 7, 1, 1), (8, (31, 12), 3, 1, 2)],
)
def test_depthwise(
    channels: int, size: tuple[int, int], taps: int, step: int, gap: int, dtype: torch.dtype, layout: str
) -> None:
    x = torch.randn(3, channels, *size, device="cuda", dtype=dtype).to(memory_format=LAYOUTS[layout])
    w, b = torch.randn(channels, 1, taps, taps, device="cuda", dtype=dtype), torch.randn(channels, device="cuda", dtype=dtype)

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.silu(F.conv2d(x, w, b, step, taps // 2 * gap, gap, channels))

    check(function, x, w, b)


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs compute capability 9.0"
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("channels", "made", "size"), [(64, 256, (20, 19)), (24, 40, (7, 7)), (264, 8, (1, 33)), (8, 1000, (3, 1))]
)
def test_products(channels: int, made: int, size: tuple[int, int], dtype: torch.dtype) -> None:
    """Convolutions of one tap, with what follows and a residual."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", dtype=dtype)

    x, y = (random(2, c, *size).to(memory_format=torch.channels_last) for c in (channels, made))
    w, b, scale, mean = random(made, channels, 1, 1), random(made), random(made), random(made)

    def normal(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, mean: Tensor, y: Tensor) -> Tensor:
        return F.relu(F.batch_norm(F.conv2d(x, w), mean, scale.abs() + 0.5, scale, b) + y)

    check(lambda x, w, b, y: F.gelu(F.conv2d(x, w, b)) + y, x, w, b, y)
    check(normal, x, w, b, scale, mean, y)
