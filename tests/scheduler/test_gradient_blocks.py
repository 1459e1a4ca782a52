"""Gradients of attention by blocks on a CPU: one nest or both, on every target, keep their meaning; what is none is refused."""

from typing import Any

import pytest

from lowc.errors import ScheduleError
from lowc.ir.index import ix
from lowc.ir.nodes import Buffer, For, Kernel, Kind, Launch, Module
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.ir.types import f32
from lowc.ir.verify import verify_module
from lowc.ir.walk import statements
from lowc.options import Options
from lowc.scheduler import choose_gradient, contract, schedule
from lowc.scheduler.attention_gradient import find, visible, whole
from lowc.scheduler.gradient_blocks import GradientBlocks
from tests.scheduler.attentions import Shape, applied
from tests.scheduler.gradients import check, gradients
from tests.scheduler.test_online import X86

WAY: dict[str, Any] = {"size": 16, "tile": (4, 8), "across": (4, 8), "lanes": 4, "kind": Kind("parallel")}
LOCAL = ("weights", "slopes", "slopes_q")


def by_blocks(kernel: Kernel, **changed: Any) -> Kernel:
    """``kernel`` by blocks, with the params that it still needs."""
    done = applied(kernel, GradientBlocks(**{**WAY, **changed}))
    module = Module("SCHEDULED", done.sizes, (*done.params, *done.sizes), (), (), (Launch(done, done.params),))
    verify_module(module, "SCHEDULED")
    assert not set(LOCAL) & {p.name for p in done.params}
    return done


SHAPES: list[Shape] = [(2, 2, 16, 32, 8), (2, 1, 21, 13, 8), (4, 2, 7, 20, 12), (1, 1, 2, 33, 3)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("nests", ["q", "k", "qk"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_nest(shape: Shape, nests: str, causal: bool) -> None:
    check(by_blocks(gradients(shape, nests, causal)), shape, causal=causal)


@pytest.mark.parametrize(
    "changed",
    [{"size": 32}, {"tile": (2, 4)}, {"tile": (8, 16)}, {"across": (2, 4)}, {"lanes": 8}, {"kind": Kind()}, {"across": (8, 12)}],
    ids=str,
)
def test_any_sizes_of_tiles(changed: dict[str, Any]) -> None:
    shape: Shape = (2, 1, 21, 25, 8)
    check(by_blocks(gradients(shape, "qk", True), **changed), shape, causal=True)


@pytest.mark.parametrize("nests", ["q", "k", "qk"])
def test_biases_and_narrow_factors(nests: str) -> None:
    shape: Shape = (2, 1, 19, 25, 8)
    check(by_blocks(gradients(shape, nests, bias=True)), shape, bias=True)
    check(by_blocks(gradients(shape, nests, True, dtype="bf16")), shape, dtype="bf16", causal=True, shuffle=True)


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (5, 40), (33, 17)])
@pytest.mark.parametrize("causal", [False, True])
def test_sizes_of_the_call(rows: int, keys: int, causal: bool) -> None:
    shape: Shape = (2, 1, "m", "n", 8)
    for nests in ("q", "k", "qk"):
        check(by_blocks(gradients(shape, nests, causal)), shape, {"m": rows, "n": keys}, causal=causal)


def test_what_rows_see_is_found() -> None:
    sides = [find(s) for s in gradients((2, 1, 40, 30, 8), "qk", True).body]
    assert [str(visible(s)) for s in sides if s] == ["i - j + 1", "o - r + 1"]
    assert all(visible(s) is None for s in map(find, gradients((2, 1, 40, 30, 8), "qk").body) if s)


def test_both_are_one_only_if_they_are_of_the_same_attention() -> None:
    text = print_kernel(gradients((2, 2, 16, 32, 8), "qk"))
    for old, new in (("w1 * (g1", "w1 * 2.0 * (g1"), ("s1 * 0.25", "s1 * 0.125")):
        assert old in text
        kernel = parse_kernel(text.replace(old, new))
        sides = [find(s) for s in kernel.body]
        assert sides[0] and sides[1] and whole(sides[0], sides[1]) is None
        with pytest.raises(ScheduleError, match="no gradient"):
            by_blocks(kernel)


@pytest.mark.parametrize(("changed", "why"), [({"tile": (4, 6)}, "tiles"), ({"size": 18}, "18 others"), ({"lanes": 16}, "tiles")])
def test_what_does_not_fit_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        by_blocks(gradients((1, 1, 32, 32, 8), "qk"), **changed)


def test_text_is_read_back() -> None:
    done = by_blocks(gradients((2, 1, 33, 40, 8), "qk", True))
    assert print_kernel(parse_kernel(print_kernel(done))) == print_kernel(done)


def nests(shape: Shape) -> tuple[list[Launch], dict[str, Buffer]]:
    """A launch of each nest, on the same memory, by name."""
    steps: list[Launch] = []
    known: dict[str, Buffer] = {}
    for nest in "qk":
        kernel = gradients(shape, nest, True)
        for param in kernel.params:
            known.setdefault(param.name, param)
        steps.append(Launch(kernel, tuple([known[p.name] for p in kernel.params])))
    return steps, known


@pytest.mark.parametrize("bits", X86)
@pytest.mark.parametrize(
    ("shape", "kernels"), [((2, 2, 40, 70, 32), 1), ((1, 1, 70, 40, 16), 2), ((4, 2, "m", "m", 8), 1)], ids=str
)
def test_what_is_chosen(bits: int, shape: Shape, kernels: int) -> None:
    """Both nests are one kernel if there are heads for all cores; no rows of weights are left; what is chosen is legal."""
    steps, known = nests(shape)
    temps = tuple([b for n, b in known.items() if n in LOCAL])
    inputs = tuple([b for n, b in known.items() if n not in LOCAL])
    module = Module("SCHEDULED", steps[0].kernel.sizes, (*inputs, *steps[0].kernel.sizes), temps, (), tuple(steps))
    joined = choose_gradient.together(module, X86[bits], True)
    for step in joined.steps:
        assert isinstance(step, Launch)
        ((chosen,),) = choose_gradient.choices(step.kernel, X86[bits], True)
        contract.apply(step.kernel, chosen)
    done = schedule.run(module, X86[bits], Options())
    assert len(done.steps) == kernels
    assert [t.name for t in done.temps] == ["sums"] * (2 - kernels)
    for step in done.steps:
        assert isinstance(step, Launch)
        assert any(isinstance(s, For) and s.axis.name.startswith("turn") for s in statements(step.kernel.body))
        check(step.kernel, shape, {"m": 37}, causal=True)


@pytest.mark.parametrize(("between", "apart"), [("delta", True), ("grad_k", True), ("other", False)])
def test_what_lies_between_stays_there(between: str, apart: bool) -> None:
    """A step between both nests that writes what the second one reads, or reads what it writes, keeps them apart."""
    steps, known = nests((2, 2, 40, 70, 32))
    buffers_ = {**known, "other": Buffer("other", f32, (ix(8),), (ix(1),))}
    x = buffers_[between]
    y = buffers_["other"]
    text = "kernel f(x: f32[8], y: f32[8]) { for i in 8 { y[i] = x[i] } }" if between != "delta" else ""
    copy = parse_kernel(text or "kernel f(x: f32[8], y: f32[8]) { for i in 8 { x[i] = y[i] } }")
    y = Buffer("result", f32, (ix(8),), (ix(1),)) if between == "other" else y
    module = Module("SCHEDULED", (), (*buffers_.values(), y), (), (), (steps[0], Launch(copy, (x, y)), steps[1]))
    assert len(choose_gradient.together(module, X86[512], True).steps) == (3 if apart else 2)


def test_large_heads_are_no_choice() -> None:
    """Scratch memory is on the stack."""
    assert choose_gradient.choices(gradients((1, 1, 100, 100, 2048), "k"), X86[512], True) == ()
