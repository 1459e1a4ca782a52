"""A small part of the sweep, in this process; and that the tool notices what it is there for."""

from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("expecttest")  # torch's own samples need it

from tests.sweep import report  # noqa: E402
from tests.sweep.breaking import breaking  # noqa: E402
from tests.sweep.compare import difference  # noqa: E402
from tests.sweep.known import why_known  # noqa: E402
from tests.sweep.samples import VARIANTS, cases, entries  # noqa: E402
from tests.sweep.trial import attempt, by_chance  # noqa: E402
from tests.sweep.workers import Record, Task, static_messages, sweep  # noqa: E402

OPS = (
    "add div.floor_rounding exp where clamp sum amax cumsum var softmax cat nn.functional.pad.reflect gather scatter index_put "
    "nn.functional.max_pool2d nn.functional.adaptive_avg_pool2d nn.functional.layer_norm nn.functional.gelu transpose sort"
).split()


@pytest.mark.parametrize("name", OPS)
def test_right_or_refused(name: str) -> None:
    """Two samples of each op, one of them in other layouts, forward and backward."""
    op = entries()[name]
    for dtype, grad in ((torch.float32, True), (torch.bfloat16, False), (torch.int64, False)):
        if not op.supports_dtype(dtype, "cpu"):
            continue
        tried = Counter[str]()
        for case in cases(op, dtype, grad and op.supports_autograd, 2, 1 if grad else 0):
            out = attempt(op, case, grad and op.supports_autograd)
            tried[out.status] += 1
            bad = out.status in ("wrong", "error") and why_known(name, case.variant, out.detail) is None
            assert not bad, f"{name} {dtype} #{case.number} {case.variant}: {out.status}: {out.detail}"
        assert tried["lowered"] + tried["extern"] > 0, tried


def test_variants_change_the_layout_only() -> None:
    x = torch.arange(120.0).reshape(2, 3, 4, 5)
    for name in ("transposed", "sliced", "channels_last"):
        changed = VARIANTS[name](x)
        assert torch.equal(changed, x) and changed.stride() != x.stride(), name
    assert VARIANTS["expanded"](x).stride()[0] == 0
    assert VARIANTS["empty"](x).shape == (0, 3, 4, 5)
    assert VARIANTS["single"](x).shape == (1, 1, 1, 1)
    assert VARIANTS["scalar"](x).shape == ()


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("ours", "eager", "part"),
    [
        ([1.0, 2.0], [1.0, 2.0], None),
        ([1.0, 2.0], [1.0, 2.1], "values"),
        ([NAN, 2.0], [1.0, 2.0], "NaN"),
        ([INF, 2.0], [-INF, 2.0], "NaN or infinity"),
        ([-0.0, 2.0], [0.0, 2.0], "sign of 1 zeros"),
    ],
)
def test_differences_are_found(ours: list[float], eager: list[float], part: str | None) -> None:
    op = entries()["add"]
    found = difference([torch.tensor(ours)], [torch.tensor(eager)], None, op)
    assert found is None if part is None else part in (found or "")


def test_types_and_strides_are_compared() -> None:
    op, x = entries()["add"], torch.zeros(2, 3)
    assert "strides" in (difference([x.t().contiguous().t()], [x], None, op) or "")
    assert "float64" in (difference([x.double()], [x], None, op) or "")
    assert "results" in (difference([x, x], [x], None, op) or "")
    assert difference([x.t().contiguous().t()], [x], None, op, forward=0) is None  # a gradient


def test_twice_the_error_of_eager_is_allowed() -> None:
    op, exact = entries()["add"], torch.tensor([1.0], dtype=torch.float64)
    eager, half = exact.float() + 1e-3, exact.float() - 1.5e-3
    assert difference([half], [eager], [exact], op) is None
    assert "values" in (difference([half - 2e-3], [eager], [exact], op) or "")


def test_rounding_is_judged_over_several_draws() -> None:
    """One of few elements may be off by twice eager's largest error, which says little; a larger error all over is one."""
    op = entries()["softmax"]
    (case,) = islice((c for c in cases(op, torch.bfloat16, True, 9, 0) if c.tensors[0].numel() > 24), 1)
    rounding = "result 2: 1 of 24 values, error 5.55 tolerances"

    def off(factor: float) -> Callable[..., Any]:
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x.view_as(x)

            @staticmethod
            def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
                return grads[0] * factor

        return lambda *given: case.function(*(Scaled.apply(g) if g.requires_grad else g for g in given))

    assert by_chance(op, case, case.tensors, True, off(1.0), rounding)
    assert not by_chance(op, case, case.tensors, True, off(1.05), rounding)
    assert not by_chance(op, case, case.tensors, True, off(1.0), "result 0: sign of 1 zeros of 5 values")


def test_results_are_kept_and_read_back(tmp_path: Path) -> None:
    record = Record("add/float32/forward")
    record.add(0, "", "lowered", "", (), ("aten.add.Tensor",))
    record.add(1, "sliced", "wrong", "result 0: something", (), ())
    file = tmp_path / "results.jsonl"
    report.append(file, record)
    with file.open("a") as cut:
        cut.write('{"key": "mul/flo')
    (read,) = report.read(file)
    assert read.statuses == {"lowered": 1, "wrong": 1}
    assert report.failures([read]) == ["add/float32/forward #1 sliced: wrong: result 0: something"]
    page = report.coverage([read])
    assert "add" in page and "| float32 | forward | 1 | 1 |" in page


def test_what_aotautograd_changes_without_lowc_is_inherited() -> None:
    """Of dropout without dropping eager returns the input as it is, AOTAutograd a copy, with other strides than a window's."""
    op = entries()["nn.functional.dropout"]
    found = {c.variant: attempt(op, c, False).status for c in cases(op, torch.float32, False, 1, 1)}
    assert (found[""], found["sliced"]) == ("lowered", "inherited")


def test_a_dying_worker_costs_one_sample() -> None:
    """torch itself ends the process when ``_chunk_cat`` gets scalars; the task is finished all the same."""
    (record,) = sweep([Task("_chunk_cat", "float32", False, 2, 1)], 1, 120.0)
    assert record.statuses["known"] == 1
    assert record.statuses["lowered"] + record.statuses["extern"] > 1


def test_a_worker_goes_on_behind_what_was_tried() -> None:
    task = Task("exp", "float32", False, 3, 0)
    said: list[tuple[Any, ...]] = list(static_messages(task, 0))
    assert [m[0] for m in said] == ["try", "result"] * (len(said) // 2)
    assert list(static_messages(task, 1)) == said[2:]


def test_a_broken_worker_is_replaced_and_no_crash() -> None:
    (record,) = sweep([Task("exp", "float32", False, 2, 0)], 1, 120.0, breaking)
    assert record.statuses == {"skipped": 1, "lowered": 1} and record.failures == []


def test_what_is_known_of_a_device_is_not_known_of_another() -> None:
    name, detail = "nn.functional.avg_pool2d", "result 2: 243 of 243 values"
    assert why_known(name, "channels_last", detail, "cuda:0") is not None
    assert why_known(name, "channels_last", detail, "cpu") is why_known(name, "sliced", detail, "cuda") is None


def test_what_is_left_for_gradients_is_not_compared() -> None:
    op, x = entries()["add"], torch.zeros(2)
    assert difference([x, x], [x, x + 1], None, op, undefined=range(1, 2)) is None
    assert "values" in (difference([x, x], [x + 1, x], None, op, undefined=range(1, 2)) or "")
    assert "float64" in (difference([x, x.double()], [x, x], None, op, undefined=range(1, 2)) or "")
