"""Factors that are copied ahead of the blocks: each step keeps the meaning, and what becomes of large products has the form."""

import pytest

from lowc.errors import ScheduleError
from lowc.ir.nodes import Alloc, For, Kernel, Load, Op, Store
from lowc.ir.parser import parse_kernel
from lowc.ir.walk import exprs, parts, statements
from lowc.scheduler import choose_ahead, choose_contraction, contract, linearise
from lowc.scheduler.ahead import Ahead
from lowc.scheduler.contract import Step
from lowc.scheduler.grid import Grid
from lowc.scheduler.settle import Settle
from lowc.target import Target
from tests.scheduler.contractions import AVX512, LEFT, RIGHT, SSE2, check, product


def plans(kernel: Kernel, target: Target = AVX512) -> list[tuple[Step, ...]]:
    found = choose_contraction.choices(kernel, target, True)
    return [p for p in found if any(isinstance(s, Ahead) for s in p)]


def after(kernel: Kernel, plan: tuple[Step, ...]) -> Kernel | None:
    for step in plan:
        try:
            kernel = contract.apply(kernel, step)
        except ScheduleError:
            return None
    return kernel


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_ahead, "LEAST", 0)


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("target", [AVX512, SSE2], ids=["avx512", "sse2"])
@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize(
    ("shape", "batch"), [((40, 33, 30), 0), ((17, 96, 16), 2), ((8, 16, 8), 0), ((12, 64, 21), 0), ((33, 20, 40), 2)], ids=str
)
def test_every_step_keeps_the_meaning(
    target: Target, left: str, right: str, shape: tuple[int, int, int], batch: int
) -> None:
    kernel = product(*shape, left, right, batch)
    legal = [p for p in plans(kernel, target) if after(kernel, p) is not None]
    assert legal
    for plan in legal:
        check(kernel, plan)


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize("sizes", [(40, 50, 30), (1, 1, 1), (0, 5, 3), (5, 0, 3), (5, 3, 0), (65, 17, 300)], ids=str)
def test_symbolic_sizes(right: str, sizes: tuple[int, int, int]) -> None:
    kernel = product("m", "n", "d", right=right)
    legal = [p for p in plans(kernel) if after(kernel, p) is not None]
    assert legal
    for plan in legal:
        check(kernel, plan, dict(zip(("m", "n", "d"), sizes, strict=True)))


def test_few_rows_are_packed_instead_of_many_columns() -> None:
    """The weights of a linear layer are read as they lie, 64 rows of input are copied."""
    kernel = product(64, 2048, 512, right="y[j, k]")
    new = after(kernel, plans(kernel)[0])
    assert new is not None
    (copied,) = [p for p in new.params if p.name.endswith("_ahead")]
    assert copied.shape[0].terms == ((((), 64 * 512)),)
    copies = [s for s in statements(new.body) if isinstance(s, Store) and s.buffer.name == "b_ahead"]
    read = {p.buffer.name for s in copies for e in exprs(s) for p in parts(e) if isinstance(p, Load)}
    assert read <= {"x", "x_tile"}


@pytest.mark.parametrize(("m", "n", "wide"), [(256, 64, "i"), (64, 256, "j")])
def test_the_larger_factor_has_the_wide_panels(m: int, n: int, wide: str) -> None:
    """Of gradients of weights over many rows, where copies of both factors are much of the work."""
    steps = [s for s in plans(product(m, n, 12544, LEFT[1], RIGHT[0]))[0] if isinstance(s, Ahead)]
    assert {s.along: s.panel >= 16 for s in steps} == {"i": wide == "i", "j": wide == "j"}


def test_sums_of_a_tile_are_stored_once() -> None:
    kernel = product(512, 480, 256)
    new = after(kernel, plans(kernel)[0])
    assert new is not None
    block = next(s for s in statements(new.body) if isinstance(s, Alloc) and s.buffer.name == "s_block")
    assert not block.reducer
    assert any(isinstance(p, Op) and p.name == "soon" for s in statements(new.body) for e in exprs(s) for p in parts(e))
    assert [s.kind.name for s in new.body if isinstance(s, For)] == ["parallel", "parallel"]


def test_what_is_illegal_is_refused() -> None:
    kernel = product(40, 40, 40)
    writes = linearise._linear(
        parse_kernel(
            """kernel f(x: f32[8, 8], y: f32[8, 8]) { for i in 8 { for j in 8 {
          acc s: f32 = add; for k in 8 { s add= product(x[i, k], y[k, j]) }
          x[i, j] = s } } }""".replace("; ", "\n")
        )
    )
    refused: list[tuple[Kernel, Step]] = [
        (kernel, Ahead("i", 0, "a", "i", 8, 1, 0)),  # not the loop over the depth
        (kernel, Ahead("k", 1, "b", "i", 8, 1, 0)),  # y does not change with i
        (writes, Ahead("k", 0, "a", "i", 8, 1, 0)),  # x is written
        (contract.apply(kernel, Ahead("k", 1, "b", "j", 8, 1, 0)), Ahead("k", 0, "b", "i", 8, 1, 0)),  # the name is taken
        (kernel, Settle("s_block")),  # there is no such array
        (contract.apply(kernel, Grid(("i", "j"), (16, 16), kernel.body[0].kind)), Settle("out")),  # type: ignore[union-attr]
    ]
    for before, step in refused:
        with pytest.raises(ScheduleError):
            contract.apply(before, step)
