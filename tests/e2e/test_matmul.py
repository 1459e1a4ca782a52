"""Matrix products by lowc's own kernels: values against float64 over random shapes, strides, batches and instruction sets."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lowc.errors import CodegenError
from lowc.options import Options

ISAS = ("avx512", "avx2", "sse2")
SIZES = st.one_of(st.sampled_from([0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 48, 64, 100]), st.integers(0, 130))


def able(isa: str) -> bool:
    from lowc.backends import x86

    try:
        x86.detect(Options(isa=isa))
    except CodegenError:
        return False
    return True


def own(function: Callable[..., Any], isa: str = "auto", **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    chosen = {"matmul": "own", "isa": isa, "check": True, "strict_errors": True, **options}
    return torch.compile(function, backend="lowc", options=chosen)


def tensor(generator: torch.Generator, shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> Tensor:
    """Random values that lie in memory as ``layout`` says, the last two dimensions of which are what matters."""
    wide = torch.randn([*shape[:-2], *(2 * n + 1 for n in shape[-2:])], generator=generator, dtype=torch.float64).to(dtype)
    whole = wide[..., : shape[-2], : shape[-1]]
    if layout == "rows":
        return whole.contiguous()
    if layout == "columns":
        return whole.mT.contiguous().mT
    if layout == "strided":
        return wide[..., 1 : 2 * shape[-2] + 1 : 2, : 2 * shape[-1] : 2]
    return whole  # with a gap behind each row


def close(found: Tensor, eager: Tensor, exact: Tensor, magnitude: Tensor) -> None:
    """``found`` is off by at most twice what eager is, or by the last bits of results.  Of few results eager may have been lucky:
    then by the last bits of the sums of ``magnitude``, which are those of the absolute values."""
    assert found.shape == eager.shape
    assert found.dtype == eager.dtype
    assert found.stride() == eager.stride()
    if not exact.numel():
        return
    scale = (magnitude if exact.numel() < 64 else exact.abs()).mean().item()
    error, theirs = ((t.double() - exact).abs().mean().item() for t in (found, eager))
    assert error <= max(2 * theirs, torch.finfo(found.dtype).eps * scale), (error, theirs, scale)


LAYOUTS = st.sampled_from(["rows", "columns", "gap", "strided"])
SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_products(isa: str, dtype: torch.dtype) -> None:
    if not able(isa):
        pytest.skip(f"no {isa} here")

    @SETTINGS
    @given(SIZES, SIZES, SIZES, st.sampled_from([(), (1,), (3,)]), LAYOUTS, LAYOUTS, st.integers(0, 1 << 30))
    def check(m: int, n: int, k: int, batch: tuple[int, ...], left: str, right: str, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        x = tensor(generator, (*batch, m, k), left, dtype)
        y = tensor(generator, (*batch, k, n), right, dtype)
        found = own(torch.matmul, isa)(x, y)
        exact, magnitude = torch.matmul(x.double(), y.double()), torch.matmul(x.double().abs(), y.double().abs())
        close(found, torch.matmul(x, y), exact, magnitude)

    check()
