"""NVIDIA's tools: found where they are, their words read, their failures told; and how full a multiprocessor gets."""

import shutil
import stat
from pathlib import Path

import pytest

from lowc.artifact import Artifact, Usage
from lowc.backends import nvptx
from lowc.backends.nvptx import assembler, devices
from lowc.backends.nvptx.detect import LEAST, NEWEST
from lowc.backends.nvptx.occupancy import LIMITS, occupancy
from lowc.errors import CodegenError, LowcError, OptionError
from lowc.options import Options
from tests.backends.nvptx.harness import kernel_of, module_of
from tests.backends.nvptx.kernels import CASES

SAID = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k_a$b' for 'sm_90a'
ptxas info    : Function properties for k_a$b
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 8 bytes cumulative stack size, 48 bytes smem
ptxas info    : Compiling entry function 'k_c' for 'sm_90a'
ptxas info    : Function properties for k_c
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
"""
CASE = next(iter(CASES.values()))
PTX = b".version 9.0\n.visible .entry good()\n{ ret; }\n.visible .entry bad()\n{\n  bogus;\n}\n"


def tool(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of the PATH but for a shell's own tools, and no pip package counts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cat", "cp", "sh"):
        (folder / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(assembler, "FOLDERS", ())
    return folder


def artifact(options: Options) -> Artifact:
    target = nvptx.default()
    return nvptx.compile_module(module_of(kernel_of(CASE, target)), target, options)


def test_usage_is_read_off_what_ptxas_says() -> None:
    assert assembler.usage(SAID) == {"k_a$b": Usage(255, 8, 16, 48), "k_c": Usage(10, 0, 0, 0)}
    assert assembler.usage("") == {}


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
def test_ptxas_makes_a_cubin_and_says_what_kernels_take() -> None:
    made = artifact(Options())
    found = assembler.assemble(made.code, nvptx.default().cpu)
    assert found.cubin.startswith(b"\x7fELF")
    ((symbol, used),) = found.usage.items()
    assert symbol in {e.symbol for e in made.entries.values()} and used.registers > 0 and used.spilled == 0
    assert artifact(Options(ptxas="auto")).cubin == found.cubin


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
def test_ptxas_rejects_with_kernel_command_and_file(tmp_path: Path) -> None:
    text = PTX.replace(b"9.0\n", b"9.0\n.target sm_90a\n.address_size 64\n")
    with pytest.raises(CodegenError, match="of kernel bad:") as caught:
        assembler.assemble(text, "sm_90a", str(tmp_path))
    assert caught.value.hint == f"ptxas -arch=sm_90a {tmp_path / 'rejected.ptx'}"
    assert (tmp_path / "rejected.ptx").read_bytes() == text
    assert len(str(caught.value).splitlines()) <= 12


def test_ptxas_is_called_by_option_only(bare: Path) -> None:
    tool(bare, "ptxas", "exit 3")
    assert artifact(Options()).cubin == b""


def test_a_failure_of_ptxas_leaves_it_to_the_driver(bare: Path, caplog: pytest.LogCaptureFixture) -> None:
    tool(bare, "ptxas", "echo 'ptxas fatal: Unsupported .version 9.0' >&2; exit 255")
    made = artifact(Options(ptxas="auto"))
    assert made.cubin == b"" and made.code
    assert "the driver compiles the PTX" in caplog.text and "Unsupported .version" in caplog.text


def test_where_no_ptxas_is_the_driver_has_to_do(bare: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert artifact(Options(ptxas="auto")).cubin == b""
    assert "there is no ptxas" in caplog.text
    with pytest.raises(LowcError, match="there is no ptxas") as caught:
        assembler.assemble(PTX, "sm_90a")
    assert "nvidia-cuda-nvcc" in caught.value.hint


def test_a_file_that_is_no_program_is_told(bare: Path) -> None:
    tool(bare, "ptxas", "").write_text("\x00no program")
    with pytest.raises(LowcError, match="cannot be run"):
        assembler.assemble(PTX, "sm_90a")


@pytest.mark.parametrize("place", ["nvidia/cu13/bin", "nvidia/cuda_nvcc/bin", "triton/backends/nvidia/bin"])
def test_tools_of_pip_packages_are_found(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tool(tmp_path / "site" / place, "nvsomething", "")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    if place.startswith("triton"):
        (tmp_path / "site" / "triton" / "__init__.py").write_text("raise ImportError('never imported')")
    assert assembler.find("nvsomething") == str(path)
    assert assembler.find("nvnothing") == ""


@pytest.mark.parametrize(
    ("name", "option"), [("nvdisasm", "-c"), ("cuobjdump", "-sass")]
)
def test_either_disassembler_will_do(bare: Path, name: str, option: str) -> None:
    tool(bare, name, f'test "$1" = "{option}" && cat "$2"')
    assert assembler.disassemble(b"MOV R1, c[0x0]\n") == "MOV R1, c[0x0]\n"


def test_disassemblers_that_are_missing_or_fail(bare: Path) -> None:
    with pytest.raises(LowcError, match="neither nvdisasm nor cuobjdump") as caught:
        assembler.disassemble(b"")
    assert "nvidia-cuda-nvdisasm" in caught.value.hint
    tool(bare, "nvdisasm", "echo 'not a cubin' >&2; exit 1")
    with pytest.raises(LowcError, match="nvdisasm fails: not a cubin"):
        assembler.disassemble(b"")


# ---------------------------------------------------------------- models and occupancy


@pytest.mark.parametrize("gpu", devices.MODELS, ids=lambda m: m.name)
def test_every_model_has_a_target_and_limits(gpu: devices.Model) -> None:
    major, minor = gpu.capability
    name = f"sm_{major}{minor}"
    assert devices.model(name) is gpu and devices.model(name + "a") is gpu
    target = devices.target_of(gpu)
    assert target.cpu.rstrip("a") == name and target.cores == gpu.processors
    assert LEAST <= gpu.capability <= NEWEST and gpu.capability in LIMITS
    made = nvptx.compile_module(module_of(kernel_of(CASE, target)), target, Options())
    assert f".target {target.cpu}".encode() in made.code


def test_the_model_of_9_0_is_the_default() -> None:
    assert devices.target_of(devices.model("sm_90")) == nvptx.default()


@pytest.mark.parametrize("name", ["sm_60", "sm_99", "h100", "", "sm_9", "sm_90b"])
def test_unknown_models_are_refused_with_a_list(name: str) -> None:
    with pytest.raises(OptionError, match="unknown GPU") as caught:
        devices.model(name)
    assert "sm_90" in caught.value.hint


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "blocks", "share", "bound"),
    [
        # Numbers of NVIDIA's occupancy calculator.
        ((9, 0), 256, 32, 0, 8, 1.0, "warps"),
        ((8, 0), 256, 40, 0, 6, 0.75, "registers"),
        ((8, 0), 32, 16, 0, 32, 0.5, "blocks"),
        ((8, 6), 1024, 32, 0, 1, 32 / 48, "warps"),
        ((8, 0), 128, 255, 0, 2, 0.125, "registers"),
        ((9, 0), 128, 32, 48 << 10, 4, 0.25, "shared memory"),
        ((7, 5), 64, 24, 0, 16, 1.0, "warps"),
        ((7, 0), 96, 37, 0, 16, 0.75, "registers"),
    ],
)
def test_occupancy(
    capability: tuple[int, int],
    threads: int,
    registers: int,
    shared: int,
    blocks: int,
    share: float,
    bound: str,
) -> None:
    found = occupancy(capability, threads, registers, shared)
    assert found is not None
    assert (found.blocks, found.share, found.bound) == (blocks, share, bound)


def test_occupancy_of_a_gpu_that_nobody_knows() -> None:
    assert occupancy((99, 0), 128, 32, 0) is None
