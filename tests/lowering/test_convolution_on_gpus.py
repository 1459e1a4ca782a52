"""Convolutions as they are lowered for a GPU, and, through all passes, what its kernels compute, beside eager."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lowc import compiler
from lowc.backends.nvptx import default
from lowc.ir import tiles
from lowc.ir.elsewhere import on_gpu
from lowc.ir.nodes import Extern, For, Launch, Module
from lowc.ir.walk import statements
from lowc.options import Options
from lowc.scheduler import pipeline
from tests.lowering.harness import run, trace

OWN = Options(convolution="own", check=True)
LAST = torch.channels_last


def machine(function: Callable[..., Any], *args: Tensor, options: Options = OWN) -> Module:
    lowered = compiler.lowered(on_gpu(trace(function, args)), options, default())
    return pipeline.run(lowered, default(), options)


def check(function: Callable[..., Tensor], *args: Tensor, kernels: int = 1) -> Module:
    """The module of ``function``, which is ``kernels`` launches (0: any number) and as near to float64 as eager."""
    module = machine(function, *args)
    assert all(isinstance(s, Launch) for s in module.steps) and len(module.steps) == (kernels or len(module.steps))
    (found,) = run(module, list(args))
    exact, eager = function(*(a.double() for a in args)), function(*args)
    assert found.stride() == eager.stride()
    off, usual = (float((x.double() - exact).norm() / exact.norm()) for x in (found, eager))
    assert off <= max(2 * usual, 2 * torch.finfo(args[0].dtype).eps)
    return module


def by_places(module: Module) -> int:
    """How many tiles are filled by places."""
    loops = [s for step in module.steps if isinstance(step, Launch) for s in statements(step.kernel.body) if isinstance(s, For)]
    boxes = [tiles.box(f) for f in (tiles.fill(s) for s in loops if s.kind.key == tiles.TMA) if f is not None]
    return sum(b is not None and b.window is not None for b in boxes)


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def test_a_residual_and_a_batch_norm_are_of_the_same_kernel() -> None:
    def block(x: Tensor, w: Tensor, mean: Tensor, scale: Tensor, shift: Tensor, y: Tensor) -> Tensor:
        mean, scale, shift = (v[:, None, None] for v in (mean, scale, shift))
        return F.relu((F.conv2d(x, w, None, 1, 1) - mean) * scale + shift + y)

    x, w, y = random(2, 24, 7, 9), random(40, 24, 3, 3), random(2, 40, 7, 9)
    module = check(block, *(t.to(memory_format=LAST) for t in (x, w)), *(random(40) for _ in range(3)), y.to(memory_format=LAST))
    assert by_places(module) == 1


@pytest.mark.parametrize(("step", "pad", "gap"), [(1, 1, 1), (2, 1, 1), (1, 0, 2), (3, 2, 1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_steps_padding_and_gaps(step: int, pad: int, gap: int, dtype: torch.dtype) -> None:
    x, w = (random(*s, dtype=dtype).to(memory_format=LAST) for s in ((2, 16, 13, 10), (24, 16, 3, 5)))
    assert by_places(check(lambda x, w: F.silu(F.conv2d(x, w, None, step, pad, gap)), x, w, kernels=0)) == 1


def test_weights_whose_channels_are_no_neighbours_are_copied() -> None:
    x = random(2, 16, 9, 10).to(memory_format=LAST)
    assert by_places(check(lambda x, w, b: F.conv2d(x, w, b, 1, 1), x, random(24, 16, 3, 3), random(24), kernels=2)) == 1


def test_other_numbers_of_dimensions_and_one_tap() -> None:
    x = random(2, 3, 4, 5, 16).permute(0, 4, 1, 2, 3)
    module = check(lambda x, w: F.conv3d(x, w, None, (1, 2, 1), (1, 1, 0)), x, random(24, 16, 3, 3, 3), kernels=3)
    assert by_places(module) == 1  # weights are copied; the depth goes in slices, which are added up
    x, w = random(3, 16, 9, 8).to(memory_format=LAST), random(24, 16, 1, 1)
    assert by_places(check(lambda x, w: F.relu(F.conv2d(x, w, None, 2)), x, w)) == 1
    assert by_places(check(lambda x, w: F.relu(F.conv2d(x, w)), x, w)) == 0


def test_windows_of_a_window_of_an_input() -> None:
    x, w = (random(*s).to(memory_format=LAST) for s in ((3, 64, 8, 9), (24, 16, 3, 3)))
    assert by_places(check(lambda x, w: F.conv2d(x[1:, 16:32, 1:-1, 2:], w, None, 1, 1), x, w)) == 1


def test_one_convolution_after_another() -> None:
    """What is made of the first is stored, with what follows it."""
    x, w = (random(*s).to(memory_format=LAST) for s in ((2, 16, 6, 7), (16, 16, 3, 3)))
    function = lambda x, w: F.conv2d(F.relu(F.conv2d(x, w, None, 1, 1)), w, None, 1, 1)  # noqa: E731
    assert by_places(check(function, x, w, kernels=2)) == 2


def test_padding_is_zeros_that_are_multiplied() -> None:
    x, w = (random(*s).to(memory_format=LAST) for s in ((1, 16, 5, 6), (8, 16, 3, 3)))
    x[0, 3, 0, 0], w[5, 2, 0, 0] = float("nan"), float("inf")
    (found,) = run(machine(lambda x, w: F.conv2d(x, w, None, 1, 1), x, w), [x, w])
    expected = F.conv2d(F.pad(x.double(), (1, 1, 1, 1)), w.double()).float()
    assert torch.equal(found.isnan(), expected.isnan()) and torch.equal(found.isinf(), expected.isinf())
    assert found[0, 5, 0].isnan().all()


@pytest.mark.parametrize("taps", [3, 5])
def test_weights_of_one_channel_in_a_group_lie_by_taps(taps: int) -> None:
    """So that a thread has those of its channels by one load."""
    x, w = random(2, 24, 9, 7).to(memory_format=LAST), random(24, 1, taps, taps)
    module = check(lambda x, w: F.relu(F.conv2d(x, w, None, 1, taps // 2, 1, 24)), x, w, kernels=2)
    assert isinstance(module.steps[0], Launch) and module.steps[0].args[-1].shape == (taps, taps, 24, 1)


@pytest.mark.parametrize(
    ("x", "w", "groups", "reason"),
    [
        (random(2, 16, 7, 7), random(24, 16, 3, 3), 1, "do not lie"),
        (random(2, 16, 7, 7).float().to(memory_format=LAST), random(24, 16, 3, 3).float(), 1, "a product of f32"),
        (random(2, 16, 7, 7).to(memory_format=LAST), random(24, 8, 3, 3), 2, "2 groups"),
        (random(2, 12, 7, 7).to(memory_format=LAST), random(24, 12, 3, 3), 1, "do not lie"),
        (random(2, 16, 7, 7).to(memory_format=LAST), random(20, 16, 3, 3), 1, "do not lie"),
        (random(2, 16, 7, 7), random(24, 16, 3, 3).to(memory_format=LAST), 1, "do not lie side by side"),
        (random(2, 16, 1, 7).to(memory_format=LAST), random(24, 16, 3, 3), 1, "one place"),
    ],
)
def test_what_is_atens(x: Tensor, w: Tensor, groups: int, reason: str) -> None:
    (step, *_) = machine(lambda x, w: F.relu(F.conv2d(x, w, None, 1, 1, 1, groups)), x, w).steps
    assert isinstance(step, Extern) and reason in step.because
