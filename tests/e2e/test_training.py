"""500 steps of training, model and optimiser compiled: the loss stays within the spread of five eager runs.

    python -m pytest -m slow tests/e2e/test_training.py

The runs differ in their seed, which makes the weights and the batches; the task is the same.  Rounding alone parts two runs of
one seed after some hundred steps, so that a curve can be compared with a spread only: means over ``WINDOW`` steps, none of which
may be further outside of the five's than a quarter of their spread there.  The first steps are those of eager with that seed.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lowc
from tests.e2e.models import GPT, ResNet

STEPS, WINDOW, SEEDS = 500, 25, 5

Batch = Callable[[torch.Generator], tuple[Tensor, Tensor]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These tensors are small, and threads of a busy machine wait for each other at every one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sentences(draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Eight sequences of a language in which four of five words follow from the word before: (words, next words)."""
    following = torch.randperm(97, generator=torch.Generator().manual_seed(7))
    words = [torch.randint(0, 97, (8,), generator=draw)]
    for _ in range(31):
        any_word = torch.randint(0, 97, (8,), generator=draw)
        words.append(torch.where(torch.rand(8, generator=draw) < 0.8, following[words[-1]], any_word))
    text = torch.stack(words, 1)
    return text[:, :-1], text[:, 1:]


def pictures(draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sixteen noisy pictures of ten things: (pictures, which)."""
    coarse = torch.randn(10, 3, 5, 5, generator=torch.Generator().manual_seed(7))
    things = F.interpolate(coarse, (27, 29), mode="bilinear")
    which = torch.randint(0, 10, (16,), generator=draw)
    return 0.6 * things[which] + torch.randn(16, 3, 27, 29, generator=draw), which


def gpt_loss(model: nn.Module, words: Tensor, following: Tensor) -> Tensor:
    return model(words, following)[1]


def resnet_loss(model: nn.Module, x: Tensor, which: Tensor) -> Tensor:
    return F.cross_entropy(model(x), which)


TASKS: dict[str, tuple[Callable[[], nn.Module], Batch, Callable[..., Tensor], float]] = {
    "gpt": (GPT, sentences, gpt_loss, 2e-3),
    "resnet": (ResNet, pictures, resnet_loss, 1e-3),
}


def train(name: str, seed: int, steps: int, compiled: bool = False) -> Tensor:
    """The loss before each step."""
    make, batch, loss_of, rate = TASKS[name]
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    model = make().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    loss: Callable[..., Tensor] = loss_of
    step: Any = optimizer.step
    if compiled:
        torch._dynamo.reset()
        loss = torch.compile(loss_of, backend=lowc.lowc_backend, options={"strict_errors": True})
        step = torch.compile(optimizer.step, backend=lowc.lowc_backend, options={"strict_errors": True})
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model, *batch(draw))
        value.backward()
        step()
        losses.append(value.detach())
    return torch.stack(losses)


def outside(curve: Tensor, others: Sequence[Tensor], window: int = WINDOW) -> Tensor:
    """How far the mean of each window is above the largest or below the least of the others' means, in parts of their spread."""
    means, theirs = curve.view(-1, window).mean(1), torch.stack([o.view(-1, window).mean(1) for o in others])
    low, high = theirs.amin(0), theirs.amax(0)
    return torch.maximum(means - high, low - means).clamp(min=0) / (high - low)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TASKS)
def test_loss_stays_within_the_spread_of_eager(name: str) -> None:
    eager = [train(name, seed, STEPS) for seed in range(SEEDS)]
    assert all(float(e[-WINDOW:].mean()) < 0.7 * float(e[:WINDOW].mean()) for e in eager), "there is something to learn"
    ours = train(name, 0, STEPS, compiled=True)
    torch.testing.assert_close(ours[:10], eager[0][:10], rtol=1e-3, atol=1e-4)
    assert float(outside(ours, eager).max()) <= 0.25


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TASKS)
def test_first_steps(name: str) -> None:
    torch.testing.assert_close(train(name, 0, 8, compiled=True), train(name, 0, 8), rtol=1e-3, atol=1e-4)


def test_a_curve_that_leaves_the_spread_is_found() -> None:
    draw = torch.Generator().manual_seed(0)
    curves = [torch.linspace(4, 1, 500) + 0.1 * torch.randn(500, generator=draw) for _ in range(SEEDS)]
    assert float(outside(curves[0], curves).max()) == 0
    assert float(outside(curves[0] + 0.3, curves).max()) > 0.25
    assert float(outside(torch.cat([curves[0][:475], curves[0][475:] * 1.5]), curves).max()) > 0.25
