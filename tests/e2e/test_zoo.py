"""Whole models of ``models.py``: loss and gradients as close to float64 as eager's."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.e2e.models import TRANSFORMERS, ZOO, make


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def step(model: nn.Module, run: Any, args: Any, loss: Any) -> list[torch.Tensor]:
    """The loss, and the gradient of each parameter that has one."""
    value = loss(run(*args))
    value.backward()
    return [value.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("name", [*ZOO, *(pytest.param(name, marks=pytest.mark.slow) for name in TRANSFORMERS)])
def test_training_step(compiler_auto: Any, name: str) -> None:
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    model, args, loss = make(name)
    ours, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    doubles = tuple(a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)
    results = [
        step(ours, torch.compile(ours, backend=compiler_auto), args, loss),
        step(model, model, args, loss),
        step(exact, exact, doubles, loss),
    ]
    assert compiler_auto.programs
    size = max(float(t.abs().max()) for t in results[2])
    for got, eager, true in zip(*results, strict=True):
        worst, allowed = (got - true).abs().max(), (eager - true).abs().max()
        assert worst <= 8 * allowed + 1e-5 * true.abs().max() + 1e-7 * size


@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_inference_at_two_sizes(compiler_auto: Any, name: str) -> None:
    model, args, _ = make(name)
    model.eval()
    compiled = torch.compile(model, backend=compiler_auto)
    with torch.no_grad():
        for given in (args, tuple(a[:1] for a in args), args):
            torch.testing.assert_close(compiled(*given), model(*given), rtol=1e-4, atol=1e-5)
