"""Gradients of attention whose scores are made by functions, by five products: ptxas takes them without spills and without
serialising what is asynchronous, and they compute what they should where all that happens as late as it may."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from lowc.ir.interp import run_kernel
from lowc.ir.nodes import Launch
from lowc.ir.printer import print_kernel
from lowc.ir.verify_gpu import verify_kernel_threads
from lowc.options import Options
from tests.backends.nvptx.test_relay_across import by_tiles
from tests.backends.nvptx.test_tensor_cores import assembled, clean
from tests.scheduler.attentions import TARGET, machine
from tests.scheduler.gradients_of_functions import errors, kernel_of

pytest.importorskip("llvmlite")
from lowc.backends import nvptx  # noqa: E402
from lowc.backends.nvptx.module import emit_module  # noqa: E402
from tests.backends.nvptx.tile_simulator import simulate  # noqa: E402


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize(
    ("form", "deep"),
    [("window", 64), ("slopes", 64), ("documents", 64), ("documents", 128), ("capped", 64), ("table", 128), ("tiles", 128)],
)
def test_ptxas_takes_it(form: str, deep: int, tmp_path: Path) -> None:
    kernel = by_tiles(kernel_of(form, (16, 16, 400, 400, deep)))
    ptx = nvptx.compile_module(machine(kernel), TARGET, Options()).code.decode()
    assert "setmaxnreg" in ptx
    clean(assembled(ptx, tmp_path))


def test_rows_apart() -> None:
    """Turn by turn in all loops, and one row of a thread after the other."""
    shape = 1, 1, 70, 100, 32
    kernel = by_tiles(kernel_of("relu", shape, "f16"), apart=3)
    assert print_kernel(kernel).count("unroll(128, apart)") >= 4
    verify_kernel_threads(kernel)
    found = errors("relu", kernel, shape, lambda m: run_kernel(kernel, m, {}))
    assert len(found) == 3 and max(found.values()) < 2e-3


@pytest.mark.parametrize(
    ("form", "shape"),
    [
        ("window", (1, 1, 200, 70, 64)), ("documents", (1, 1, 130, 100, 32)), ("table", (1, 1, 70, 60, 96)),
        ("tiles, causal", (1, 1, 270, 140, 32)), ("relu", (1, 1, 200, 70, 64)),
        ("capped", (1, 1, 130, 70, 64)), ("relu", (1, 1, 100, 130, 128)),
    ],
    ids=str,
)  # fmt: skip
def test_simulated(form: str, shape: Any) -> None:
    """By the interpreter and by the simulator of the code; functions of some burden by 64 others at a time, or turn by turn."""
    kernel = by_tiles(kernel_of(form, shape, "f16"))
    assert ("unroll(128, apart)" in print_kernel(kernel)) == (form == "relu" and shape[-1] > 64)
    verify_kernel_threads(kernel)
    found = errors(form, kernel, shape, lambda m: run_kernel(kernel, m, {}))
    assert len(found) == 3 and max(found.values()) < 2e-3
    (step,) = machine(kernel).steps
    assert isinstance(step, Launch)
    text, entries = emit_module(machine(kernel), TARGET)
    done = step.kernel
    found = errors(form, done, shape, lambda m: simulate(text, done, entries[done.name], m, {}))
    assert len(found) == 3 and max(found.values()) < 2e-3
