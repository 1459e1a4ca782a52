"""Convolutions on a CPU by lowc's own kernels: as close to float64 as eager, for any shape, layout, window and instruction set."""

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
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_depthwise_of_any_shape(case: Case, isa: str) -> None:
    check(depthwise(case), case, isa)


def direct(case: Case) -> tuple[Callable[..., Tensor], list[Tensor | None]]:
    """``case`` with all channels in one group, and as many results as ``times`` says, and one more."""
    torch.manual_seed(0)
    x = LAYOUTS[case.layout](torch.randn(case.n, case.c, *case.sizes).to(case.dtype))
    w = torch.randn(case.c * case.times + 1, case.c, *case.taps).to(case.dtype)
    return function(case, 1), [x, w, torch.randn(len(w)).to(case.dtype) if case.bias else None]
