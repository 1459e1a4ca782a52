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


HOPPER = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs compute capability 9.0"
)
WINDOWS = {
    "square": (3, 64, 64, (14, 14), (3, 3), 1, 1, 1),
    "wide": (2, 24, 40, (7, 37), (3, 3), 1, 1, 1),
    "high": (1, 72, 136, (61, 5), (3, 3), 1, 1, 1),
    "by 2": (2, 64, 128, (15, 22), (3, 3), 2, 1, 1),
    "by 3": (2, 16, 8, (20, 23), (3, 3), 3, 0, 1),
    "no padding": (2, 32, 16, (9, 20), (3, 3), 1, 0, 1),
    "much padding": (1, 8, 24, (6, 9), (3, 3), 1, 2, 1),
    "dilated": (2, 96, 64, (17, 19), (3, 3), 1, 2, 2),
    "5x3": (2, 40, 64, (21, 12), (5, 3), (2, 1), (2, 1), 1),
    "7x7 by 2": (1, 16, 64, (33, 30), (7, 7), 2, 3, 1),
    "1x3": (2, 64, 64, (9, 12), (1, 3), 1, (0, 1), 1),
    "3x1": (1, 64, 64, (9, 12), (3, 1), 1, (1, 0), 1),
    "1x1 by 2": (3, 64, 128, (13, 18), (1, 1), 2, 0, 1),
    "rows of tiles": (2, 16, 64, (3, 128), (3, 3), 1, 1, 1),
    "images of tiles": (3, 128, 256, (16, 16), (3, 3), 1, 1, 1),
    "deep": (1, 512, 64, (7, 7), (3, 3), 1, 1, 1),
}


@HOPPER
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str, dtype: torch.dtype) -> None:
    """Convolutions of many channels and taps, with what follows."""
    n, channels, made, size, taps, step, pad, gap = WINDOWS[name]
    x = torch.randn(n, channels, *size, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
    w = torch.randn(made, channels, *taps, device="cuda", dtype=dtype) / (channels * taps[0] * taps[1]) ** 0.5
    b, scale, mean = (torch.randn(made, device="cuda", dtype=dtype) for _ in range(3))
    y = torch.randn_like(F.conv2d(x, w, None, step, pad, gap))

    def normal(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, mean: Tensor, y: Tensor) -> Tensor:
        return F.relu(F.batch_norm(F.conv2d(x, w, None, step, pad, gap), mean, scale.abs() + 0.5, scale, b) + y)

    check(lambda x, w: F.conv2d(x, w, None, step, pad, gap), x, w.to(memory_format=torch.channels_last))
    check(lambda x, w, b: F.silu(F.conv2d(x, w, b, step, pad, gap)), x, w, b)
    check(normal, x, w.to(memory_format=torch.channels_last), b, scale, mean, y)


@HOPPER
def test_windows_in_one_and_three_dimensions() -> None:
    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    x = random(2, 9, 10, 11, 32).permute(0, 4, 1, 2, 3)
    check(lambda x, w, b: F.relu(F.conv3d(x, w, b, (1, 2, 1), (1, 1, 0))), x, random(64, 32, 3, 3, 3), random(64))
    y = random(3, 50, 1, 48).permute(0, 3, 1, 2)
    check(lambda x, w: F.conv2d(x, w, None, 1, (2, 0)), y, random(64, 48, 5, 1))


@HOPPER
def test_windows_of_slices_of_channels_and_of_inputs() -> None:
    x = torch.randn(3, 128, 12, 13, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    w = torch.randn(64, 64, 3, 3, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    check(lambda x, w: F.relu(F.conv2d(x[:, 64:], w, None, 1, 1)), x, w)
    check(lambda x, w: F.relu(F.conv2d(x[1:, 32:96, 1:-1, 2:], w, None, 1, 1)), x, w)


@HOPPER
def test_windows_of_any_number_of_images() -> None:
    w = torch.randn(72, 64, 3, 3, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    function = lambda x: F.relu(F.conv2d(x, w, None, 2, 1))  # noqa: E731
    compiled = torch.compile(function, backend="lowc", fullgraph=True, options=OWN)
    for images in (3, 17, 2):
        x = torch.randn(images, 64, 15, 14, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
        torch._dynamo.mark_dynamic(x, 0)
        assert off(compiled(x), F.relu(F.conv2d(x.double(), w.double(), None, 2, 1))) <= 2 * torch.finfo(x.dtype).eps
    assert counters["lowc"]["graphs_unsupported"] == 0


@HOPPER
def test_what_is_no_number_where_padding_is() -> None:
    """Padding is zeros that are multiplied, in eager as here: an infinite weight makes NaN at the edge."""
    x = torch.randn(2, 64, 9, 9, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    w = torch.randn(64, 64, 3, 3, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    x[0, 3, 0, 0], x[1, 5, 8, 4], w[7, 2, 0, 0] = float("inf"), float("nan"), float("inf")
    function = lambda x, w: F.relu(F.conv2d(x, w, None, 1, 1))  # noqa: E731
    found, eager = torch.compile(function, backend="lowc", options=OWN)(x, w), function(x, w)
    assert torch.equal(found.isnan(), eager.isnan()) and torch.equal(found.isinf(), eager.isinf())


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


@HOPPER
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
