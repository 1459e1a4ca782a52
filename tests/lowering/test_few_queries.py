"""Attention of few queries on a GPU: rows of a tile are of all heads that share keys, and ranges of keys are computed apart."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from lowc.ir.graph import Graph, TensorMeta
from lowc.ir.index import Symbol, ix
from lowc.ir.nodes import Launch, Module
from lowc.ir.verify import verify_module
from lowc.lowering import few_queries
from lowc.lowering.lower import lower
from lowc.options import Options
from lowc.scheduler import choose_attention, choose_library
from tests.lowering.harness import run, trace
from tests.lowering.test_attention import close, reference
from tests.scheduler.attentions import TARGET

OWN = Options(attention="own")
ops = torch.ops.aten


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of few keys are worth it."""
    for name in ("COMBINED", "RANGE"):
        monkeypatch.setattr(few_queries, name, 0.0)


def on_gpu(graph: Graph) -> Graph:
    def moved(meta: Any) -> Any:
        return replace(meta, device="cuda:0") if isinstance(meta, TensorMeta) else meta

    inputs = tuple([replace(i, meta=moved(i.meta)) for i in graph.inputs])
    return replace(graph, inputs=inputs, nodes=tuple([replace(n, outputs=tuple(map(moved, n.outputs))) for n in graph.nodes]))


def lowered(function: Callable[..., Any], *args: torch.Tensor) -> Module:
    return of_graph(on_gpu(trace(function, args)))


def of_graph(graph: Graph) -> Module:
    """As for a GPU, with nothing left to ATen."""
    asked = {"library": choose_library.library(TARGET, OWN), "attention": choose_attention.library(TARGET, OWN)}
    module = lower(graph, OWN, target=TARGET, **asked)  # type: ignore[arg-type]
    verify_module(module, "LOOPS")
    assert all(isinstance(s, Launch) for s in module.steps)
    return module


def names(module: Module) -> list[str]:
    return [s.kernel.name.partition("attention")[2] for s in module.steps if isinstance(s, Launch)]


def qkv(
    heads: int, shared: int, rows: int, keys: int, deep: int = 16, dtype: torch.dtype = torch.float16
) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    shapes = ((2, heads, rows, deep), (2, shared, keys, deep), (2, shared, keys, deep))
    return tuple(torch.randn(s, dtype=torch.float64).to(dtype) for s in shapes)


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return ops._scaled_dot_product_flash_attention_for_cpu(q, k, v)


@pytest.mark.parametrize(
    ("heads", "shared", "rows", "keys", "ranges"),
    [(2, 2, 1, 512, 4), (4, 2, 1, 256, 2), (4, 1, 3, 300, 3), (2, 2, 2, 640, 5), (6, 2, 1, 128, 0), (4, 2, 5, 100, 0)],
)  # fmt: skip
def test_ranges_of_keys(heads: int, shared: int, rows: int, keys: int, ranges: int) -> None:
    args = qkv(heads, shared, rows, keys)
    module = lowered(flash, *args)
    if ranges:
        assert f"_in_{ranges}_ranges_of_keys" in names(module)[0]
        assert len(names(module)) == 3  # parts, results, logarithms
    else:
        assert len(names(module)) == 1
    out, sums = run(module, list(args))
    wide, wide_sums = reference(*args[:3])
    close(out, wide, torch.float16)
    close(sums, wide_sums, torch.float32)
    assert out.stride() == flash(*args)[0].stride()


def test_queries_that_lie_apart_are_copied_for_heads_that_share_keys() -> None:
    q, k, v = qkv(4, 2, 3, 256)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    module = lowered(lambda q, k, v: flash(q, k, v)[0], q, k, v)
    assert len(names(module)) == 3  # with the copy
    close(run(module, [q, k, v])[0], reference(q, k, v)[0], torch.float16)


@pytest.mark.parametrize("keys", [1, 127, 700, 4300])
def test_lengths_of_the_call(keys: int) -> None:
    n = Symbol("n", 1, None)
    graph = on_gpu(trace(lambda q, k, v: flash(q, k, v)[0], qkv(4, 2, 1, 500)))
    shape, strides = (ix(2), ix(2), ix(n), ix(16)), (32 * ix(n), 16 * ix(n), ix(16), ix(1))
    caches = [replace(i, meta=replace(i.meta, shape=shape, strides=strides)) for i in graph.inputs[1:]]  # type: ignore[type-var]
    module = of_graph(replace(graph, inputs=(graph.inputs[0], *caches), symbols=(n,)))
    assert "_in_33_ranges" in names(module)[0]
    args = qkv(4, 2, 1, keys)
    close(run(module, list(args))[0], reference(*args[:3])[0], torch.float16)


def test_rows_that_see_nothing_and_nan() -> None:
    q, k, v = qkv(2, 2, 2, 512)
    mask = torch.ones(2, 1, 2, 512, dtype=torch.bool)
    mask[0, :, 0] = False
    mask[0, :, 1, 128:] = False
    mask[1, :, :, :400] = False
    bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, -math.inf)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> Any:
        return ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=bias)[0]

    module = lowered(function, q, k, v, bias)
    assert "_in_4_ranges" in names(module)[0]
    out = run(module, [q, k, v, bias])[0]
    close(out, reference(q, k, v, bias=mask)[0], torch.float16)
    assert (out[0, :, 0] == 0).all()
    k[1, 0, 450, 0] = math.nan
    out = run(module, [q, k, v, bias])[0]
    assert out[1, 0].isnan().all()
    assert not out[0].isnan().any()
    assert not out[1, 1].isnan().any()


def test_scores_that_read_keys_need_whole_ranges() -> None:
    """There is nothing to be read beyond the last key."""
    for keys, ranges in ((512, True), (500, False)):
        q, k, v = qkv(2, 2, 1, keys)
        bias = torch.randn(2, 1, 1, keys).half()
        module = lowered(
            lambda q, k, v, bias: ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=bias)[0], q, k, v, bias
        )
        assert ("ranges" in names(module)[0]) == ranges
        close(run(module, [q, k, v, bias])[0], reference(q, k, v, bias=bias)[0], torch.float16)


def test_many_queries_and_causal_masks_are_as_before() -> None:
    for rows, causal in ((65, False), (8, True)):
        args = qkv(2, 2, rows, 512)
        module = lowered(lambda q, k, v, c=causal: ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, c)[0], *args)
        assert "ranges" not in "".join(names(module))
