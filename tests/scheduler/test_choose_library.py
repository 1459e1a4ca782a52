"""Whose a matrix product on a GPU is with option ``matmul="auto"``, and what is said of it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from lowc.backends.nvptx import default
from lowc.ir.index import Index, Symbol, ix
from lowc.ir.nodes import Extern, Launch, Module
from lowc.ir.printer import print_module
from lowc.ir.types import DType, bf16, f8e4m3, f8e5m2, f16, f32, f64, i8
from lowc.lowering import lower as lowering
from lowc.options import Options
from lowc.scheduler import pipeline
from lowc.scheduler.choose_library import gain_of, library
from lowc.scheduler.choose_tensor_cores import Size
from lowc.target import Target
from tests.lowering.harness import trace

TARGET = default()


def said(
    m: int | Index, n: int, k: int, followed: bool = False, in_lines: bool = True, along: bool = True, *, matmul: str = "auto",
    dtype: DType = bf16, batch: tuple[int, ...] = (), pieces: int = 16, on: Target = TARGET,
    loose: bool = False,
) -> str:  # fmt: skip
    x, y = ([ix(s) for s in (*batch, *shape)] for shape in ((m, k), (k, n)))
    return library(on, Options(matmul=matmul))(dtype, x, y, followed, in_lines, along, pieces, loose)


def test_a_product_by_itself_is_the_library_s() -> None:
    for m, n, k in ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 1024)):
        assert "0.97 of what lowc's own would" in said(m, n, k)


MEASURED = [  # own / library on an H200, benchmarks/results/h200_matmul.md; batch, rows, columns, depth, layout
    (1.39, (), 1, 4096, 4096, "nt"), (1.20, (), 1, 11008, 4096, "nt"), (1.21, (), 64, 64, 64, "nt"),
    (1.20, (), 128, 128, 128, "nt"), (1.22, (), 256, 256, 256, "nt"), (1.20, (), 512, 512, 512, "nt"),
    (1.06, (), 1024, 1024, 1024, "nt"),
    (1.42, (), 128, 4096, 4096, "nt"), (1.12, (), 64, 4096, 11008, "nt"), (1.17, (), 256, 256, 16384, "tn"),
    (1.06, (), 768, 768, 16384, "tn"), (1.07, (32,), 1024, 1024, 64, "nt"), (1.09, (128,), 512, 512, 64, "nt"),
    (1.22, (64,), 512, 512, 128, "nn"), (1.05, (32,), 1024, 64, 1024, "nn"), (1.03, (16,), 1024, 1024, 1024, "nn"),
    (1.36, (12,), 64, 64, 4096, "nn"), (1.17, (256,), 128, 128, 64, "nt"),
    (1.01, (), 8, 4096, 4096, "nt"), (1.03, (), 64, 4096, 4096, "nt"), (0.91, (), 16, 11008, 4096, "nt"),
    (1.00, (), 8, 4096, 11008, "nt"), (0.94, (), 768, 3072, 16384, "tn"), (1.01, (), 1024, 4096, 4096, "tn"),
    (0.83, (), 1536, 3072, 16384, "tn"), (1.01, (), 2048, 2048, 2048, "nt"), (1.00, (), 512, 4096, 4096, "nt"),
    (0.91, (), 5000, 3000, 2000, "nt"), (1.00, (), 16384, 768, 3072, "nt"), (0.97, (), 2560, 2560, 10240, "nt"),
]  # fmt: skip


@pytest.mark.parametrize(("gain", "batch", "m", "n", "k", "form"), MEASURED, ids=str)
def test_lowc_s_own_where_it_was_measured_to_be_faster(
    gain: float, batch: tuple[int, ...], m: int, n: int, k: int, form: str
) -> None:
    for followed in (False, True) if gain > 1.03 or batch else (False,):
        assert (said(m, n, k, followed, along=form == "nt", batch=batch) == "") == (gain > 1.03 or bool(batch))


def test_what_was_measured_along_the_depth_only_is_the_library_s_otherwise() -> None:
    for m, n, k in ((1, 4096, 4096), (128, 4096, 4096), (64, 4096, 11008)):
        assert "" != said(m, n, k, along=False)
        assert "" != said(m, n, k, in_lines=False)
    assert "no product of two matrices" in said(4096, 1, 4096)
    assert "no product of two matrices" in said(1, 4096, 4096, batch=(8,))


def test_lowc_s_own_where_pointwise_ops_follow() -> None:
    for m, n, k in ((4096, 4096, 4096), (16384, 3072, 768), (8192, 4096, 1024)):
        assert said(m, n, k, followed=True) == ""
        assert said(m, n, k, followed=True, dtype=f16) == ""
    assert "library" in said(8192, 8192, 8192, followed=True, matmul="library")


def test_the_library_s_where_the_last_round_of_tiles_is_short() -> None:
    """It had 1.13 to 1.20 of lowc's speed there, which pointwise ops do not make up for."""
    for m, n, k in ((1536, 3072, 4096), (1536, 3072, 16384), (768, 3072, 16384)):
        assert "of what lowc's own would" in said(m, n, k, followed=True)
    for m, n, k in ((16384, 768, 3072), (2048, 2048, 2048), (512, 4096, 4096)):
        assert said(m, n, k, followed=True) == ""


def test_lowc_s_own_where_rows_begin_anywhere() -> None:
    assert said(4096, 4096, 4097, in_lines=False) == ""
    assert gain_of(Size(1, 4096, 4096, 4097), False, False, 132) > 2


EIGHTHS = [  # library / own on an H200, benchmarks/results/h200_fp8.md; rows, columns, depth, whether sums may be loose
    (1.05, 4096, 4096, 4096, False), (0.99, 4096, 4096, 4096, True), (1.06, 2048, 4096, 14336, False),
    (0.97, 2048, 28672, 4096, True), (1.14, 8192, 4096, 1024, False), (1.89, 16, 4096, 14336, False),
    (1.79, 128, 4096, 4096, True), (0.87, 5000, 3072, 2000, False), (0.62, 5000, 3072, 2000, True),
]  # fmt: skip


@pytest.mark.parametrize(("gain", "m", "n", "k", "loose"), EIGHTHS, ids=str)
def test_float8(gain: float, m: int, n: int, k: int, loose: bool) -> None:
    assert (said(m, n, k, dtype=f8e4m3, loose=loose) == "") == (gain > 1.02)
    if gain > 0.9:
        assert said(m, n, k, followed=True, dtype=f8e5m2, loose=loose) == ""
    assert said(m, n, k, dtype=f8e4m3, loose=loose, matmul="own") == ""


def test_float8_that_there_is_no_code_for() -> None:
    older = replace(TARGET, ops=TARGET.ops - {"wgmma"}, cpu="sm_80")
    for given in ({"on": older}, {"along": False}, {"in_lines": False}):
        for matmul in ("auto", "own"):
            assert "" != said(4096, 4096, 4096, dtype=f8e4m3, matmul=matmul, **given)  # type: ignore[arg-type]
    assert "only the call tells" in said(ix(Symbol("m", 1, None, 4096)), 4096, 4096, followed=True, dtype=f8e4m3)


OUT_OF_LINE = [  # library / own on an H200, benchmarks/results/h200_mma.md; rows, columns, depth, bytes of pieces
    (1.34, 512, 511, 510, 4), (1.54, 500, 2000, 500, 8), (0.94, 512, 512, 511, 2), (0.91, 256, 255, 253, 2),
]  # fmt: skip


@pytest.mark.parametrize(("gain", "m", "n", "k", "pieces"), OUT_OF_LINE, ids=str)
def test_rows_that_begin_anywhere_and_are_not_copied_first(gain: float, m: int, n: int, k: int, pieces: int) -> None:
    assert (said(m, n, k, in_lines=False, pieces=pieces) == "") == (gain > 1)


def test_products_by_warps_are_for_who_asks() -> None:
    older = replace(TARGET, ops=TARGET.ops - {"wgmma"}, cpu="sm_80")
    assert "from 8.0 on with option matmul='own'" in said(4096, 4096, 4096, followed=True, on=older)
    assert said(4096, 4096, 4096, matmul="own", on=older) == ""
    assert said(4096, 4096, 4096, matmul="own", dtype=i8) == said(4096, 4096, 4096, matmul="own", dtype=i8, on=older) == ""
    for asked in ({"matmul": "auto"}, {"matmul": "own", "along": False}):
        assert "of i8" in said(4096, 4096, 4096, dtype=i8, **asked)  # type: ignore[arg-type]
    assert "no product" in said(1, 4096, 4096, matmul="own", dtype=i8)
    none = replace(older, ops=older.ops - {"mma"}, cpu="sm_75")
    assert "not sm_75" in said(4096, 4096, 4096, matmul="own", on=none)


def test_what_is_the_library_s_whatever_follows() -> None:
    assert "only the call tells" in said(ix(Symbol("m", 1, None, 4096)), 4096, 4096, followed=True)
    assert "small" in said(16, 4096, 4096, followed=True)
    assert "not f64" in said(4096, 4096, 4096, followed=True, dtype=f64)
    assert "option matmul='own'" in said(4096, 4096, 4096, followed=True, dtype=f32)
    depth = ix(Symbol("k", 0))
    assert "depth may be 0" in library(TARGET, Options())(bf16, (ix(64), depth), (depth, ix(64)), True, True, True)
    older = replace(TARGET, ops=TARGET.ops - {"wgmma"}, cpu="sm_80")
    assert "not sm_80" in library(older, Options())(bf16, (ix(512), ix(512)), (ix(512), ix(512)), True, True, True)


def test_strict_numerics_leave_products_to_the_library() -> None:
    strict = Options(numerics="strict")
    shapes = (ix(4096), ix(4096)), (ix(4096), ix(4096))
    assert "strict" in library(TARGET, strict)(bf16, *shapes, True, True, True)
    assert library(TARGET, Options(numerics="strict", matmul="own"))(bf16, *shapes, True, True, True) == ""


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


LAYOUTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "plain": lambda x, w: x @ w,
    "turned": lambda x, w: x.t() @ w,
    "weight": lambda x, w: x @ w.t(),
    "copied": lambda x, w: x.t().contiguous() @ w,
    "cast, turned and copied": lambda x, w: x.float().bfloat16().t().contiguous() @ w,
    "window": lambda x, w: x[:, 3:515].contiguous() @ w[:512],
    "heads": lambda x, w: x.view(2, 512, 16, 64).transpose(1, 2).reshape(1024, 1024) @ w,
    "batch": lambda x, w: torch.bmm(x.view(2, 512, 1024), w.view(2, 1024, 512)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_lowc_s_own_runs_on_tensor_cores(lowered: Callable[..., Module], layout: str) -> None:
    """Whatever lay where, an engine brings both factors and takes the result away."""
    x, w = torch.empty(1024, 1024).bfloat16(), torch.empty(1024, 1024).bfloat16()
    module = lowered(lambda x, w: F.relu(LAYOUTS[layout](x, w)), x, w)
    assert not [s for s in module.steps if isinstance(s, Extern)]
    for each in pipeline.PASSES:
        if each.only in ("", "nvptx"):
            module = pipeline.apply(each, module, TARGET, Options())
    text = print_module(module)
    assert "instr(wgmma)" in text and text.count("instr(tma)") == 3 and "instr(copy)" not in text


@pytest.mark.parametrize("shape", [(), (1, 1024), (1024, 1)])
def test_an_expanded_factor_is_the_library_s(lowered: Callable[..., Module], shape: tuple[int, ...]) -> None:
    """Its product has no rows, or no depth, that tiles could be made of."""
    g, w = torch.empty(shape).bfloat16(), torch.empty(1024, 1024).bfloat16()
    for product in (lambda g, w: g.expand(1024, 1024) @ w, lambda g, w: w @ g.expand(1024, 1024)):
        module = lowered(lambda g, w, product=product: F.relu(product(g, w)), g, w)
        assert [s.because for s in module.steps if isinstance(s, Extern)] == ["a library's (a factor is expanded)"]
