"""Code of attention whose scores are made by functions: ptxas takes it without spills, and it computes what it should where all
that is asynchronous happens as late as it may."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from lowc.ir.nodes import Launch
from lowc.options import Options
from tests.backends.nvptx.test_tensor_cores import assembled, clean
from tests.scheduler.attentions import TARGET, by_tiles, machine, ways
from tests.scheduler.functions_of_scores import error, kernel_of, memory

pytest.importorskip("llvmlite")
from lowc.backends import nvptx  # noqa: E402
from lowc.backends.nvptx.module import emit_module  # noqa: E402
from tests.backends.nvptx.tile_simulator import simulate  # noqa: E402


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize("deep", [64, 128])
@pytest.mark.parametrize("form", ["window", "late", "slopes", "documents", "capped", "table", "tiles, causal"])
def test_ptxas_takes_it(form: str, deep: int, tmp_path: Path) -> None:
    kernel = kernel_of(form, (16, 4, 400, 400, deep))
    way = ways(kernel)[0]
    fields = {f: getattr(way, f) for f in way.__slots__ if f != "axis"}
    ptx = nvptx.compile_module(machine(by_tiles(kernel, **fields)), TARGET, Options()).code.decode()
    assert "setmaxnreg" in ptx
    clean(assembled(ptx, tmp_path))


@pytest.mark.parametrize(
    ("form", "shape", "changed"),
    [
        ("window", (1, 1, 70, 330, 32), {}), ("window", (1, 1, 330, 330, 32), {}), ("late", (1, 1, 230, 130, 32), {}),
        ("slopes", (2, 1, 130, 130, 64), {"stages": 3}), ("documents", (1, 1, 130, 200, 64), {"groups": 2}),
        ("table", (1, 1, 130, 200, 64), {"apart": 1}), ("capped", (1, 1, 100, 130, 32), {"apart": 2}),
        ("both sides", (1, 1, 200, 300, 32), {"groups": 3, "keys": 128}),
        ("tiles", (1, 1, 130, 390, 32), {"keys": 128}), ("tiles, causal", (1, 1, 260, 390, 64), {"groups": 2, "keys": 128}),
        ("tiles", (2, 1, 256, 384, 32), {"keys": 128, "blocks": 2, "stages": 3}),
    ],
    ids=str,
)  # fmt: skip
def test_simulated(form: str, shape: Any, changed: dict[str, Any]) -> None:
    module = machine(by_tiles(kernel_of(form, shape, "f16"), **{"groups": 1, "keys": 64, **changed}))
    (step,) = module.steps
    assert isinstance(step, Launch)
    text, entries = emit_module(module, TARGET)
    found = memory(step.kernel, shape)
    simulate(text, step.kernel, entries[step.kernel.name], found, {})
    out, sums = error(form, step.kernel, found, shape)
    assert out < 8e-4
    assert sums < 1e-4
