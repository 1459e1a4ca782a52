"""Compiled optimiser steps under a schedule of learning rates: as eager's, and compiled once.

A learning rate that is a Python float is a constant to Dynamo, which compiles anew when a scheduler changes it (Adam and AdamW
excepted); a tensor is not.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import lowc

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p, **k: torch.optim.SGD(p, lr=torch.tensor(0.1), momentum=0.9, **k),
    "sgd_nesterov": lambda p, **k: torch.optim.SGD(p, lr=torch.tensor(0.1), momentum=0.9, nesterov=True, weight_decay=0.01, **k),
    "adam": lambda p, **k: torch.optim.Adam(p, lr=0.01, **k),
    "adamw": lambda p, **k: torch.optim.AdamW(p, lr=0.01, **k),
    "adamw_amsgrad": lambda p, **k: torch.optim.AdamW(p, lr=0.01, amsgrad=True, **k),
}


def check(make: Callable[..., torch.optim.Optimizer], steps: int, device: str = "cpu") -> None:
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)).to(device)
    twin = copy.deepcopy(model)
    optimizers = [make(m.parameters()) for m in (model, twin)]
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda k: 0.99**k) for o in optimizers]
    ours: Any = torch.compile(lambda: optimizers[0].step(), backend=lowc.lowc_backend)
    x = torch.randn(16, 7, device=device)
    for _ in range(steps):
        for each, optimizer, step in ((model, optimizers[0], ours), (twin, optimizers[1], optimizers[1].step)):
            optimizer.zero_grad()
            each(x).square().mean().backward()
            step()
        for schedule in schedules:
            schedule.step()
    assert counters["stats"]["unique_graphs"] <= 2  # the first step makes the optimiser's state
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_compiled_once(name: str, foreach: bool) -> None:
    check(lambda p: OPTIMIZERS[name](p, foreach=foreach), 12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_thousand_steps(name: str) -> None:
    check(lambda p: OPTIMIZERS[name](p), 1000)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_capturable_steps_on_a_gpu(kind: Any) -> None:
    check(lambda p: kind(p, lr=torch.tensor(0.01, device="cuda"), foreach=True, capturable=True), 12, "cuda")
