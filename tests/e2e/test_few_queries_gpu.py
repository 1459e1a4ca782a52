"""Attention of few queries for NVIDIA GPUs, in ranges of keys: captured here for one that need not be there and interpreted, and,
marked, on one.

    python -m pytest -m gpu tests/e2e/test_few_queries_gpu.py
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from lowc.ir.nodes import Launch
from lowc.ir.relays import has_relay
from lowc.lowering import few_queries
from tests.e2e.test_attention_gpu import OWN, off, tensors
from tests.e2e.test_flex_attention_gpu import HERE, PAIRS, as_written, attend, check, for_gpu, qkv

PLAIN = as_written


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of few keys are worth it."""
    for name in ("COMBINED", "RANGE"):
        monkeypatch.setattr(few_queries, name, 0.0)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(("score", "mask"), [*PAIRS, ("plain", "of blocks"), ("alibi", "filled")])
def test_functions_of_scores(score: str, mask: str, rows: int, cheap: None) -> None:
    for keys, shared in ((512, 2), (300, 4)):
        function = attend("cpu", score, mask, rows, keys, return_lse=True, enable_gqa=True)
        args = qkv(rows, keys, 32, shared=shared)
        steps, (result, sums) = for_gpu(function, args)
        kernels = [s.kernel for s in steps if isinstance(s, Launch)]
        assert [has_relay(k.body) for k in kernels].count(True) == 1
        assert any("ranges_of_keys" in k.name for k in kernels) or keys == 300
        exact, logarithms = function(*(a.double() for a in args))
        if mask == "late":  # nothing is seen
            assert not exact.any() and not result.any()
        else:
            assert off(result, exact) <= max(1.5 * off(function(*args)[0], exact), 8e-3)
        torch.testing.assert_close(sums.double(), logarithms, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rows", [1, 3])
def test_pages_of_all_batches(rows: int, cheap: None) -> None:
    """Rows of a tile are of heads that share keys, or queries, not of batches, which see other pages."""
    owner = torch.tensor([0, 1, 2, 1, 0])
    seen = create_block_mask(lambda b, h, i, j: owner[j // 128] == b, 3, None, rows, 640, device="cpu")

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, block_mask=seen, enable_gqa=True)

    args = [torch.randn(s).bfloat16() for s in ((3, 8, rows, 32), (1, 2, 640, 32), (1, 2, 640, 32))]
    steps, result = for_gpu(function, args)
    first, *_ = (s.kernel for s in steps if isinstance(s, Launch))
    assert "_in_5_ranges_of_keys" in first.name and has_relay(first.body)
    exact = function(*(a.double() for a in args))
    assert off(result, exact) <= max(1.5 * off(function(*args), exact), 8e-3)


# ---------------------------------------------------------------- with a GPU


@pytest.mark.gpu
@HERE
@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize(
    ("batch", "shared", "keys", "deep"), [(1, 8, 4096, 128), (1, 2, 5001, 64), (3, 4, 700, 256), (8, 8, 2048, 96)]
)
def test_ranges_of_keys(batch: int, shared: int, keys: int, deep: int, rows: int) -> None:
    """Results do not change from run to run."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])

    q, k, v = tensors(batch, 8, rows, deep, keys=keys, shared=shared)
    for query in (q, q.transpose(1, 2).contiguous().transpose(1, 2)):
        compiled = torch.compile(function, backend="lowc", fullgraph=True, dynamic=False, options=OWN)
        exact = function(query.double(), k.double(), v.double())
        found = [compiled(query, k, v) for _ in range(5)]
        assert off(found[0], exact) <= max(1.5 * off(function(query, k, v), exact), 2 * torch.finfo(q.dtype).eps)
        assert all(torch.equal(found[0], x) for x in found[1:])


@pytest.mark.gpu
@HERE
def test_masks_that_hide_all_and_nan() -> None:
    q, k, v = tensors(2, 4, 2, 128, keys=4096)
    mask = torch.zeros(2, 1, 2, 4096, device="cuda", dtype=q.dtype)
    mask[0, :, 0] = -math.inf
    mask[0, :, 1, 128:] = -math.inf
    compiled = torch.compile(F.scaled_dot_product_attention, backend="lowc", fullgraph=True, options=OWN)
    exact = torch.nan_to_num(F.scaled_dot_product_attention(*(x.double() for x in (q, k, v, mask))))
    found = compiled(q, k, v, mask)
    assert (found[0, :, 0] == 0).all()
    assert off(found, exact) < 8e-3
    k[1, 0, 3000, 5] = math.nan
    found = compiled(q, k, v, mask)
    assert found[1, 0].isnan().all()
    assert not found[1, 1:].isnan().any()


@pytest.mark.gpu
@HERE
def test_lengths_of_the_call() -> None:
    """A cache that grows."""

    def function(q: Tensor, cache: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, *cache.unbind(), enable_gqa=True)

    compiled = torch.compile(function, backend="lowc", fullgraph=True, options=OWN)
    for keys in (1500, 3, 128, 129, 5000, 20000):
        q, k, v = tensors(1, 8, 1, 128, keys=keys, shared=2)
        cache = torch.stack((k, v))
        torch._dynamo.mark_dynamic(cache, 3)
        assert off(compiled(q, cache), function(q.double(), cache.double())) < 8e-3


@pytest.mark.gpu
@HERE
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(("score", "mask"), [p for p in PAIRS if p[1] != "late"])
def test_functions_on_a_gpu(score: str, mask: str, rows: int) -> None:
    function: Any = attend("cuda", score, mask, rows, 2048 if mask == "window" else 640, return_lse=True, enable_gqa=True)
    check(function, qkv(rows, 2048 if mask == "window" else 640, 128, shared=2, device="cuda"))


@pytest.mark.gpu
@HERE
def test_gradients() -> None:
    """The backward pass is given logarithms of sums of all ranges."""
    args = [x.requires_grad_() for x in tensors(1, 4, 16, 64, keys=4096)]
    compiled = torch.compile(F.scaled_dot_product_attention, backend="lowc", fullgraph=True, options=OWN)
    wide = [a.detach().double().requires_grad_() for a in args]
    weight = torch.randn_like(args[0])
    exact = torch.autograd.grad(F.scaled_dot_product_attention(*wide), wide, weight.double())
    ours = torch.autograd.grad(compiled(*args), args, weight)
    for mine, true in zip(ours, exact, strict=True):
        assert off(mine, true) < 1e-2
