"""Products by the matrix unit: the steps keep the meaning, whatever lies how, and only such products become nests of it."""

from dataclasses import replace

import numpy as np
import pytest

from lowc.errors import ScheduleError, VerifyError
from lowc.ir.interp import run_kernel
from lowc.ir.matrices import begins, is_amx, matrix_product
from lowc.ir.nodes import Alloc, For, Kernel
from lowc.ir.numeric import storage_dtype
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.ir.verify import verify_kernel
from lowc.ir.walk import statements
from lowc.scheduler import choose_contraction, contract, linearise
from lowc.scheduler.ahead import Ahead
from lowc.scheduler.matrices import Matrices
from lowc.scheduler.pack import Pack
from lowc.scheduler.pairs import Pairs
from tests.scheduler.contractions import BF16, LEFT, RIGHT, check, product

AMX = replace(BF16, ops=BF16.ops | {"avx512vnni", "amx-bf16", "amx-int8"})
SHAPES = [(40, 33, 70), (17, 96, 64), (64, 32, 50), (33, 64, 65)]

NEST = """kernel f(x: u32[2048], y: u32[4096], out: f32[1024]) {
  for r in 32 instr(amx) { for c in 32 { for k in 16 { out[r*32 + c] add= dot2(x[r*64 + k], y[k*64 + c]) } } }
}"""


def by_tiles(kernel: Kernel, amx: bool = True) -> list[tuple[contract.Step, ...]]:
    plans = choose_contraction.choices(kernel, AMX, True)
    return [plan for plan in plans if any(isinstance(s, Matrices) for s in plan) is amx]


def nests(kernel: Kernel) -> list[For]:
    return [s for s in statements(kernel.body) if isinstance(s, For) and is_amx(s)]


@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_step_keeps_the_meaning(left: str, right: str, shape: tuple[int, int, int]) -> None:
    kernel = product(*shape, left, right, dtype="bf16")
    plans = by_tiles(kernel)
    assert len(plans) >= 2
    for plan in plans:
        (nest,) = nests(check(kernel, plan))
        assert matrix_product(nest) is not None


@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize("sizes", [(40, 50), (1, 1), (0, 5), (33, 17)], ids=str)
def test_symbolic_rows_and_columns(right: str, sizes: tuple[int, int]) -> None:
    kernel = product("m", "n", 70, right=right, dtype="bf16")
    plans = by_tiles(kernel)
    assert plans
    for plan in plans:
        check(kernel, plan, dict(zip(("m", "n"), sizes, strict=True)))


def test_of_an_unknown_depth_there_are_none() -> None:
    assert not by_tiles(product(64, 64, "k", dtype="bf16"))


def test_batches() -> None:
    kernel = product(40, 64, 96, right="y[j, k]", batch=3, dtype="bf16")
    for plan in by_tiles(kernel):
        check(kernel, plan)


@pytest.mark.parametrize("dtypes", [("i8", "i8"), ("u8", "i8"), ("i8", "u8"), ("u8", "u8")], ids=str)
@pytest.mark.parametrize("right", RIGHT)
def test_bytes_with_and_without_signs(dtypes: tuple[str, str], right: str) -> None:
    y = "70, 40" if right == "y[k, j]" else "40, 70"
    kernel = linearise._linear(parse_kernel(f"""kernel f(x: {dtypes[0]}[33, 70], y: {dtypes[1]}[{y}], out: i32[33, 40]) {{
      for i in 33 {{ for j in 40 {{ acc s: i32 = add
        for k in 70 {{ s add= product(i32(x[i, k]), i32({right})) }}
        out[i, j] = s
      }} }}
    }}"""))  # fmt: skip
    plans = by_tiles(kernel)
    assert plans
    for plan in plans:
        (nest,) = nests(check_integers(kernel, plan))
        found = matrix_product(nest)
        assert found is not None and sorted(found.signs) == sorted(d == "i8" for d in dtypes)


def check_integers(kernel: Kernel, plan: tuple[contract.Step, ...]) -> Kernel:
    rng = np.random.default_rng(0)
    given = {p.name: rng.integers(0, 256, int(str(p.shape[0]))).astype(np.uint8) for p in kernel.params[:2]}
    done = kernel
    for step in plan:
        done = contract.apply(done, step)
        verify_kernel(done, "SCHEDULED")
    results: list[np.ndarray] = []
    for each in (kernel, done):
        memory = {p.name: given[p.name].view(np.int8 if p.dtype.kind == "i" else np.uint8) for p in kernel.params[:2]}
        memory |= {p.name: np.zeros(int(str(p.shape[0])), storage_dtype(p.dtype)) for p in each.params[2:]}
        run_kernel(each, memory, {})
        results.append(memory["out"])
    np.testing.assert_array_equal(*results)
    return done


def test_sums_of_one_product_begin_with_it() -> None:
    """Then they are set by it, not set to 0 before."""
    kernel, found = product(96, 96, 64, dtype="bf16"), False
    for plan in by_tiles(kernel):
        done = kernel
        for step in plan:
            done = contract.apply(done, step)
        blocks = [s.body for s in statements(done.body) if isinstance(s, For) and any(isinstance(b, Alloc) for b in s.body)]
        found = found or any(begins(body[n : n + 2]) for body in blocks for n in range(len(body)))
    assert found


def test_a_few_rows_meet_panels_that_blocks_pack() -> None:
    plan, *_ = by_tiles(product(16, 2048, 2048, dtype="bf16"))
    assert any(isinstance(s, Pack) for s in plan)
    plan, *_ = by_tiles(product(1024, 1024, 1024, dtype="bf16"))
    assert any(isinstance(s, Ahead) for s in plan) and not any(isinstance(s, Pack) for s in plan)


@pytest.mark.parametrize("right", RIGHT)
def test_only_the_end_of_a_padded_depth_is_copied_under_masks(right: str) -> None:
    kernel = product(33, 48, 133, right=right, dtype="bf16")
    plan = next(p for p in by_tiles(kernel) if not any(isinstance(s, Pack) for s in p))
    text = print_kernel(check(kernel, plan))
    assert "a_rest_depth" in text and "b_rest_depth" in text
    main = [line for line in text.splitlines() if "_ahead[" in line and "a_depth" in line and "rest" not in line]
    assert main and not any(" if " in line for line in main)


def test_few_rows_are_dots() -> None:
    plan, *_ = choose_contraction.choices(product(3, 512, 256, right="y[j, k]", dtype="bf16"), AMX, True)
    assert not any(isinstance(s, Matrices) for s in plan)


def test_only_where_the_processor_has_it() -> None:
    for target in (BF16, replace(AMX, ops=AMX.ops - {"amx-bf16"})):
        plans = choose_contraction.choices(product(64, 64, 64, dtype="bf16"), target, True)
        assert not any(isinstance(s, Matrices) for plan in plans for s in plan)
    with pytest.raises(ScheduleError):
        contract.apply(product(64, 64, 64, dtype="f32"), Matrices("k", 32, 32))


def test_a_product_is_text_and_back() -> None:
    kernel = parse_kernel(NEST)
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)
    verify_kernel(kernel, "MACHINE")
    (nest,) = nests(kernel)
    found = matrix_product(nest)
    assert found is not None
    assert (found.left.buffer.name, found.right.buffer.name) == ("x", "y")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("r in 32", "r in 24"),
        ("r in 32", "r in 48"),
        ("k in 16", "k in 17"),
        ("x[r*64 + k]", "x[r*64 + 2*k]"),
        ("x[r*64 + k]", "x[r + k*32]"),
        ("y[k*64 + c]", "y[c*64 + k]"),
        ("y[k*64 + c]", "y[k*64 + c + r]"),
        ("out[r*32 + c] add=", "out[r*32 + c] max="),
        ("out[r*32 + c]", "out[r*8 + 2*c]"),
        ("out[r*32 + c]", "out[r*32 + c if idx(r) < 3]"),
        ("for c in 32 {", "for c in 32 vector(16) {"),
    ],
)
def test_what_is_no_product_is_refused(old: str, new: str) -> None:
    text = NEST.replace(old, new)
    assert text != NEST
    with pytest.raises(VerifyError, match="matrix unit"):
        verify_kernel(parse_kernel(text), "MACHINE")


def test_the_depth_is_padded_with_zeros_in_both_factors() -> None:
    kernel = product(32, 32, 33, dtype="bf16")
    done = contract.apply(kernel, Pairs("k", 16))
    text = print_kernel(done)
    assert "for k in 32 {" in text and text.count(" if ") >= 4
    check(kernel, (Pairs("k", 16),))
