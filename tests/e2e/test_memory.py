"""Aliasing, mutation, views, strides, lifetimes: what a caller can see of memory."""

import gc
from itertools import accumulate
from typing import Any

import pytest
import torch

from benchmarks.long import function_dropped, of_lowc
from lowc.runtime.program import free_workspaces
from tests.e2e import models
from tests.immortal import KEPT_FOR_EVER


def test_arguments_are_mutated_in_place(compiler: Any) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y[1:, ::2].mul_(x[1:, ::2])
        return x * y

    compiler.check(f, torch.randn(3, 5), torch.randn(3, 5))


def test_a_mutated_argument_may_be_read_before_and_after(compiler: Any) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = x.exp()
        x.copy_(x.flip(0))
        return before, x * 2

    compiler.check(f, torch.randn(6))


def test_swapped_arguments(compiler: Any) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> None:
        old = x.clone()
        x.copy_(y)
        y.copy_(old)

    compiler.check(f, torch.randn(6), torch.randn(6))


def test_mutation_of_a_non_contiguous_argument(compiler: Any) -> None:
    base, other = torch.randn(4, 6), torch.randn(4, 6)
    compiled = compiler.compile(lambda x: x.sigmoid_())
    expected = base.clone()
    expected.t()[1:].sigmoid_()
    compiled(base.t()[1:])
    torch.testing.assert_close(base, expected)
    compiled(other.t()[1:])


def test_mutation_shows_in_the_version_counter(compiler: Any) -> None:
    x = torch.randn(3)
    version = x._version
    compiler.compile(lambda x: x.add_(1))(x)
    assert x._version > version


def test_outputs_alias_inputs_as_in_eager(compiler: Any) -> None:
    x = torch.randn(4, 6)
    same, window = compiler.compile(lambda x: (x, x[1:, ::2]))(x)
    assert same is x
    assert window.data_ptr() == x[1:].data_ptr() and window.stride() == (6, 2)
    x.zero_()
    assert window.abs().sum() == 0


def test_outputs_that_share_memory_share_it(compiler: Any) -> None:
    a, b = compiler.compile(lambda x: (lambda y: (y, y[1:].t()))(x * 2))(torch.randn(3, 4))
    a.zero_()
    assert b.abs().sum() == 0
    p, q = compiler.compile(lambda x: (lambda y: (y, y))(x * 2))(torch.randn(3))
    assert p.data_ptr() == q.data_ptr()


def test_equal_outputs_do_not_share_memory(compiler: Any) -> None:
    a, b = compiler.compile(lambda x: (x * 2, x * 2))(torch.randn(3))
    a.zero_()
    assert b.abs().sum() != 0


def test_strides_of_outputs(compiler: Any) -> None:
    x = torch.randn(2, 3, 4, 5)
    compiler.check(
        lambda x: (x.relu(), x + x.contiguous(), x.sum(1), x.to(torch.float64)),
        x.to(memory_format=torch.channels_last),
    )
    compiler.check(lambda x: (x.exp(), x * 2 + 1, x.permute(3, 0, 2, 1).contiguous()), x.permute(0, 2, 3, 1))
    compiler.check(lambda x: (x + 1, x * x.sum()), x[:, 1:, ::2, 1:4])
    compiler.check(lambda x: (x.expand(3, 4) + 1, x.expand(3, 4)), torch.randn(4))


def test_reads_through_views_with_offsets(compiler: Any) -> None:
    base = torch.randn(5, 8)
    compiled = compiler.compile(lambda x: x.t() * 2)
    for window in (base[1:, 2:6], base[2:, 1:5]):
        window = window[:3]
        assert torch.equal(compiled(window), window.t() * 2)


def test_results_survive_the_next_call(compiler: Any) -> None:
    compiled = compiler.compile(lambda x: ((x.sum(0, keepdim=True) + x).exp().cumsum(0), x @ x))
    x = torch.randn(9, 9)
    first = compiled(x)
    kept = [t.clone() for t in first]
    compiled(x * 3)
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))


def test_nothing_is_kept_alive(compiler: Any) -> None:
    compiled = compiler.compile(lambda x: (x + 1).relu() @ x)
    compiled(torch.randn(65, 65))
    gc.collect()
    before = _tensors()
    for _ in range(3):
        compiled(torch.randn(65, 65))
    gc.collect()
    assert _tensors() == before


@pytest.mark.skipif(KEPT_FOR_EVER, reason="host programs are functions")
def test_functions_that_are_dropped_leave_nothing_of_lowc() -> None:
    """Each with an inference graph, a forward and a backward one.  ``python -m benchmarks.long --through torch``: thousands."""
    drop, left = function_dropped("lowc"), []
    for number in range(4):
        drop(number)
        gc.collect()
        left.append(sum(map(of_lowc, gc.get_objects())))
    assert left[3] == left[1] > 0


def _gpt() -> models.Made:
    ids = models.tokens(4, 64, below=300)
    return models.GPT(300, 64, 4, 2, 64), (ids, ids.flip(0)), lambda out: out[1]


def _resnet() -> models.Made:
    return models.ResNet().train(), (models.normal(32, 3, 32, 32),), models.weighted


MODELS = {"gpt": _gpt, "resnet": _resnet}


@pytest.mark.parametrize("name", MODELS)
def test_no_more_is_saved_for_backward_than_in_eager(compiler_auto: Any, name: str) -> None:
    model, args, loss = MODELS[name]()
    held = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers(), *args)}

    def saved(fn: Any) -> int:
        found: dict[int, torch.UntypedStorage] = {}

        def pack(t: torch.Tensor) -> torch.Tensor:
            if t.untyped_storage()._cdata not in held:
                found[t.untyped_storage()._cdata] = t.untyped_storage()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            loss(fn(*args))
        return sum(storage.nbytes() for storage in found.values())

    compiled = compiler_auto.compile(model)
    loss(compiled(*args))
    assert saved(compiled) <= saved(model) * 1.01


@pytest.mark.parametrize("name", ["gpt", pytest.param("resnet", marks=pytest.mark.slow)])
def test_peak_of_a_training_step(compiler_auto: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without workspaces of lowc's own products, which copy their factors and are the default on some processors."""
    monkeypatch.setenv("LOWC_MATMUL", "library")
    model, args, loss = MODELS[name]()
    parameters = list(model.parameters())

    def peak(fn: Any) -> int:
        def step() -> None:
            torch.autograd.grad(loss(fn(*args)), parameters)

        for _ in range(2):
            step()
        free_workspaces()
        gc.collect()
        with torch.profiler.profile(profile_memory=True) as profile:
            step()
            step()
        events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
        return max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))

    assert peak(compiler_auto.compile(model)) <= peak(model) * 1.02


def _tensors() -> int:
    return sum(type(o) is torch.Tensor and o.shape == (65, 65) for o in gc.get_objects())
