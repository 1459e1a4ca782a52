"""Whole models, forward and backward, one graph each: lowc's error against float64 is at most twice eager's
own.

And: what is left to ATen is matrix products, convolutions, attention, pooling and the like; no pointwise op,
no reduction.
"""

import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from lowc.cli.compilation import compile_all
from lowc.cli.explain import externs, kernels
from lowc.options import Options
from tests.e2e import models

# What lowc leaves to ATen for now.
LEFT_TO_ATEN = {
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "convolution",
    "convolution_backward",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward",
    "avg_pool2d",
    "avg_pool2d_backward",
    "index_put",
    "embedding_dense_backward",
}


def _params() -> list[Any]:
    return [pytest.param(n, id=n) for n in models.ZOO] + [
        pytest.param(n, id=n, marks=pytest.mark.transformers) for n in models.TRANSFORMERS
    ]


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("transformers"):
        pytest.importorskip("transformers")
        logging.getLogger("transformers").setLevel(logging.ERROR)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def step(
    fn: Callable[..., Any], model: nn.Module, args: tuple[Any, ...], loss: Callable[[Any], Tensor]
) -> dict[str, Tensor]:
    """Everything that one training step makes: outputs, gradients of parameters and inputs, buffers
    afterwards.
    """
    args = tuple(
        a.clone().requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args
    )
    out = fn(*args)
    loss(out).backward()
    made = {
        f"output {n}": t.detach() for n, t in enumerate(_pytree.tree_leaves(out)) if isinstance(t, Tensor)
    }
    made |= {f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    made |= {
        f"gradient of input {n}": a.grad
        for n, a in enumerate(args)
        if isinstance(a, Tensor) and a.grad is not None
    }
    made |= {f"buffer {n}": b.detach().clone() for n, b in model.named_buffers()}
    return made


def double(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)


def assert_alike(expected: dict[str, Tensor], got: dict[str, Tensor]) -> None:
    """The same things are made, of the same shapes, dtypes and strides."""
    assert got.keys() == expected.keys()
    for what, theirs in expected.items():
        mine = got[what]
        assert (mine.shape, mine.dtype, mine.stride()) == (theirs.shape, theirs.dtype, theirs.stride()), what


def assert_as_good(
    reference: dict[str, Tensor], expected: dict[str, Tensor], got: dict[str, Tensor], eps: float
) -> None:
    """``got`` is made as ``expected`` is, its error from ``reference`` (float64) at most twice as large, give or take ``eps``."""
    assert_alike(expected, got)
    assert expected.keys() == reference.keys()
    # A gradient that is zero but for rounding is held to the size of the others.
    sizes = [
        float(t.norm()) / t.numel() ** 0.5
        for n, t in reference.items()
        if n.startswith("gradient") and t.numel()
    ]
    typical = sorted(sizes)[len(sizes) // 2]
    failed: list[str] = []
    for what, exact_value in reference.items():
        theirs, mine = expected[what], got[what]
        if not theirs.is_floating_point():
            assert torch.equal(mine, theirs), what
            continue
        error, allowed = (
            float((mine.double() - exact_value).norm()),
            float((theirs.double() - exact_value).norm()),
        )
        noise = eps * (float(exact_value.norm()) + typical * exact_value.numel() ** 0.5)
        if not error <= 2 * allowed + noise:
            failed.append(f"{what}: error {error:.3g}, eager's {allowed:.3g}, rounding {noise:.3g}")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("name", _params())
def test_training_step(name: str) -> None:
    eager, args, loss = models.make(name)
    exact, ours = copy.deepcopy(eager).double(), copy.deepcopy(eager)
    compiled = torch.compile(ours, backend="lowc", fullgraph=True, options={"strict_errors": True})
    with torch.random.fork_rng():
        reference = step(exact, exact, double(args), loss)
        expected = step(eager, eager, args, loss)
        got = step(compiled, ours, args, loss)
    assert_as_good(reference, expected, got, torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("name", _params())
def test_no_pointwise_or_reduction_op_is_left_to_aten(name: str) -> None:
    model, args, loss = models.make(name)
    # compile_all adds up all outputs of the function for the backward pass; the loss is one.
    report = compile_all(lambda *a: loss(model(*a)), args, Options())
    assert not report.breaks and not report.unsupported
    assert {c.graph.name for c in report.graphs} == {"forward", "backward"}
    for compiled in report.graphs:
        left = {(line.target, line.because) for line in externs(compiled.fused)}
        assert {t for t, _ in left if t.split(".")[1] not in LEFT_TO_ATEN} == set(), left
        assert kernels(compiled.fused)
