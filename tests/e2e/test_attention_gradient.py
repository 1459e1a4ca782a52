"""Gradients of attention on a CPU by lowc's own kernels: as close to float64 as eager's, for any shape, layout and mask."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.e2e.test_attention import ISAS, OWN, ROUNDING, Case, cases, error, made, mark, wide
from tests.e2e.threads import on_threads


def leaves(args: list[Tensor | None]) -> list[Tensor]:
    return [a.detach().requires_grad_() for a in args[:3] if a is not None]


def gradients(function: Any, args: list[Tensor | None], grad: Tensor) -> tuple[Tensor, ...]:
    """Of queries, keys and values; of memory laid out as they are."""
    given = leaves(args)
    return torch.autograd.grad(function(*given, args[3]), given, grad)


def close(case: Case, args: list[Tensor | None], ours: Any, grad: Tensor) -> None:
    attend, _ = made(case)
    exact = gradients(attend, wide(args), grad.double())
    # Weights are exponentials of differences of scores and of the logarithms of their sums, which are as exact as numbers of that
    # size are, unless passes add up in the same order: for few rows, or one key, they do not.
    scores = args[0].double() @ args[1].double().repeat_interleave(case.shared, 1).mT * (case.scale or case.d**-0.5)
    size = 4 + (float(scores.abs().max()) if case.n < 5 or case.s == 1 else 0)
    for our, eager, right in zip(ours, gradients(attend, args, grad), exact, strict=True):
        assert our.dtype == eager.dtype and our.shape == eager.shape
        assert torch.equal(our.isnan(), eager.isnan())
        if float(right.norm()) > 1e-6:  # else it is rounding alone: slopes of a row that sees one key are 0
            assert error(our, right) <= max(2 * error(eager, right), size * ROUNDING[case.dtype])


def check(case: Case, isa: str = "auto") -> None:
    torch._dynamo.reset()
    if case.mask == "causal" and case.scale is not None:
        case = replace(case, scale=abs(case.scale))  # eager multiplies -inf with it
    attend, args = made(case)
    grad = torch.randn(case.b, case.h * case.shared, case.n, case.d).to(case.dtype)
    options = {**OWN, "isa": isa}
    compiled = torch.compile(attend, backend="lowc", options=options, dynamic=None if case.dynamic else False)
    mine = leaves(args)
    if case.dynamic:
        mark(case, [*mine, args[3]])
    close(case, args, torch.autograd.grad(compiled(*mine, args[3]), mine, grad), grad)


CASES = cases([1, 2, 5, 16, 17, 31, 63, 64, 65, 130], [1, 2, 5, 16, 33, 63, 64, 65, 129, 200], [1, 2, 8, 17, 32, 40, 64, 80])


@given(CASES, st.sampled_from(ISAS))
@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_shape(case: Case, isa: str) -> None:
    check(case, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set(isa: str) -> None:
    check(Case(1, 2, 2, 70, 70, 32, mask="causal", dtype=torch.bfloat16), isa)


@pytest.mark.parametrize("heads", [1, 4])
def test_beside_differences(heads: int) -> None:
    """``gradcheck``: one head is shared by the cores, of several each core has its own."""
    torch._dynamo.reset()
    args = [torch.randn(1, heads, n, 8, dtype=torch.float64, requires_grad=True) for n in (5, 7, 7)]
    compiled = torch.compile(F.scaled_dot_product_attention, backend="lowc", options=OWN)
    assert torch.autograd.gradcheck(compiled, args)


@pytest.mark.parametrize("heads", [1, 3])
def test_results_do_not_depend_on_threads(heads: int) -> None:
    torch._dynamo.reset()
    attend, args = made(Case(1, heads, 1, 200, 200, 64, mask="causal"))
    compiled = torch.compile(attend, backend="lowc", options=OWN)
    grad = torch.randn(1, heads, 200, 64)
    found = on_threads(lambda: gradients(compiled, args, grad))
    assert all(torch.equal(a, b) for each in found[1:] for a, b in zip(found[0], each, strict=True))


def test_rows_that_see_nothing_have_no_gradient() -> None:
    torch._dynamo.reset()
    args: list[Tensor | None] = [torch.randn(1, 2, n, 32) for n in (40, 80, 80)]
    mask = torch.rand(40, 80) < 0.5
    mask[-1], mask[:, 3] = False, False
    args.append(mask)
    grad = torch.randn(1, 2, 40, 32)
    compiled = torch.compile(F.scaled_dot_product_attention, backend="lowc", options=OWN)
    ours = gradients(compiled, args, grad)
    assert not ours[0][:, :, -1].any()
    assert not ours[1][:, :, 3].any() and not ours[2][:, :, 3].any()
    for mine, eager in zip(ours, gradients(F.scaled_dot_product_attention, args, grad), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("which", [0, 2, 3])
def test_numbers_that_are_none(which: int, value: float) -> None:
    """Where the formula gives NaN, so do the kernels; without a mask nothing is left out."""
    torch._dynamo.reset()
    args: list[Any] = [torch.randn(1, 2, 40, 32), torch.randn(1, 2, 90, 32), torch.randn(1, 2, 90, 32), None]
    grad = torch.randn(1, 2, 40, 32)
    each = grad if which == 3 else args[which]
    each[0, 0, 20, 3] = value
    compiled = torch.compile(F.scaled_dot_product_attention, backend="lowc", options=OWN)

    def formula(q: Tensor, k: Tensor, v: Tensor, _mask: None) -> Tensor:
        return torch.softmax(q @ k.mT / math.sqrt(32), -1) @ v

    for mine, exact in zip(gradients(compiled, args, grad), gradients(formula, wide(args), grad.double()), strict=True):
        assert torch.equal(mine.isfinite(), exact.isfinite())
        assert error(mine, exact) < 1e-5


@pytest.mark.parametrize("wanted", [(0,), (2,), (0, 1)])
def test_gradients_of_some(wanted: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    given = [torch.randn(1, 2, n, 32, requires_grad=which in wanted) for which, n in enumerate((70, 90, 90))]
    grad = torch.randn(1, 2, 70, 32)
    compiled = torch.compile(F.scaled_dot_product_attention, backend="lowc", options=OWN)
    leaves_ = [given[n] for n in wanted]
    ours = torch.autograd.grad(compiled(*given), leaves_, grad)
    eager = torch.autograd.grad(F.scaled_dot_product_attention(*given), leaves_, grad)
    for mine, theirs in zip(ours, eager, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
