"""Gradients of each family of differentiable lowerings against finite differences, in float64 (``torch.autograd.gradcheck``)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.e2e.conftest import Lowc


def smooth(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> Tensor:
    """Values of which no two are alike, so that maxima do not change with a small step."""
    count = max(1, torch.Size(shape).numel())
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + count))
    return (low + (high - low) * (order + 0.5) / count).double().reshape(shape)


INDEX = torch.tensor([[2, 0, 2], [1, 3, 0]])
GRID = smooth(2, 3, 4, 2, seed=5, low=-0.9, high=0.9)

FAMILIES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "arithmetic": (lambda x, y: x * y + x / (y + 3) - x.square(), (smooth(3, 4), smooth(4, seed=1))),
    "maths": (lambda x: x.exp() + (x + 3).log() + x.sin() * x.tanh() + (x + 3).sqrt(), (smooth(3, 4),)),
    "more maths": (lambda x: x.erf() + x.atan() + x.expm1() + (x / 3).asin() + x.cosh(), (smooth(3, 4),)),
    "powers": (lambda x: x**3 + (x + 3) ** 1.5 + 2**x + torch.hypot(x, x + 5), (smooth(3, 4),)),
    "activations": (lambda x: F.gelu(x) + F.silu(x) + F.softplus(x) + F.elu(x) + F.mish(x), (smooth(3, 4),)),
    "clipped activations": (lambda x: F.hardswish(x) + F.leaky_relu(x) + F.hardtanh(x * 1.3), (smooth(3, 4),)),
    "log sigmoid and glu": (lambda x: F.logsigmoid(x).sum() + F.glu(x, 1), (smooth(3, 4),)),
    "softmax": (lambda x: x.softmax(1) * x.log_softmax(0), (smooth(3, 4),)),
    "sums": (lambda x: x.sum(1) + x.mean(1) + x.var(1) + x.std(1) + x.logsumexp(1), (smooth(3, 4),)),
    "extrema": (lambda x: x.amax(1) + x.min(1).values + x.max() + x.aminmax(dim=1).max, (smooth(3, 4),)),
    "products": (lambda x: x.prod(1), (smooth(3, 4, low=1.0),)),
    "norms": (lambda x: x.norm(dim=1) + x.norm(3, 1) + x.norm(1, 1) + x.norm(torch.inf, 1), (smooth(3, 4, low=0.1),)),
    "scans": (lambda x: x.cumsum(1) * x.cumprod(0) + x.cummax(1).values - x.cummin(0).values, (smooth(3, 4),)),
    "layer norm": (lambda x, w: F.layer_norm(x, (4,), w, w), (smooth(3, 4), smooth(4, seed=1))),
    "group norm": (lambda x, w: F.group_norm(x, 2, w, w), (smooth(2, 4, 3), smooth(4, seed=1))),
    "batch norm": (lambda x, w: F.batch_norm(x, None, None, w, w, True), (smooth(4, 3), smooth(3, seed=1))),
    "instance norm": (lambda x: F.instance_norm(x), (smooth(2, 3, 5),)),
    "views": (lambda x: x.t().reshape(2, 6)[:, 1::2].unsqueeze(0).expand(2, 2, 3), (smooth(3, 4),)),
    "unfold": (lambda x: x.unfold(1, 2, 1) * x.diagonal().sum(), (smooth(3, 4),)),
    "moves": (lambda x: x.roll(1, 1) + x.flip(0) + x.tril() + torch.cat((x[:1], x[1:] * 2)), (smooth(3, 4),)),
    "padding": (lambda x: F.pad(x, (1, 2), value=1.5).sum(1) + F.pad(x, (-1, 1)).sum(1), (smooth(3, 4),)),
    "reflection": (lambda x: F.pad(x, (1, 2, 2, 0), "reflect"), (smooth(1, 3, 4),)),
    "replication": (lambda x: F.pad(x, (1, 2, 2, 0), "replicate"), (smooth(1, 3, 4),)),
    "circular": (lambda x: F.pad(x, (1, 2, 2, 0), "circular"), (smooth(1, 1, 3, 4),)),
    "gather": (lambda x: x[:2].gather(1, INDEX) + x[INDEX[:, 0]][:, :3] + x[:2].index_select(1, INDEX[0]), (smooth(4, 4),)),
    "scatter": (lambda x, s: x.scatter_add(1, INDEX, s) + x.index_add(1, INDEX[0], s), (smooth(2, 4), smooth(2, 3))),
    "writes": (
        lambda x, s: x.scatter(1, INDEX[:, :1], s[:, :1]) * x.index_copy(1, INDEX[1], s) + x.index_fill(1, INDEX[0], 2.0),
        (smooth(2, 4), smooth(2, 3)),
    ),
    "reducing scatter": (lambda x, s: x.scatter_reduce(1, INDEX, s, "mean"), (smooth(2, 4), smooth(2, 3, seed=3))),
    "embedding": (lambda w: F.embedding(INDEX, w), (smooth(4, 3),)),
    "masks": (lambda x: x.masked_fill(x > 0.3, 0.5) + torch.where(x > 0, x, x * x), (smooth(3, 4),)),
    "average pooling": (lambda x: F.avg_pool2d(x, 2, 1, 1, True, False), (smooth(1, 2, 4, 5),)),
    "average pooling 3d": (lambda x: F.avg_pool3d(x, 2, 1), (smooth(1, 3, 3, 3),)),
    "maximum pooling": (lambda x: F.max_pool2d(x, (3, 2), 2, 1), (smooth(1, 2, 5, 6),)),
    "maximum pooling 3d": (lambda x: F.max_pool3d(x, 2, 1), (smooth(1, 3, 3, 3),)),
    "adaptive pooling": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (smooth(1, 2, 5, 6),)),
    "adaptive maximum": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), (smooth(1, 2, 5, 6),)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2) + F.interpolate(x, (6, 8)), (smooth(1, 2, 3, 4),)),
    "linear": (lambda x: F.interpolate(x, 7, mode="linear", align_corners=True), (smooth(1, 2, 4),)),
    "bilinear": (lambda x: F.interpolate(x, (5, 7), mode="bilinear"), (smooth(1, 2, 3, 4),)),
    "bicubic": (lambda x: F.interpolate(x, (4, 5), mode="bicubic", align_corners=True), (smooth(1, 1, 3, 4),)),
    "trilinear": (lambda x: F.interpolate(x, (3, 3, 4), mode="trilinear"), (smooth(1, 1, 2, 3, 2),)),
    "grid sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), (smooth(2, 1, 3, 4), GRID)),
    "columns": (lambda x: F.fold(F.unfold(x, 2, padding=1), (5, 5), 2), (smooth(1, 1, 3, 3),)),
    "shuffles": (lambda x: F.pixel_shuffle(x, 2) + F.pixel_shuffle(x.flip(1), 2), (smooth(1, 4, 2, 3),)),
    "distances": (lambda x, y: torch.cdist(x, y) + torch.cdist(x, y, 3.0), (smooth(3, 2), smooth(4, 2, seed=7))),
    "losses": (
        lambda x, y: F.mse_loss(x, y) + F.huber_loss(x, y) + F.smooth_l1_loss(x, y),
        (smooth(3, 4), smooth(3, 4, seed=2) * 3),
    ),
    "class losses": (lambda x: F.cross_entropy(x, INDEX[:, 0], label_smoothing=0.1), (smooth(2, 4),)),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients(name: str, compiler_auto: Lowc) -> None:
    function, inputs = FAMILIES[name]
    torch._dynamo.reset()
    compiled = compiler_auto.compile(function, dynamic=False)
    given = [x.clone().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(compiled, given)
    for ours, eager in zip(_both(compiled, inputs), _both(function, inputs), strict=True):
        torch.testing.assert_close(ours, eager)
    assert len(compiler_auto.programs) == 2  # forward and backward


def _both(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Result and gradients."""
    given = [x.clone().requires_grad_() for x in inputs]
    result = function(*given)
    weights = torch.linspace(0.5, 1.5, result.numel(), dtype=torch.float64).reshape(result.shape)
    return [result.detach(), *torch.autograd.grad(result, given, weights)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_into_places_of_narrow_floats(dtype: torch.dtype, compiler_auto: Lowc) -> None:
    """Rows are spread over cores and lanes; what comes together in one element does not leave its row."""
    torch._dynamo.reset()
    x = smooth(300, 65).to(dtype)

    def function(x: Tensor, s: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        return x.scatter_add(1, i, s), x.scatter_add(0, i, s), x.cummax(0).values, x.index_add(0, i[:, 0], s)

    i = torch.arange(300 * 65).reshape(300, 65) % 7
    compiler_auto.check(function, x, x / 3, i, dynamic=False)
    compiler_auto.check(lambda x: x.cummax(0).values, x.clone().requires_grad_(), dynamic=False, train=True)
