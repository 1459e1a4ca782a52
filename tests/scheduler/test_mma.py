"""Products of matrices by ``mma.sync``: every form keeps the meaning of the kernel, and has the instructions that it should."""

from typing import Any

import numpy as np
import pytest

from lowc.errors import VerifyError
from lowc.ir import tiles
from lowc.ir.nodes import For, Kernel, Launch
from lowc.ir.parser import parse_kernel
from lowc.ir.pieces import pieces
from lowc.ir.printer import print_kernel
from lowc.ir.verify_gpu import verify_kernel_threads
from lowc.ir.walk import statements
from lowc.scheduler import choose_mma
from tests.scheduler.products import TARGET, WARPS, by_warps, machine, product, result


def keys(kernel: Kernel) -> list[str]:
    return [s.kind.key for s in statements(kernel.body) if isinstance(s, For) and s.kind.name == "instr"]


@pytest.mark.parametrize("form", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", [(136, 72, 80), (100, 70, 39), (3, 5, 2), (129, 65, 66)], ids=str)
def test_meaning_is_kept(shape: tuple[int, int, int], form: str) -> None:
    kernel = product(*shape, form)
    done = by_warps(kernel)
    verify_kernel_threads(done)
    assert keys(done)[2:] == ["mma"]
    np.testing.assert_array_equal(result(done, {}), result(kernel, {}))


@pytest.mark.parametrize(
    "changed",
    [
        {"tile": (128, 128), "groups": 1, "shares": 1}, {"tile": (128, 128), "groups": 2, "shares": 4},
        {"tile": (64, 64), "groups": 1, "shares": 2}, {"tile": (64, 128), "groups": 1, "shares": 4},
        {"tile": (128, 64), "groups": 2, "shares": 1}, {"group": 1}, {"stages": 2},
    ],
    ids=str,
)  # fmt: skip
def test_any_tile(changed: dict[str, Any]) -> None:
    kernel = product(200, 136, 72, "nn", result="{s} * {s}", batch=2)
    done = by_warps(kernel, **changed)
    verify_kernel_threads(done)
    found = tiles.pipeline(tiles.pipelines(done.body)[0])
    assert found is not None
    assert found.product.key == "mma"
    if "tile" in changed:
        assert ((found.product.rows, found.product.columns), found.product.shares) == (changed["tile"], changed["shares"])
    np.testing.assert_array_equal(result(done, {}), result(kernel, {}))


@pytest.mark.parametrize(
    ("shape", "form", "sizes"),
    [
        ((64, 64, 64), "nt", (16, 16)), ((64, 64, 68), "nt", (8, 8)), ((64, 64, 66), "nt", (4, 4)), ((64, 64, 65), "nt", (0, 0)),
        ((66, 72, 65), "tn", (4, 16)), ((65, 66, 68), "nn", (8, 4)), ((65, 67, 65), "tt", (0, 0)),
    ],
    ids=str,
)  # fmt: skip
def test_pieces_are_as_large_as_rows_allow(shape: tuple[int, int, int], form: str, sizes: tuple[int, int]) -> None:
    """Bytes of a piece of each factor; 0: rows begin anywhere, and threads copy element by element."""
    done = by_warps(product(*shape, form))
    found = tiles.pipeline(tiles.pipelines(done.body)[0])
    assert found is not None
    made = [pieces(f) if f.key == "async" else None for f in found.fills]
    assert tuple([p.size if p is not None else 0 for p in made]) == sizes


@pytest.mark.parametrize("dtype", ["f32", "i8"])
@pytest.mark.parametrize("shape", [(136, 72, 80), (3, 8, 4), (65, 130, 36)], ids=str)
def test_tf32_and_integers(shape: tuple[int, int, int], dtype: str) -> None:
    """Along the depth; rows of a tile are 128 bytes."""
    kernel = product(*shape, "nt", dtype=dtype)
    done = by_warps(kernel)
    verify_kernel_threads(done)
    assert keys(done) == ["async", "async", "mma"]
    found = tiles.pipeline(tiles.pipelines(done.body)[0])
    assert found is not None
    assert [str(t.shape[-1]) for t in found.tiles] == (["32", "32"] if dtype == "f32" else ["128", "128"])
    assert found.product.sums.dtype.name == ("f32" if dtype == "f32" else "i32")
    np.testing.assert_array_equal(result(done, {}), result(kernel, {}))


@pytest.mark.parametrize(("dtype", "form", "depth"), [("f32", "nn", 64), ("i8", "tt", 64), ("i8", "nt", 66)])
def test_what_has_the_schedules_of_any_other_nest(dtype: str, form: str, depth: int) -> None:
    """Elements of other sizes than 16 bits across the depth, or in rows that begin anywhere."""
    kernel = product(64, 64, depth, form, dtype=dtype)
    with pytest.raises(AssertionError, match="no schedule"):
        by_warps(kernel)
    for on in (WARPS[8, 0], TARGET):
        (step,) = machine(kernel, on).steps
        assert isinstance(step, Launch)
        assert not keys(step.kernel)


def test_masks_are_where_tiles_are_cut_off() -> None:
    whole, cut = (print_kernel(by_warps(product(m, 256, 128, "nt"), tile=(128, 128))) for m in (256, 255))
    assert " if " not in whole
    assert cut.count(" if ") == 2  # of the left factor, and around what is stored


def test_sizes_of_the_call() -> None:
    kernel = product("m", 72, 80, "nt")
    done = by_warps(kernel)
    verify_kernel_threads(done)
    for m in (1, 130):
        np.testing.assert_array_equal(result(done, {"m": m}), result(kernel, {"m": m}))


def test_a_factor_that_is_computed_is_copied_by_threads() -> None:
    text = print_kernel(product(72, 72, 80)).replace("f32(x[", "f32(bf16(2.0 * f32(x[").replace("]), f32(y", "]))), f32(y")
    kernel = parse_kernel(text)
    done = by_warps(kernel)
    verify_kernel_threads(done)
    assert keys(done) == ["copy", "async", "mma"]
    np.testing.assert_array_equal(result(done, {}), result(kernel, {}))


def test_where_the_engine_does_not_take_the_factors() -> None:
    """On 9.0 warps multiply what lies in rows that begin anywhere; values that are computed are copied for ``wgmma``."""

    def of(kernel: Kernel) -> list[str]:
        (step,) = machine(kernel, TARGET).steps
        assert isinstance(step, Launch)
        return keys(step.kernel)[:3]

    assert of(product(256, 256, 264)) == ["tma", "tma", "wgmma"]
    assert of(product(256, 256, 258)) == ["async", "async", "mma"]
    assert of(product(256, 255, 256, "nn")) == ["async", "copy", "mma"]
    text = print_kernel(product(256, 256, 264)).replace("f32(x[", "f32(bf16(2.0 * f32(x[").replace("]), f32(y", "]))), f32(y")
    assert of(parse_kernel(text)) == ["copy", "tma", "wgmma"]


def test_every_gpu_from_8_0_on_has_it() -> None:
    for on in WARPS.values():
        (step,) = machine(product(512, 512, 512), on).steps
        assert isinstance(step, Launch)
        assert keys(step.kernel) == ["async", "async", "mma"]
        loop = tiles.pipelines(step.kernel.body)[0]
        found = tiles.pipeline(loop)
        assert found is not None
        assert loop.kind.width * tiles.LINE * (found.product.rows + found.product.columns) <= on.shared


def test_tiles_fill_the_multiprocessors() -> None:
    sizes = {n: next(iter(choose_mma.choices(product(n, n, 1024), WARPS[8, 0]))).tile for n in (256, 1024, 4096)}
    assert sizes == {256: (64, 32), 1024: (64, 64), 4096: (128, 128)}


def test_what_the_verifier_refuses() -> None:
    text = print_kernel(by_warps(product(128, 64, 66, "nt"), tile=(64, 64), groups=1, shares=2))
    for old, new, rule in (
        ("instr(async)", "instr(tma)", "one fill of each"),
        ("instr(mma)", "instr(wgmma)", "one fill of each"),
        ("(r // 2) % 2", "(r // 4) % 2", "one product of two"),
        ("x[i_1*66 + k_1", "x[i_1*66 + 2*k_1", "no pieces of a buffer"),
    ):
        assert old in text, old
        with pytest.raises(VerifyError, match=rule):
            verify_kernel_threads(parse_kernel(text.replace(old, new)))
