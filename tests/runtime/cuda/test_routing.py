"""Graphs on a GPU go through ``compile_graph`` to the GPU's runtime; here kernels run in the interpreter, on the fake device."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fakes
import pytest
import torch

from lowc import compiler, reuse
from lowc.backends import x86
from lowc.cache.folder import Folder
from lowc.errors import LowcError, Unsupported
from lowc.ir import types
from lowc.ir.graph import Graph, Input, Node, Ref, TensorMeta
from lowc.ir.index import Index, Symbol, ix
from lowc.ir.interp import run_kernel
from lowc.ir.nodes import Launch, Module
from lowc.options import Options
from lowc.runtime.cuda import device as devices
from lowc.runtime.cuda import program as programs
from lowc.runtime.interpreted import _memory
from tests.cache.graphs import source

ROWS = Symbol("s0", 2, None)


def meta(*shape: Index, device: str = "cuda:0") -> TensorMeta:
    strides, step = [], ix(1)
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return TensorMeta(types.f32, shape, tuple(reversed(strides)), ix(0), device)


def graph(device: str = "cuda:0") -> Graph:
    """(exp(x) @ w + 1).sum(1), for any number of rows"""
    n, k = ix(ROWS), ix(4)
    x, w, row = meta(n, k, device=device), meta(k, k, device=device), meta(n, device=device)
    nodes = (
        Node("exp", "aten.exp.default", (Ref("x"),), (), (x,), "model.py:3 in f: x.exp()"),
        Node("mm", "aten.mm.default", (Ref("exp"), Ref("w")), (), (x,), "model.py:4 in f"),
        Node("add", "aten.add.Tensor", (Ref("mm"), 1), (), (x,), "model.py:5 in f"),
        Node("sum", "aten.sum.dim_IntList", (Ref("add"), (1,)), (), (row,), "model.py:6 in f"),
    )
    return Graph("inference", (ROWS,), (Input("x", x), Input("w", w)), nodes, (Ref("sum"), Ref("exp")))


def expected(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    return [(x.exp() @ w + 1).sum(1), x.exp()]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The fake device, for which a backend makes the "PTX": kernels that the interpreter runs."""
    made = fakes.device()
    _, fake, _ = made

    def interpret(launch: Launch) -> Any:
        kernel = launch.kernel

        def run(params: list[int], blocks: int) -> None:
            sizes = dict(zip((s.name for s in kernel.sizes), params[len(kernel.params) :], strict=False))
            memory = {p.name: _memory(a, b, sizes) for p, b, a in zip(kernel.params, launch.args, params)}
            run_kernel(kernel, memory, sizes)

        return run

    def compile_module(module: Module, target: Any, options: Options) -> Any:
        for step in module.steps:
            if isinstance(step, Launch):
                fake.counts[step.kernel.name] = len(step.args) + len(step.kernel.sizes) + 2
                fake.kernels[step.kernel.name] = interpret(step)
        found = fakes.artifact(module)
        names = "".join(f".entry {name}\n" for name in found.entries)
        return type(found)("nvptx", names.encode(), found.slots, found.program, module, found.entries)

    backend = SimpleNamespace(
        target=lambda *facts: x86.detect(Options(threads=False)),
        compile_module=compile_module,
        stages=lambda *_: {},
    )
    monkeypatch.setattr(compiler, "import_module", lambda name: backend)
    monkeypatch.setattr(
        devices, "facts", lambda index: devices.Facts("fake", (9, 0), 132, 1 << 20, 1 << 16, 13000)
    )
    monkeypatch.setattr(programs, "device", lambda index, walker: made[0])
    return made


@pytest.mark.parametrize("stream", ["own", "caller"])
def test_a_graph_runs(on: Any, stream: str) -> None:
    call = compiler.compile_graph(graph(), options=Options(stream=stream))
    assert call.program.artifact.target == "nvptx" and call.program.gpu.stream == stream
    w = torch.randn(4, 4)
    for rows in (3, 2, 7):
        x = torch.randn(rows, 4)
        for got, want in zip(call([x, w]), expected(x, w), strict=True):
            torch.testing.assert_close(got, want)
    assert fakes.of(on[1].log, "launch")


def test_a_graph_that_is_in_the_cache_is_only_loaded(
    on: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    w, programs = torch.randn(4, 4), []
    for stream in ("own", "caller", "own"):
        call: Any = reuse.compile_or_reuse(source(graph()), Options(stream=stream), Folder(str(tmp_path), 1 << 30))
        assert call.program.artifact.target == "nvptx" and call.program.gpu.stream == stream
        for rows in (3, 2, 7):
            x = torch.randn(rows, 4)
            for got, want in zip(call([x, w]), expected(x, w), strict=True):
                torch.testing.assert_close(got, want)
        programs.append(call.program)
        monkeypatch.setattr(reuse, "_compiled", lambda *_: pytest.fail("compiled again"))
    first, _, last = programs
    assert last.source == first.source and last.artifact.entries == first.artifact.entries
    assert last.artifact.code == first.artifact.code == on[1].loaded[-1]
    monkeypatch.setattr(devices, "facts", lambda index: devices.Facts("fake", (9, 0), 132, 1 << 20, 1 << 16, 12090))
    with pytest.raises(pytest.fail.Exception, match="compiled again"):  # another driver
        reuse.compile_or_reuse(source(graph()), Options(), Folder(str(tmp_path), 1 << 30))
    assert not caplog.records


def test_a_kernel_that_the_driver_rejects_is_left_to_aten(on: Any, caplog: pytest.LogCaptureFixture) -> None:
    loads: list[bytes] = []

    def load(image: bytes) -> tuple[int, str, str]:
        loads.append(image)
        if b".entry exp" in image:
            line = next(n for n, text in enumerate(image.splitlines(), 1) if text.startswith(b".entry exp"))
            return 0, "cuModuleLoadDataEx failed: CUDA_ERROR_INVALID_PTX", f"line {line}; error: no"
        return 0x9000, "", ""

    on[1].load = load
    call = compiler.compile_graph(graph(), options=Options())
    assert len(loads) == 2
    assert "no code for exp" in caplog.text and "of kernel exp" in caplog.text
    x, w = torch.randn(3, 4), torch.randn(4, 4)
    for got, want in zip(call([x, w]), expected(x, w), strict=True):
        torch.testing.assert_close(got, want)
    with pytest.raises(LowcError, match="of kernel exp"):
        compiler.compile_graph(graph(), options=Options(strict_errors=True))


def test_other_devices_are_refused() -> None:
    with pytest.raises(Unsupported, match="tensors on device xpu"):
        compiler.compile_graph(graph("xpu:0"), options=Options())


def test_graphs_on_the_cpu_never_see_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "facts", lambda index: pytest.fail("asked for a GPU"))
    x, w = torch.randn(3, 4), torch.randn(4, 4)
    call = compiler.compile_graph(graph("cpu"), options=Options())
    assert call.program.gpu is None
    for got, want in zip(call([x, w]), expected(x, w), strict=True):
        torch.testing.assert_close(got, want)
