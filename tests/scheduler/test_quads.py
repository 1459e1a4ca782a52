"""Products of bytes by quads: the steps keep the meaning, whatever lies how and has a sign, and nothing else becomes quads."""

import random
from dataclasses import replace

import numpy as np
import pytest

from lowc.errors import ScheduleError
from lowc.ir.index import evaluate
from lowc.ir.interp import run_kernel
from lowc.ir.nodes import Kernel, Op
from lowc.ir.numeric import storage_dtype
from lowc.ir.parser import parse_kernel
from lowc.ir.verify import verify_kernel
from lowc.ir.walk import exprs, parts, statements
from lowc.scheduler import choose_contraction, contract, linearise
from lowc.scheduler.contract import Step
from lowc.scheduler.dots import Dots
from lowc.scheduler.quads import Quads
from tests.scheduler.contractions import AVX512, LEFT, RIGHT

VNNI = replace(AVX512, ops=AVX512.ops | {"avx512vnni"})
SHAPES = [(40, 33, 60), (17, 96, 34), (8, 16, 32), (3, 70, 42), (6, 33, 71)]
Shape = tuple[int | str, int | str, int | str]


def product(
    shape: Shape,
    left: str = "x[i, k]",
    right: str = "y[k, j]",
    types: tuple[str, str] = ("i8", "i8"),
    sum_: str = "i32",
) -> Kernel:
    m, n, k = shape
    x = f"{m}, {k}" if left == "x[i, k]" else f"{k}, {m}"
    y = f"{k}, {n}" if right == "y[k, j]" else f"{n}, {k}"
    sizes = "".join(f"{e}: size 0..5000 ~ 40, " for e in dict.fromkeys(shape) if isinstance(e, str))
    epilogue = "s * 3:i32 + bias[j]" if sum_ == "i32" else "s * 3.0 + f32(bias[j])"
    params = f"x: {types[0]}[{x}], y: {types[1]}[{y}], bias: i32[{n}], out: {sum_}[{m}, {n}]"
    text = f"""kernel f({sizes}{params}) {{
      for i in {m} {{ for j in {n} {{
        acc s: {sum_} = add
        for k in {k} {{ s add= product({sum_}({left}), {sum_}({right})) }}
        out[i, j] = {epilogue}
      }} }}
    }}"""
    return linearise._linear(parse_kernel(text))


def result(kernel: Kernel, sizes: dict[str, int], shuffle: random.Random | None = None) -> np.ndarray:
    """What ``kernel`` stores, on all bytes there are."""
    generator = np.random.default_rng(0)
    memory = {}
    for param in kernel.params:
        count, dtype = max(0, evaluate(param.shape[0], sizes)), storage_dtype(param.dtype)
        bounds = (-100, 100) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max + 1)
        memory[param.name] = generator.integers(*bounds, count).astype(dtype)
    run_kernel(kernel, memory, sizes, shuffle)
    return memory["out"]


def check(kernel: Kernel, plan: tuple[Step, ...], sizes: dict[str, int] | None = None) -> Kernel:
    """``kernel`` after ``plan``; after each step it is valid and gives the same bits."""
    wanted = result(kernel, sizes or {})
    for step in plan:
        kernel = contract.apply(kernel, step)
        verify_kernel(kernel, "SCHEDULED")
        np.testing.assert_array_equal(result(kernel, sizes or {}), wanted, err_msg=str(step))
    np.testing.assert_array_equal(result(kernel, sizes or {}, random.Random(1)), wanted)
    return kernel


def ops(kernel: Kernel) -> set[str]:
    return {p.name for s in statements(kernel.body) for e in exprs(s) for p in parts(e) if isinstance(p, Op)}


@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_step_keeps_the_meaning(left: str, right: str, shape: Shape) -> None:
    for target in (VNNI, AVX512) if shape[0] == 17 else (VNNI,):
        plans = choose_contraction.choices(product(shape, left, right), target, True)
        for plan in plans:
            done = check(product(shape, left, right), plan)
            assert isinstance(plan[0], Quads) and "product" not in ops(done)
            assert (plan[0].flipped >= 0) is (target is VNNI)


@pytest.mark.parametrize("types", [("u8", "i8"), ("i8", "u8"), ("u8", "u8")], ids=str)
@pytest.mark.parametrize("sum_", ["i32", "f32"])
def test_bytes_without_signs_and_sums_of_floats(types: tuple[str, str], sum_: str) -> None:
    for shape in ((20, 40, 36), (2, 33, 42)):
        kernel = product(shape, right="y[j, k]", types=types, sum_=sum_)
        for plan in choose_contraction.choices(kernel, VNNI, True):
            assert plan[0] == Quads("k", -1)
            check(kernel, plan)


@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize("sizes", [(40, 50, 31), (1, 1, 1), (0, 5, 3), (5, 0, 8), (4, 5, 0), (33, 17, 100)], ids=str)
def test_symbolic_sizes(right: str, sizes: tuple[int, int, int]) -> None:
    for sum_ in ("i32", "f32"):
        kernel = product(("m", "n", "d"), right=right, sum_=sum_)
        plans = choose_contraction.choices(kernel, VNNI, True)
        assert plans and all(isinstance(plan[0], Quads) for plan in plans)
        for plan in plans:
            check(kernel, plan, dict(zip(("m", "n", "d"), sizes, strict=True)))


def test_copies_and_both_roles() -> None:
    """Weights are flipped as they are packed, or the input is and weights are read as they lie: both are among the plans."""
    kernel = product((24, 192, 960), right="y[j, k]")
    wanted = result(kernel, {})
    plans = choose_contraction.choices(kernel, VNNI, True)
    for flipped in (0, 1):
        done = next(filter(None, (legal(kernel, p) for p in plans if p[0] == Quads("k", flipped))))
        verify_kernel(done, "SCHEDULED")
        np.testing.assert_array_equal(result(done, {}), wanted)


def legal(kernel: Kernel, plan: tuple[Step, ...]) -> Kernel | None:
    try:
        for step in plan:
            kernel = contract.apply(kernel, step)
    except ScheduleError:
        return None
    return kernel


def test_few_rows_are_dots_whose_weights_are_flipped() -> None:
    plan, *_ = choose_contraction.choices(product((4, 512, 256), right="y[j, k]"), VNNI, True)
    assert plan[0] == Quads("k", 1) and any(isinstance(s, Dots) for s in plan)


def test_sums_of_floats_that_may_leave_32_bits_are_no_quads() -> None:
    for depth, fits in ((1 << 17, False), ((1 << 17) - 1, True)):
        plans = choose_contraction.choices(product((2, 40, depth), right="y[j, k]", sum_="f32"), VNNI, True)
        assert any(isinstance(plan[0], Quads) for plan in plans) is fits
    kernel = product((2, 40, 1 << 17), sum_="f32")
    with pytest.raises(ScheduleError, match="32 bits"):
        contract.apply(kernel, Quads("k", 0))


def test_shallow_products_are_none() -> None:
    plans = choose_contraction.choices(product((40, 64, 31)), VNNI, True)
    assert plans and not any(isinstance(s, Quads) for plan in plans for s in plan)


def test_only_bytes() -> None:
    for types in (("i16", "i16"), ("i32", "i32"), ("i8", "i16")):
        kernel = product((40, 64, 32), types=types)
        for plan in choose_contraction.choices(kernel, VNNI, True):
            assert not any(isinstance(s, Quads) for s in plan)
            check(kernel, plan)
        with pytest.raises(ScheduleError):
            contract.apply(kernel, Quads("k"))
    with pytest.raises(ScheduleError, match="sign"):
        contract.apply(product((8, 8, 8), types=("u8", "i8")), Quads("k", 1))


def test_computed_factors_end_with_zero_where_quads_are_not_whole() -> None:
    text = """kernel f(x: f32[24, 35], y: i8[40, 35], out: i32[24, 40]) {
      for i in 24 { for j in 40 {
        acc s: i32 = add
        for k in 35 { s add= product(i32(i8(x[i, k] + 1.0)), i32(not(y[j, k]))) }
        out[i, j] = s
      } }
    }"""
    kernel = linearise._linear(parse_kernel(text))
    plans = choose_contraction.choices(kernel, VNNI, True)
    assert plans
    for plan in plans:
        check(kernel, plan)
