"""Code of attention on tensor cores: ptxas takes every way of it without spills and without serialising it, and it computes what
it should where all that is asynchronous happens as late as it may."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from lowc.errors import CodegenError
from lowc.ir.nodes import Launch
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.options import Options
from lowc.scheduler.choose_attention import WAYS
from tests.backends.nvptx.test_tensor_cores import assembled, clean
from tests.scheduler.attentions import TARGET, Shape, attention, by_tiles, errors, machine, memory_of, ways

pytest.importorskip("llvmlite")
from lowc.backends import nvptx  # noqa: E402
from lowc.backends.nvptx import relay  # noqa: E402
from lowc.backends.nvptx.module import emit_module  # noqa: E402
from tests.backends.nvptx.tile_simulator import simulate  # noqa: E402

SMALL = {"groups": 1, "keys": 64}


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize("deep", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_ptxas_takes_every_way(deep: int, causal: bool, tmp_path: Path) -> None:
    kernel = attention((16, 4, 4096, 4000, deep), causal)
    for way in ways(kernel)[:2]:
        fields = {f: getattr(way, f) for f in way.__slots__ if f != "axis"}
        ptx = nvptx.compile_module(machine(by_tiles(kernel, **fields)), TARGET, Options()).code.decode()
        assert ptx.count("wgmma.wait_group") == (6 if causal else 4)  # first and last; two in each loop
        assert ("setmaxnreg" in ptx) == (way.groups > 1)
        clean(assembled(ptx, tmp_path))


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize("bias", [False, True])
def test_lengths_of_the_call_and_biases(bias: bool, tmp_path: Path) -> None:
    kernel = attention((16, 16, "m", "n", 128), causal=True, bias=bias)
    module = machine(by_tiles(kernel))
    said = assembled(nvptx.compile_module(module, TARGET, Options()).code.decode(), tmp_path)
    if bias:  # loads of it take registers
        assert "C75" not in said
    else:
        clean(said)


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
def test_waits_that_are_bounded(tmp_path: Path) -> None:
    module = machine(by_tiles(attention((4, 4, 512, 512, 64))))
    code = nvptx.compile_module(module, TARGET, Options(check=True)).code.decode()
    assert "trap" in code
    clean(assembled(code, tmp_path))


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize("deep", [64, 128])
def test_tiles_in_turns_have_code(deep: int, tmp_path: Path) -> None:
    """What does not change from tile to tile leaves the loop over them, and stands before it."""
    kernel = attention((32, 32, 4096, 4096, deep))
    way = ways(kernel)[0]
    assert way.blocks
    fields = {f: getattr(way, f) for f in way.__slots__ if f != "axis"}
    clean(assembled(nvptx.compile_module(machine(by_tiles(kernel, **fields)), TARGET, Options()).code.decode(), tmp_path))


def test_every_way_is_tried() -> None:
    tried = {(w.groups, w.keys, w.stages) for deep in (64, 128, 256) for w in ways(attention((4, 4, 512, 512, deep)))}
    assert tried == set(WAYS)


def simulated(
    shape: Shape, sizes: dict[str, int] | None = None, scale: float = 1.0, causal: bool = False, **changed: Any
) -> None:
    kernel = by_tiles(attention(shape, causal, dtype="f16"), **{**SMALL, **changed})
    module = machine(kernel)
    (step,) = module.steps
    assert isinstance(step, Launch)
    text, entries = emit_module(module, TARGET)
    sizes = sizes or {}
    memory = memory_of(step.kernel, sizes, scale)
    simulate(text, step.kernel, entries[step.kernel.name], memory, sizes)
    numbers = tuple([sizes[n] if isinstance(n, str) else n for n in shape])
    out, sums = errors(step.kernel, memory, numbers, causal=causal)
    assert out < 8e-4
    assert sums < 1e-5 * scale


@pytest.mark.parametrize("causal", [False, True])
def test_several_turns_of_the_rings(causal: bool) -> None:
    simulated((1, 1, 70, 330, 64), causal=causal)
    simulated((2, 1, 130, 260, 64), causal=causal, stages=3)


def test_deep_heads_and_several_groups() -> None:
    simulated((1, 1, 130, 130, 128), causal=True, groups=2)
    simulated((1, 1, 200, 200, 64), causal=True, groups=3, keys=128)
    simulated((1, 1, 64, 100, 96), strips=0)


def test_lengths_of_the_call() -> None:
    simulated((1, 1, "m", "n", 32), {"m": 5, "n": 200})
    simulated((1, 1, "m", "n", 32), {"m": 70, "n": 70}, causal=True, late_first=True)


@pytest.mark.parametrize("causal", [False, True])
def test_tiles_in_turns(causal: bool) -> None:
    simulated((3, 1, 130, 130, 64), causal=causal, blocks=2, late_first=causal)
    simulated((1, 1, 200, 70, 32), causal=causal, blocks=1, stages=3, strips=0)


def test_scores_that_grow_and_shrink() -> None:
    simulated((1, 1, 64, 300, 32), scale=8.0)


@pytest.mark.parametrize("what", ["empty", "full"])
def test_the_simulator_notices_a_missing_wait(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that are filled too early, or read too early, give wrong results."""
    real = relay.barriers.wait
    names = {"empty": relay.RelayRing.empty, "full": relay.RelayRing.full}
    skipped: set[str] = set()

    def noted(self: Any, ring: int, stage: str) -> str:
        at = names[what](self, ring, stage)
        skipped.add(at)
        return at

    monkeypatch.setattr(relay.RelayRing, what, noted)
    monkeypatch.setattr(relay.barriers, "wait", lambda t, barrier, phase: None if barrier in skipped else real(t, barrier, phase))
    with pytest.raises(AssertionError):
        simulated((1, 1, 64, 330, 64))


def test_a_pipeline_that_may_have_no_turn() -> None:
    text = print_kernel(by_tiles(attention((1, 1, 64, "n", 32)), **SMALL))
    changed = text.replace("for j_o in 1 pipeline", "for j_o in n - 1 pipeline")
    assert changed != text
    with pytest.raises(CodegenError, match="may have no turn"):
        emit_module(machine(parse_kernel(changed)), TARGET)
