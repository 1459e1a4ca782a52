"""Kernels for rows of symbolic length, from programs: each of their versions on the simulator, and through ptxas."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from lowc.ir.nodes import Kernel, Launch, Module
from lowc.ir.parser import parse_kernel, parse_module
from lowc.options import Options
from lowc.scheduler import pipeline
from lowc.target import Target
from tests.backends.nvptx.harness import check, module_of
from tests.backends.nvptx.kernels import Case

pytest.importorskip("llvmlite")
from lowc.backends import nvptx  # noqa: E402
from lowc.backends.nvptx import turns  # noqa: E402
from lowc.backends.nvptx.module import emit_module  # noqa: E402

SIMULATED = nvptx.target((7, 0), 80, 12040, 6 << 20)  # without instructions for bf16, which the simulator does not have either
TARGET = nvptx.target((8, 0), 108, 12000, 40 << 20)

SOFTMAX = """
module @LOOPS(b: 0.. ~ 400, n: 0.. ~ HINT) {
  input size b
  input size n
  input x: DTYPE[b, n]
  temp out: DTYPE[b, n]
  launch k(x, out)
  return out
}
kernel k(b: size 0.. ~ 400, n: size 0.. ~ HINT, x: DTYPE[b, n], out: DTYPE[b, n]) {
  for i in b {
    acc m: f32 = max
    for k in n {
      m max= f32(x[i, k])
    }
    acc s: f32 = add
    for l in n {
      s add= exp(f32(x[i, l]) - m)
    }
    for j in n {
      out[i, j] = DTYPE(exp(f32(x[i, j]) - m) / s)
    }
  }
}
"""
BIAS = """
module @LOOPS(b: 0.. ~ 400, n: 0.. ~ HINT) {
  input size b
  input size n
  input x: DTYPE[b, 3, n]
  input w: DTYPE[n]
  temp out: DTYPE[b, 3, n]
  launch k(x, w, out)
  return out
}
kernel k(b: size 0.. ~ 400, n: size 0.. ~ HINT, x: DTYPE[b, 3, n], w: DTYPE[n], out: DTYPE[b, 3, n]) {
  for i in b {
    for c in 3 {
      for j in n {
        out[i, c, j] = DTYPE(f32(x[i, c, j]) + f32(w[j]))
      }
    }
  }
}
"""
COLUMNS = """
module @LOOPS(b: 0.. ~ 4096, n: 0.. ~ HINT) {
  input size b
  input size n
  input x: DTYPE[b, n]
  temp out: f32[n]
  launch k(x, out)
  return out
}
kernel k(b: size 0.. ~ 4096, n: size 0.. ~ HINT, x: DTYPE[b, n], out: f32[n]) {
  for j in n {
    acc s: f32 = add
    for i in b {
      s add= f32(x[i, j])
    }
    out[j] = s
  }
}
"""
PROGRAMS = {
    "softmax_f32_even": (SOFTMAX, "f32", 128, (0, 1, 2, 4, 7, 63, 97, 124, 127, 128, 129, 132, 260)),
    "softmax_f32_odd": (SOFTMAX, "f32", 101, (0, 1, 8, 96, 100, 101, 127, 128, 129, 130, 251)),
    "softmax_bf16_even": (SOFTMAX, "bf16", 512, (0, 1, 8, 509, 504, 511, 512, 513, 520)),
    "softmax_bf16_odd": (SOFTMAX, "bf16", 257, (0, 1, 8, 256, 257, 287, 288, 289, 311)),
    "bias_f32": (BIAS, "f32", 1024, (0, 1, 5, 1020, 1024, 1031)),
    "bias_bf16": (BIAS, "bf16", 2049, (0, 1, 8, 255, 2048, 2049)),
    "columns": (COLUMNS, "bf16", 256, (0, 33, 128)),
}
each_program = pytest.mark.parametrize("name", PROGRAMS)


@cache
def machine(name: str, target: Target = TARGET) -> Module:
    text, dtype, hint, _ = PROGRAMS[name]
    return pipeline.run(parse_module(text.replace("DTYPE", dtype).replace("HINT", str(hint))), target, Options(check=True))


def kernels(module: Module) -> list[Kernel]:
    return [step.kernel for step in module.steps if isinstance(step, Launch)]


@each_program
def test_every_version_means_what_its_text_says(name: str) -> None:
    from tests.backends.nvptx.simulator import Simulator

    module = machine(name, SIMULATED)
    text, entries = emit_module(module, SIMULATED)
    sizes = tuple({"b": 2, "n": n} for n in PROGRAMS[name][3])
    for kernel in kernels(module):
        used = tuple({s.name: each[s.name] for s in kernel.sizes} for each in sizes)
        case = Case("", used, tolerance=1e-2 if "bf16" in name else 1e-5, small=True)
        assert check(case, kernel, Simulator(text, kernel, entries[kernel.name])) == []


@each_program
@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas")
def test_no_version_spills(name: str, tmp_path: Path) -> None:
    file = tmp_path / "k.ptx"
    file.write_bytes(nvptx.compile_module(machine(name), TARGET, Options()).code)
    command = ["ptxas", "-v", "-arch=sm_80", str(file), "-o", str(tmp_path / "k.cubin")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert set(re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill", said)) == {("0", "0")}


def test_loads_of_a_held_row_are_under_way_together() -> None:
    """No branch but around each load alone comes before the last of them, and they have one address in common."""
    code = nvptx.compile_module(machine("softmax_bf16_odd"), TARGET, Options()).code.decode()
    held = code[code.index("entry k_k_upto288") :]
    held = held[: held.index("\n}")]
    lines = [line.strip() for line in held.splitlines()]
    places = [n for n, line in enumerate(lines) if line.startswith("ld.global")]
    assert len(places) == 9
    between = {line.split()[0] for line in lines[places[0] : places[-1]]}
    assert not any(word.startswith(("max", "mul", "mad", "shl")) for word in between), between
    assert len({re.findall(r"\[(%rd\d+)", lines[n])[0] for n in places}) == 1


def kernel_in(code: str, name: str) -> str:
    """The PTX of one kernel."""
    body = code[code.index(f"entry k_{name}(") :]
    return body[: body.index("\n}")]


def test_all_turns_but_the_last_have_no_condition() -> None:
    """Rows of any length: a loop of eight whole turns, one of those left, and one turn that may be short."""
    code = kernel_in(nvptx.compile_module(machine("softmax_bf16_odd"), TARGET, Options()).code.decode(), "k")
    assert code.count("ld.global") == 3 * (turns.GROUP + 1 + 1)  # three loops over the row
    blocks = re.split(r"\n\$L", code)
    loads = [block.count("ld.global") for block in blocks]
    assert loads.count(turns.GROUP) == 3
    for block in blocks:
        if block.count("ld.global") == turns.GROUP:
            assert block.count("bra") == block.count("setp") == 1  # at its end


@pytest.mark.parametrize("name", ["bias_f32", "bias_bf16", "columns"])
def test_nothing_is_divided_in_64_bits(name: str) -> None:
    code = nvptx.compile_module(machine(name), TARGET, Options()).code.decode()
    for kernel in kernels(machine(name)):
        if "_1" not in kernel.name:  # the totals of columns are few
            assert not re.search(r"(div|rem)\.[us]64", kernel_in(code, kernel.name.replace(".", "$"))), kernel.name


TWICE = """kernel twice(x: f32[4096], out: f32[2]) {
  acc s: f32 = add
  for o in 4 unroll(4) {
    for t in 256 thread(256) {
      for v in 4 vector(4) {
        s add= x[o*1024 + t*4 + v]
      }
    }
  }
  acc d: f32 = add
  for p in 4 unroll(4) {
    for u in 256 thread(256) {
      for w in 4 vector(4) {
        d add= (x[p*1024 + u*4 + w] - s) * (x[p*1024 + u*4 + w] - s)
      }
    }
  }
  out[0] = s
  out[1] = d
}
"""


def test_loops_of_a_block_load_for_themselves() -> None:
    """What two loops read stays in registers only where the scheduler has decided so; within a loop equal loads are one."""
    text, _ = emit_module(module_of(parse_kernel(TWICE)), TARGET)
    assert text.count("= load <4 x float>, ptr addrspace(1)") == 8
