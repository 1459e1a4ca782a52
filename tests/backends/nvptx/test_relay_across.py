"""All gradients of attention in one kernel on tensor cores, those of queries added up in memory: ptxas takes what is chosen
without spills and without serialising it, and it computes what it should where all that is asynchronous happens as late as it
may."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from lowc.errors import ScheduleError, VerifyError
from lowc.ir import relays
from lowc.ir.index import Axis, evaluate, ix
from lowc.ir.nodes import Kernel, Launch
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.ir.tiles import column, held_at, row
from lowc.ir.verify_gpu import verify_kernel_threads
from lowc.options import Options
from lowc.scheduler import choose_attention, contract
from lowc.scheduler.relay_across import RelayedAcross
from tests.backends.nvptx.test_tensor_cores import assembled, clean
from tests.scheduler.attentions import TARGET, Shape, applied, machine
from tests.scheduler.gradients import check, gradients

pytest.importorskip("llvmlite")
from lowc.backends import nvptx  # noqa: E402
from lowc.backends.nvptx import relay  # noqa: E402
from lowc.backends.nvptx.module import emit_module  # noqa: E402
from tests.backends.nvptx import tile_simulator  # noqa: E402
from tests.backends.nvptx.tile_simulator import simulate  # noqa: E402


def by_tiles(kernel: Kernel, **changed: Any) -> Kernel:
    """``kernel`` as it is chosen, but for what is ``changed``, with the params that it still needs."""
    way = choose_attention.gradients(kernel, TARGET)[0]
    fields = {f: getattr(way, f) for f in way.__slots__}
    return applied(kernel, RelayedAcross(**{**fields, **changed}))


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize(
    ("deep", "causal", "rows"),
    [(64, False, 4096), (64, True, 4096), (128, False, 1000), (128, True, 4096), (64, False, "m"), (64, True, 1000)],
)
def test_ptxas_takes_what_is_chosen(deep: int, causal: bool, rows: Any, tmp_path: Path) -> None:
    kernel = by_tiles(gradients((16, 16, rows, rows, deep), "a", causal, dtype="bf16"))
    ptx = nvptx.compile_module(machine(kernel), TARGET, Options()).code.decode()
    loops = 2 if causal or rows != 4096 else 1
    assert ptx.count("wgmma.wait_group") == 4 * loops and ptx.count("red.relaxed.gpu.global.add.v4.f32") == 8 * loops
    assert "setmaxnreg" in ptx
    clean(assembled(ptx, tmp_path))


@pytest.mark.parametrize("deep", [64, 128])
def test_products_do_not_wait_for_what_is_loaded_for_the_next_turn(deep: int) -> None:
    """Loads begin when both first products have, and nothing is made of what they give until it is stored."""
    kernel = by_tiles(gradients((16, 16, 4096, 4096, deep), "a", dtype="bf16"))
    ptx = nvptx.compile_module(machine(kernel), TARGET, Options()).code.decode()
    turn = ptx[ptx.index("wgmma.mma_async") :]
    second = turn.index("wgmma.commit_group", turn.index("wgmma.commit_group") + 1)
    assert second < turn.index("ld.global") < turn.index("wgmma.wait_group")
    stored, log2e = turn.index("stmatrix"), "0fBFB8AA3B"  # less the logarithm of a sum, to base 2
    assert stored < turn.index(log2e) and stored < turn.index("neg.f32")


@pytest.mark.parametrize(("driver", "wide"), [(12000, False), (12010, True)])
def test_drivers_that_do_not_know_additions_of_four_get_single_ones(driver: int, wide: bool) -> None:
    target = nvptx.target((9, 0), 132, driver, 50 << 20)
    kernel = by_tiles(gradients((16, 16, 4096, 4096, 64), "a", True, dtype="bf16"))
    ptx = nvptx.compile_module(machine(kernel), target, Options()).code.decode()
    assert ("red.relaxed.gpu.global.add.v4.f32" in ptx) == wide
    assert f".version {8.1 if wide else 8.0}" in ptx


def simulated(shape: Shape, sizes: dict[str, int] | None = None, causal: bool = False, dtype: str = "f16") -> None:
    """By the interpreter and by the simulator of the code."""
    kernel = by_tiles(gradients(shape, "a", causal, dtype=dtype))
    check(kernel, shape, sizes, dtype, causal=causal)
    module = machine(kernel)
    (step,) = module.steps
    assert isinstance(step, Launch)
    text, entries = emit_module(module, TARGET)
    done = step.kernel
    check(done, shape, sizes, dtype, lambda m: simulate(text, done, entries[done.name], m, sizes or {}), causal=causal)


def test_wide_heads() -> None:
    simulated((1, 1, 66, 70, 96))


def test_wide_heads_under_a_mask() -> None:
    simulated((1, 1, 100, 70, 128), causal=True)


def test_narrow_heads_that_share_keys() -> None:
    simulated((2, 1, 70, 20, 32), dtype="bf16")


def test_narrow_heads_under_a_mask() -> None:
    simulated((1, 1, 140, 140, 64), causal=True)


def test_lengths_of_the_call() -> None:
    simulated((1, 1, "m", "n", 64), {"m": 90, "n": 130}, causal=True)


@pytest.mark.parametrize("what", ["spread", "full"])
def test_the_simulator_notices_a_missing_wait(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that are read before they are filled, or before all threads have spread what they hold, give wrong results."""
    real, function = relay.barriers.wait, getattr(relay.RelayRing, what)
    skipped: set[str] = set()

    def noted(*args: Any) -> str:
        at = function(*args)
        skipped.add(at)
        return at

    def late(machine: Any, *args: Any) -> None:
        if machine.local.thread >= 128 and what == "spread":
            added.wait(60.0)  # one group spreads when the other is done with what both spread
        scatter(machine, *args)

    def noted_add(machine: Any, *args: Any) -> None:
        added.set()
        add(machine, *args)

    added = threading.Event()
    scatter, add = tile_simulator.Machine.scatter, tile_simulator.Machine.add
    monkeypatch.setattr(tile_simulator.Machine, "scatter", late)
    monkeypatch.setattr(tile_simulator.Machine, "add", noted_add)
    monkeypatch.setattr(relay.RelayRing, what, noted)
    monkeypatch.setattr(relay.barriers, "wait", lambda t, barrier, phase: None if barrier in skipped else real(t, barrier, phase))
    with pytest.raises(AssertionError):
        simulated((1, 1, 100, 64, 64))


def test_sums_lie_as_threads_have_them() -> None:
    i, d = Axis("i", ix(200)), Axis("d", ix(64))
    found = held_at(ix(i), ix(d))
    for r in range(200):
        for c in range(64):
            tile, strip, thread, number = (evaluate(n, {"i": r, "d": c}) for n in found)
            assert evaluate(row(ix(thread), ix(number)), {}) == r - tile * 64
            assert evaluate(column(ix(thread), ix(strip * 4 + number)), {}) == c


def test_text_is_read_back() -> None:
    done = by_tiles(gradients((2, 2, 128, 130, 64), "a", True, dtype="bf16"))
    assert print_kernel(parse_kernel(print_kernel(done))) == print_kernel(done)


def test_what_is_none_is_refused() -> None:
    with pytest.raises(ScheduleError, match="several|of queries|16 bits|something else|no gradient"):
        contract.apply(gradients((1, 1, 64, 64, 64), "k"), RelayedAcross("r", 64, 2, 1, True))
    others = ("s * 0.25", "s * 0.5", "")
    with pytest.raises(ScheduleError, match="slopes are not of weights"):
        made = gradients((1, 1, 64, 64, 64), "a", dtype="bf16", function=others)
        contract.apply(made, RelayedAcross("r", 128, 2, 1, True))
    with pytest.raises(ScheduleError, match="at a time"):
        contract.apply(gradients((1, 1, 64, 64, 64), "a", dtype="bf16"), RelayedAcross("r", 32, 2, 1, True))


def test_what_is_spread_is_read_by_products_alone() -> None:
    (step,) = machine(by_tiles(gradients((1, 1, 128, 128, 64), "a", dtype="bf16"))).steps
    assert isinstance(step, Launch)
    verify_kernel_threads(step.kernel)
    found = relays.relay(relays.block_body(step.kernel.body))
    assert found is not None
    assert found.turns[0].across is not None
    read = f"f32({found.turns[0].across.spread.tile.name}[0, 0, 0])"
    wrong = print_kernel(step.kernel).replace("= ex2_normal(", f"= {read} * ex2_normal(", 1)
    with pytest.raises(VerifyError, match="read by threads"):
        verify_kernel_threads(parse_kernel(wrong))
