"""Products of bf16 by pairs: the steps keep the meaning, whatever lies how, and nothing else becomes pairs."""

from dataclasses import replace

import pytest

from lowc.errors import ScheduleError
from lowc.ir.nodes import For, Kernel, Launch, Op
from lowc.ir.parser import parse_kernel, parse_module
from lowc.ir.walk import exprs, parts, statements
from lowc.options import Options
from lowc.scheduler import choose_contraction, contract, linearise, pipeline
from lowc.scheduler.contraction import contiguous, find
from lowc.scheduler.dots import Dots
from lowc.scheduler.pairs import Pairs
from tests.scheduler.contractions import AVX512, BF16, LEFT, RIGHT, check, product

SHAPES = [(40, 33, 30), (17, 96, 17), (8, 16, 8), (3, 70, 21), (2, 64, 9), (33, 5, 40), (6, 33, 35)]


def ops(kernel: Kernel) -> set[str]:
    return {p.name for s in statements(kernel.body) for e in exprs(s) for p in parts(e) if isinstance(p, Op)}


@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_step_keeps_the_meaning(left: str, right: str, shape: tuple[int, int, int]) -> None:
    kernel = product(*shape, left, right, dtype="bf16")
    for plan in choose_contraction.choices(kernel, BF16, True):
        done = check(kernel, plan)
        assert isinstance(plan[0], Pairs) is (shape[2] >= 16)
        assert "product" not in ops(done) or shape[2] < 16


@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize("sizes", [(40, 50, 31), (1, 1, 1), (0, 5, 3), (33, 17, 100)], ids=str)
def test_symbolic_sizes(right: str, sizes: tuple[int, int, int]) -> None:
    kernel = product("m", "n", "d", right=right, dtype="bf16")
    for plan in choose_contraction.choices(kernel, BF16, True):
        check(kernel, plan, dict(zip(("m", "n", "d"), sizes, strict=True)))


def test_batches_and_copies() -> None:
    kernel = product(24, 40, 603, right="y[j, k]", batch=2, dtype="bf16")
    plan, *_ = choose_contraction.choices(kernel, BF16, True)
    assert any(isinstance(s, For) and s.kind.name == "parallel" for s in statements(check(kernel, plan).body))


def test_few_rows_are_dots_of_what_lies_in_memory() -> None:
    """No pair is made of two loads then: 32 bits are read at a time."""
    plan, *_ = choose_contraction.choices(product(4, 512, 256, right="y[j, k]", dtype="bf16"), BF16, True)
    assert any(isinstance(s, Dots) for s in plan)


def test_what_pairs_are_contiguous_along() -> None:
    for right, along_depth in (("y[j, k]", True), ("y[k, j]", False)):
        kernel = contract.apply(product(8, 8, 8, right=right, dtype="bf16"), Pairs("k"))
        found = find(kernel.body[0])  # type: ignore[arg-type]
        assert found is not None
        assert contiguous(found.right, found.depth.axis) is along_depth
        assert contiguous(found.right, found.columns.axis) is not along_depth


def test_only_bf16_and_only_where_the_processor_has_it() -> None:
    for dtype, target in (("bf16", AVX512), ("f16", BF16), ("f32", BF16)):
        kernel = product(40, 64, 32, dtype=dtype)
        assert not any(isinstance(s, Pairs) for plan in choose_contraction.choices(kernel, target, True) for s in plan)
    for dtype in ("f16", "f32"):
        with pytest.raises(ScheduleError):
            contract.apply(product(8, 8, 8, dtype=dtype), Pairs("k"))


def test_computed_factors_end_with_zero_where_the_depth_is_odd() -> None:
    """The factor exp(x) would be 1 behind the end, had it only been the load that is 0 there."""
    text = """kernel f(x: bf16[24, 33], y: bf16[40, 33], bias: f32[40], out: f32[24, 40]) {
      for i in 24 { for j in 40 {
        acc s: f32 = add
        for k in 33 { s add= product(f32(bf16(f32(x[i, k]) * f32(x[i, k]) + 1.0)), f32(neg(y[j, k]) + 1.0:bf16)) }
        out[i, j] = s + bias[j]
      } }
    }"""
    kernel = linearise._linear(parse_kernel(text))
    plans = choose_contraction.choices(kernel, BF16, True)
    assert plans
    for plan in plans:
        check(kernel, plan)


def test_strict_numerics_do_without() -> None:
    text = """module @LOOPS() {
      input x: bf16[64, 64]
      input y: bf16[64, 64]
      temp out: bf16[64, 64]
      launch f(x, y, out)
      return out
    }
    kernel f(x: bf16[64, 64], y: bf16[64, 64], out: bf16[64, 64]) {
      for i in 64 { for j in 64 {
        acc s: f32 = add
        for k in 64 { s add= product(f32(x[i, k]), f32(y[j, k])) }
        out[i, j] = bf16(s)
      } }
    }"""
    for numerics, paired in (("fast", True), ("strict", False)):
        module = pipeline.run(parse_module(text), replace(BF16, cores=1), Options(numerics=numerics, check=True))
        (step,) = module.steps
        assert isinstance(step, Launch)
        assert ("dot2" in ops(step.kernel)) is paired
