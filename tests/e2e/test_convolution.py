"""Convolutions on a CPU by lowc's own kernels: as close to float64 as eager, for any shape, layout, window, instruction set."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.e2e.test_matmul import able
from tests.e2e.threads import on_threads

OWN: dict[str, Any] = {"convolution": "own", "strict_errors": True, "cache": False, "check": True}
ISAS = [isa for isa in ("auto", "avx2", "sse2") if able(isa)]
ROUNDING = {torch.float64: 1e-15, torch.float32: 2e-7, torch.float16: 4e-4, torch.bfloat16: 3e-3}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last) if x.dim() == 4 else x.mT.contiguous().mT,
    "part of rows": lambda x: torch.cat((x, x), -1)[..., x.shape[-1] // 2 : x.shape[-1] // 2 + x.shape[-1]],
    "turned": lambda x: x.mT.contiguous().mT,
    "one for all": lambda x: x[:, :1].expand(x.shape),
}


@dataclass(frozen=True)
class Case:
    """An input [n, c, *sizes], ``times`` as many results; each of ``sizes``, ``taps``, ``steps``, ``pads``, ``gaps`` as long."""

    n: int
    c: int
    times: int
    sizes: tuple[int, ...]
    taps: tuple[int, ...]
    steps: tuple[int, ...]
    pads: tuple[int, ...]
    gaps: tuple[int, ...]
    layout: str = "plain"
    dtype: torch.dtype = torch.float32
    bias: bool = False
    after: str = ""
    dynamic: bool = False


def depthwise(case: Case) -> tuple[Callable[..., Tensor], list[Tensor | None]]:
    torch.manual_seed(0)
    x = LAYOUTS[case.layout](torch.randn(case.n, case.c, *case.sizes).to(case.dtype))
    w = torch.randn(case.c * case.times, 1, *case.taps).to(case.dtype)
    if case.layout == "channels last" and x.dim() == 4:
        w = w.to(memory_format=torch.channels_last)
    return function(case, case.c), [x, w, torch.randn(len(w)).to(case.dtype) if case.bias else None]


def function(case: Case, groups: int) -> Callable[..., Tensor]:
    op = F.conv2d if len(case.sizes) == 2 else F.conv1d

    def convolve(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        y = op(x, w, bias, case.steps, case.pads, case.gaps, groups)
        if case.after == "scaled":
            return torch.relu(y * torch.arange(1, y.shape[1] + 1, dtype=y.dtype).view(-1, *[1] * (y.dim() - 2)))
        return torch.nn.functional.silu(y) + y if case.after == "silu" else y

    return convolve


def error(found: Tensor, exact: Tensor) -> float:
    off = (found.double() - exact).nan_to_num(0.0, 0.0, 0.0)
    return float(off.norm() / exact.nan_to_num(0.0, 0.0, 0.0).norm().clamp_min(1e-30))


def strides(x: Tensor) -> list[int]:
    return [n for n, size in zip(x.stride(), x.shape) if size > 1]


def check(made: tuple[Callable[..., Tensor], list[Tensor | None]], case: Case, isa: str = "auto") -> None:
    torch._dynamo.reset()
    convolve, args = made
    try:
        eager = convolve(*args)
    except RuntimeError:  # the kernel is larger than the padded input
        return
    exact = convolve(*(None if a is None else a.double() for a in args))
    if case.dynamic and case.n > 1:
        torch._dynamo.mark_dynamic(args[0], 0)
    ours = torch.compile(convolve, backend="lowc", options={**OWN, "isa": isa}, dynamic=None if case.dynamic else False)(*args)
    assert strides(ours) == strides(eager)
    assert torch.equal(ours.isnan(), eager.isnan())
    assert error(ours, exact) <= max(2 * error(eager, exact), ROUNDING[case.dtype])


def cases(rank: int, most: int) -> st.SearchStrategy[Case]:
    def each(values: Any) -> Any:
        return st.tuples(*[values] * rank)

    return st.builds(
        Case,
        n=st.integers(1, 3),
        c=st.sampled_from([1, 2, 3, 8, 17, 33]),
        times=st.sampled_from([1, 1, 1, 2, 3]),
        sizes=each(st.integers(1, most)),
        taps=each(st.integers(1, 5)),
        steps=each(st.integers(1, 4)),
        pads=each(st.integers(0, 5)),
        gaps=each(st.integers(1, 3)),
        layout=st.sampled_from(list(LAYOUTS)),
        dtype=st.sampled_from(list(ROUNDING)),
        bias=st.booleans(),
        after=st.sampled_from(["", "scaled", "silu"]),
        dynamic=st.booleans(),
    )


@given(st.one_of(cases(2, 40), cases(1, 100)), st.sampled_from(ISAS))
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_depthwise_of_any_shape(case: Case, isa: str) -> None:
    check(depthwise(case), case, isa)


def direct(case: Case) -> tuple[Callable[..., Tensor], list[Tensor | None]]:
    """``case`` with all channels in one group, and as many results as ``times`` says, and one more."""
    torch.manual_seed(0)
    x = LAYOUTS[case.layout](torch.randn(case.n, case.c, *case.sizes).to(case.dtype))
    w = torch.randn(case.c * case.times + 1, case.c, *case.taps).to(case.dtype)
    return function(case, 1), [x, w, torch.randn(len(w)).to(case.dtype) if case.bias else None]


@given(st.one_of(cases(2, 24), cases(1, 60)), st.sampled_from(ISAS))
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_all_channels_of_any_shape(case: Case, isa: str) -> None:
    check(direct(case), case, isa)


PLAIN = Case(2, 24, 1, (14, 30), (3, 3), (1, 1), (1, 1), (1, 1), after="scaled")
MANY = replace(PLAIN, c=130, sizes=(9, 14))  # sums in slices, the last of them shorter
POINT = replace(PLAIN, c=40, times=2, taps=(1, 1), pads=(0, 0))
LAST = replace(PLAIN, layout="channels last")
FORMS = [(depthwise, PLAIN), (depthwise, LAST), (direct, PLAIN), (direct, MANY), (direct, POINT)]
IDS = ["depthwise", "channels last", "direct", "slices", "one tap"]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("form", "case"), FORMS, ids=IDS)
def test_every_instruction_set(form: Any, case: Case, isa: str) -> None:
    check(form(case), case, isa)


@pytest.mark.parametrize(("form", "case"), FORMS, ids=IDS)
def test_results_do_not_depend_on_threads(form: Any, case: Case) -> None:
    torch._dynamo.reset()
    convolve, args = form(replace(case, n=3))
    compiled = torch.compile(convolve, backend="lowc", options=OWN)
    found = on_threads(lambda: compiled(*args))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(("form", "case"), FORMS, ids=IDS)
def test_numbers_that_are_none(form: Any, case: Case, value: float) -> None:
    """Only places that see them have something of them, and zeros beside the input are none of it."""
    torch._dynamo.reset()
    convolve, args = form(replace(case, after=""))
    args[0][1, :, -1, -1] = value
    ours, eager = torch.compile(convolve, backend="lowc", options=OWN)(*args), convolve(*args)
    assert torch.equal(ours.isnan(), eager.isnan())
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("shape", [(0, 4, 9, 9), (1, 4, 3, 1), (1, 4, 1, 1)])
def test_sizes_of_0_and_1(shape: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    x, w = torch.randn(shape), torch.randn(4, 1, 3, 3)

    def convolve(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, padding=2, groups=4)

    torch.testing.assert_close(torch.compile(convolve, backend="lowc", options=OWN)(x, w), convolve(x, w))


def test_an_input_without_a_batch() -> None:
    torch._dynamo.reset()
    x, w = torch.randn(6, 17, 19), torch.randn(6, 1, 3, 3)
    ours = torch.compile(lambda x: F.conv2d(x, w, padding=1, groups=6), backend="lowc", options=OWN)(x)
    torch.testing.assert_close(ours, F.conv2d(x, w, padding=1, groups=6))


def test_gradients_are_those_of_eager() -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3, groups=16), torch.nn.BatchNorm2d(16)
    )
    x = torch.randn(2, 3, 12, 20)
    model(x).square().mean().backward()
    exact = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    torch.compile(model, backend="lowc", options=OWN)(x).square().mean().backward()
    for mine, theirs in zip([p.grad for p in model.parameters()], exact, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)
