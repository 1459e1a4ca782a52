"""Rows, maps and columns of symbolic sizes on an NVIDIA GPU: one artifact, called with lengths on either side of what it holds.

    python -m pytest -m gpu tests/e2e/test_gpu_rows.py
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
DEVICE = "cuda"
LENGTHS = (2, 3, 7, 8, 31, 97, 128, 1000, 1021, 1023, 1024, 1025, 1032, 1279, 1281, 2048, 4096, 4097, 4608, 4609, 9001, 16384)


def rope(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([x[..., :4] * w[:, None] - x[..., 4:], x[..., 4:] * w[:, None] + x[..., :4]], -1)


def shapes_of_rows(n: int) -> tuple[tuple[int, ...], ...]:
    return (5, n), (n,)


def shapes_of_rope(n: int) -> tuple[tuple[int, ...], ...]:
    return (5, n, 8), (n,)


CASES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[int], tuple[tuple[int, ...], ...]]]] = {
    "softmax": (lambda x, w: x.softmax(-1), shapes_of_rows),
    "log_softmax": (lambda x, w: x.log_softmax(-1), shapes_of_rows),
    "layer_norm": (lambda x, w: F.layer_norm(x, (x.shape[1],), w, w), shapes_of_rows),
    "rms_norm": (lambda x, w: F.rms_norm(x, (x.shape[1],), w), shapes_of_rows),
    "gelu_bias": (lambda x, w: F.gelu(x + w), shapes_of_rows),
    "row_sum": (lambda x, w: x.float().sum(1), shapes_of_rows),
    "column_sum": (lambda x, w: (x * w).float().sum(0), shapes_of_rows),
    "columns_of_rows": (lambda x, w: (x.t() * w[:, None]).float().sum(0), shapes_of_rows),
    "rope": (rope, shapes_of_rope),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("traced", [1024, 1025, 100, 4097])
@pytest.mark.parametrize("name", CASES)
def test_every_length(name: str, traced: int, dtype: torch.dtype) -> None:
    fn, shapes = CASES[name]
    generator = torch.Generator().manual_seed(0)

    def inputs(n: int) -> list[Tensor]:
        return [torch.randn(s, generator=generator).to(dtype).to(DEVICE) for s in shapes(n)]

    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="lowc", fullgraph=True, options={"strict_errors": True})
    first = inputs(traced)
    for x in first:
        torch._dynamo.mark_dynamic(x, x.dim() - 1 if x.dim() < 3 else 1)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        compiled(*first)
        for n in LENGTHS:
            args = inputs(n)
            found, exact = compiled(*args), fn(*[a.double() for a in args])
            assert found.shape == exact.shape
            scale = exact.abs().max().clamp(min=1.0)
            error = ((found.double() - exact).abs() / torch.maximum(exact.abs(), scale * 0.05)).max()
            assert float(error) < (0.06 if dtype == torch.bfloat16 else 1e-4), n
