"""Code of attention of few queries, in ranges of keys: ptxas takes it without spills and without serialising it, and it computes
what it should where all that is asynchronous happens as late as it may."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lowc.ir.interp import run_kernel
from lowc.ir.nodes import Launch, Module
from lowc.options import Options
from lowc.scheduler import pipeline
from tests.backends.nvptx.test_tensor_cores import assembled, clean
from tests.lowering import test_few_queries as lowering
from tests.lowering.harness import poisoned
from tests.lowering.test_attention import close, reference
from tests.scheduler.attentions import TARGET

pytest.importorskip("llvmlite")
from lowc.backends import nvptx  # noqa: E402
from lowc.backends.nvptx.module import emit_module  # noqa: E402
from tests.backends.nvptx.tile_simulator import simulate  # noqa: E402

cheap = lowering.cheap


def machine(module: Module) -> Module:
    for each in pipeline.PASSES:
        if each.only in ("", "nvptx"):
            module = pipeline.apply(each, module, TARGET, Options(check=True))
    return module


def computed(module: Module, args: list[torch.Tensor], tiles: bool) -> torch.Tensor:
    """The first result; kernels of tiles in the simulator, if ``tiles``."""
    memory = {i.name: a.contiguous().flatten() for i, a in zip(module.inputs, args, strict=True) if i is not None}  # type: ignore[union-attr]
    simulated = 0
    for step in module.steps:
        assert isinstance(step, Launch)
        arrays: dict[str, Any] = {}
        for param, arg in zip(step.kernel.params, step.args, strict=True):
            if arg.name not in memory:
                memory[arg.name] = poisoned(arg, {})
            arrays[param.name] = memory[arg.name].numpy()
        if tiles and "range" in step.kernel.name:
            text, entries = emit_module(replace(module, steps=(step,)), TARGET)
            simulate(text, step.kernel, entries[step.kernel.name], arrays, {})
            simulated += 1
        else:
            run_kernel(step.kernel, arrays, {})
    assert simulated == tiles
    (out, *_) = module.outputs
    return memory[out.buffer.name].view(args[0].shape)  # type: ignore[union-attr]


@pytest.mark.parametrize("tiles", [False, True])
@pytest.mark.parametrize(
    ("heads", "shared", "rows", "keys"), [(4, 2, 1, 256), (1, 1, 1, 512), (4, 2, 3, 300), (1, 1, 16, 600)]
)
def test_ranges_of_keys(heads: int, shared: int, rows: int, keys: int, tiles: bool) -> None:
    args = lowering.qkv(heads, shared, rows, keys, deep=32)
    module = machine(lowering.lowered(lambda q, k, v: lowering.flash(q, k, v)[0], *args))
    assert "ranges" in lowering.names(module)[0]
    assert not [t for t in module.temps if "scores" in t.name]  # tensor cores have taken it
    close(computed(module, list(args), tiles), reference(*args)[0], torch.float16)


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize(("deep", "rows", "keys"), [(64, 1, 2048), (128, 1, 2048), (128, 16, 2000), (256, 1, 1000)])
def test_ptxas_takes_it(deep: int, rows: int, keys: int, tmp_path: Path) -> None:
    args = lowering.qkv(8, 2, rows, keys, deep, torch.bfloat16)
    module = machine(lowering.lowered(lambda q, k, v: lowering.flash(q, k, v)[0], *args))
    assert "ranges" in lowering.names(module)[0]
    code = nvptx.compile_module(replace(module, steps=module.steps[:1]), TARGET, Options()).code.decode()
    assert "wgmma" in code
    clean(assembled(code, tmp_path))
