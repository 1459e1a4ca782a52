"""The models and the bug reports of the CPU tests, on an NVIDIA GPU.

    python -m pytest -m gpu tests

Tensors that a model or a report makes by itself are made on the GPU too (torch's default device).
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree

from lowc.frontend import random
from tests.e2e import models, report_shapes, report_values  # noqa: F401  (reports enter their cases)
from tests.e2e.report_cases import REPORTS, Report
from tests.e2e.test_models import assert_alike, assert_as_good, double, step
from tests.e2e.test_reports import INHERITED, Outcome, assert_same_outcome

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
STRICT = {"strict_errors": True}
# What eager itself does otherwise on a GPU: errors that only come when the device is waited for, and that end the CUDA context.
DEVICE_ASSERT = {r.id for r in REPORTS if r.raises}


@pytest.fixture(autouse=True)
def on_the_gpu() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch.set_default_device(None)
    torch._dynamo.reset()


def moved(values: Any) -> Any:
    return _pytree.tree_map(lambda v: v.cuda() if isinstance(v, Tensor) else v, values)


@pytest.mark.parametrize("low", [False, True], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", [*models.ZOO, *models.TRANSFORMERS])
def test_training_step(name: str, low: bool) -> None:
    """Over three draws of the weights together: an error is itself random, eager's own of one draw among them (ViT in f32, four
    draws: 0.29e-6 to 0.66e-6)."""
    if name in models.TRANSFORMERS:
        pytest.importorskip("transformers")
    drawn = [models.make(name, seed) for seed in range(3)]
    ours, args, loss = copy.deepcopy(drawn[0][0]).cuda(), moved(drawn[0][1]), drawn[0][2]
    torch.set_default_device("cuda")
    compiled = torch.compile(ours, backend="lowc", fullgraph=True, options=STRICT)
    steps: list[tuple[dict[str, Tensor], ...]] = []
    for model, _, _ in drawn:
        eager = model.cuda()
        exact = copy.deepcopy(eager).double()
        ours.load_state_dict(eager.state_dict())
        ours.zero_grad()
        with torch.random.fork_rng():
            reference = step(exact, exact, double(args), loss)
        with torch.random.fork_rng(), torch.autocast("cuda", torch.bfloat16, enabled=low):
            steps.append((reference, step(eager, eager, args, loss), step(compiled, ours, args, loss)))
        assert_alike(*steps[-1][1:])
    together = [{name: torch.stack([each[name] for each in some]) for name in some[0]} for some in zip(*steps)]
    assert_as_good(*together, torch.finfo(torch.bfloat16 if low else torch.float32).eps)


@pytest.mark.parametrize("report", [pytest.param(r, id=r.id) for r in REPORTS])
def test_report(report: Report) -> None:
    """Sums on a GPU are grouped otherwise in eager, so that floats are compared with a tolerance."""
    if report.id in INHERITED or report.id in DEVICE_ASSERT:
        pytest.skip("differs in eager, or ends the CUDA context there")
    report = replace(report, exact=False, rtol=max(report.rtol, 1e-5), atol=max(report.atol, 1e-6))
    eager = outcome(report, None)
    if eager.raised:
        pytest.skip(f"eager does not run this on a GPU: {eager.message[:200]}")
    if differs(report, outcome(report, "eager"), eager):
        pytest.skip("Dynamo alone differs (it makes the report's own tensors on the CPU)")
    ours = outcome(report, "lowc")
    torch.cuda.synchronize()
    if not report.platform and (how := differs(report, ours, eager)):
        assert differs(report, outcome(report, "aot_eager"), eager), how


def outcome(report: Report, backend: str | None) -> Outcome:
    inputs = moved(report.make_inputs())
    torch.set_default_device("cuda")
    torch._dynamo.reset()
    try:
        with torch._dynamo.config.patch(
            capture_scalar_outputs=report.capture, capture_dynamic_output_shape_ops=report.capture
        ):
            run = report.run
            if backend:
                run = torch.compile(run, backend=backend, fullgraph=report.fullgraph, dynamic=report.dynamic)
            return Outcome(report, run, inputs)
    finally:
        torch.set_default_device(None)


def differs(report: Report, ours: Outcome, eager: Outcome) -> str:
    for a, b in zip(ours.leaves, eager.leaves, strict=False):
        if isinstance(a, Tensor) and isinstance(b, Tensor) and a.device != b.device:
            return f"on {a.device} instead of {b.device}"
    try:
        assert_same_outcome(report, ours, eager)
    except AssertionError as error:
        return str(error) or "differs"
    return ""


def test_random_numbers_are_those_of_the_cpu() -> None:
    random.register()
    for kind, low, high, dtype in (
        ("uniform", 0.0, 1.0, torch.float32),
        ("uniform", -2.0, 3.0, torch.bfloat16),
        ("normal", 1.0, 2.0, torch.float32),
        ("integers", -5, 100, torch.int64),
        ("bernoulli", 0.7, 0.0, torch.bool),
    ):

        def f(seed: Tensor) -> Tensor:
            return torch.ops.lowc.random(seed, 2, kind, [300, 70], [70, 1], dtype, low, high)  # noqa: B023

        torch._dynamo.reset()
        seed = torch.tensor([2**60 + 17])
        ours = torch.compile(f, backend="lowc", options=STRICT, fullgraph=True)(seed.cuda())
        tolerance = 1e-5 if kind == "normal" else 0.0
        torch.testing.assert_close(ours.cpu(), f(seed), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_each_call_drops_other_elements_and_its_gradient_the_same(mode: str) -> None:
    run = torch.compile(lambda x: torch.nn.functional.dropout(x * 3, 0.4), backend="lowc", mode=mode, fullgraph=True)
    masks = []
    for _ in range(6):
        x = (torch.rand(50, 60, device="cuda") + 1).requires_grad_()
        y = run(x)
        y.sum().backward()
        assert x.grad is not None
        assert torch.allclose(x.grad, torch.where(y != 0, 3 / 0.6, 0.0))
        masks.append((y != 0).clone())
    assert all(not torch.equal(a, b) for n, a in enumerate(masks) for b in masks[:n])
    assert all(0.5 < float(m.float().mean()) < 0.7 for m in masks)
