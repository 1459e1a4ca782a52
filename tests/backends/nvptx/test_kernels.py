"""Kernels for NVIDIA GPUs without one: their meaning on a simulator, their PTX through ptxas, and which instructions it has."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from lowc.errors import CodegenError
from lowc.ir.nodes import Kernel
from lowc.ir.parser import parse_kernel, parse_module
from lowc.ir.printer import print_kernel
from lowc.options import Options
from tests.backends.nvptx.harness import check, kernel_of, module_of
from tests.backends.nvptx.kernels import CASES

pytest.importorskip("llvmlite")
from lowc.backends import nvptx  # noqa: E402
from lowc.backends.nvptx.module import emit_module  # noqa: E402

TARGETS = {
    "sm_70": nvptx.target((7, 0), 80, 12040, 6 << 20),
    "sm_80": nvptx.target((8, 0), 108, 12000, 40 << 20),
    "sm_90a": nvptx.default(),
    "sm_100": nvptx.target((10, 0), 148, 12080, 64 << 20),
}
each_case = pytest.mark.parametrize("name", CASES)


def named(name: str, cpu: str = "sm_90a") -> Kernel:
    return kernel_of(CASES[name], TARGETS[cpu])


def ptx_of(kernel: Kernel, cpu: str = "sm_90a") -> str:
    return nvptx.compile_module(module_of(kernel), TARGETS[cpu], Options()).code.decode()


@each_case
def test_meaning(name: str) -> None:
    """The emitted code, run on the CPU, leaves what the interpreter leaves."""
    from tests.backends.nvptx.simulator import Simulator

    kernel = named(name, "sm_70")
    text, entries = emit_module(module_of(kernel), TARGETS["sm_70"])
    assert check(CASES[name], kernel, Simulator(text, kernel, entries[kernel.name])) == []


@pytest.mark.parametrize("name", ("softmax", "warp_rows", "block_sum", "ops_f32", "column_sum"))
def test_meaning_with_instructions_of_ampere(name: str) -> None:
    from tests.backends.nvptx.simulator import Simulator

    kernel = named(name)
    text, entries = emit_module(module_of(kernel), TARGETS["sm_80"])
    assert check(CASES[name], kernel, Simulator(text, kernel, entries[kernel.name]), 1) == []


@cache
def assembler_knows(cpu: str) -> bool:
    found = subprocess.run(["ptxas", "--help"], capture_output=True, text=True).stdout
    return f"'{cpu}'" in found


@each_case
@pytest.mark.parametrize("cpu", TARGETS)
def test_assembles(name: str, cpu: str, tmp_path: Path) -> None:
    """PTX comes out for every target; where ptxas knows it, it takes it, and no register is spilled."""
    text = ptx_of(named(name, cpu), cpu)
    assert ".local" not in text
    if shutil.which("ptxas") is None:
        pytest.skip("no ptxas")
    if not assembler_knows(cpu):
        pytest.skip(f"this ptxas does not know {cpu}")
    source = tmp_path / "kernel.ptx"
    source.write_text(text)
    done = subprocess.run(
        ["ptxas", f"-arch={cpu}", "-v", str(source), "-o", str(tmp_path / "kernel.cubin")],
        capture_output=True,
        text=True,
    )
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    if not name.startswith("ops_"):  # those do everything at once
        assert not re.findall(r"[1-9]\d* bytes (?:spill|stack)", report), report


COUNTS: dict[str, dict[str, int]] = {
    "map_f32": {"ld.global.nc.v4": 2, "st.global.v4": 1, "bar.sync": 0},
    "pairs": {"ld.global.nc.v2": 4, "ld.global.nc.b32": 8, "st.global.v4": 2},
    "map_bf16": {"ld.global.nc.v4": 1, "st.global.v4": 1, "cvt.rn.bf16x2": 4, "prmt": 0, "bra": 0},
    "softmax": {"ld.global.nc.v4": 2, "st.global.v4": 2, "shfl": 14, "bar.sync": 2, "max.NaN": 14},
    "layernorm": {"ld.global.nc.v4": 2, "st.global.v4": 1, "bar.sync": 1, "shfl": 14},
    "warp_rows": {"bar.sync": 0, "shfl": 20},
    "clamped_rows": {"bar.sync": 1, "shfl": 12},
    "column_sum": {"ld.global.nc.v4": 1, "st.global.v4": 1, "bar.sync": 1, "shfl": 0},
    "narrow_columns": {"shfl": 8, "bar.sync": 1},
    "transpose": {"ld.global.nc.b32": 4, "st.shared.b32": 4, "bar.sync": 1, "bra": 0},
    "loop_of_rows": {"bar.sync": 4},
    "gather": {"ld.global.nc.v4": 1, "st.global.v4": 1},
    "scatter_add": {"atom.global.add.f32": 1, "atom.global.add.u64": 1, "cas": 6},
    "scan_rows": {"ld.global.nc.v4": 2, "st.global.v4": 2, "bar.sync": 2, "shfl": 40, "st.shared": 2},
    "scan_tail": {"bar.sync": 2, "shfl": 9},
    "scan_and_sums": {"ld.global.nc.v4": 1, "st.global.v4": 1, "bar.sync": 2, "shfl": 24},
    "scan_warps": {"bar.sync": 0, "shfl": 14},
    "scan_warps_of_1024": {"bar.sync": 1, "shfl": 13},
    "histogram": {"ld.global.nc.v4": 1, "atom.shared.add": 16, "bar.sync": 2},
}


@pytest.mark.parametrize("name", COUNTS)
def test_instructions(name: str) -> None:
    text = ptx_of(named(name))
    found = {word: len(re.findall(rf"\b{re.escape(word)}", text)) for word in COUNTS[name]}
    assert found == COUNTS[name]


@each_case
def test_text_form(name: str) -> None:
    text = print_kernel(named(name))
    assert print_kernel(parse_kernel(text)) == text


def test_entries() -> None:
    def entry(name: str) -> tuple[object, ...]:
        kernel = named(name)
        found = nvptx.compile_module(module_of(kernel), nvptx.default(), Options()).entries[name]
        return found.symbol, str(found.grid), found.threads, found.shared, found.aligned

    assert entry("map_f32") == ("k_map_f32", "10", (256, 1), 0, (0, 1, 2))
    assert entry("transpose") == ("k_transpose", "8", (32, 8), 0, ())
    assert entry("big_tile") == ("k_big_tile", "1", (1024, 1), 65536, ())
    assert entry("dynamic")[1:4] == ("n", (64, 1), 0)


def test_runs() -> None:
    module = parse_module("""
module @MACHINE(n: 1..) {
  input x: f32[n]
  input size n
  temp t: f32[n] at 0
  temp y: f32[n]
  workspace n*4
  launch twice(x, t)
  launch twice(t, y)
  return y
}

kernel twice(n: size 1.., x: f32[n], y: f32[n]) {
  for b in (n + 127)//128 block {
    for t in min(128, n - b*128) thread(128) {
      y[b*128 + t] = x[b*128 + t] + x[b*128 + t]
    }
  }
}
""")
    artifact = nvptx.compile_module(module, nvptx.default(), Options())
    assert artifact.target == "nvptx"
    assert artifact.slots == ("x", "y", "workspace", "n")
    assert [(step.symbol, step.launches) for step in artifact.program] == [("run_0", (0, 1))]  # type: ignore[union-attr]
    assert artifact.code.count(b".visible .entry") == 1
    stages = nvptx.stages(nvptx.default(), Options())
    assert list(stages) == [".ll", ".ptx"]
    assert "ptx_kernel" in stages[".ll"](module) and ".entry k_twice" in stages[".ptx"](module)


REFUSED = {
    "exp on f64": (
        "y: f64[4]",
        "for t in 4 thread(4) { y[t] = exp(2.0:f64) }",
        "no code on a GPU for exp of f64",
    ),
    "erf": ("y: f32[4]", "for t in 4 thread(4) { y[t] = erf(2.0) }", "no code on a GPU for erf of f32"),
    "narrow arithmetic": (
        "y: bf16[4]",
        "for t in 4 thread(4) { y[t] = 2.0:bf16 + 2.0:bf16 }",
        "must be widened",
    ),
    "threads": ("y: f32[96]", "for t in 96 thread(96) { y[t] = 2.0 }", "powers of two"),
    "two widths": (
        "y: f32[64]",
        "for t in 64 thread(64) { y[t] = 2.0 }\nfor u in 32 thread(32) { y[u] = 2.0 }",
        "loops over 64 and over 32 threads",
    ),
    "waiting under a condition": (
        "y: f32[4]",
        """for r in 4 thread(4, y) { if idx(r) < 2 {
acc s: f32 = add
for t in 32 thread(32) { s add= 1.0 }
y[r] = s
} }""",
        "under a condition in a thread loop",
    ),
    "waiting in uneven loops": (
        "y: f32[4]",
        """for r in 4 thread(4, y) { for k in r + 1 {
acc s: f32 = add
for t in 32 thread(32) { s add= 1.0 }
y[r] = s
} }""",
        "as long as a thread says",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    params, body, message = REFUSED[name]
    with pytest.raises(CodegenError, match=message) as raised:
        ptx_of(
            parse_kernel(
                f"kernel k({params}) {{\n{body.replace('{ ', '{' + chr(10)).replace(' }', chr(10) + '}')}\n}}"
            )
        )
    assert "in kernel k" in str(raised.value)


def test_targets() -> None:
    assert nvptx.default().cpu == "sm_90a" and nvptx.default().features == "+ptx90"
    assert nvptx.target((8, 9), 128, 12060, 72 << 20).features == "+ptx85"
    assert nvptx.target((12, 0), 170, 14000, 96 << 20).features == "+ptx90"
    assert nvptx.target((13, 2), 170, 14000, 96 << 20).cpu == "sm_121"
    with pytest.raises(CodegenError, match="6.1"):
        nvptx.target((6, 1), 20, 12000, 2 << 20)
    with pytest.raises(CodegenError, match="driver"):
        nvptx.target((10, 0), 148, 12040, 64 << 20)


def test_failed_checks_leave_their_step() -> None:
    from tests.backends.nvptx.simulator import Simulator

    text = """kernel k(at: i64[4], y: f32[4]) {
  for t in 4 thread(4) {
    i: i64 = check_index(at[t], 4, true)
    y[i] = 1.0
  }
}"""
    import numpy as np

    kernel = parse_kernel(text)
    emitted, entries = emit_module(module_of(kernel), TARGETS["sm_70"])
    run = Simulator(emitted, kernel, entries["k"])
    memory = {"at": np.array([0, 9, 2, 3]), "y": np.zeros(4, np.float32)}
    assert run(memory, {}) == 1 + 16 * 5
    assert memory["y"].tolist() == [1.0, 0.0, 1.0, 1.0]
