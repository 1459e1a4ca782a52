"""Products of matrices for tensor cores: every form keeps the meaning of the kernel, and has the instructions that it should."""

import random

import numpy as np
import pytest

from lowc.errors import VerifyError
from lowc.ir import outlets, tiles
from lowc.ir.index import Symbol
from lowc.ir.nodes import For, Kernel, Launch
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.ir.types import bf16, f16
from lowc.ir.verify_gpu import verify_kernel_threads
from lowc.ir.walk import statements
from lowc.scheduler import choose_tensor_cores, linearise
from tests.scheduler.products import TARGET, machine, product, result, scheduled


def keys(kernel: Kernel) -> list[str]:
    return [s.kind.key for s in statements(kernel.body) if isinstance(s, For) and s.kind.name == "instr"]


SHAPES = [(128, 64, 64), (136, 72, 80), (100, 70, 39), (3, 5, 2), (129, 65, 65), (64, 200, 8)]


@pytest.mark.parametrize("form", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_meaning_is_kept(shape: tuple[int, int, int], form: str) -> None:
    kernel = product(*shape, form)
    done = scheduled(kernel, blocks=2)
    verify_kernel_threads(done)
    np.testing.assert_array_equal(result(done, {}), result(kernel, {}))


@pytest.mark.parametrize("shape", [(136, 72, 80), (3, 8, 4), (65, 130, 36)], ids=str)
def test_tf32(shape: tuple[int, int, int]) -> None:
    """Factors of f32, rounded, along the depth, 32 elements in a row of a tile."""
    kernel = product(*shape, "nt", dtype="f32")
    done = scheduled(kernel, blocks=2)
    verify_kernel_threads(done)
    assert keys(done)[:3] == ["tma", "tma", "wgmma"]
    found = tiles.pipeline(tiles.pipelines(done.body)[0])
    assert found is not None
    assert [str(t.shape[-1]) for t in found.tiles] == ["32", "32"]
    np.testing.assert_array_equal(result(done, {}), result(kernel, {}))


@pytest.mark.parametrize("loose", [False, True])
@pytest.mark.parametrize("shape", [(136, 72, 272), (3, 16, 16), (65, 130, 144)], ids=str)
def test_float8(shape: tuple[int, int, int], loose: bool) -> None:
    """128 elements in a row of a tile; spans are added up by themselves unless sums may be loose."""
    kernel = product(*shape, dtype="f8e4m3", other="f8e5m2", loose=loose)
    done = scheduled(kernel, blocks=2)
    verify_kernel_threads(done)
    assert keys(done)[:3] == ["tma", "tma", "wgmma" if loose else "wgmma_apart"]
    np.testing.assert_array_equal(result(done, {}), result(kernel, {}))


def test_float8_is_not_for_tensor_cores_in_any_other_layout_nor_for_warps() -> None:
    for shape, form in (((128, 128, 64), "nn"), ((128, 128, 72), "nt")):
        kernel = product(*shape, form, dtype="f8e4m3")
        with pytest.raises(AssertionError, match="no schedule"):
            scheduled(kernel)
        (step,) = machine(kernel).steps
        assert isinstance(step, Launch)
        assert keys(step.kernel) == []
    with pytest.raises(VerifyError, match="a pipeline is tiles"):
        text = print_kernel(scheduled(product(512, 256, 64), tile=(128, 128)))
        verify_kernel_threads(parse_kernel(text.replace("instr(wgmma)", "instr(wgmma_apart)")))


def test_f32_is_not_for_tensor_cores_in_any_other_layout_or_whole() -> None:
    for shape, form in (((128, 128, 64), "nn"), ((128, 128, 64), "tt"), ((128, 128, 63), "nt")):
        kernel = product(*shape, form, dtype="f32")
        with pytest.raises(AssertionError, match="no schedule"):
            scheduled(kernel)
        (step,) = machine(kernel).steps  # it has the schedules of any other nest, or is for warps
        assert isinstance(step, Launch)
        assert keys(step.kernel) == (["async", "async", "mma"] if form == "nt" else [])
    whole = print_kernel(product(64, 64, 64, dtype="f32"))
    other = whole.replace("tf32(", "abs(")
    assert other != whole
    assert choose_tensor_cores.choices(parse_kernel(other), TARGET) == ()


TEAMS = {"groups": 1, "teams": 2, "blocks": 2}


@pytest.mark.parametrize(
    "changed",
    [
        {"tile": (128, 128)}, {"tile": (64, 64), "groups": 1}, {"tile": (256, 64)}, {"tile": (128, 192), "strips": 3},
        {"tile": (64, 32), "groups": 1}, {"tile": (128, 72)}, {"tile": (128, 144)}, {"tile": (64, 88), "groups": 1, "strips": 0},
        {"group": 1}, {"blocks": 1}, {"strips": 0}, {"strips": 1},
        {"tile": (128, 64), **TEAMS}, {"tile": (64, 128), **TEAMS},
    ],
    ids=str,
)  # fmt: skip
def test_any_tile_and_grid(changed: dict[str, object]) -> None:
    side_by_side = changed.get("tile", (64, 64))[1] % 64 == 0  # type: ignore[index]
    kernel = product(200, 136, 72, "nn" if side_by_side else "nt", result="{s} * {s}")
    done = scheduled(kernel, **changed)
    verify_kernel_threads(done)
    np.testing.assert_array_equal(result(done, {}), result(kernel, {}))


def test_teams_need_turns() -> None:
    with pytest.raises(AssertionError, match="no schedule"):
        scheduled(product(100, 64, 64), tile=(128, 64), groups=1, teams=2)
    with pytest.raises(AssertionError, match="no schedule"):
        scheduled(product(100, 64, 64), tile=(192, 64), groups=2)


@pytest.mark.parametrize(
    ("shape", "out", "drains"),
    [
        ((72, 80, 64), "bf16", 1), ((72, 81, 64), "bf16", 0), ((72, 84, 64), "bf16", 0),
        ((72, 80, 64), "f32", 1), ((72, 84, 64), "f32", 1),
    ],
)
def test_strips_where_the_engine_can_store(shape: tuple[int, int, int], out: str, drains: int) -> None:
    kernel = product(*shape)
    text = print_kernel(kernel).replace("out: bf16", f"out: {out}").replace("= bf16(s ", f"= {out}(s ")
    kernel = parse_kernel(text.replace("f32(s ", "(s "))
    done = scheduled(kernel)
    verify_kernel_threads(done)
    assert len(outlets.outlets(done.body)) == drains
    np.testing.assert_array_equal(result(done, {}), result(kernel, {}))


def test_one_result_by_the_engine_and_one_by_threads() -> None:
    text = print_kernel(product(72, 80, 64))
    assert "out[i*80 + j] = bf16(s + f32(bias[j]))" in text
    text = text.replace("out: bf16[5760])", "out: bf16[5760], turned: f32[5760])")
    kernel = parse_kernel(text.replace("out[i*80 + j] = bf16(s + f32(bias[j]))", "out[i*80 + j] = bf16(s)\nturned[j*72 + i] = s"))
    done = scheduled(kernel)
    verify_kernel_threads(done)
    (loop,) = outlets.outlets(done.body)
    found = outlets.outlet(loop)
    assert found is not None
    assert [d.store.buffer.name for d in found.drains] == ["out"]
    np.testing.assert_array_equal(result(done, {}), result(kernel, {}))


def test_batches_and_any_order_of_threads() -> None:
    kernel = product(40, 24, 16, "nn", batch=3, dtype="f16")
    done = scheduled(kernel, tile=(64, 64), **TEAMS)
    np.testing.assert_array_equal(result(done, {}, random.Random(0)), result(kernel, {}))


@pytest.mark.parametrize("m", [1, 5, 128, 130])
def test_sizes_of_the_call(m: int) -> None:
    kernel = product("m", 72, 40)
    done = scheduled(kernel)
    assert keys(done) == ["tma", "tma", "wgmma", "tma"]
    np.testing.assert_array_equal(result(done, {"m": m}), result(kernel, {"m": m}))
    kernel = product("m", "n", "k", "tn")
    sizes = {"m": m, "n": 67, "k": 70}
    np.testing.assert_array_equal(result(scheduled(kernel, blocks=2), sizes), result(kernel, sizes))


@pytest.mark.parametrize(
    ("shape", "form", "expected"),
    [
        ((128, 128, 64), "nt", ["tma", "tma"]),
        ((128, 128, 60), "nt", ["copy", "copy"]),
        ((128, 128, 60), "tn", ["tma", "tma"]),
        ((128, 100, 64), "nn", ["tma", "copy"]),
        ((100, 128, 64), "tn", ["copy", "tma"]),
    ],
)
def test_threads_copy_what_is_not_aligned(shape: tuple[int, int, int], form: str, expected: list[str]) -> None:
    assert keys(scheduled(product(*shape, form)))[:3] == [*expected, "wgmma"]


def test_a_box_says_where_and_how_far() -> None:
    done = scheduled(product("m", 136, 72, "nn", batch=3), tile=(128, 128))
    found = tiles.pipeline(tiles.pipelines(done.body)[0])
    assert found is not None
    left, right = (tiles.box(f) for f in found.fills)
    assert left is not None
    assert right is not None
    (m,) = done.sizes
    assert [str(n) for n in left.sizes] == ["72", "m", "3"]
    assert [str(n) for n in left.strides] == ["1", "72", "m*72"]
    assert left.box == (64, 128, 1)
    assert [str(n) for n in right.sizes] == ["136", "72", "3"]
    assert right.box == (64, 64, 1)
    assert isinstance(m, Symbol)


def test_what_is_none_for_tensor_cores() -> None:
    f32 = parse_kernel("""kernel f(x: f32[64, 64], y: f32[64, 64], out: f32[64, 64]) {
      for i in 64 { for j in 64 { acc s: f32 = add
        for k in 64 { s add= product(x[i, k], y[j, k]) }
        out[i, j] = s } }
    }""")
    assert choose_tensor_cores.choices(linearise._linear(f32), TARGET) == ()


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("((r // 2) % 2)*8", "((r // 2) % 2)*4", "a pipeline is tiles"),
        ("instr(tma)", "instr(tmb)", "no instruction tmb"),
        ("*64 + i_tile", "*65 + i_tile", "no box"),
        ("pipeline(4)", "unroll(4)", "outside a pipeline"),
        ("pipeline(2)", "unroll(2)", "outside a pipeline"),
        ("pipeline(2)", "pipeline(3)", "what takes results out"),
        ("for i_2 in 128 instr(tma)", "for i_2 in 128 instr(copy)", "what takes results out"),
        ("out[c*64 + ", "out[c*65 + ", "where strip goes is no box"),
        (" = bf16(", " = bf16(f32(strip[0, 0]) + ", "a strip is read by threads"),
        ("for t in 256", "strip_2 = left[0, 0]\nfor t in 256", "a pipeline is tiles"),
        ("alloc sums", "alloc sums_2: f32[2] @shared\nalloc sums", "teams share nothing"),
        ("alloc sums", "barrier\nalloc sums", "teams share nothing"),
        ("k_o in 1 ", "k_o in i_turn + 1 ", "how long a team multiplies"),
        ("for i_turn", "for i_other in 2 { x_2 = 0 }\nfor i_turn", "all that a block does"),
    ],
)
def test_the_verifier_refuses(old: str, new: str, rule: str) -> None:
    kernel = product(512, 256, 64)
    done = scheduled(kernel, stages=4, tile=(128, 128), **(TEAMS if rule.split()[0] in ("teams", "how", "all") else {}))
    text = print_kernel(done)
    if rule == "no box":
        old, new = " x[i_1*64 +", " x[i_1*64 + k_1*8 +"
    assert old in text
    text = text.replace(old, new, 1)
    with pytest.raises(VerifyError, match=rule):
        verify_kernel_threads(parse_kernel(text))


def test_what_is_the_same_for_all_results_is_read_before_they_are_taken_out() -> None:
    """A load between a strip and the loop of threads that sets it is no form that there are instructions for."""
    for shape in ((128, 128, 64), (512, 512, 64)):
        kernel = product(*shape, result="{s} * f32(bias[0]) * f32(bias[1])")
        (step,) = machine(kernel).steps
        assert isinstance(step, Launch)
        assert len(outlets.outlets(step.kernel.body)) == 1
        np.testing.assert_array_equal(result(step.kernel, {}), result(kernel, {}))


def test_passes_after_it_leave_instructions_alone() -> None:
    kernel = product(296, 200, 64, "tn", batch=2)
    (step,) = machine(kernel).steps
    assert isinstance(step, Launch)
    assert keys(step.kernel) == ["tma", "tma", "wgmma", "tma"]
    assert parse_kernel(print_kernel(step.kernel)).name == "f"
    np.testing.assert_array_equal(result(step.kernel, {}), result(kernel, {}))
    assert {bf16, f16} >= {t.dtype for t in tiles.pipeline(tiles.pipelines(step.kernel.body)[0]).tiles}  # type: ignore[union-attr]


# ---------------------------------------------------------------- choices


def chosen(m: int, n: int, k: int, form: str = "nt", **given: object) -> tuple[str, tuple[str, str]]:
    """The best way for a product, by name, and who copies."""
    best = choose_tensor_cores.choices(product(m, n, k, form, **given), TARGET)[0]  # type: ignore[arg-type]
    ways = (*choose_tensor_cores.WAYS, *choose_tensor_cores.FINER)
    found = next(w for w in ways if (w.tile, w.groups, w.teams) == (best.tile, best.groups, best.teams))
    return found.name, best.copies


def test_every_way_leaves_memory_for_the_ring() -> None:
    for dtype in ("bf16", "f32"):
        text = print_kernel(product(4096, 4096, 4096)).replace("out: bf16", f"out: {dtype}").replace("bf16(s +", f"{dtype}(s +")
        kernel = parse_kernel(text.replace("f32(s + f32(bias[j]))", "s"))
        for step in choose_tensor_cores.choices(kernel, TARGET):
            width = {"bf16": 2, "f32": 4}[dtype]
            ring = step.stages * 2 * tiles.SPAN * sum(step.tile) + 16 * step.stages
            strips = step.strips * step.teams * step.tile[0] * 64 * width
            assert -(-ring // 1024) * 1024 + strips <= 227 << 10
            assert step.stages >= 3


def test_small_products_have_small_tiles_and_heavy_epilogues_teams() -> None:
    assert chosen(8192, 8192, 8192)[0] == "128x256"
    assert chosen(128, 4096, 4096)[0] == "64x64"
    assert chosen(64, 4096, 4096)[0] == "64x32"
    assert chosen(8, 4096, 4096)[0] == "64x64"  # what a tile has beyond the rows takes time, too
    assert keys(scheduled(product(16, 4096, 4096, "nn")))[:3] == ["tma", "tma", "wgmma"]  # 32 columns side by side are no tile
    heavy = "{s} * f32(out[i, j]) / ({s} + 1.5) / ({s} + 2.5) / ({s} + 3.5) / ({s} + 4.5)"
    assert "teams" in chosen(16384, 3072, 768, result=heavy)[0]
    assert "teams" in chosen(512, 512, 128, batch=64, form="nn")[0]


def test_tiles_that_would_fill_a_round_and_little_more_are_finer() -> None:
    """The rounds of 132 tiles are full then, or nearly; threads store the columns behind the last whole strip."""
    for shape, name in (((1536, 3072, 4096), "128x144"), ((2560, 2560, 10240), "128x200")):
        assert chosen(*shape)[0] == name
    for shape in ((4096, 4096, 4096), (2048, 4096, 4096), (16384, 1024, 4096)):
        assert chosen(*shape)[0] == "128x256"
    assert chosen(1536, 3072, 4096, "tn")[0] == "128x192"  # columns that lie side by side come 64 at a time


def test_a_second_team_hides_the_ends_of_tiles() -> None:
    size = choose_tensor_cores.Size(1, 16384, 3072, 768, work=40)
    one = next(w for w in choose_tensor_cores.WAYS if w.tile == (128, 128) and w.teams == 1)
    two = next(w for w in choose_tensor_cores.WAYS if w.tile == (128, 128) and w.teams == 2)
    assert choose_tensor_cores.cost(size, two, 132) < 0.8 * choose_tensor_cores.cost(size, one, 132)
