"""Schedules of contractions: each primitive keeps the meaning of each kernel, and what products become has the expected form."""

import pytest

from lowc.errors import ScheduleError
from lowc.ir.index import Symbol, constant
from lowc.ir.nodes import Alloc, For, Kernel, Kind
from lowc.ir.parser import parse_kernel
from lowc.ir.walk import statements
from lowc.scheduler import choose_contraction, contract
from lowc.scheduler.choose_contraction import Sizes
from lowc.scheduler.contract import Step
from lowc.scheduler.contraction import find
from lowc.scheduler.dots import Dots
from lowc.scheduler.gather import Gather
from lowc.scheduler.grid import Grid
from lowc.scheduler.outward import Outward
from lowc.scheduler.pack import Pack
from lowc.scheduler.registers import Registers
from lowc.target import Target
from tests.scheduler.contractions import AVX512, LEFT, RIGHT, SSE2, check, product


@pytest.mark.parametrize("target", [AVX512, SSE2], ids=["avx512", "sse2"])
@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize("shape", [(40, 33, 30), (17, 96, 16), (8, 16, 8), (3, 70, 20), (2, 64, 9), (33, 5, 40)], ids=str)
def test_every_step_keeps_the_meaning(target: Target, left: str, right: str, shape: tuple[int, int, int]) -> None:
    kernel = product(*shape, left, right)
    plans = choose_contraction.choices(kernel, target, True)
    assert plans or min(shape) < 8
    for plan in plans:
        check(kernel, plan)


def test_batches_and_slices() -> None:
    kernel = product(24, 40, 1100, batch=3)
    *_, plan = choose_contraction.choices(kernel, AVX512, True)
    tiled = check(kernel, plan)
    kinds = [s.kind.name for s in statements(tiled.body) if isinstance(s, For)]
    assert kinds.count("parallel") == 1
    assert any(isinstance(s, For) and s.axis.name == "k_o" for s in statements(tiled.body))


@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize("sizes", [(40, 50, 30), (1, 1, 1), (0, 5, 3), (5, 0, 3), (65, 17, 300)], ids=str)
def test_symbolic_sizes(right: str, sizes: tuple[int, int, int]) -> None:
    kernel = product("m", "n", "d", right=right)
    for plan in choose_contraction.choices(kernel, AVX512, True):
        check(kernel, plan, dict(zip(("m", "n", "d"), sizes, strict=True)))


def test_blocks_of_a_large_product_are_packed_tiled_and_shared() -> None:
    kernel = product(512, 768, 3072, right="y[j, k]")
    *_, plan = choose_contraction.choices(kernel, AVX512, True)
    for step in plan:
        kernel = contract.apply(kernel, step)
    found = statements(kernel.body)
    assert isinstance(kernel.body[0], For) and kernel.body[0].kind.name == "parallel" and len(kernel.body) == 1
    allocs = {s.buffer.name: s for s in found if isinstance(s, Alloc)}
    assert {"tile", "line", "b_packed", "s_block"} <= set(allocs)
    assert sum(constant(a.buffer.shape[0]) or 0 for a in allocs.values()) * 4 < 1 << 20
    assert any(isinstance(s, For) and s.kind == Kind("instr", 0, "transpose") for s in found)


def test_rows_that_fill_tiles_are_read_where_they_lie() -> None:
    for rows, packed in ((64, False), (61, True)):
        found = find(product(rows, 96, 64).body[0])  # type: ignore[arg-type]
        assert found is not None
        sizes = choose_contraction._sizes(found, 16, AVX512, 1, 1)
        assert isinstance(sizes, Sizes) and sizes.direct is not packed


def test_what_is_illegal_is_refused() -> None:
    kernel = product(40, 40, 40)
    blocks = Grid(("i", "j"), (16, 16), Kind("parallel"))
    in_blocks = contract.apply(kernel, blocks)
    outward = contract.apply(in_blocks, Outward(("i_i", "j_i"), (16, 16)))
    refused: list[tuple[Kernel, Step]] = [
        (kernel, Grid(("j", "i"), (16, 16), Kind())),  # not the order of the loops
        (in_blocks, Outward(("i_i", "j_i"), (8, 16))),  # blocks are larger
        (kernel, Pack("k", 0, "a", 0, 8, (40, 40))),  # the sum is still inside
        (outward, Pack("k", 0, "a", 0, 8, (8, 40))),  # a block has 16 rows
        (outward, Registers("k", 8, 16, 16)),  # tiles would hang over the edge of x and y
        (outward, Dots("k", (3, 4), 16)),  # 3 does not divide a block's rows
        (in_blocks, Gather("k", 8)),
    ]
    for before, step in refused:
        with pytest.raises(ScheduleError):
            contract.apply(before, step)


def test_blocks_that_meet_are_refused() -> None:
    text = "kernel f(x: f32[8], out: f32[8]) { for i in 8 { for j in 8 { out[j] = x[i] } } }"
    with pytest.raises(ScheduleError, match="meet"):
        contract.apply(parse_kernel(text), Grid(("i", "j"), (4, 4), Kind("parallel")))


def test_sizes_of_symbols_decide() -> None:
    """Schedules are made for the hints: with ten rows a product is thin, with forty it is not."""
    kernel = product("m", 256, 256, right="y[j, k]")
    assert isinstance(kernel.sizes[0], Symbol)
    plans = choose_contraction.choices(kernel, AVX512, True)
    assert plans and all(any(isinstance(s, Registers) for s in plan) for plan in plans)
