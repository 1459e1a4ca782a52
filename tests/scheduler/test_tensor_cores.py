"""Products of matrices for tensor cores: every form keeps the meaning of the kernel, and has the instructions that it should."""

import random

import numpy as np
import pytest

from lowc.backends.nvptx import default
from lowc.errors import ScheduleError, VerifyError
from lowc.ir import outlets, tiles
from lowc.ir.index import Symbol, evaluate
from lowc.ir.interp import run_kernel
from lowc.ir.nodes import For, Kernel, Launch, Module
from lowc.ir.numeric import from_storage, to_storage
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.ir.types import bf16, f16
from lowc.ir.verify import verify_module
from lowc.ir.verify_gpu import verify_kernel_threads
from lowc.ir.walk import statements
from lowc.options import Options
from lowc.scheduler import choose_tensor_cores, contract, linearise, pipeline
from lowc.scheduler.tensor_cores import TensorCores

TARGET = default()
LEFT = {"n": "x[i, k]", "t": "x[k, i]"}
RIGHT = {"n": "y[k, j]", "t": "y[j, k]"}


def product(
    m: int | str, n: int | str, k: int | str, form: str = "nt", batch: int = 0, dtype: str = "bf16", result: str = "{s}"
) -> Kernel:
    """out = f(x @ y + bias) @SCHEDULED; extents that are names are sizes.  ``form``: n or t for each factor."""
    b, at = (f"{batch}, ", "b, ") if batch else ("", "")
    x = f"{m}, {k}" if form[0] == "n" else f"{k}, {m}"
    y = f"{k}, {n}" if form[1] == "n" else f"{n}, {k}"
    left, right = (text.replace("[", f"[{at}") for text in (LEFT[form[0]], RIGHT[form[1]]))
    names = [e for e in dict.fromkeys((m, n, k)) if isinstance(e, str)]
    sizes = "".join(f"{s}: size 1.. ~ 40, " for s in names)
    nest = f"""for i in {m} {{ for j in {n} {{
        acc s: f32 = add
        for k in {k} {{ s add= product(f32({left}), f32({right})) }}
        out[{at}i, j] = {dtype}({result.format(s="s")} + f32(bias[j]))
    }} }}"""
    params = f"x: {dtype}[{b}{x}], y: {dtype}[{b}{y}], bias: {dtype}[{n}], out: {dtype}[{b}{m}, {n}]"
    body = f"for b in {batch} {{ {nest} }}" if batch else nest
    return linearise._linear(parse_kernel(f"kernel f({sizes}{params}) {{ {body} }}"))


def scheduled(kernel: Kernel, **changed: object) -> Kernel:
    """By the first choice that is legal, with the fields ``changed``."""
    for step in choose_tensor_cores.choices(kernel, TARGET):
        values = {f: getattr(step, f) for f in step.__slots__} | changed
        try:
            return contract.apply(kernel, TensorCores(**values))  # type: ignore[arg-type]
        except ScheduleError:
            continue
    raise AssertionError("no schedule")


def result(kernel: Kernel, sizes: dict[str, int], shuffle: random.Random | None = None) -> np.ndarray:
    """What ``kernel`` stores, on small integers: all sums are exact, so that their order does not show."""
    generator = np.random.default_rng(0)
    memory = {}
    for param in kernel.params:
        count = max(0, evaluate(param.shape[0], sizes))
        memory[param.name] = to_storage(generator.integers(-2, 3, count).astype(np.float32), param.dtype)
    outs = [p for p in kernel.params if p.name in ("out", "turned")]
    for out in outs:
        memory[out.name][:] = to_storage(np.array([np.nan], np.float32), out.dtype)[0]
    run_kernel(kernel, memory, sizes, shuffle)
    return np.concatenate([from_storage(memory[out.name], out.dtype) for out in outs])


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


TEAMS = {"groups": 1, "teams": 2, "blocks": 2}


@pytest.mark.parametrize(
    "changed",
    [
        {"tile": (128, 128)}, {"tile": (64, 64), "groups": 1}, {"tile": (256, 64)}, {"tile": (128, 192), "strips": 3},
        {"group": 1}, {"blocks": 1}, {"strips": 0}, {"strips": 1}, {"tile": (128, 64), **TEAMS}, {"tile": (64, 128), **TEAMS},
    ],
    ids=str,
)  # fmt: skip
def test_any_tile_and_grid(changed: dict[str, object]) -> None:
    kernel = product(200, 136, 72, "nn", result="{s} * {s}")
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
    done = scheduled(product("m", 136, 72, "nn", batch=3))
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


def machine(kernel: Kernel) -> Module:
    module = Module("SCHEDULED", kernel.sizes, (*kernel.params, *kernel.sizes), (), (), (Launch(kernel, kernel.params),))
    for each in pipeline.PASSES[[p.name for p in pipeline.PASSES].index("split") :]:
        if each.only in ("", "nvptx"):
            module = pipeline.apply(each, module, TARGET, Options(check=True))
    verify_module(module, "MACHINE")
    return module


def test_passes_after_it_leave_instructions_alone() -> None:
    kernel = product(296, 200, 64, "tn", batch=2)
    (step,) = machine(kernel).steps
    assert isinstance(step, Launch)
    assert keys(step.kernel) == ["tma", "tma", "wgmma", "tma"]
    assert parse_kernel(print_kernel(step.kernel)).name == "f"
    np.testing.assert_array_equal(result(step.kernel, {}), result(kernel, {}))
    assert {bf16, f16} >= {t.dtype for t in tiles.pipeline(tiles.pipelines(step.kernel.body)[0]).tiles}  # type: ignore[union-attr]
