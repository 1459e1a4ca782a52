"""Convolutions as products of matrices, and the boxes of places that the engine is told of."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lowc.ir import tiles
from lowc.ir.boxes import Box
from lowc.ir.index import constant, text
from lowc.ir.nodes import For, Kernel, Launch
from lowc.ir.parser import parse_kernel
from lowc.ir.walk import statements
from lowc.options import Options
from lowc.scheduler import choose_tensor_cores, linearise
from lowc.scheduler.im2col import im2col, run
from lowc.scheduler.slice_depth import slice_depth
from tests.scheduler.convolutions import convolution
from tests.scheduler.products import TARGET, machine, product, result, scheduled

SMALL: dict[str, Any] = {"tile": (64, 64), "groups": 1, "stages": 3, "blocks": 2}
CASES: dict[str, dict[str, Any]] = {
    "square": {"images": 2, "size": (7, 7), "channels": 64, "made": 40},
    "part of a span": {"images": 2, "size": (7, 9), "channels": 24, "made": 40},
    "spans and a part": {"images": 1, "size": (5, 6), "channels": 72, "made": 16},
    "by 2": {"images": 2, "size": (11, 13), "channels": 16, "made": 24, "step": 2},
    "by 2, a row is left": {"images": 2, "size": (12, 14), "channels": 16, "made": 24, "step": 2, "pad": 0},
    "dilated": {"images": 2, "size": (9, 10), "channels": 16, "made": 24, "pad": 2, "gap": 2},
    "no padding": {"images": 2, "size": (9, 10), "channels": 16, "made": 24, "pad": 0},
    "much padding": {"images": 1, "size": (4, 5), "channels": 8, "made": 8, "pad": 2},
    "5x3": {"images": 2, "size": (13, 12), "channels": 8, "made": 16, "taps": (5, 3), "step": 2, "pad": 2},
    "1x3": {"images": 2, "size": (8, 9), "channels": 16, "made": 24, "taps": (1, 3), "pad": 0},
    "3x1": {"images": 1, "size": (8, 9), "channels": 16, "made": 24, "taps": (3, 1), "pad": 0},
    "1x1 by 2": {"images": 2, "size": (8, 9), "channels": 16, "made": 24, "taps": (1, 1), "step": 2, "pad": 0},
    "one row": {"images": 3, "size": (40,), "channels": 16, "made": 24, "taps": (5,), "pad": 2},
    "one row of one image": {"images": 1, "size": (90,), "channels": 16, "made": 24, "taps": (5,), "pad": 2, "step": 2},
    "three dimensions": {"images": 2, "size": (3, 4, 5), "channels": 16, "made": 24, "taps": (3, 3, 3)},
    "rows as long as tiles": {"images": 2, "size": (3, 64), "channels": 16, "made": 24},
    "images as large as tiles": {"images": 3, "size": (8, 8), "channels": 16, "made": 24},
    "pixels apart": {"images": 2, "size": (6, 7), "channels": 16, "made": 24, "pitch": 40},
    "images of the call": {"images": "m", "size": (6, 7), "channels": 16, "made": 24},
}


def seen(kernel: Kernel) -> Box:
    """The box of the factor that is seen through windows."""
    fills = [tiles.fill(s) for s in statements(kernel.body) if isinstance(s, For) and s.kind.key == tiles.TMA]
    boxes = [tiles.box(f) for f in fills if f is not None]
    (found,) = [b for b in boxes if b is not None and b.window is not None]
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_convolution_is_a_product_of_places(name: str) -> None:
    kernel = convolution(**CASES[name])
    sizes = {"m": 3} if isinstance(CASES[name]["images"], str) else {}
    flat = im2col(kernel)
    assert [f.axis.name for f in statements(flat.body) if isinstance(f, For)] == ["p", "o", "k"]
    wanted = result(kernel, sizes)
    np.testing.assert_array_equal(result(flat, sizes), wanted)
    done = scheduled(flat, **SMALL)
    assert seen(done).box == (64, 64)
    np.testing.assert_array_equal(result(done, sizes), wanted)


def test_what_the_engine_is_told() -> None:
    found = seen(scheduled(im2col(convolution(5, (11, 15), 72, 64, (5, 3), step=2, pad=1, gap=2, pitch=80)), **SMALL))
    assert [constant(n) for n in found.sizes] == [72, 15, 11, 5]
    assert [constant(n) for n in found.strides] == [1, 80, 80 * 15, 80 * 15 * 11]
    assert found.window is not None
    # 3 rows of 7 places: the first is one outside, the last at -1 + 2 * 2 of 11 rows and at -1 + 6 * 2 of 15
    assert (found.window.lower, found.window.upper, found.window.steps) == ((-1, -1), (-1 + 12 - 14, -1 + 4 - 10), (2, 2))
    assert [text(t) for t in found.window.taps] == ["((k_o // 2) % 3)*2", "(k_o // 6)*2"]
    assert [text(s) for s in found.starts] == [
        "(k_o % 2)*64", "((p_tile*64) % 7)*2 - 1", "((((p_tile*64) // 7)) % 3)*2 - 1", "((p_tile*64) // 21)",
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(24))
def test_random_shapes(seed: int) -> None:
    draw = random.Random(seed)
    while True:
        dims = draw.choice((1, 2, 2, 2, 3))
        size = tuple(draw.choice((1, 2, 3, 5, 7, 8, 12, 16, 32, 64)) for _ in range(dims))
        taps = tuple(draw.choice((1, 2, 3, 3, 5)) for _ in range(dims))
        step, pad, gap = draw.choice((1, 1, 2, 3)), draw.choice((0, 1, 2)), draw.choice((1, 1, 2))
        places = [(n + 2 * pad - (t - 1) * gap - 1) // step + 1 for n, t in zip(size, taps, strict=True)]
        if min(places) > 0 and np.prod(places) <= 200 and max(taps) > 1:
            break
    images, channels, made = draw.choice((1, 2, 3)), draw.choice((8, 24, 64, 72)), draw.choice((8, 24, 70))
    kernel = convolution(images, size, channels, made, taps, step, pad, gap)
    flat = im2col(kernel)
    wanted = result(kernel, {})
    np.testing.assert_array_equal(result(flat, {}), wanted)
    if flat is not kernel:
        done = scheduled(flat, **SMALL)
        np.testing.assert_array_equal(result(done, {}), wanted)
        if all(n > 1 or t == 1 for n, t in zip(places, taps, strict=True)):  # others are ATen's
            assert seen(done).window is not None


LEFT = """kernel f(x: bf16[4, 9, 16], w: bf16[24, 3, 16], out: bf16[4, 7, 24]) {
  for n in 4 { for i in 7 { for o in 24 { acc s: f32 = add
    for a in 3 { for k in 16 { s add= product(f32(x[n, i + a, k if MASK]), f32(w[o, a, k])) } }
    out[n, i, o] = bf16(s)
  } } }
}"""


@pytest.mark.parametrize(
    ("mask", "is_box"),
    [
        ("(idx(i + a) < 8)", True),  # ends earlier than memory
        ("(idx(i + a) < 8) & (idx(i + a) >= 0)", True),
        ("(idx(i + a) >= 1)", False),  # the engine knows of no other bound than the first element
        ("(idx(i + a + k) < 20)", False),
        ("(idx(i*2 + a) < 12)", False),  # by other steps than the address
        ("(idx(n + i) < 9)", False),
        ("(idx(i + a) <= 7)", False),
        ("(idx(i + a) < 8) & (idx(k) < 9)", False),
        ("(x[0, 0, 0] > bf16(0.0))", False),
    ],
)
def test_other_masks_are_no_places(mask: str, is_box: bool) -> None:
    """Threads copy then."""
    kernel = linearise._linear(parse_kernel(LEFT.replace("MASK", mask)))
    flat = im2col(kernel)
    done = scheduled(flat, **SMALL)
    keys = [s.kind.key for s in statements(done.body) if isinstance(s, For) and s.kind.key in ("tma", "copy")]
    assert keys[:2] == (["tma", "tma"] if is_box else ["copy", "tma"])
    np.testing.assert_array_equal(result(done, {}), result(kernel, {}))


@pytest.mark.parametrize(("gap", "is_box"), [(15, True), (16, False)])
def test_the_engine_has_5_bits_for_how_far_taps_of_three_dimensions_are(gap: int, is_box: bool) -> None:
    flat = im2col(convolution(1, (3, 3, 3), 8, 8, (3, 3, 3), pad=gap, gap=gap))
    done = scheduled(flat, **SMALL)
    fills = [tiles.fill(s) for s in statements(done.body) if isinstance(s, For) and s.kind.key in tiles.FILLS]
    boxes = [tiles.box(f) for f in fills if f is not None and f.loops[0].kind.key == tiles.TMA]
    assert any(b is not None and b.window is not None for b in boxes) == is_box


def test_taps_that_see_along_images_of_the_call_are_not_masked() -> None:
    """There is one place along their dimension; images lie as far apart as places would by steps of 3."""
    kernel = linearise._linear(parse_kernel("""
    kernel f(m: size 1.. ~ 3, x: bf16[m, 3, 7, 16], w: bf16[24, 3, 16], out: bf16[m, 7, 24]) {
      for n in m { for i in 7 { for o in 24 { acc s: f32 = add
        for a in 3 { for k in 16 { s add= product(f32(x[n, a, i, k]), f32(w[o, a, k])) } }
        out[n, i, o] = bf16(s)
      } } }
    }"""))
    flat = im2col(kernel)
    assert flat is not kernel
    np.testing.assert_array_equal(result(flat, {"m": 3}), result(kernel, {"m": 3}))


def test_what_is_no_convolution_stays() -> None:
    for kernel in (product(40, 24, 64), product(40, 24, 64, batch=3), product(40, 24, 64, "nn"), product("m", 24, 64)):
        assert im2col(kernel) is kernel
    turned = LEFT.replace("w: bf16[24, 3, 16]", "w: bf16[24, 3, 16 : 48, 1, 3]").replace("MASK", "idx(i + a) < 8")
    kernel = linearise._linear(parse_kernel(turned))
    assert im2col(kernel) is kernel  # taps are neighbours, not channels
    wide = linearise._linear(parse_kernel(LEFT.replace("bf16", "f32").replace("MASK", "idx(i + a) < 8")))
    assert im2col(wide) is wide


def test_only_where_tensor_cores_multiply_so() -> None:
    from lowc.ir.nodes import Module

    kernel = convolution(2, (7, 7), 64, 40)
    module = Module("SCHEDULED", (), kernel.params, (), (), (Launch(kernel, kernel.params),))
    assert run(module, replace(TARGET, ops=TARGET.ops - {"wgmma"}), Options()) is module
    (step,) = run(module, TARGET, Options()).steps
    assert isinstance(step, Launch) and step.kernel is not kernel


def test_slices_of_the_depth_are_of_one_length() -> None:
    """Beyond the last tap the input is no 0."""
    kernel = im2col(convolution(2, (7, 7), 128, 64))
    found = choose_tensor_cores.contraction(kernel, TARGET)
    assert found is not None
    size = choose_tensor_cores.size_of(found)
    assert size.even
    assert {count for _, count, _ in choose_tensor_cores.plans(size, 132)} <= {1, 2, 3, 6, 9, 18}
    _, (sums, _) = slice_depth(Launch(kernel, kernel.params), 6, "out")
    done = scheduled(sums.kernel, **SMALL)
    assert seen(done).window is not None
    np.testing.assert_array_equal(result(done, {}), result(sums.kernel, {}))
    with pytest.raises(Exception, match="of one length"):
        slice_depth(Launch(kernel, kernel.params), 4, "out")


def test_all_passes() -> None:
    module = machine(convolution(4, (28, 28), 128, 256, result="max({s} + f32(bias[o]), 0.0)"))
    (step,) = module.steps
    assert isinstance(step, Launch)
    assert seen(step.kernel).window is not None
    assert sum(s.kind.key == "tma" for s in statements(step.kernel.body) if isinstance(s, For)) == 3
