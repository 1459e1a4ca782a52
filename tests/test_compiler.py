"""``compile_graph``: fallbacks to ATen, dumps, constants."""

import logging
import os
from functools import partial
from typing import Any

import pytest
import torch

from lowc import compiler
from lowc.errors import CodegenError, InternalError, LowcError, OptionError
from lowc.ir import types
from lowc.ir.graph import Graph, Input, Node, Ref, TensorMeta
from lowc.ir.index import ix
from lowc.ir.nodes import Launch
from lowc.options import Options
from lowc.scheduler import legalise
from lowc.trace import Trace

META = TensorMeta(types.f32, (ix(3),), (ix(1),), ix(0), "cpu")


def graph() -> Graph:
    """exp(x) * c + 1"""
    nodes = (
        Node("exp", "aten.exp.default", (Ref("x"),), (), (META,), "model.py:3 in f: x.exp()"),
        Node("mul", "aten.mul.Tensor", (Ref("exp"), Ref("c")), (), (META,), "model.py:4 in f"),
        Node("add", "aten.add.Tensor", (Ref("mul"), 1), (), (META,), "model.py:5 in f"),
    )
    return Graph("inference", (), (Input("x", META), Input("c", META)), nodes, (Ref("add"),))


def expected(x: torch.Tensor) -> torch.Tensor:
    return x.exp() * 2 + 1


C = torch.full((3,), 2.0)
INTERP = Options(isa="interp")


def broken(monkeypatch: pytest.MonkeyPatch, fails: Any) -> None:
    """Makes ``_interpreted`` raise what ``fails(module)`` returns."""
    real = compiler._interpreted

    def attempt(module: Any) -> Any:
        error = fails(module)
        if error is not None:
            raise error
        return real(module)

    monkeypatch.setattr(compiler, "_interpreted", attempt)


def kernel_of(module: Any, name: str) -> Launch | None:
    return next(
        (s for s in module.steps if isinstance(s, Launch) and s.origin[0].startswith(f"{name} = ")), None
    )


def test_a_graph_runs() -> None:
    call = compiler.compile_graph(graph(), [C], INTERP)
    x = torch.randn(3)
    torch.testing.assert_close(call([x])[0], expected(x))


def test_a_kernel_without_code_runs_in_aten(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(module: Any) -> Exception | None:
        launch = kernel_of(module, "mul")
        return CodegenError("no row for mul", origin=launch.origin) if launch else None

    broken(monkeypatch, fails)
    trace = Trace()
    with caplog.at_level(logging.WARNING, "lowc"):
        call = compiler.compile_graph(graph(), [C], INTERP, trace)
    x = torch.randn(3)
    torch.testing.assert_close(call([x])[0], expected(x))
    assert trace.counters["fallbacks"] == 1 and trace.counters["extern aten.mul.Tensor"] == 1
    assert "extern aten.exp.default" not in trace.counters
    (record,) = caplog.records
    assert (
        "mul" in record.getMessage()
        and "no row for mul" in record.getMessage()
        and len(record.getMessage().splitlines()) <= 12
    )


def test_an_error_that_names_no_kernel_leaves_all_to_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, lambda module: ZeroDivisionError("a bug") if kernel_of(module, "add") else None)
    trace = Trace()
    x = torch.randn(3)
    torch.testing.assert_close(compiler.compile_graph(graph(), [C], INTERP, trace)([x])[0], expected(x))
    assert sum(n for what, n in trace.counters.items() if what.startswith("extern")) == 3


def test_a_bug_is_called_one(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    broken(monkeypatch, lambda module: KeyError("oops") if kernel_of(module, "add") else None)
    x = torch.randn(3)
    with caplog.at_level(logging.WARNING, "lowc"):
        torch.testing.assert_close(compiler.compile_graph(graph(), [C], INTERP)([x])[0], expected(x))
    (record,) = caplog.records
    assert "a bug in lowc: KeyError: 'oops'" in record.getMessage() and "please report" in record.getMessage()
    for strict in ({"check": True}, {"strict_errors": True}):
        with pytest.raises(KeyError):
            compiler.compile_graph(graph(), [C], Options(isa="interp", **strict))  # type: ignore[arg-type]


def test_a_bug_that_aten_cannot_help_is_a_lowc_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the frontend has torch run the graph."""
    broken(monkeypatch, lambda module: KeyError("oops"))
    with pytest.raises(InternalError, match="a bug in lowc: KeyError"):
        compiler.compile_graph(graph(), [C], INTERP)


@pytest.mark.parametrize("isa", ["interp", "auto"])
def test_an_unknown_pass_is_an_error_at_once(isa: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OptionError, match="cannot switch off nonsense"):
        compiler.compile_graph(graph(), [C], Options(isa=isa, off="nonsense"))
    assert not caplog.records


@pytest.mark.parametrize("error", [LowcError("no way"), KeyError("oops")])
def test_an_error_of_a_pass_leaves_only_its_kernel_to_aten(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    real = legalise.legalise_kernel

    def attempt(kernel: Any, target: Any) -> Any:
        if "mul" in kernel.name:
            raise error
        return real(kernel, target)

    monkeypatch.setattr(legalise, "legalise_kernel", attempt)
    trace = Trace()
    x = torch.randn(3)
    call = compiler.compile_graph(graph(), [C], Options(off="inline,fuse"), trace)
    torch.testing.assert_close(call([x])[0], expected(x))
    assert {what for what in trace.counters if what.startswith("extern")} == {"extern aten.mul.Tensor"}


def test_strict_errors_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, lambda module: CodegenError("no row"))
    with pytest.raises(CodegenError, match="no row"):
        compiler.compile_graph(graph(), [C], Options(isa="interp", strict_errors=True))


def test_what_aten_cannot_help_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, lambda module: CodegenError("always"))
    with pytest.raises(CodegenError, match="always"):
        compiler.compile_graph(graph(), [C], INTERP)


def test_dumps_show_every_stage(tmp_path: Any) -> None:
    compiler.compile_graph(graph(), [C], Options(isa="interp", dump=str(tmp_path)))
    (directory,) = os.listdir(tmp_path)
    files = sorted(os.listdir(tmp_path / directory))
    assert directory == "inference.0" and files[0] == "00_graph.lowc" and files[-1].endswith("_host.py")
    assert "kernel" in (tmp_path / directory / "01_lowering.lowc").read_text()


def test_times_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    compiler.compile_graph(graph(), [C], Options(isa="interp", time=True))
    assert "lowering" in capsys.readouterr().err


def test_a_graph_that_cannot_be_compiled_is_run_by_torch(caplog: pytest.LogCaptureFixture) -> None:
    from lowc.frontend.aot import compile_module

    def fails(graph: Any, constants: Any) -> Any:
        raise LowcError("the size s0 cannot be found")

    torch._dynamo.reset()
    x = torch.randn(3)

    def compiled(strict: bool) -> Any:
        backend = partial(compile_module, compile_graph=fails, strict=strict)
        return torch.compile(lambda x: x.exp(), backend=backend)

    assert torch.equal(compiled(strict=False)(x), x.exp())
    assert "run by torch, not lowc: the size s0" in caplog.text
    with pytest.raises(Exception, match="s0 cannot be found"):
        compiled(strict=True)(x)
    torch._dynamo.reset()
