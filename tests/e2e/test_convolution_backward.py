"""Gradients of convolutions on a CPU by lowc's own kernels: as close to float64 as eager's, for any shape, layout, window."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from lowc import compiler
from lowc.ir.nodes import Extern, Launch, Step
from tests.e2e.test_convolution import ISAS, error, strides
from tests.e2e.threads import on_threads

OWN: dict[str, Any] = {"convolution": "own", "strict_errors": True, "cache": False, "check": True}
ROUNDING = {torch.float64: 1e-15, torch.float32: 3e-7, torch.bfloat16: 3e-3}
MASKS = [mask for mask in itertools.product([True, False], repeat=3) if any(mask)]
LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


@dataclass(frozen=True)
class Case:
    """An input [n, channels[0]*groups, *sizes], channels[1]*groups results; each of ``sizes``, ``taps``, … as long.  ``last``:
    channels lie side by side."""

    n: int
    channels: tuple[int, int]
    groups: int
    sizes: tuple[int, ...]
    taps: tuple[int, ...]
    steps: tuple[int, ...]
    pads: tuple[int, ...]
    gaps: tuple[int, ...]
    transposed: bool = False
    last: bool = False
    dtype: torch.dtype = torch.float32
    mask: tuple[bool, ...] = (True, True, True)
    dynamic: bool = False


def made(case: Case) -> tuple[Callable[..., list[Tensor]], list[Tensor]] | None:
    """The gradients as a function, and what it takes; None where the kernel is larger than the padded input."""
    torch.manual_seed(0)
    inside, outside = (n * case.groups for n in case.channels)
    shape = (inside, outside // case.groups) if case.transposed else (outside, inside // case.groups)
    x, w = torch.randn(case.n, inside, *case.sizes).to(case.dtype), torch.randn(*shape, *case.taps).to(case.dtype)
    if case.last and len(case.sizes) > 1:
        x = x.to(memory_format=LAST[len(case.sizes)])
    more = [0] * len(case.sizes)
    rest = (case.steps, case.pads, case.gaps, case.transposed, more, case.groups)
    try:
        y = torch.ops.aten.convolution(x, w, None, *rest)
    except RuntimeError:
        return None
    if not y.numel():
        return None

    def gradients(g: Tensor, x: Tensor, w: Tensor) -> list[Tensor]:
        found = torch.ops.aten.convolution_backward(g, x, w, [outside], *rest, list(case.mask))
        return [one for one, asked in zip(found, case.mask, strict=True) if asked]

    return gradients, [torch.randn_like(y), x, w]


def check(case: Case, isa: str = "auto") -> None:
    torch._dynamo.reset()
    if (given := made(case)) is None:
        return
    gradients, args = given
    eager, exact = gradients(*args), gradients(*(a.double() for a in args))
    if case.dynamic and case.n > 1:
        for a in args[:2]:
            torch._dynamo.mark_dynamic(a, 0)
    compiled = torch.compile(gradients, backend="lowc", options={**OWN, "isa": isa}, dynamic=None if case.dynamic else False)
    for ours, theirs, right in zip(compiled(*args), eager, exact, strict=True):
        assert strides(ours) == strides(theirs) and ours.dtype == theirs.dtype
        assert error(ours, right) <= max(2 * error(theirs, right), ROUNDING[case.dtype])


def cases(rank: int, most: int, taps: int) -> st.SearchStrategy[Case]:
    def each(values: Any) -> Any:
        return st.tuples(*[values] * rank)

    return st.builds(
        Case,
        n=st.integers(1, 3),
        channels=st.sampled_from([(1, 1), (1, 1), (1, 2), (2, 1), (3, 2)]),
        groups=st.sampled_from([1, 2, 5, 17, 33]),
        sizes=each(st.integers(1, most)),
        taps=each(st.integers(1, taps)),
        steps=each(st.integers(1, 3)),
        pads=each(st.integers(0, 4)),
        gaps=each(st.integers(1, 3)),
        transposed=st.booleans(),
        last=st.booleans(),
        dtype=st.sampled_from(list(ROUNDING)),
        mask=st.sampled_from(MASKS),
        dynamic=st.booleans(),
    )


@given(st.one_of(cases(2, 20, 5), cases(1, 150, 5), cases(3, 6, 3)), st.sampled_from(ISAS))
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_gradients_of_any_shape(case: Case, isa: str) -> None:
    check(case, isa)


PLAIN = Case(2, (1, 1), 24, (14, 30), (3, 3), (1, 1), (1, 1), (1, 1))
DENSE = Case(2, (12, 20), 1, (9, 14), (3, 3), (1, 1), (1, 1), (1, 1))
FORMS = {
    "depthwise": PLAIN,
    "channels last": replace(PLAIN, last=True),
    "apart": replace(PLAIN, last=True, steps=(2, 2)),
    "rows of taps": replace(PLAIN, last=True, taps=(7, 7), pads=(3, 3)),
    "long rows": replace(PLAIN, sizes=(300,), taps=(9,), steps=(1,), pads=(4,), gaps=(1,)),
    "dense": DENSE,
    "one tap": replace(DENSE, taps=(1, 1), pads=(0, 0), last=True),
    "transposed": replace(DENSE, transposed=True, steps=(2, 1)),
    "three dimensions": Case(1, (1, 1), 6, (5, 6, 7), (3, 2, 3), (1, 2, 1), (1, 0, 2), (1, 1, 1)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form: str) -> None:
    check(FORMS[form])


@pytest.mark.parametrize("channels", [(8, 12, 1), (8, 8, 8)], ids=str)
@pytest.mark.parametrize("step", [1, 2])
def test_transposed_convolutions(channels: tuple[int, int, int], step: int) -> None:
    """They are the gradients of others, bias and what follows included; those of many channels with steps are ATen's."""
    inside, outside, groups = channels
    x, w, bias = torch.randn(2, inside, 9, 13), torch.randn(inside, outside // groups, 3, 4), torch.randn(outside)

    def function(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return F.conv_transpose2d(x, w, bias, step, (1, 2), step - 1, groups).relu()

    steps = steps_of(function, x, w, bias)
    assert any(isinstance(s, Extern) for s in steps) == (groups == 1 and step == 2)
    found = torch.compile(function, backend="lowc", options=OWN)(x, w, bias)
    exact = function(x.double(), w.double(), bias.double())
    assert error(found, exact) <= max(2 * error(function(x, w, bias), exact), 3e-7)


@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize("form", ["depthwise", "rows of taps"])
def test_every_instruction_set(form: str, isa: str) -> None:
    check(FORMS[form], isa)


@pytest.mark.parametrize("form", ["channels last", "dense"])
def test_results_do_not_depend_on_threads(form: str) -> None:
    torch._dynamo.reset()
    given = made(replace(FORMS[form], n=3))
    assert given is not None
    compiled = torch.compile(given[0], backend="lowc", options=OWN)
    first, *others = on_threads(lambda: compiled(*given[1]))
    for found in others:
        assert all(torch.equal(a, b) for a, b in zip(first, found, strict=True))


@pytest.mark.parametrize("shape", [(0, 4, 9, 9), (1, 4, 3, 1), (1, 4, 1, 1)], ids=str)
def test_sizes_of_0_and_1(shape: tuple[int, ...]) -> None:
    x, w = torch.randn(shape), torch.randn(4, 1, 3, 3)
    g = torch.randn(*shape[:2], *(n + 2 for n in shape[2:]))

    def gradients(g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return torch.ops.aten.convolution_backward(g, x, w, [4], [1, 1], [2, 2], [1, 1], False, [0, 0], 4, [True] * 3)

    torch._dynamo.reset()
    for ours, eager in zip(torch.compile(gradients, backend="lowc", options=OWN)(g, x, w), gradients(g, x, w), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_gradcheck(groups: int) -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 4 // groups, 3, 2, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, dtype=torch.float64, requires_grad=True)

    def function(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        y = F.relu(F.conv2d(x, w, bias, (2, 1), (1, 0), 1, groups))
        return F.conv_transpose2d(y, w, bias, (2, 1), (0, 1), 0, groups)

    compiled = torch.compile(function, backend="lowc", options=OWN)
    assert torch.autograd.gradcheck(compiled, (x, w, bias), fast_mode=True)


def steps_of(function: Callable[..., Any], *args: Tensor, **options: str) -> list[Step]:
    """What a call of ``function`` runs."""
    found: list[Step] = []
    original = compiler.compile_artifact

    def keep(*a: Any, **k: Any) -> Any:
        artifact, bind = original(*a, **k)
        found.extend(artifact.module.steps)
        return artifact, bind

    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "compile_artifact", keep)
        torch.compile(function, backend="lowc", options={**OWN, **options})(*args)
    return found


def backward(mask: Sequence[bool]) -> Callable[[Tensor, Tensor, Tensor], Any]:
    rest = ([8], [1, 1], [1, 1], [1, 1], False, [0, 0], 8, list(mask))
    return lambda g, x, w: torch.ops.aten.convolution_backward(g, x, w, *rest)


def test_what_is_before_and_after_joins() -> None:
    """A ReLU's mask before gradients of weights, and behind those of inputs, are no kernels."""
    x, g, w = torch.randn(2, 8, 9, 20), torch.randn(2, 8, 9, 20), torch.randn(8, 1, 3, 3)
    masked, weights = torch.ops.aten.threshold_backward, backward((False, True, False))
    assert len(steps_of(lambda g, x, w: masked(backward((True, False, False))(g, x, w)[0], x, 0), g, x, w)) == 1
    assert len(steps_of(lambda g, x, w: weights(masked(g, x, 0), x, w)[1], g, x, w)) == len(
        steps_of(lambda g, x, w: weights(g, x, w)[1], g, x, w)
    )


def test_code_for_many_taps_does_not_grow() -> None:
    """That of 81 would take seconds to make, and of 961 a minute."""
    x, g, w = torch.randn(2, 8, 12, 20), torch.randn(2, 8, 12, 20), torch.randn(8, 1, 9, 9)
    rest = (None, [1, 1], [4, 4], [1, 1], False, [0, 0], 8, [False, True, False])
    (call,) = steps_of(lambda g, x, w: torch.ops.aten.convolution_backward(g, x, w, *rest), g, x, w)
    assert isinstance(call, Extern) and "81 taps" in call.because


def test_places_very_far_apart_are_no_nest_each() -> None:
    x, w = torch.randn(1, 4, 30, 40), torch.randn(4, 1, 3, 3)
    g = torch.randn(1, 4, 4, 4)
    rest = (None, [9, 10], [0, 0], [1, 1], False, [0, 0], 4, [True, False, False])

    def gradient(g: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return torch.ops.aten.convolution_backward(g, x, w, *rest)[0]

    assert len(steps_of(gradient, g, x, w)) < 9
    torch.testing.assert_close(torch.compile(gradient, backend="lowc", options=OWN)(g, x, w), gradient(g, x, w))


def test_each_gradient_is_somebodys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only some are lowc's, ATen is asked for the others alone."""
    from lowc.scheduler import choose_convolution

    def library(*_: Any) -> Any:
        return lambda *told: "" if told[-1] == "gradient of weight" else "not measured"

    monkeypatch.setattr(choose_convolution, "library", library)
    x, g, w = torch.randn(2, 8, 9, 20), torch.randn(2, 8, 9, 20), torch.randn(8, 1, 3, 3)
    steps = steps_of(backward((True, True, True)), g, x, w)
    (call,) = [s for s in steps if isinstance(s, Extern)]
    assert call.args[-1] == (True, False, False) and call.because == "not measured"
    assert any(isinstance(s, Launch) for s in steps)
    torch._dynamo.reset()
    found = torch.compile(backward((True, True, True)), backend="lowc", options=OWN)(g, x, w)
    for ours, eager in zip(found, backward((True, True, True))(g, x, w), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)
