"""The public bug reports of ``report_cases``, compiled by lowc: results, gradients, strides, aliasing and errors are eager's."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree

from tests.e2e import report_shapes, report_values  # noqa: F401  (they enter their cases)
from tests.e2e.report_cases import REPORTS, Report

# What AOTAutograd does before lowc sees the graph: the aot_eager backend differs from eager in the same way.
INHERITED = {
    "expand_inplace_raises": "functionalisation writes an expanded input in place where eager refuses to",
}

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
    INHERITED["interpolate_nearest_permuted"] = "torch's decomposition gives other strides than eager"


@pytest.fixture(autouse=True)
def one_thread_fresh_dynamo() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.set_num_threads(threads)


class Outcome:
    """What one call did: the exception's type, or leaves (outputs, then gradients), inputs afterwards, storage sharing."""

    def __init__(self, report: Report, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.raised: type[Exception] | None = None
        self.leaves: list[Any] = []
        tensors = [a for a in args if isinstance(a, Tensor)]
        if report.grad:
            tensors = [a.requires_grad_() for a in tensors if a.is_floating_point()]
        try:
            self.leaves = _pytree.tree_leaves(fn(*args))
            self.sharing = [_shares(leaf, tensors) for leaf in self.leaves if isinstance(leaf, Tensor)]
            if report.grad:
                total = sum(t.sum() for t in self.leaves if isinstance(t, Tensor) and t.requires_grad)
                self.leaves = [*self.leaves, *torch.autograd.grad(total, tensors)]
        except Exception as error:
            self.raised = type(error)
            self.message = f"{type(error).__name__}: {error}"
        self.inputs = tensors


def _shares(leaf: Tensor, inputs: list[Tensor]) -> tuple[bool, ...]:
    pointer = leaf.untyped_storage().data_ptr()
    return tuple(leaf.numel() > 0 and t.untyped_storage().data_ptr() == pointer for t in inputs)


def assert_same_bits(ours: Tensor, eager: Tensor) -> None:
    """Bit for bit, signed zeros included; a NaN equals any NaN."""
    if eager.is_complex():
        ours, eager = (torch.view_as_real(t.resolve_conj().resolve_neg()) for t in (ours, eager))
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    same = ours == eager
    if eager.is_floating_point():
        as_bits = [t.contiguous().view(bits[t.element_size()]) for t in (ours, eager)]
        same = (as_bits[0] == as_bits[1]) | (ours.isnan() & eager.isnan())
    wrong = int((~same).sum())
    assert not wrong, f"{wrong} of {same.numel()} elements differ: {ours.flatten()[:8]} != {eager.flatten()[:8]}"


def assert_equal(report: Report, ours: Any, eager: Any, *, exact: bool | None = None) -> None:
    if not isinstance(eager, Tensor):
        assert ours == eager
        return
    assert isinstance(ours, Tensor)
    assert (ours.shape, ours.dtype) == (eager.shape, eager.dtype)
    ours, eager = ours.detach(), eager.detach()
    if report.exact if exact is None else exact:
        assert_same_bits(ours, eager)
    else:
        torch.testing.assert_close(ours, eager, rtol=report.rtol, atol=report.atol, equal_nan=True)


def assert_same_outcome(report: Report, ours: Outcome, eager: Outcome) -> None:
    if eager.raised or ours.raised:
        assert ours.raised and eager.raised, getattr(ours, "message", "the compiled function did not raise")
        return
    assert len(ours.leaves) == len(eager.leaves)
    for a, b in zip(ours.leaves, eager.leaves):
        assert_equal(report, a, b)
        if report.strides and isinstance(b, Tensor):
            assert a.stride() == b.stride()
    if report.mutates:
        for a, b in zip(ours.inputs, eager.inputs):
            assert_equal(report, a, b)
    if report.alias:
        assert ours.sharing == eager.sharing


def _params() -> list[Any]:
    return [
        pytest.param(r, id=r.id, marks=[pytest.mark.xfail(reason=INHERITED[r.id], strict=True)] if r.id in INHERITED else [])
        for r in REPORTS
    ]


@pytest.mark.parametrize("report", _params())
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_report(report: Report) -> None:
    eager = Outcome(report, report.run, report.make_inputs())
    assert bool(eager.raised) == report.raises, "eager itself"
    with torch._dynamo.config.patch(capture_scalar_outputs=report.capture, capture_dynamic_output_shape_ops=report.capture):
        compiled = torch.compile(report.run, backend="lowc", fullgraph=report.fullgraph, dynamic=report.dynamic)
        ours = Outcome(report, compiled, report.make_inputs())
        if report.platform:
            return
        assert_same_outcome(report, ours, eager)
        if not ours.raised:
            again = Outcome(report, compiled, report.make_inputs())
            assert not again.raised
            for a, b in zip(again.leaves, ours.leaves):
                assert_equal(report, a, b, exact=True)
        if report.second:
            assert_same_outcome(
                report, Outcome(report, compiled, report.second()), Outcome(report, report.run, report.second())
            )


def test_ids_are_unique() -> None:
    assert len({r.id for r in REPORTS}) == len(REPORTS)
