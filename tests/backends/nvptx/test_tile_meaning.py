"""The code of products on tensor cores, run on the CPU where all that is asynchronous happens as late as it may."""

import time
from typing import Any

import numpy as np
import pytest

from lowc.ir.index import evaluate
from lowc.ir.interp import run_kernel
from lowc.ir.nodes import Kernel, Launch, Module
from lowc.ir.numeric import from_storage
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.scheduler.slice_depth import slice_depth
from lowc.target import Target
from tests.scheduler.products import TARGET, product, scheduled, stored, unset

pytest.importorskip("llvmlite")
from lowc.backends.nvptx import ring  # noqa: E402
from lowc.backends.nvptx.module import emit_module  # noqa: E402
from tests.backends.nvptx.tile_simulator import Machine, simulate  # noqa: E402

ALONE: dict[str, Any] = {"groups": 1, "stages": 3, "blocks": 2}
TEAMS: dict[str, Any] = {"groups": 1, "teams": 2, "stages": 3, "blocks": 1}


def differs(
    kernel: Kernel, sizes: dict[str, int] | None = None, values: dict[str, Any] | None = None, **changed: Any
) -> int:
    """In how many elements the emitted code's results are not those of ``kernel``, of whole numbers or ``values``."""
    return wrong(kernel, scheduled(kernel, **changed), TARGET, sizes or {}, values)


def wrong(kernel: Kernel, done: Kernel, on: Target, sizes: dict[str, int], values: dict[str, Any] | None = None) -> int:
    """The same for ``kernel`` as it is scheduled, ``done``."""
    module = Module("MACHINE", done.sizes, (*done.params, *done.sizes), (), (), (Launch(done, done.params),))
    text, entries = emit_module(module, on)
    generator = np.random.default_rng(0)
    memory: dict[str, Any] = {n: v.copy() for n, v in (values or {}).items()}
    for param in kernel.params:
        count = max(0, evaluate(param.shape[0], sizes))
        made = stored(generator.integers(-2, 3, count).astype(np.float32), param.dtype)
        memory.setdefault(param.name, made)
    outs = [p for p in kernel.params if p.name in ("out", "turned")]
    for out in outs:
        memory[out.name][:] = unset(out.dtype)
    given = {n: v.copy() for n, v in memory.items()}
    simulate(text, done, entries[done.name], memory, sizes)
    found = np.concatenate([from_storage(memory[out.name], out.dtype) for out in outs])
    run_kernel(kernel, given, sizes)
    expected = np.concatenate([from_storage(given[out.name], out.dtype) for out in outs])
    return int(((found != expected) & ~(np.isnan(found) & np.isnan(expected))).sum())  # NaN is what nobody is to write


@pytest.mark.parametrize("form", ["nn", "nt", "tn", "tt"])
def test_every_layout(form: str) -> None:
    assert differs(product(72, 136, 72, form, dtype="f16"), tile=(64, 64), **ALONE) == 0
    assert differs(product(136, 72, 72, form, dtype="f16"), tile=(128, 64), **TEAMS) == 0


@pytest.mark.parametrize(
    ("tile", "given"),
    [
        ((128, 128), {"groups": 2, "stages": 3, "blocks": 2}), ((64, 256), {**ALONE, "strips": 2}),
        ((64, 192), {**TEAMS, "strips": 3}), ((64, 128), {**TEAMS, "strips": 1}), ((64, 64), {**TEAMS, "strips": 0}),
        ((256, 64), {"groups": 2, "stages": 3}),
    ],
    ids=str,
)  # fmt: skip
def test_tiles_and_strips(tile: tuple[int, int], given: dict[str, Any]) -> None:
    assert differs(product(136, 200, 136, "nn", dtype="f16", result="{s} * 2.0"), tile=tile, **given) == 0


def test_tiles_narrower_than_a_strip() -> None:
    assert differs(product(72, 72, 136, "nt", dtype="f16"), tile=(64, 32), **ALONE) == 0


def test_columns_behind_the_last_whole_strip() -> None:
    assert differs(product(72, 200, 72, dtype="f16", result="{s} * 0.5"), tile=(64, 88), **ALONE) == 0


def test_stages_of_several_rounds_of_the_ring() -> None:
    """A team that passes over more stages than the ring has."""
    assert differs(product(256, 64, 640, "nt", dtype="f16"), tile=(64, 64), **TEAMS) == 0


def test_a_team_that_does_not_wait_for_its_turn_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A phase modulo 2 is no order: without turns a team a round of the ring ahead multiplies though nothing has come."""

    def arrive(machine: Machine, at: int, size: int) -> int:
        """Who would fill a stage never comes to it, so that the outcome is the same on every machine."""
        while not machine.failed:
            time.sleep(0.01)
        return 0

    monkeypatch.setattr(Machine, "arrive", arrive)
    monkeypatch.setattr(ring.Ring, "await_turn", lambda self: None)
    with pytest.raises(AssertionError, match="what has not come is multiplied"):
        differs(product(256, 64, 640, "nt", dtype="f16"), tile=(64, 64), **TEAMS)


def test_a_strip_that_is_written_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from lowc.backends.nvptx import outlet

    waited = outlet.Outlets.wait
    monkeypatch.setattr(outlet.Outlets, "wait", lambda self, pending: waited(self, pending + 2 if pending else 0))
    assert differs(product(64, 256, 64, "nt", dtype="f16"), tile=(64, 256), **ALONE, strips=2) > 0


def test_results_in_f32_and_by_threads() -> None:
    text = print_kernel(product(72, 80, 64, dtype="f16"))
    text = text.replace("out: f16[5760])", "out: f32[5760], turned: f32[5760])")
    kernel = parse_kernel(text.replace("out[i*80 + j] = f16(s + f32(bias[j]))", "out[i*80 + j] = s\nturned[j*72 + i] = s"))
    assert differs(kernel, tile=(64, 64), **ALONE) == 0
    assert differs(kernel, tile=(64, 64), **TEAMS) == 0


def test_batches_and_sizes_of_the_call() -> None:
    assert differs(product(72, 72, 40, "nn", batch=3, dtype="f16"), tile=(64, 64), **TEAMS) == 0
    kernel = product("m", 72, 72, "nt", dtype="f16")
    for m in (1, 130):
        assert differs(kernel, {"m": m}, tile=(64, 64), **TEAMS) == 0


@pytest.mark.parametrize(("shape", "form"), [((72, 72, 300), "nt"), ((40, 80, 300), "tn"), ((33, 70, 264), "nn")], ids=str)
def test_slices_of_the_depth(shape: tuple[int, int, int], form: str) -> None:
    """Their sums, with a depth that is no multiple of them, and batches."""
    kernel = product(*shape, form, batch=2, dtype="f16")
    _, (sums, _) = slice_depth(Launch(kernel, kernel.params), 3, "out")
    assert differs(sums.kernel, tile=(64, 64), **TEAMS) == 0


def test_tf32() -> None:
    assert differs(product(72, 136, 72, "nt", dtype="f32"), tile=(64, 64), **ALONE) == 0
    assert differs(product(136, 72, 84, "nt", dtype="f32", batch=2), tile=(128, 64), **TEAMS) == 0


@pytest.mark.parametrize("loose", [False, True])
def test_float8(loose: bool) -> None:
    """Of both types, the depth no multiple of a tile's; spans added up by themselves, and not."""
    given: dict[str, Any] = {"dtype": "f8e4m3", "loose": loose}
    assert differs(product("m", 72, 400, result="{s} * 0.5", **given), {"m": 70}, tile=(64, 64), **ALONE) == 0
    kernel = product(136, 72, 144, other="f8e5m2", **given)
    assert differs(kernel, tile=(128, 64), **(TEAMS if loose else {**ALONE, "blocks": 1})) == 0


def test_a_span_of_float8_that_is_multiplied_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring.barriers, "wait", lambda *_: None)
    with pytest.raises(AssertionError, match="what has not come is multiplied"):
        differs(product(64, 64, 272, dtype="f8e4m3"), tile=(64, 64), **ALONE)


def test_tf32_is_rounded_on_the_way() -> None:
    """Ties, too; one product in each sum, by 1."""
    kernel = product(64, 40, 40, "nt", dtype="f32")
    generator = np.random.default_rng(0)
    x = generator.integers(0x3F000000, 0x40000000, 64 * 40, np.uint32)
    x[::2] = x[::2] & 0xFFFFE000 | 0x1000
    values = {"x": x.view(np.float32), "y": np.eye(40, dtype=np.float32).ravel(), "bias": np.zeros(40, np.float32)}
    assert differs(kernel, values=values, tile=(64, 64), **ALONE) == 0
    nearest = (x.astype(np.int64) + 0xFFF + (x >> 13 & 1)) >> 13 << 13
    memory = {n: v.copy() for n, v in values.items()} | {"out": np.zeros(64 * 40, np.float32)}
    run_kernel(kernel, memory, {})
    np.testing.assert_array_equal(memory["out"], nearest.astype(np.uint32).view(np.float32))
