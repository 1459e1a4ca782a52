"""``lowc dump``, ``explain`` and ``opt`` for GPUs: with ``--target`` where none is, and on the device where one is."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lowc.backends.nvptx import assembler
from lowc.cli import main
from lowc.cli.compilation import compile_all
from lowc.cli.dump import STAGES, text
from lowc.cli.explain import kernels
from lowc.cli.launches import launches
from lowc.cli.load import load
from lowc.ir.parser import parse_module
from lowc.ir.verify import verify_module
from lowc.options import Options

ROOT = Path(__file__).resolve().parent.parent
SOFTMAX = f"{ROOT / 'examples' / 'softmax.py'}:softmax"
GOLDEN = ROOT / "tests" / "ir" / "golden" / "softmax.lowc"
SM_90 = ("--target", "sm_90")
needs_ptxas = pytest.mark.skipif(not assembler.find("ptxas"), reason="needs ptxas")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

MIXED = """
import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
    def forward(self, x):
        y = self.linear(x).softmax(-1)
        return y + torch.arange(64, device=x.device) + torch.tensor([0.5] * 64, device=x.device)

net = Net()
def inputs():
    return torch.ones(48, 64)

def on_device(x):
    return (x * 2).tanh().sum(1)
def on_device_inputs():
    return torch.ones(512, 1024, device=DEVICE)

def long_sum(x):
    return x.sum()
def long_sum_inputs():
    return torch.ones(1 << 22)

def sorts(x):
    return x.sort().values
def adds(x, index, source):
    return x.index_add(0, index, source)
def adds_inputs():
    return torch.zeros(4, 8), torch.zeros(100, dtype=torch.int64), torch.ones(100, 8)
"""


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    path = tmp_path / "mixed.py"
    path.write_text(MIXED)
    return path


@pytest.fixture
def no_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is all of the PATH; no pip package counts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(assembler, "FOLDERS", ())
    return folder


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err[captured.err.index("lowc: ") :]


def prints(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


# ---------------------------------------------------------------- dump


@pytest.mark.parametrize(
    ("stage", "marks"),
    [
        ("graph", ["input arg0_1: f32[2048, 2048] @cuda:0", "aten.amax.default"]),
        ("lowering", ["module @LOOPS", "launch amax_0", "launch div_0"]),
        ("loops", ["module @LOOPS", "max= "]),
        ("machine", ["module @MACHINE", " block {", " thread("]),
        ("llvm", ["define ptx_kernel void @k_amax_0__div_0", "ptr addrspace(1)"]),
        ("ptx", [".version 9.0", ".target sm_90a", ".entry k_amax_0__div_0("]),
        ("host", ["def call(args):", "enter()", "run_0(slots, stream)"]),
    ],
)
def test_every_stage_can_be_seen_without_a_gpu(
    capsys: pytest.CaptureFixture[str], stage: str, marks: list[str]
) -> None:
    out = prints(capsys, "dump", SOFTMAX, "--stage", stage, *SM_90)
    for mark in marks:
        assert mark in out
    if stage in ("lowering", "loops", "machine"):
        module = parse_module(out)
        verify_module(module, module.level)


@pytest.mark.parametrize("target", ["sm_70", "sm_80", "sm_121"])
def test_ptx_is_for_the_target(capsys: pytest.CaptureFixture[str], target: str) -> None:
    assert f".target {target}" in prints(capsys, "dump", SOFTMAX, "--stage", "ptx", "--target", target)


def test_both_graphs_of_a_training_step_with_constants(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = prints(capsys, "dump", f"{mixed}:net", "--stage", "ptx", *SM_90)
    assert "// ---- forward" in out and "// ---- backward" in out and out.count(".target sm_90a") == 2
    graph = prints(capsys, "dump", f"{mixed}:net", "--stage", "graph", *SM_90)
    assert "device:cuda:0" in graph and "cpu" not in graph
    # A training step runs on the caller's stream, as it would on a GPU.
    assert "begin()" in prints(capsys, "dump", f"{mixed}:net", "--stage", "host", *SM_90)


def test_sizes_may_be_symbolic(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = prints(capsys, "dump", f"{mixed}:long_sum", "--dynamic", *SM_90)
    assert re.search(r"module @LOOPS\(\w+: 2\.\.", out)
    assert "k_" in prints(capsys, "dump", f"{mixed}:long_sum", "--dynamic", "--stage", "ptx", *SM_90)


@needs_ptxas
def test_sass_comes_from_a_disassembler(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvdisasm"
    tool.write_text('#!/bin/sh\ntest -s "$2" && echo "        /*0000*/ MOV R1, c[0x0][0x28] ;"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert "MOV R1" in prints(capsys, "dump", SOFTMAX, "--stage", "sass", *SM_90)


@needs_ptxas
@pytest.mark.skipif(
    not (assembler.find("nvdisasm") or assembler.find("cuobjdump")), reason="needs nvdisasm or cuobjdump"
)
def test_sass_of_softmax(capsys: pytest.CaptureFixture[str]) -> None:
    out = prints(capsys, "dump", SOFTMAX, "--stage", "sass", *SM_90)
    assert "EXIT" in out and "LDG" in out


def test_sass_says_what_to_install(no_tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = fails(capsys, "dump", SOFTMAX, "--stage", "sass", *SM_90)
    assert "there is no ptxas" in said and "pip install nvidia-cuda-nvcc" in said


@pytest.mark.parametrize("stage", ["ptx", "sass"])
def test_the_cpu_has_no_ptx(capsys: pytest.CaptureFixture[str], stage: str) -> None:
    said = fails(capsys, "dump", SOFTMAX, "--stage", stage)
    assert f"on the CPU and has no {stage}" in said and "--target sm_90" in said


def test_a_gpu_has_no_assembly_of_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--stage ptx" in fails(capsys, "dump", SOFTMAX, "--stage", "asm", *SM_90)


def test_a_graph_without_kernels_has_no_ptx(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "has no kernels" in fails(capsys, "dump", f"{mixed}:sorts", "--stage", "ptx", *SM_90)
    assert "aten.sort" in prints(capsys, "explain", f"{mixed}:sorts", *SM_90)


@pytest.mark.parametrize("command", ["dump", "explain"])
def test_unknown_targets_are_refused(capsys: pytest.CaptureFixture[str], command: str) -> None:
    said = fails(capsys, command, SOFTMAX, "--target", "sm_1")
    assert "unknown GPU 'sm_1'" in said and "sm_90" in said


def test_a_function_that_raises_is_reported(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed.write_text("import torch\ndef f(x):\n    return x @ x\ndef inputs():\n    return torch.ones(2, 3)\n")
    assert "the function raises" in fails(capsys, "dump", f"{mixed}:f", *SM_90)


def test_a_processor_that_is_not_there_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the compiler cannot do for the CPU at hand is no matter for a GPU, and named else."""
    from lowc.backends import x86
    from lowc.errors import CodegenError

    def refuse(options: Options) -> None:
        raise CodegenError("this processor has no AVX-512")

    monkeypatch.setattr(x86, "detect", refuse)
    assert "no AVX-512" in fails(capsys, "dump", SOFTMAX, "-o", "isa=avx512")
    assert ".entry" in prints(capsys, "dump", SOFTMAX, "--stage", "ptx", *SM_90)


def test_opt_schedules_for_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    passes = "inline,fuse,forward,recompute,fold,share,localise,linearise,split,schedule"
    out = prints(capsys, "opt", "-p", passes, str(GOLDEN), *SM_90)
    assert out.startswith("module @SCHEDULED") and " block {" in out and " thread(" in out
    assert " block {" not in prints(capsys, "opt", "-p", passes.replace(",split", ""), str(GOLDEN))


# ---------------------------------------------------------------- explain


@needs_ptxas
def test_explain_shows_how_kernels_are_launched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    out = prints(capsys, "explain", SOFTMAX, *SM_90)
    assert "5 ops in 1 kernel moving 33.6 MB" in out and "launches on sm_90a" in out
    row = next(line for line in out.splitlines() if "2048 │" in line)
    name, blocks, threads, shared, registers, spills, occupancy, moved, least = (
        cell.strip() for cell in row.strip("│ ").split("│")
    )
    assert (name, blocks, threads, moved, least) == ("amax_0__div_0", "2048", "128", "33.6 M", "10 us")
    assert int(shared) > 0 and 8 < int(registers) <= 64 and spills == "0"
    assert re.fullmatch(r"\d+% \((warps|registers)\)", occupancy)
    assert "as in H100 (132 multiprocessors, 3.35 TB/s); registers as ptxas says" in out


def test_explain_without_tools_says_that_it_does_not_know(
    no_tools: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    out = prints(capsys, "explain", SOFTMAX, *SM_90)
    row = next(line for line in out.splitlines() if "2048 │" in line)
    assert row.count(" ? ") == 3 and "10 us" in row
    assert "registers are not known: there is no ptxas" in out


def test_explain_shows_why_a_sum_is_left_to_aten(
    mixed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "0 calls of ATen" in prints(capsys, "explain", f"{mixed}:adds", *SM_90)
    torch.use_deterministic_algorithms(True)
    try:
        out = prints(capsys, "explain", f"{mixed}:adds", *SM_90)
    finally:
        torch.use_deterministic_algorithms(False)
    assert "1 call of ATen" in out and "deterministic algorithms are asked for" in out


def test_a_sum_in_two_launches_has_two_lines(mixed: Path) -> None:
    from lowc.backends.nvptx.devices import model

    fn, given = load(f"{mixed}:long_sum")
    (compiled,) = compile_all(fn, given, Options(), gpu=model("sm_90")).graphs
    lines, _ = launches(compiled.result, compiled.target.cpu)
    assert len(lines) == 2
    first, second = lines
    assert int(first.blocks) > 100 and second.blocks == "1"
    # The first reads all of it, and the second what the first leaves: one number for each block.
    assert 4 << 22 <= first.bytes < (4 << 22) + (1 << 16) and second.bytes < 1 << 16
    assert first.seconds == pytest.approx(first.bytes / 3350e9)


@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        (lambda x: (x + 1).relu(), (1003, 77)),
        (lambda x: x.t().contiguous() + 1, (1001, 703)),
        (lambda x: x + x[0], (101, 703)),
        (lambda x: x.softmax(-1), (4, 100003)),
        (lambda x: x.sum(0), (5000, 300)),
        (lambda x: x.cumsum(1), (64, 5000)),
    ],
)
def test_bytes_of_launches_are_those_of_the_loops(fn: Callable[..., torch.Tensor], shape: tuple[int, ...]) -> None:
    """Vectors and blocks that are not full do not count as if they were, nor as nothing."""
    from lowc.backends.nvptx.devices import model

    (compiled,) = compile_all(fn, (torch.ones(shape),), Options(), gpu=model("sm_90")).graphs
    (line,), _ = launches(compiled.result, compiled.target.cpu)
    assert line.bytes == sum(k.cost.bytes for k in kernels(compiled.fused))


def test_the_cpu_is_explained_without_launches(capsys: pytest.CaptureFixture[str]) -> None:
    assert "launches on" not in prints(capsys, "explain", SOFTMAX)


# ---------------------------------------------------------------- with a GPU


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("stage", [s for s in STAGES if s not in ("asm", "sass")])
def test_every_stage_of_a_function_on_the_gpu(
    mixed: Path, capsys: pytest.CaptureFixture[str], stage: str
) -> None:
    out = prints(capsys, "dump", f"{mixed}:on_device", "--stage", stage)
    assert {"graph": "cuda:0", "llvm": "ptx_kernel", "ptx": ".entry", "host": "stream", "machine": " block {"}.get(
        stage, "kernel "
    ) in out


@pytest.mark.gpu
@needs_gpu
def test_explain_on_the_gpu_has_the_drivers_word(
    mixed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    out = prints(capsys, "explain", f"{mixed}:on_device")
    assert "registers as the driver says" in out and torch.cuda.get_device_name() in out
    assert " ? " not in out


@pytest.mark.gpu
@needs_gpu
def test_occupancy_is_what_the_driver_computes(mixed: Path) -> None:
    """For kernels of several shapes on this GPU."""
    from cuda.bindings import driver

    from lowc.backends.nvptx.occupancy import LIMITS

    for name, module in (("on_device", mixed), ("softmax", ROOT / "examples" / "softmax.py")):
        fn, given = load(f"{module}:{name}")
        seen = compile_all(fn, tuple(t.cuda() for t in given), Options())
        (compiled,) = seen.graphs
        lines, source = launches(compiled.result, compiled.target.cpu)
        assert source == "registers as the driver says" and compiled.result.gpu is not None
        warps = LIMITS[compiled.result.gpu.capability].warps
        assert compiled.result.artifact is not None
        for line in lines:
            entry = compiled.result.artifact.entries[line.name]
            code, module_ = driver.cuModuleLoadData(compiled.result.artifact.code + b"\0")
            assert int(code) == 0
            code, function = driver.cuModuleGetFunction(module_, entry.symbol.encode())
            assert int(code) == 0
            threads = entry.threads[0] * entry.threads[1]
            code, blocks = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, entry.shared)
            assert int(code) == 0 and line.occupancy is not None
            assert line.occupancy[0] == blocks * -(-threads // 32) / warps


@pytest.mark.gpu
@needs_gpu
def test_another_gpu_can_be_looked_at_from_this_one(mixed: Path) -> None:
    from lowc.backends.nvptx.devices import model

    fn, given = load(f"{mixed}:on_device")
    (compiled,) = compile_all(fn, given, Options(), gpu=model("sm_80")).graphs
    assert ".target sm_80" in text(compiled, "ptx", Options())


@pytest.mark.gpu
@needs_gpu
@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
def test_a_cubin_of_ptxas_runs() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() + 1).softmax(-1)

    torch._dynamo.reset()
    x = torch.randn(512, 1000, device="cuda")
    call = torch.compile(f, backend="lowc", options={"ptxas": "auto", "nvtx": True, "strict_errors": True})
    torch.testing.assert_close(call(x), f(x))
