"""Attention on a CPU by lowc's own kernel: as close to float64 as eager, for any shape, layout, mask and instruction set."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.e2e.test_matmul import able
from tests.e2e.threads import on_threads

OWN: dict[str, Any] = {"attention": "own", "strict_errors": True, "cache": False, "check": True}
ISAS = [isa for isa in ("auto", "avx2", "sse2") if able(isa)]
ROUNDING = {torch.float64: 1e-15, torch.float32: 2e-7, torch.float16: 4e-4, torch.bfloat16: 3e-3}
LAYOUTS: dict[str, Callable[[int, int, int, int], Tensor]] = {
    "plain": lambda b, h, n, d: torch.randn(b, h, n, d),
    "heads inside": lambda b, h, n, d: torch.randn(b, n, h, d).transpose(1, 2),
    "part of rows": lambda b, h, n, d: torch.randn(b, h, n, d + 3)[..., 2:-1],
    "turned": lambda b, h, n, d: torch.randn(b, h, d, n).transpose(2, 3),
    "one for all": lambda b, h, n, d: torch.randn(1, 1, n, d).expand(b, h, n, d),
}


@dataclass(frozen=True)
class Case:
    """Queries [b, h * shared, n, d], keys and values [b, h, s, d]; ``mask``: "", "causal", or its shape and whether it adds."""

    b: int
    h: int
    shared: int
    n: int
    s: int
    d: int
    layout: str = "plain"
    dtype: torch.dtype = torch.float32
    mask: str = ""
    adds: bool = False
    scale: float | None = None
    dynamic: bool = False


def made(case: Case) -> tuple[Callable[..., Tensor], list[Tensor | None]]:
    torch.manual_seed(0)
    heads = case.h * case.shared
    sizes = (heads, case.n), (case.h, case.s), (case.h, case.s)
    q, k, v = (LAYOUTS[case.layout](case.b, h, n, case.d).to(case.dtype) for h, n in sizes)
    mask = None
    if case.mask and case.mask != "causal":
        length = {"b": case.b, "h": heads, "n": case.n, "s": case.s, "1": 1}
        shape = [length[c] for c in case.mask]
        mask = torch.randn(shape).to(case.dtype) if case.adds else torch.rand(shape) < 0.7
        if case.adds:
            mask = mask.masked_fill(torch.rand(shape) < 0.2, -math.inf)

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        given: dict[str, Any] = {"is_causal": case.mask == "causal", "scale": case.scale, "enable_gqa": case.shared > 1}
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **given)

    return attend, [q, k, v, mask]


def mark(case: Case, args: list[Tensor | None]) -> None:
    """Numbers of queries and of keys are sizes of the call; heads and their width are known."""
    mask = args[3]
    for each, dimension, size in ((args[0], 2, case.n), (args[1], 2, case.s), (args[2], 2, case.s)):
        if each is not None and size > 1:
            torch._dynamo.mark_dynamic(each, dimension)
    for dimension, name in enumerate(case.mask if mask is not None else ""):
        if mask is not None and name in "ns" and mask.shape[dimension] > 1:
            torch._dynamo.mark_dynamic(mask, dimension)


def wide(args: list[Tensor | None]) -> list[Tensor | None]:
    return [a.double() if a is not None and a.is_floating_point() else a for a in args]


def error(found: Tensor, exact: Tensor) -> float:
    """Of the whole, where it is a number."""
    off = torch.nan_to_num(found.double() - exact, 0.0, 0.0, 0.0)
    return float(off.norm() / exact.nan_to_num(0.0).norm().clamp_min(1e-30))


def check(case: Case, isa: str = "auto") -> None:
    torch._dynamo.reset()
    attend, args = made(case)
    if case.dynamic:
        mark(case, args)
    ours = torch.compile(attend, backend="lowc", options={**OWN, "isa": isa}, dynamic=None if case.dynamic else False)(*args)
    eager, exact = attend(*args), attend(*wide(args))
    assert [n for n, size in zip(ours.stride(), ours.shape) if size > 1] == [
        n for n, size in zip(eager.stride(), eager.shape) if size > 1
    ]
    assert torch.equal(ours.isnan(), eager.isnan())
    assert error(ours, exact) <= max(2 * error(eager, exact), ROUNDING[case.dtype])


def cases(n: list[int], s: list[int], d: list[int]) -> st.SearchStrategy[Case]:
    """Cases of any kind, of these numbers of queries and of keys, and widths of heads."""
    return st.builds(
        Case,
        b=st.integers(1, 2),
        h=st.integers(1, 3),
        shared=st.sampled_from([1, 1, 2]),
        n=st.sampled_from(n),
        s=st.sampled_from(s),
        d=st.sampled_from(d),
        layout=st.sampled_from(list(LAYOUTS)),
        dtype=st.sampled_from(list(ROUNDING)),
        mask=st.sampled_from(["", "causal", "bhns", "11ns", "b11s", "ns", "1h1s", "bhn1"]),
        adds=st.booleans(),
        scale=st.sampled_from([None, 0.3, -1.2]),
        dynamic=st.booleans(),
    )


CASES = cases(
    [1, 2, 3, 4, 5, 16, 17, 31, 63, 64, 65, 130], [1, 2, 5, 16, 33, 63, 64, 65, 129, 200, 300], [1, 2, 8, 17, 32, 40, 64]
)


@given(CASES, st.sampled_from(ISAS))
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_shape(case: Case, isa: str) -> None:
    check(case, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", [1, 3, 70])
def test_every_instruction_set(isa: str, n: int) -> None:
    check(Case(1, 2, 2, n, 150, 64, mask="" if n < 70 else "causal"), isa)
    check(Case(1, 2, 1, n, 150, 64, mask="bhns", adds=True, dtype=torch.bfloat16), isa)


@pytest.mark.parametrize("n", [1, 3, 40])
def test_rows_that_see_nothing_are_zero(n: int) -> None:
    torch._dynamo.reset()
    q, k, v = torch.randn(1, 2, n, 32), torch.randn(1, 2, 80, 32), torch.randn(1, 2, 80, 32)
    for mask in (torch.rand(n, 80) < 0.5, torch.randn(n, 80)):
        mask[-1] = False if mask.dtype == torch.bool else -math.inf
        ours = torch.compile(F.scaled_dot_product_attention, backend="lowc", options=OWN)(q, k, v, mask)
        assert not ours[:, :, -1].any()
        torch.testing.assert_close(ours, F.scaled_dot_product_attention(q, k, v, mask), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [1, 40])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_numbers_that_are_none(which: int, value: float, n: int) -> None:
    """Where the formula gives NaN, so does the kernel; other rows have nothing of it."""
    torch._dynamo.reset()
    args = [torch.randn(1, 1, n, 32), torch.randn(1, 1, 150, 32), torch.randn(1, 1, 150, 32)]
    args[which][0, 0, args[which].shape[2] // 2, 3] = value
    ours = torch.compile(F.scaled_dot_product_attention, backend="lowc", options=OWN)(*args)
    q, k, v = (a.double() for a in args)
    weights = torch.softmax(q @ k.mT / math.sqrt(32), -1)
    exact = (weights @ v).float()
    assert torch.equal(ours.isnan(), exact.isnan())
    torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(("n", "s"), [(0, 5), (5, 1), (1, 1)])
def test_no_queries_and_one_key(n: int, s: int) -> None:
    torch._dynamo.reset()
    args = [torch.randn(2, 2, n, 16), torch.randn(2, 2, s, 16), torch.randn(2, 2, s, 16)]
    ours = torch.compile(F.scaled_dot_product_attention, backend="lowc", options=OWN)(*args)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(*args))


def test_results_do_not_depend_on_threads() -> None:
    attend, args = made(Case(2, 3, 1, 200, 200, 64, mask="causal"))
    compiled = torch.compile(attend, backend="lowc", options=OWN)
    found = on_threads(lambda: compiled(*args))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize(("rows", "wide"), [(70, 32), (1, 2), (1, 17)])
def test_log_of_sums(rows: int, wide: int) -> None:
    torch._dynamo.reset()
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    q, k, v = torch.randn(2, 2, rows, wide), torch.randn(2, 2, 90, wide), torch.randn(2, 2, 90, wide)
    ours = torch.compile(lambda q, k, v: op(q, k, v, 0.0, True), backend="lowc", options=OWN)(q, k, v)
    for mine, theirs in zip(ours, op(q, k, v, 0.0, True), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
