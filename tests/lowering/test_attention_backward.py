"""Gradients of attention as kernels, beside those of float64."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from lowc.backends import nvptx
from lowc.ir.elsewhere import on_gpu
from lowc.ir.nodes import Extern, Launch
from lowc.ir.verify import verify_module
from lowc.ir.walk import stores
from lowc.lowering.lower import lower
from lowc.scheduler import choose_attention
from tests.lowering.harness import run, trace
from tests.lowering.test_attention import OWN, qkv

ops = torch.ops.aten
EPSILON = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, causal: bool, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """Of queries, keys, values, in float64."""
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    shared = [x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in leaves[1:]]
    scores = leaves[0] @ shared[0].mT / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias.double()
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    weights = torch.softmax(scores, -1) if bias is None else torch.ops.aten._safe_softmax(scores, -1)
    return torch.autograd.grad(weights @ shared[1], leaves, grad.double())


def check(causal: bool, dtype: torch.dtype = torch.float32, bias: torch.Tensor | None = None, **shape: Any) -> None:
    q, k, v = qkv(dtype=dtype, **shape)
    given = {} if bias is None else {"attn_mask": bias}
    out, sums = ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, **given)
    grad = torch.randn(out.shape, dtype=torch.float64).to(dtype)

    def function(grad: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, *mask: Any) -> Any:
        keywords = {"attn_mask": mask[0]} if mask else {}
        return ops._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, sums, 0.0, causal, **keywords)

    args = [grad, q, k, v, out, sums] + ([] if bias is None else [bias])
    module = lower(trace(function, tuple(args)), OWN)
    verify_module(module, "LOOPS")
    assert not [s.target for s in module.steps if isinstance(s, Extern)]
    assert sum(isinstance(s, Launch) for s in module.steps) == 3
    if q.shape[1] == k.shape[1]:
        for ours, theirs in zip(run(module, args), function(*args), strict=True):
            assert [s for n, s in zip(ours.shape, ours.stride(), strict=True) if n > 1] == [
                s for n, s in zip(theirs.shape, theirs.stride(), strict=True) if n > 1
            ]
    for ours, wide in zip(run(module, args), gradients(q, k, v, grad, causal, bias), strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), wide, rtol=EPSILON[dtype], atol=EPSILON[dtype])


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients(dtype: torch.dtype, causal: bool) -> None:
    check(causal, dtype)


def test_a_bias_and_a_row_that_sees_nothing() -> None:
    bias = torch.randn(5, 7)
    bias[2] = -math.inf
    bias[3, 4:] = -math.inf
    check(False, bias=bias)


@pytest.mark.parametrize("causal", [False, True])
def test_heads_that_share_keys(causal: bool) -> None:
    q, k, v = qkv(heads=4, shared=2)
    wide, sums = (x.float() for x in _forward(q, k, v, causal))
    grad = torch.randn(q.shape)

    def function(grad: Any, q: Any, k: Any, v: Any, out: Any, sums: Any) -> Any:
        return ops._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, sums, 0.0, causal)

    module = lower(trace(function, (grad, q, k, v, wide, sums)), OWN)
    assert not [s.target for s in module.steps if isinstance(s, Extern)]
    found = run(module, [grad, q, k, v, wide, sums])
    for ours, exact in zip(found, gradients(q, k, v, grad, causal), strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=2e-5, atol=2e-5)


def _forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    from tests.lowering.test_attention import reference

    return reference(q, k, v, causal)


def test_what_is_left_to_aten() -> None:
    q, k, v = qkv()
    out, sums = ops._scaled_dot_product_flash_attention_for_cpu(q, k, v)

    def function(q: Any, k: Any, v: Any, out: Any, sums: Any) -> Any:
        return ops._scaled_dot_product_flash_attention_for_cpu_backward(out, q, k, v, out, sums, 0.0, False)

    module = lower(trace(function, (q, k, v, out, sums)))
    (step,) = (s for s in module.steps if isinstance(s, Extern))
    assert "a library's" in step.because


@pytest.mark.parametrize(("causal", "heads"), [(False, 2), (True, 2), (True, 4)])
def test_on_a_gpu_gradients_of_queries_are_added_up_in_memory(causal: bool, heads: int) -> None:
    """Unless somebody asks for deterministic algorithms."""
    q, k, v = qkv(dtype=torch.float16, heads=heads, shared=2, rows=70, keys=70, deep=72)
    out, sums = ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    args = [torch.randn(out.shape).half(), q, k, v, out, sums]

    def function(*args: Any) -> Any:
        return ops._scaled_dot_product_flash_attention_for_cpu_backward(*args, 0.0, causal)

    graph = on_gpu(trace(function, tuple(args)))
    for deterministic, launches in ((False, 4), (True, 3)) if heads == 2 else ((False, 6),):
        attention = choose_attention.library(nvptx.default(), OWN)
        module = lower(replace(graph, deterministic=deterministic), OWN, attention=attention)
        verify_module(module, "LOOPS")
        kernels = [s.kernel for s in module.steps if isinstance(s, Launch)]
        assert len(kernels) == launches == len(module.steps)
        assert deterministic != any(s.reducer for kernel in kernels for s in stores(kernel.body))
        for ours, wide in zip(run(module, args), gradients(q, k, v, args[0], causal), strict=True):
            torch.testing.assert_close(ours.double(), wide, rtol=EPSILON[ours.dtype], atol=EPSILON[ours.dtype])
