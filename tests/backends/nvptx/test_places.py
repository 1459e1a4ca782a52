"""The code of convolutions on tensor cores: run on the CPU where all that is asynchronous happens as late as it may, and as ptxas
takes it."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowc.backends import nvptx
from lowc.ir.nodes import Launch
from lowc.ir.numeric import to_storage
from lowc.ir.types import bf16
from lowc.options import Options
from lowc.scheduler import choose_tensor_cores
from lowc.scheduler.choose_tensor_cores import WAYS, Way
from lowc.scheduler.im2col import im2col
from lowc.scheduler.slice_depth import slice_depth
from tests.scheduler.convolutions import convolution
from tests.scheduler.products import TARGET, machine

pytest.importorskip("llvmlite")
from tests.backends.nvptx.test_tensor_cores import assembled, by, clean  # noqa: E402
from tests.backends.nvptx.test_tile_meaning import ALONE, TEAMS, differs  # noqa: E402

CASES: dict[str, dict[str, Any]] = {
    "part of a span": {"images": 2, "size": (7, 9), "channels": 24, "made": 40},
    "spans": {"images": 1, "size": (8, 9), "channels": 128, "made": 64},
    "by 2": {"images": 2, "size": (11, 13), "channels": 72, "made": 64, "step": 2},
    "5x3, dilated": {"images": 2, "size": (14, 9), "channels": 8, "made": 16, "taps": (5, 3), "pad": 2, "gap": 2},
    "no padding": {"images": 2, "size": (9, 10), "channels": 16, "made": 24, "pad": 0},
    "one row": {"images": 3, "size": (40,), "channels": 16, "made": 24, "taps": (5,), "pad": 2},
    "three dimensions": {"images": 1, "size": (3, 4, 7), "channels": 16, "made": 24, "taps": (3, 3, 3)},
    "images of the call": {"images": "m", "size": (6, 7), "channels": 16, "made": 24},
}
SILU = "({s} + f32(bias[o])) * rcp(1.0 + ex2(-1.4426950408889634 * ({s} + f32(bias[o]))))"


@pytest.mark.parametrize("name", CASES)
def test_places_are_gathered(name: str) -> None:
    given = CASES[name]
    sizes = {"m": 2} if given["images"] == "m" else {}
    kernel = im2col(convolution(**given, dtype="f16"))
    assert differs(kernel, sizes, tile=(64, 64), **ALONE) == 0


def test_teams_and_two_groups() -> None:
    kernel = im2col(convolution(2, (10, 9), 64, 64))
    assert differs(kernel, tile=(128, 64), stages=3, blocks=1) == 0
    assert differs(kernel, tile=(128, 64), **TEAMS) == 0


def test_slices_of_the_taps() -> None:
    kernel = im2col(convolution(1, (7, 7), 128, 64))
    _, (sums, _) = slice_depth(Launch(kernel, kernel.params), 6, "out")
    assert differs(sums.kernel, tile=(64, 64), **ALONE) == 0


def test_what_is_beyond_the_channels_is_not_multiplied() -> None:
    """Pixels are apart, and NaN is between them, before the first and behind the last."""
    kernel = im2col(convolution(2, (5, 6), 24, 16, pitch=40))
    x = to_storage(np.random.default_rng(0).integers(-2, 3, 2 * 5 * 6 * 40).astype(np.float32), bf16).reshape(-1, 40)
    x[:, 24:] = to_storage(np.array([np.nan], np.float32), bf16)[0]
    count = (2 * 5 * 6 - 1) * 40 + 24
    assert differs(kernel, values={"x_": x.ravel()[:count].copy()}, tile=(64, 64), **ALONE) == 0


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize("way", [w for w in WAYS if w.tile[1] >= 64], ids=lambda w: w.name)
def test_ptxas_takes_every_way(way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ptx = by(convolution(32, (28, 28), 320, 512, result=SILU), way, monkeypatch)
    assert ptx.count("cp.async.bulk.tensor.4d.shared::cluster.global.im2col") == 1
    clean(assembled(ptx, tmp_path))


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
def test_ptxas_takes_slices_and_images_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean(assembled(by(convolution("m", (14, 14), 264, 256, step=2), WAYS[0], monkeypatch), tmp_path))
    monkeypatch.setattr(choose_tensor_cores, "slices", lambda found, target: 9)
    module = machine(convolution(1, (7, 7), 512, 512))
    assert len(module.steps) == 2
    said = assembled(nvptx.compile_module(module, TARGET, Options()).code.decode(), tmp_path)
    assert "C75" not in said and said.count(" 0 bytes spill stores") == 2
