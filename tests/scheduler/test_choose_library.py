"""Whose a matrix product on a GPU is with option ``matmul="auto"``, and what is said of it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from lowc.backends.nvptx import default
from lowc.ir.index import Index, Symbol, ix
from lowc.ir.nodes import Extern, Launch, Module
from lowc.ir.types import bf16, f16, f32
from lowc.lowering import lower as lowering
from lowc.options import Options
from lowc.scheduler.choose_library import gain_of, library
from lowc.scheduler.choose_tensor_cores import Size
from tests.lowering.harness import trace

TARGET = default()


def said(m: int | Index, n: int, k: int, followed: bool = False, in_lines: bool = True, matmul: str = "auto", dtype=bf16) -> str:  # noqa: ANN001
    return library(TARGET, Options(matmul=matmul))(dtype, (ix(m), ix(k)), (ix(k), ix(n)), followed, in_lines)


def test_a_product_by_itself_is_the_library_s() -> None:
    for m, n, k in ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 1024)):
        assert "0.97 of what lowc's own would" in said(m, n, k)


def test_lowc_s_own_where_pointwise_ops_follow() -> None:
    for m, n, k in ((4096, 4096, 4096), (16384, 3072, 768), (8192, 4096, 1024)):
        assert said(m, n, k, followed=True) == ""
        assert said(m, n, k, followed=True, dtype=f16) == ""
    assert "library" in said(8192, 8192, 8192, followed=True, matmul="library")


def test_lowc_s_own_where_rows_begin_anywhere() -> None:
    assert said(4096, 4096, 4097, in_lines=False) == ""
    assert gain_of(Size(1, 4096, 4096, 4097), False, False, 132) > 2


def test_what_is_the_library_s_whatever_follows() -> None:
    assert "only the call tells" in said(ix(Symbol("m", 1, None, 4096)), 4096, 4096, followed=True)
    assert "small" in said(16, 4096, 4096, followed=True)
    assert "not f32" in said(4096, 4096, 4096, followed=True, dtype=f32)
    depth = ix(Symbol("k", 0))
    assert "depth may be 0" in library(TARGET, Options())(bf16, (ix(64), depth), (depth, ix(64)), True, True)
    older = replace(TARGET, ops=TARGET.ops - {"wgmma"}, cpu="sm_80")
    assert "not sm_80" in library(older, Options())(bf16, (ix(512), ix(512)), (ix(512), ix(512)), True, True)


def test_option_own_is_for_all_that_there_is_code_for() -> None:
    assert said(16, 4096, 4096, matmul="own") == ""
    assert said(ix(Symbol("m", 1, None, 4096)), 4096, 4096, matmul="own") == ""


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Module]:
    monkeypatch.setitem(lowering.__globals__, "device_of", lambda graph: "cuda:0")
    why = library(TARGET, Options())
    return lambda function, *args: lowering(trace(function, args), Options(), library=why)


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty(8, 512, 768).bfloat16(), torch.empty(3072, 768).bfloat16(), torch.empty(3072).bfloat16()


def test_what_follows_is_seen_in_the_graph(lowered: Callable[..., Module]) -> None:
    x, w, b = tensors()
    flat = x.view(4096, 768)

    def products(module: Module) -> tuple[int, int]:
        return len([s for s in module.steps if isinstance(s, Launch)]), len([s for s in module.steps if isinstance(s, Extern)])

    assert products(lowered(lambda x, w, b: F.gelu(torch.addmm(b, x, w.t())), flat, w, b)) == (2, 0)
    assert products(lowered(lambda x, w, b: F.silu(torch.mm(x.view(4096, 768), w.t()).view(8, 512, 3072)), x, w, b)) == (2, 0)
    assert products(lowered(lambda x, w: torch.mm(x, w.t()), flat, w)) == (0, 1)
    assert products(lowered(lambda x, w: torch.mm(x, w.t()).sum(0), flat, w)) == (1, 1)
    assert products(lowered(lambda x, w: torch.mm(x, w.t()).softmax(-1), flat, w)) == (1, 1)

    def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.mm(x, w.t())
        return y, y.relu()

    assert products(lowered(both, flat, w)) == (1, 1)  # the product has to be stored all the same
