"""Attention of a few queries, whose keys and values are in the pages of a cache that a table tells."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import flex_attention as torchs
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import lowc
from lowc.backends import nvptx
from lowc.compiler import lowered, target_of
from lowc.frontend.aot import compile_module
from lowc.ir.nodes import Kernel, Launch
from lowc.ir.relays import block_body, relay
from lowc.lowering import few_queries
from lowc.options import Options, parse
from lowc.scheduler import pipeline
from tests.e2e.test_flex_attention_gpu import HERE, for_gpu

BATCH, HEADS, DEEP, PAGE, PAGES = 2, 3, 64, 16, 12
OPTIONS: dict[str, Any] = {"attention": "own", "strict_errors": True, "check": True, "cache": False}


@pytest.fixture(autouse=True)
def as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    torch._dynamo.reset()
    torch.manual_seed(0)


def paged(q: Tensor, keys: Tensor, values: Tensor, table: Tensor) -> Tensor:
    k, v = (c[table].reshape(table.shape[0], -1, *c.shape[2:]).transpose(1, 2) for c in (keys, values))
    return F.scaled_dot_product_attention(q, k, v)


def given(pages: int, dtype: torch.dtype, rows: int = 1) -> tuple[Tensor, ...]:
    caches = [torch.randn(PAGES, PAGE, HEADS, DEEP).to(dtype) for _ in range(2)]
    table = torch.randint(0, PAGES, (BATCH, pages))
    return torch.randn(BATCH, HEADS, rows, DEEP).to(dtype), *caches, table


@pytest.mark.parametrize(("pages", "dtype", "rows"), [(5, torch.float32, 1), (37, torch.bfloat16, 1), (4, torch.float32, 3)])
def test_keys_by_pages(pages: int, dtype: torch.dtype, rows: int) -> None:
    args = given(pages, dtype, rows)
    compiled = torch.compile(paged, backend="lowc", fullgraph=True, options=OPTIONS)
    exact = paged(*(a.double() for a in args[:3]), args[3])
    assert off(compiled(*args), exact) <= 2 * torch.finfo(dtype).eps
    with pytest.raises(IndexError):
        compiled(*args[:3], args[3] + PAGES)


def test_nothing_is_gathered_into_memory() -> None:
    """One kernel, which reads the caches."""
    found: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        def compile_graph(graph: Any, constants: Any) -> Any:
            options = Options(attention="own")
            target = target_of(graph, options)
            assert target is not None
            found.extend(pipeline.run(lowered(graph, options, target), target, options).steps)
            return lowc.compile_graph(graph, constants, parse(None, OPTIONS))

        return compile_module(gm, inputs, compile_graph, strict=True)

    torch.compile(paged, backend=backend, fullgraph=True)(*given(4, torch.float32))
    assert [isinstance(s, Launch) for s in found] == [True]


def by_pages(rows: int, page: int, dtype: torch.dtype, device: str = "cpu") -> tuple[list[Tensor], Any, Tensor]:
    """(queries and caches, torch's mask of a cache in pages, the result in float64)."""
    keys, held = page * 4, 9
    q = torch.randn(BATCH, HEADS, rows, DEEP, device=device).to(dtype)
    k, v = (torch.randn(BATCH, HEADS, keys, DEEP, device=device).to(dtype) for _ in range(2))
    caches = [torch.zeros(1, HEADS, held * page, DEEP, device=device).to(dtype) for _ in range(2)]
    pages = PagedAttention(held, page, BATCH, device=device)
    for b in range(BATCH):
        pages.reserve(torch.tensor(b, device=device), torch.tensor(keys, device=device))
    numbers = torch.arange(keys, device=device).expand(BATCH, keys)
    pages.assign(torch.arange(BATCH, device=device), numbers, k, v, caches[0], caches[1])
    seen = create_block_mask(lambda b, h, i, j: i + 50 >= j, BATCH, None, rows, keys, device=device, BLOCK_SIZE=(128, page))
    exact = flex_attention(q.double(), k.double(), v.double(), block_mask=seen)
    assert isinstance(exact, Tensor)
    return [q, *caches], pages.convert_logical_block_mask(seen), exact


def off(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def test_flex_attention_by_pages() -> None:
    """A mask by a table of pages, as torch converts it."""
    args, seen, exact = by_pages(2, PAGE, torch.float32)
    compiled = torch.compile(lambda *a: flex_attention(*a, block_mask=seen), backend="lowc", fullgraph=True, options=OPTIONS)
    assert off(compiled(*args), exact) < 1e-6


@pytest.mark.parametrize("rows", [3, 1])
def test_pages_of_others_are_left_out_on_a_gpu(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table says of a tile of keys whether it is one of a batch's."""
    monkeypatch.setattr(few_queries, "COMBINED", 1e3)  # one range
    kernels = kernels_by_pages(rows)
    found = relay(block_body(kernels[-1].body))
    assert found is not None
    assert [t.seen is not None for t in found.turns] == [False, True]


@pytest.mark.parametrize(("size", "turns"), [(1, [False]), (3, [False, True])])
def test_pages_of_others_are_left_out_in_ranges(size: int, turns: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """But the first tile of each."""
    monkeypatch.setattr(few_queries, "_time", lambda tiles, n, *_: abs(n - size))
    kernels = kernels_by_pages(1)
    assert [f"_in_{9 // size}_ranges_of_keys" in k.name for k in kernels[-2:]] == [True, False]
    found = relay(block_body(kernels[-2].body))
    assert found is not None
    assert [t.seen is not None for t in found.turns] == turns


def test_ranges_with_pages_left_out_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """More would wait for tiles that nobody needs."""
    monkeypatch.setattr(few_queries, "_time", lambda tiles, n, *_: n)
    few = replace(nvptx.default(), cores=BATCH * HEADS * 4 - 1)
    monkeypatch.setattr(nvptx, "default", lambda: few)
    assert "_in_3_ranges_of_keys" in kernels_by_pages(1)[-2].name


def kernels_by_pages(rows: int) -> list[Kernel]:
    """Those of attention by pages of 128, whose result is checked."""
    args, seen, exact = by_pages(rows, 128, torch.bfloat16)
    steps, result = for_gpu(lambda *a: flex_attention(*a, block_mask=seen), args)
    kernels = [s.kernel for s in steps if isinstance(s, Launch)]
    assert len(kernels) == len(steps)
    assert off(result, exact) < 8e-3
    return kernels


@pytest.mark.gpu
@HERE
@pytest.mark.parametrize(("rows", "page"), [(16, 128), (1, 128), (1, 16)])
def test_pages_on_a_gpu(rows: int, page: int) -> None:
    args, seen, exact = by_pages(rows, page, torch.bfloat16, "cuda")
    compiled = torch.compile(lambda *a: flex_attention(*a, block_mask=seen), backend="lowc", fullgraph=True, options=OPTIONS)
    for _ in range(2):
        assert off(compiled(*args), exact) < 8e-3
