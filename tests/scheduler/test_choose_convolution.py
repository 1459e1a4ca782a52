"""Whose a convolution is on a CPU."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from lowc.ir.graph import TensorMeta
from lowc.ir.index import contiguous_strides, ix
from lowc.ir.types import DType, bf16, f16, f32
from lowc.options import Options
from lowc.scheduler.choose_convolution import library
from lowc.target import Target
from tests.e2e.test_matmul import able

AVX512 = Target("x86", "", "", 512, 32, 32 << 10, 1 << 20, 32 << 20, 2, frozenset({"fma"}))
AUTO = Options()


def why(
    channels: int, made: int, wide: int, taps: int, groups: int = 1, step: int = 1, last: bool = False, followed: bool = True,
    dtype: DType = f32, target: Target = AVX512, options: Options = AUTO, images: int = 2,
    wanted: str = "result",
) -> str:  # fmt: skip
    x, w = (tuple([ix(n) for n in s]) for s in ((images, channels, wide, wide), (made, channels // groups, taps, taps)))
    shape = (ix(images), ix(made), ix(wide // step), ix(wide // step))
    strides = tuple([ix(n) for n in (made * wide * wide, 1, made * wide, made)]) if last else contiguous_strides(shape)
    out = TensorMeta(dtype, shape, strides, ix(0), "cpu")
    return library(target, options)(dtype, x, w, out, (ix(step), ix(step)), ix(groups), followed, wanted)


@pytest.mark.parametrize(
    "given",
    [
        {"channels": 96, "made": 96, "wide": 56, "taps": 3, "groups": 96},
        {"channels": 96, "made": 96, "wide": 56, "taps": 7, "groups": 96, "step": 2, "dtype": bf16, "followed": False},
        {"channels": 96, "made": 96, "wide": 56, "taps": 3, "groups": 96, "last": True},
        {"channels": 128, "made": 128, "wide": 28, "taps": 3},
        {"channels": 3, "made": 64, "wide": 224, "taps": 7, "step": 2},
        {"channels": 128, "made": 256, "wide": 28, "taps": 3, "step": 2, "images": 1},
        {"channels": 512, "made": 512, "wide": 28, "taps": 3, "images": 1},
        {"channels": 512, "made": 512, "wide": 7, "taps": 3},
        {"channels": 24, "made": 144, "wide": 56, "taps": 1},
        {"channels": 64, "made": 64, "wide": 56, "taps": 1, "last": True},
    ],
)
def test_what_is_faster_is_lowcs_own(given: dict[str, Any]) -> None:
    assert why(**given) == ""
    assert "option" in why(**given, options=Options(convolution="library"))
    assert "numerics" in why(**given, options=Options(numerics="strict"))
    assert "AVX-512" in why(**given, target=replace(AVX512, vector_bits=256))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"channels": 96, "made": 96, "wide": 56, "taps": 3, "groups": 96, "dtype": f16}, "f32 and bf16"),
        ({"channels": 96, "made": 96, "wide": 4, "taps": 3, "groups": 96}, "rows of 4"),
        ({"channels": 8, "made": 8, "wide": 56, "taps": 3, "groups": 8, "last": True}, "8 channels"),
        ({"channels": 96, "made": 96, "wide": 56, "taps": 3, "groups": 96, "last": True, "followed": False}, "no pointwise"),
        ({"channels": 128, "made": 128, "wide": 28, "taps": 3, "dtype": bf16}, "bf16"),
        ({"channels": 128, "made": 128, "wide": 28, "taps": 3, "followed": False}, "no pointwise"),
        ({"channels": 128, "made": 256, "wide": 28, "taps": 3, "step": 2}, "2x2 apart"),
        ({"channels": 512, "made": 512, "wide": 28, "taps": 3}, "512x512x3x3 weights"),
        ({"channels": 144, "made": 24, "wide": 56, "taps": 1}, "a product"),
    ],
)
def test_what_is_not_known_to_be_faster_is_a_librarys(given: dict[str, Any], reason: str) -> None:
    assert reason in why(**given)
    assert why(**given, options=Options(convolution="own", numerics="strict")) == ""


ZEN = replace(AVX512, cpu="znver5")
ALONE = {"channels": 96, "made": 96, "wide": 56, "taps": 3, "groups": 96}
POINT = {"channels": 256, "made": 64, "wide": 56, "taps": 1, "last": True}


@pytest.mark.parametrize(
    ("given", "wanted", "reason"),
    [
        (ALONE, "input", ""),
        (ALONE, "weight", ""),
        ({**ALONE, "step": 2, "last": True}, "input", "2x2 apart"),
        ({**ALONE, "step": 2, "last": True, "dtype": bf16}, "input", ""),
        ({**ALONE, "step": 2, "last": True}, "weight", ""),
        ({**ALONE, "wide": 14}, "weight", "rows of 14"),
        ({**ALONE, "wide": 14, "last": True}, "weight", ""),
        ({**ALONE, "wide": 14, "taps": 5}, "weight", ""),
        ({**ALONE, "dtype": f16}, "weight", "f32 and bf16"),
        (POINT, "input", ""),
        (POINT, "weight", "f32"),
        ({**POINT, "dtype": bf16}, "input", ""),
        ({**POINT, "dtype": bf16}, "weight", ""),
        ({**POINT, "dtype": bf16, "last": False}, "input", "1x1 taps"),
        ({**POINT, "made": 8}, "input", "8 channels of 256"),
        ({**POINT, "taps": 3}, "input", "3x3 taps"),
    ],
)
def test_whose_gradients_are(given: dict[str, Any], wanted: str, reason: str) -> None:
    wanted = f"gradient of {wanted}"
    assert reason in why(**given, target=ZEN, wanted=wanted) and bool(reason) == bool(why(**given, target=ZEN, wanted=wanted))
    assert why(**given, wanted=wanted)  # not measured elsewhere
    assert why(**given, wanted=wanted, options=Options(convolution="own")) == ""
    assert "option" in why(**given, target=ZEN, wanted=wanted, options=Options(convolution="library"))


@pytest.mark.parametrize(
    ("given", "own"),
    [
        (POINT, True),
        ({**POINT, "last": False, "followed": False}, True),
        ({**POINT, "dtype": bf16}, True),
        ({**POINT, "dtype": bf16, "last": False}, False),
        ({**POINT, "made": 8}, False),
    ],
)
def test_one_tap_on_zen(given: dict[str, Any], own: bool) -> None:
    assert (why(**given, target=ZEN) == "") is own


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"channels": 96, "made": 96, "wide": 56, "taps": 3, "groups": 96, "dtype": f16}, ""),
        ({"channels": 96, "made": 96, "wide": 56, "taps": 7, "groups": 96, "dtype": f16}, "7x7 taps"),
        ({"channels": 96, "made": 96, "wide": 56, "taps": 3, "groups": 96, "last": True, "dtype": bf16}, "side by side"),
        ({"channels": 144, "made": 144, "wide": 56, "taps": 3, "groups": 144, "last": True, "dtype": bf16, "images": 32}, ""),
        ({"channels": 144, "made": 144, "wide": 56, "taps": 5, "groups": 144, "last": True, "images": 32}, "5x5 taps"),
        ({"channels": 96, "made": 96, "wide": 56, "taps": 3, "groups": 96, "followed": False}, "no pointwise"),
        ({"channels": 64, "made": 256, "wide": 56, "taps": 1, "dtype": bf16, "last": True}, ""),
        ({"channels": 64, "made": 256, "wide": 56, "taps": 1, "dtype": bf16}, "do not lie"),
        ({"channels": 60, "made": 256, "wide": 56, "taps": 1, "dtype": bf16, "last": True}, "do not lie"),
        ({"channels": 24, "made": 144, "wide": 56, "taps": 1, "dtype": bf16, "last": True}, "24x144"),
        ({"channels": 512, "made": 2048, "wide": 7, "taps": 1, "dtype": bf16, "last": True}, "x512 and"),
        ({"channels": 64, "made": 256, "wide": 56, "taps": 1, "last": True}, "a product of f32"),
        ({"channels": 64, "made": 64, "wide": 56, "taps": 3, "dtype": bf16, "last": True}, ""),
        ({"channels": 64, "made": 64, "wide": 56, "taps": 7, "step": 2, "dtype": f16, "last": True}, ""),
        ({"channels": 256, "made": 512, "wide": 56, "taps": 1, "step": 2, "dtype": bf16, "last": True}, ""),
        ({"channels": 256, "made": 64, "wide": 56, "taps": 1, "dtype": bf16, "last": True}, ""),
        ({"channels": 64, "made": 64, "wide": 56, "taps": 1, "dtype": bf16, "last": True}, "64x64"),
        ({"channels": 256, "made": 256, "wide": 14, "taps": 3, "dtype": bf16, "last": True}, ""),
        ({"channels": 256, "made": 256, "wide": 4, "taps": 3, "dtype": bf16, "last": True}, "32 places"),
        ({"channels": 24, "made": 64, "wide": 56, "taps": 3, "dtype": bf16, "last": True}, "64 channels of 24"),
        ({"channels": 64, "made": 64, "wide": 56, "taps": 3, "dtype": bf16, "last": True, "followed": False}, "no pointwise"),
    ],
)
def test_whose_it_is_on_a_gpu(given: dict[str, Any], reason: str) -> None:
    target = replace(AVX512, kind="nvptx", ops=frozenset({"wgmma"}))
    assert reason in why(**given, target=target) and bool(reason) == bool(why(**given, target=target))
    assert "option" in why(**given, target=target, options=Options(convolution="library"))
    assert "numerics" in why(**given, target=target, options=Options(numerics="strict")) or reason


@pytest.mark.skipif(not able("avx512"), reason="auto takes its own on AVX-512")
def test_auto_takes_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """By ``auto``, one kernel with what follows it; ATen's has its reason."""
    from lowc.trace import Trace

    found: list[str] = []
    count = Trace.count
    monkeypatch.setattr(Trace, "count", lambda self, name, *more: (found.append(name), count(self, name, *more))[1])
    x, w = torch.randn(2, 32, 30, 30), torch.randn(32, 1, 3, 3)
    for groups, weights, own in ((32, w, True), (1, torch.randn(8, 32, 3, 3), False)):
        torch._dynamo.reset()
        found.clear()
        compiled = torch.compile(lambda x, w, g=groups: F.conv2d(x, w, groups=g).relu(), backend="lowc", options={"cache": False})
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, weights), F.conv2d(x, weights, groups=groups).relu(), rtol=1e-4, atol=1e-4)
        assert ("extern aten.convolution.default" in found) is not own
