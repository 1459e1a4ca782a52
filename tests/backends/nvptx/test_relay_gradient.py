"""Gradients of attention on tensor cores: ptxas takes what is chosen without spills and without serialising it, and it computes
what it should where all that is asynchronous happens as late as it may."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from lowc.errors import ScheduleError
from lowc.ir.nodes import Kernel, Launch, Module
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.ir.verify import verify_module
from lowc.options import Options
from lowc.scheduler import choose_attention, contract
from lowc.scheduler.relay_gradient import RelayedGradient
from tests.backends.nvptx.test_tensor_cores import assembled, clean
from tests.scheduler.attentions import TARGET, Shape, applied, machine
from tests.scheduler.gradients import check, gradients

pytest.importorskip("llvmlite")
from lowc.backends import nvptx  # noqa: E402
from lowc.backends.nvptx import relay  # noqa: E402
from lowc.backends.nvptx.module import emit_module  # noqa: E402
from tests.backends.nvptx.tile_simulator import simulate  # noqa: E402


def by_tiles(kernel: Kernel, **changed: Any) -> Kernel:
    """``kernel`` as it is chosen, but for what is ``changed``, with the params that it still needs."""
    way = choose_attention.gradients(kernel, TARGET)[0]
    fields = {f: getattr(way, f) for f in way.__slots__}
    done = applied(kernel, RelayedGradient(**{**fields, **changed}))
    module = Module("SCHEDULED", done.sizes, (*done.params, *done.sizes), (), (), (Launch(done, done.params),))
    verify_module(module, "SCHEDULED")
    assert not {p.name for p in done.params} & {"weights", "slopes", "slopes_q"}
    return done


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize(("nests", "deep"), [("q", 64), ("q", 256), ("k", 64), ("k", 128)])
@pytest.mark.parametrize("rows", [4096, "m"])
def test_ptxas_takes_what_is_chosen(nests: str, deep: int, rows: Any, tmp_path: Path) -> None:
    kernel = by_tiles(gradients((16, 16, rows, 4001, deep), nests, causal=True, dtype="bf16"))
    ptx = nvptx.compile_module(machine(kernel), TARGET, Options()).code.decode()
    assert ptx.count("wgmma.wait_group") == 2 and "setmaxnreg" in ptx
    clean(assembled(ptx, tmp_path))


def simulated(shape: Shape, nests: str, sizes: dict[str, int] | None = None, causal: bool = False, **changed: Any) -> None:
    """By the interpreter and by the simulator of the code."""
    kernel = by_tiles(gradients(shape, nests, causal, dtype="f16"), **{"groups": 1, **changed})
    check(kernel, shape, sizes, "f16", causal=causal)
    module = machine(kernel)
    (step,) = module.steps
    assert isinstance(step, Launch)
    text, entries = emit_module(module, TARGET)
    done = step.kernel
    check(done, shape, sizes, "f16", lambda m: simulate(text, done, entries[done.name], m, sizes or {}), causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("nests", ["q", "k"])
def test_several_turns_of_the_rings(nests: str, causal: bool) -> None:
    simulated((1, 1, 70, 130, 32) if nests == "q" else (1, 1, 130, 70, 32), nests, causal=causal, others=32)


def test_heads_that_share_keys_and_deep_ones() -> None:
    simulated((2, 1, 64, 40, 32), "q")
    simulated((1, 1, 50, 64, 128), "k", causal=True)


@pytest.mark.parametrize("nests", ["q", "k"])
def test_lengths_of_the_call(nests: str) -> None:
    simulated((1, 1, "m", "n", 32), nests, {"m": 30, "n": 90}, causal=True)


def test_the_simulator_notices_a_missing_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that are read before they are filled give wrong results."""
    real, full = relay.barriers.wait, relay.RelayRing.full
    skipped: set[str] = set()

    def noted(self: Any, ring: int, stage: str) -> str:
        at = full(self, ring, stage)
        skipped.add(at)
        return at

    monkeypatch.setattr(relay.RelayRing, "full", noted)
    monkeypatch.setattr(relay.barriers, "wait", lambda t, barrier, phase: None if barrier in skipped else real(t, barrier, phase))
    with pytest.raises(AssertionError):
        simulated((1, 1, 130, 64, 32), "k", others=32)


def test_text_is_read_back() -> None:
    done = by_tiles(gradients((2, 2, 128, 130, 64), "k", True, dtype="bf16"))
    assert print_kernel(parse_kernel(print_kernel(done))) == print_kernel(done)


def test_what_is_none_is_refused() -> None:
    with pytest.raises(ScheduleError, match="16 bits"):
        contract.apply(gradients((1, 1, 64, 64, 32), "q"), RelayedGradient("i", 2, 64, 2))
    shared = gradients((4, 2, 64, 64, 32), "k", causal=True, dtype="bf16")
    with pytest.raises(ScheduleError, match="several heads"):
        contract.apply(shared, RelayedGradient("hk", 2, 64, 2))
    assert not choose_attention.gradients(gradients((1, 1, 64, 64, 256), "k", dtype="bf16"), TARGET)
