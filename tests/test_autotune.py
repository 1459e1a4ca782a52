"""``mode="max-autotune"``: what is measured decides, and nothing of it is seen from outside."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lowc import autotune
from lowc.cache import key as keys
from lowc.cli.compilation import compile_all
from lowc.cli.explain import externs, show
from lowc.dynamo import lowc_backend
from lowc.frontend import made
from lowc.lowering.asked import UNDECIDED
from lowc.options import parse
from lowc.scheduler import pipeline
from tests.cache import graphs

TUNED = parse("max-autotune", {"strict_errors": True})


def compiled(f: Callable[..., Any], **given: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    dynamic = given.pop("dynamic", False)
    options = {"strict_errors": True, "cache": False, **given}
    return torch.compile(f, backend=partial(lowc_backend, mode="max-autotune", options=options), dynamic=dynamic)


class Raced:
    """Stands for the clock: the other choice takes ``times`` as long as the present one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *times: float) -> None:
        self.times, self.calls = list(times), 0
        monkeypatch.setattr(made, "ratio", self)

    def __call__(self, first: Any, second: Any, inputs: Any) -> float:
        self.calls += 1
        return self.times[min(self.calls, len(self.times)) - 1]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 96)).eval()


def test_the_faster_choice_is_taken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Two kinds of products (the first and the last layer have other users): one is lowc's own, the others stay ATen's."""
    model, x = mlp(), torch.randn(200, 48)
    raced = Raced(monkeypatch, 0.5, 1.25, 1.25)
    report = compile_all(model, (x,), TUNED, backward=False)
    (graph,) = report.graphs
    left = [line for line in externs(graph.lowered) if line.target == "aten.addmm.default"]
    assert raced.calls == 3 and len(left) == 2
    assert all("with lowc's own the graph takes 1.25 times as long" in line.because for line in left)
    assert list(graph.decided.own.values()) == ["measured: with a library's the graph takes 2.00 times as long"]
    show(report)
    assert "lowc's own, measured: with a library's the graph takes 2.00 times as long" in capsys.readouterr().out


def test_schedules_of_lowcs_own_are_tried(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The next ones by the model, as long as there are any; what is fastest is taken, and right."""
    raced = Raced(monkeypatch, 0.5, 1.1, 0.8)
    torch.manual_seed(0)
    x, w = torch.randn(300, 256).double(), torch.randn(256, 200).double()  # by ``auto`` these are ATen's everywhere
    report = compile_all(lambda x, w: (x @ w).relu(), (x, w), TUNED, backward=False)
    (graph,) = report.graphs
    assert raced.calls == 4 and list(graph.decided.schedules.values()) == [2]  # what is faster is timed once more
    show(report)
    said = "the graph takes 2.00 times as long; schedule 3 by the model, with number 1 the graph takes 1.25 times as long"
    assert said in " ".join(capsys.readouterr().out.split())
    raced.calls = 0
    torch.testing.assert_close(compiled(lambda x, w: (x @ w).relu())(x, w), (x @ w).relu())
    assert raced.calls == 4


def test_what_the_library_does_faster_than_the_first_schedule_is_tried_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    Raced(monkeypatch, 1.5, 0.8, 0.8, 0.8, 1.0)  # schedule 3 only at first
    x, w = torch.randn(300, 256).double(), torch.randn(256, 200).double()
    (graph,) = compile_all(torch.mm, (x, w), TUNED, backward=False).graphs
    said = "measured: schedule 2 by the model, with a library's the graph takes 1.25 times as long"
    assert list(graph.decided.own.values()) == [said] and not graph.decided.left
    assert list(graph.decided.schedules.values()) == [1] and not externs(graph.lowered)


def test_a_schedule_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose kernels have no such schedule is not measured again."""
    raced = Raced(monkeypatch, 0.5)
    x, w = torch.randn(4, 32, 20, 20).double(), torch.randn(32, 1, 3, 3).double()  # of one channel in a group there is one
    report = compile_all(lambda x, w: F.conv2d(x, w, groups=32).relu(), (x, w), TUNED, backward=False)
    assert raced.calls == 1 and not report.graphs[0].decided.schedules


def test_results_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every choice turned over, forward and backward."""
    Raced(monkeypatch, 0.5)

    def f(x: Tensor, w: Tensor, q: Tensor) -> Tensor:
        y = F.gelu(x @ w).view(2, 3, 32, 16)
        return F.scaled_dot_product_attention(y, y, q, is_causal=True).sin()

    torch.manual_seed(0)  # of others, one in fifty is unlucky
    given = [torch.randn(192, 24), torch.randn(24, 16), torch.randn(2, 3, 32, 16)]
    dtypes = (torch.float32, torch.float32, torch.float64)
    ours, eager, wide = ([t.to(d, copy=True).requires_grad_() for t in given] for d in dtypes)
    results = [compiled(f)(*ours), f(*eager), f(*wide)]
    for r in results:
        r.backward(torch.linspace(0, 1, r.numel(), dtype=r.dtype).reshape(r.shape))
    for a, b, c in zip([results[0], *(t.grad for t in ours)], [results[1], *(t.grad for t in eager)],
                       [results[2], *(t.grad for t in wide)], strict=True):  # fmt: skip
        assert (a - c).abs().max() <= 2 * (b - c).abs().max() + 1e-6 * c.abs().max()


def test_nothing_is_seen_from_outside() -> None:
    """The graph runs on made inputs meanwhile: the user's are written once, and random numbers go on where they were."""

    def f(x: Tensor, w: Tensor, count: Tensor) -> Tensor:
        count.add_(1)
        return F.dropout(x @ w, 0.5)

    x, w, count = torch.randn(64, 32), torch.randn(32, 48), torch.zeros(())
    torch.manual_seed(3)
    first = compiled(f)(x, w, count)
    torch.manual_seed(3)
    torch._dynamo.reset()
    second = torch.compile(f, backend="lowc", options={"strict_errors": True, "cache": False})(x, w, count)
    assert count == 2 and torch.equal(first == 0, second == 0)
    torch.testing.assert_close(first, second)


def test_what_must_not_run_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    raced, calls = Raced(monkeypatch, 0.5), list[int]()

    @torch.library.custom_op("lowc_tests::told", mutates_args=())
    def told(x: Tensor) -> Tensor:
        calls.append(1)
        return x + 1

    told.register_fake(torch.empty_like)
    x, w = torch.randn(40, 24), torch.randn(24, 40)
    assert torch.equal(compiled(lambda x, w: told(x @ w))(x, w), x @ w + 1)
    assert torch.equal(compiled(torch.mm, dynamic=True)(x, w), x @ w)
    assert torch.equal(compiled(torch.mm, autotune_budget_s=0)(x, w), x @ w)
    assert torch.equal(compiled(torch.add)(x, x), x + x)
    assert (raced.calls, len(calls)) == (0, 1)


def test_ops_inside_of_others_must_not_run_either() -> None:
    """A custom op that writes is called by one of torch's higher-order ops."""
    calls = list[int]()

    @torch.library.custom_op("lowc_tests::put", mutates_args=("y",))
    def put(x: Tensor, y: Tensor) -> None:
        calls.append(1)
        y.add_(x)

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = torch.ones(40, 40)
        put(x @ w, y)
        return y + 1

    x, w = torch.randn(40, 24), torch.randn(24, 40)
    assert torch.equal(compiled(f)(x, w), x @ w + 1 + 1)
    assert len(calls) == 1


def test_assertions_about_data_must_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU one that fails, as it may on made inputs, leaves a process that can do nothing more there."""
    raced = Raced(monkeypatch, 0.5)

    def f(x: Tensor, w: Tensor, n: Tensor) -> Tensor:
        torch._assert_async(n.sum() == 3, "three")
        return x @ w

    x, w = torch.randn(40, 24), torch.randn(24, 40)
    assert torch.equal(compiled(f)(x, w, torch.ones(3)), x @ w)
    assert raced.calls == 0


@pytest.mark.parametrize(("start", "measured"), [(0, True), (1, False)])
def test_indices_that_are_computed_are_not_for_aten_on_a_gpu(start: int, measured: bool) -> None:
    """Of made inputs they may be out of range, which ends what the process has there; those that are given are 0."""

    def f(x: Tensor, w: Tensor, at: Tensor) -> Tensor:
        return torch.ops.aten.renorm(x @ w, 2, 0, 1.0).take((at - start if start else at).unsqueeze(0))

    x, w, at = torch.randn(40, 24), torch.randn(24, 40), torch.ones(3, dtype=torch.int64)
    (graph,) = compile_all(f, (x, w, at), parse(None, {}), backward=False).graphs
    metas = {i.name: (i.meta,) for i in graph.graph.inputs} | {n.name: n.outputs for n in graph.graph.nodes}
    (take,) = [n.name for n in graph.graph.nodes if n.target.startswith(("aten.take.", "aten.index."))]
    assert autotune._places_computed(graph.graph, metas, {take}) != measured


def test_inputs_are_made_where_the_graph_has_them() -> None:
    """Not on the user's default device."""
    with torch.device("meta"):
        made_ = made.inputs_for(graphs.chain(), 2)
    assert made_ is not None and all(x.device.type == "cpu" and x.shape == (graphs.SIZE,) for x in made_)


def test_no_room_for_made_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(made, "inputs_for", full)
    x, w = torch.randn(40, 24), torch.randn(24, 40)
    assert torch.equal(compiled(torch.mm)(x, w), x @ w)


def test_a_bug_found_while_measuring_is_no_worse_than_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph is ATen's, with a warning, as in the default mode."""

    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(pipeline, "run", broken)
    x, w = torch.randn(40, 24), torch.randn(24, 40)
    assert torch.equal(compiled(lambda x, w: (x @ w).sin(), strict_errors=False)(x, w), (x @ w).sin())


def test_a_choice_that_cannot_be_compiled_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    raced, compile_graph = Raced(monkeypatch, 0.5), autotune.compiler.compile_graph

    def failing(graph: Any, constants: Any, options: Any, trace: Any = None, decided: Any = UNDECIDED) -> Any:
        if decided.own:
            raise RuntimeError("no such kernel")
        return compile_graph(graph, constants, options, trace, decided)

    monkeypatch.setattr(autotune.compiler, "compile_graph", failing)
    x, w = torch.randn(40, 24), torch.randn(24, 40)
    assert torch.equal(compiled(torch.mm)(x, w), x @ w)
    assert raced.calls == 0


def test_the_cache_keeps_what_was_decided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    raced = Raced(monkeypatch, 0.5)
    x, w = torch.randn(40, 24), torch.randn(24, 40)
    results = [compiled(torch.mm, cache=True, cache_dir=str(tmp_path))(x, w) for _ in range(2)]
    assert raced.calls == 1 and torch.equal(*results)
    assert keys.chosen(TUNED) != keys.chosen(parse(None, {"strict_errors": True}))


def test_more_time_is_not_met_with_what_less_had_decided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    raced = Raced(monkeypatch, 0.5)
    x, w = torch.randn(40, 24), torch.randn(24, 40)
    for budget, calls in ((0, 0), (30, 1), (30, 1)):
        compiled(torch.mm, cache=True, cache_dir=str(tmp_path), autotune_budget_s=budget)(x, w)
        assert raced.calls == calls


def test_times_are_compared() -> None:
    """Calls that sleep, on inputs as the graph has them."""
    import time

    seen: list[list[Tensor]] = []

    def call(seconds: float) -> Callable[[list[Any]], None]:
        return lambda inputs: (seen.append(list(inputs)), time.sleep(seconds))[1]

    x = torch.rand(3).as_strided((2, 2), (1, 1))
    assert made.ratio(call(0.001), call(0.02), [x]) > 2
    assert all(len(inputs) == 1 and inputs[0] is x for inputs in seen)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_choices_are_measured_on_a_gpu() -> None:
    """By the clock, whoever wins: results are right, and what was drawn meanwhile is put back."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = F.gelu(x @ w).view(2, 4, 512, 64)
        return F.dropout(F.scaled_dot_product_attention(y, y, y, is_causal=True), 0.5)

    torch.manual_seed(1)
    x, w = (torch.randn(n, 256, dtype=torch.bfloat16, device="cuda") / 4 for n in (1024, 256))
    report = compile_all(f, (x, w), parse("max-autotune", {"strict_errors": True}), backward=False)
    assert report.graphs[0].decided.own or report.graphs[0].decided.left
    torch.manual_seed(2)
    ours = compiled(f)(x, w)
    kept = ours != 0
    assert 0.4 < kept.double().mean() < 0.6
    y = F.gelu(x.double() @ w.double()).view(2, 4, 512, 64)
    wide = 2 * F.scaled_dot_product_attention(y, y, y, is_causal=True)
    assert ((ours.double() - wide)[kept].abs() <= 0.02 * wide.abs().max()).all()
    torch.manual_seed(2)
    assert torch.equal(compiled(f)(x, w) != 0, kept)
