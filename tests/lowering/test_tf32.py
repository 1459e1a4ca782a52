"""Products of f32 on a GPU: where torch allows TF32 they may be lowc's own, of both factors rounded."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lowc.backends.nvptx import default
from lowc.ir.graph_printer import print_graph
from lowc.ir.interp import run_module
from lowc.ir.nodes import Extern, For, Launch, Module
from lowc.ir.ops import OPS
from lowc.ir.walk import statements
from lowc.lowering import lower as lowering
from lowc.options import Options
from lowc.scheduler import pipeline
from lowc.scheduler.choose_library import library
from tests.lowering.harness import trace

TARGET = default()
OWN = Options(matmul="own")
Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    """Leaves torch's setting as it was."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Module]:
    monkeypatch.setitem(lowering.__globals__, "device_of", lambda graph: "cuda:0")
    return lambda function, *args, options=OWN: lowering(trace(function, args), options, library=library(TARGET, options))


def why(module: Module) -> list[str]:
    return [s.because for s in module.steps if isinstance(s, Extern)]


def instructions(module: Module) -> list[str]:
    for each in pipeline.PASSES:
        if each.only in ("", "nvptx"):
            module = pipeline.apply(each, module, TARGET, OWN)
    kernels = [s.kernel for s in module.steps if isinstance(s, Launch)]
    return [s.kind.key for k in kernels for s in statements(k.body) if isinstance(s, For) and s.kind.name == "instr"]


def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.relu(F.linear(x.relu(), w))


def test_allowed_by_the_setting_when_traced(lowered: Callable[..., Module]) -> None:
    x, w = torch.empty(64, 128), torch.empty(96, 128)
    for setting in ("high", "medium"):
        torch.set_float32_matmul_precision(setting)
        module = lowered(linear, x, w)
        assert why(module) == []
        assert instructions(module) == ["tma", "tma", "wgmma", "tma"]  # what is computed before it is no part of a factor
    torch.set_float32_matmul_precision("highest")
    assert "where TF32 is allowed" in why(lowered(linear, x, w))[0]


def test_only_factors_that_lie_along_the_depth(lowered: Callable[..., Module]) -> None:
    torch.set_float32_matmul_precision("high")
    x, w = torch.empty(64, 128), torch.empty(128, 96)
    odd = torch.empty(64, 127), torch.empty(96, 127)
    cases: list[tuple[Function, tuple[torch.Tensor, torch.Tensor]]] = [
        (lambda x, w: x @ w, (x, w)), (lambda x, w: x.t() @ w.t(), (torch.empty(128, 64), w.t().contiguous())),
        (lambda x, w: x @ w.t(), odd),
    ]  # fmt: skip
    for function, args in cases:
        assert "along the depth" in why(lowered(function, *args))[0]
    assert why(lowered(lambda x, w: torch.bmm(x, w.mT), torch.empty(3, 64, 128), torch.empty(3, 96, 128))) == []
    assert "no product of two matrices" in why(lowered(lambda x, w: x @ w.t(), x[:1], torch.empty(96, 128)))[0]
    assert "option matmul='own'" in why(lowered(linear, x, torch.empty(96, 128), options=Options()))[0]


def test_the_graph_says_so() -> None:
    function, args = (lambda x, w: x @ w.t()), (torch.empty(8, 8), torch.empty(8, 8))
    torch.set_float32_matmul_precision("highest")
    exact = print_graph(trace(function, args))
    torch.set_float32_matmul_precision("high")
    assert print_graph(trace(function, args)) == exact.replace(" {", " tf32 {", 1)


def test_dynamo_compiles_anew_where_the_setting_has_changed() -> None:
    compiled: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
        compiled.append(torch.get_float32_matmul_precision())
        return graph.forward

    torch._dynamo.reset()
    function = torch.compile(lambda x: x @ x, backend=backend)
    for setting in ("highest", "high", "highest"):
        torch.set_float32_matmul_precision(setting)
        function(torch.ones(2, 2))
    assert compiled == ["highest", "high"]


def test_what_is_multiplied(lowered: Callable[..., Module]) -> None:
    """Sums of rounded factors, by the interpreter."""
    torch.set_float32_matmul_precision("high")
    x, w = torch.randn(7, 12), torch.randn(5, 12)
    module = lowered(lambda x, w: x @ w.t(), x, w)
    found = np.asarray(run_module(module, [x.numpy(), w.numpy()])[0])
    rounded = [OPS["tf32"].numpy(t.numpy()).astype(np.float64) for t in (x, w)]
    np.testing.assert_allclose(found, rounded[0] @ rounded[1].T, rtol=1e-5, atol=1e-5)
    assert np.abs(found - (x.double() @ w.double().t()).numpy()).max() > 1e-5
