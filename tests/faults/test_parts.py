"""What bisect and reduce are made of: judging, cutting graphs, the interpreter on tensors, processes for trials."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lowc.cli import compilation, main
from lowc.cli.reduce import kept
from lowc.faults import reference, smaller, stages
from lowc.faults.captured import captured
from lowc.faults.cut import Case, Source, between
from lowc.faults.isolated import isolated
from lowc.faults.judge import differing, wrong
from lowc.faults.modules import interpret
from lowc.faults.script import script
from lowc.faults.trial import Verdict
from lowc.ir.index import constant
from lowc.ir.nodes import Extern
from lowc.lowering.lower import lower
from lowc.options import ROWS, Options
from lowc.target import Target
from tests.paths import PYTHONPATH, ROOT


def case_of(fn: object, *args: Tensor, dynamic: bool | None = None) -> Case:
    seen = captured(fn, args, backward=False, dynamic=dynamic)  # type: ignore[arg-type]
    assert seen.astray == ""
    (case,) = seen.cases
    return case


def layers(x: Tensor, w: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    y = (x @ w).tanh()
    low, at = y.min(1)
    mean.mul_(0.5).add_(y.mean(0))
    return y.t() * 2 + low, at


def given() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*shape, generator=generator) for shape in ((6, 5), (5, 7), (7,)))  # type: ignore[return-value]


def test_inputs_are_those_of_the_first_call_before_it_writes() -> None:
    args = given()
    case = case_of(layers, *args)
    assert all(any(torch.equal(a, v) for v in case.inputs) for a in args)
    assert [i.mutated for i in case.graph.inputs].count(True) == 1


def test_each_part_is_right_by_itself() -> None:
    """Every node alone, and every two that follow one another: eager's values in, eager's values out."""
    case = case_of(layers, *given())
    names = [n.name for n in case.graph.nodes]
    source = Source(case)
    parts = [source.cut({n}) for n in names] + [source.cut(set(names[k : k + 2])) for k in range(len(names))]
    assert sum(p is not None for p in parts) > len(names)
    for part in parts:
        if part is not None:
            inputs = part.copies()
            found = part.found(interpret(lower(part.graph), inputs), inputs)
            strides_are_the_hosts = [e.__class__(e.name, e.eager, e.exact, e.noisy, None) for e in part.expected()]
            assert wrong(strides_are_the_hosts, found) == ""


def test_a_part_of_a_graph_with_symbols_takes_the_sizes_that_it_uses() -> None:
    case = case_of(lambda x: (x.sin().reshape(-1) * x.shape[0]).cumsum(0), torch.randn(4, 6), dynamic=True)
    assert case.graph.symbols
    last = case.graph.nodes[-1]
    part = Source(case).cut({n.name for n in case.graph.nodes if n.target.startswith("aten.mul")} | {last.name})
    assert part is not None and len(part.inputs) == len(part.graph.inputs)
    torch.testing.assert_close(
        reference.eager(part.graph, part.inputs)[0][last.name][0], reference.eager(case.graph, case.inputs)[0][last.name][0]
    )


def test_what_lies_between_belongs_to_a_kernel() -> None:
    case = case_of(layers, *given())
    names = {n.target.split(".")[1]: n.name for n in case.graph.nodes}
    found = between(case.graph, {names["tanh"], names["add"]}, set())
    assert names["min"] in found and names["mm"] not in found
    assert names["mm"] in between(case.graph, {names["tanh"]}, {names["mm"]})


def test_sizes_shrink_in_inputs_and_arguments_alike() -> None:
    case = case_of(lambda x: x.reshape(4, 3, 10).sum(2), torch.randn(12, 10))
    small = smaller.resized(case, 10, 2)
    assert small is not None
    assert [constant(n) for n in small.graph.nodes[-1].outputs[0].shape] == [4, 3]  # type: ignore[union-attr]
    assert small.inputs[0].shape == (12, 2)
    assert smaller.resized(case, 12, 5) is None  # no 4 x 3 of it


def test_rounding_is_not_wrong_and_anything_more_is() -> None:
    right = torch.linspace(-1, 1, 101)
    exact = right.double() + 1e-9
    near = right + 2 * torch.finfo(torch.float32).eps * right
    assert not differing(near, right, exact).any()
    assert differing(right + 1e-5, right, exact).all()
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    assert not differing(odd, odd, odd.double()).any()
    assert differing(odd.flip(0), odd, odd.double()).all()
    assert differing(torch.tensor([1, 2]), torch.tensor([1, 3]), torch.tensor([1, 3])).tolist() == [False, True]


def test_a_comparison_that_rounding_decides_may_fall_either_way() -> None:
    case = case_of(lambda x: x * 3.0 > 1.0, torch.tensor([1 / 3, 5.0]))
    (wanted,) = case.expected()
    assert wrong([wanted], [torch.tensor([not wanted.eager[0], True])]) == ""
    assert "1 of 2" in wrong([wanted], [torch.tensor([True, False])])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_trial_may_return_raise_die_or_hang() -> None:
    assert isolated(lambda: [1, "x"], 20).value == [1, "x"]
    assert isolated(lambda: "x" * (1 << 20), 20).value == "x" * (1 << 20)
    raised = isolated(lambda: 1 // 0, 20)
    assert (raised.value, raised.died) == (None, "exit status 1") and "ZeroDivisionError" in raised.said
    assert isolated(lambda: os.kill(os.getpid(), signal.SIGKILL), 20).died == "SIGKILL"
    assert isolated(signal.pause, 0.3).died == "timeout"


def test_a_file_has_all_that_it_needs(tmp_path: Path) -> None:
    """Of a graph that is right: run by itself it says so.  Views, dtypes, several results, an input that is written to."""
    case = case_of(layers, *given())
    file = tmp_path / "case.py"
    file.write_text(script(case, Verdict("right"), {"cache": False}, {}))
    env = os.environ | {"PYTHONPATH": PYTHONPATH}
    done = subprocess.run([sys.executable, str(file)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_right_functions_are_said_to_be_right(tmp_path: Path) -> None:
    """In a process of its own, as a user would run it: one that has used threads cannot fork safely."""
    place = f"{ROOT / 'examples' / 'softmax.py'}:softmax"
    for command in ("bisect", "reduce"):
        done = subprocess.run(
            [sys.executable, "-m", "lowc", command, place], cwd=tmp_path, env=os.environ | {"PYTHONPATH": PYTHONPATH},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, "right" in done.stdout) == (0, True), done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_attention_is_whose_it_is_when_compiled() -> None:
    """What bisect tries and view shows is the kernel that a call runs, not the call of ATen that is not made."""
    target = Target("x86", "", "", 512, 32, 32 << 10, 1 << 20, 32 << 20, 2, frozenset({"fma"}))
    case = case_of(F.scaled_dot_product_attention, *(torch.randn(1, 2, n, 32) for n in (30, 40, 40)))
    for whose, called in (("auto", False), ("library", True)):
        options = Options(attention=whose)
        _, lowered = next(iter(stages.makers(case, target, options)))
        for module in (lowered(None), compilation.schedule(case.graph, options, target)[0]):
            assert any(isinstance(step, Extern) for step in module.steps) == called


def test_a_reduced_file_has_all_options_that_change_code() -> None:
    options = Options(attention="own", matmul="own", fallback_random=True, dump="somewhere")
    found = kept(options)
    assert {row.name for row in ROWS if row.code} <= found.keys() and "dump" not in found
    assert (found["attention"], found["matmul"], found["fallback_random"]) == ("own", "own", True)


def test_a_target_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", f"{ROOT / 'examples' / 'softmax.py'}:softmax", "--target", "sm_90"]) == 2
    assert "put the inputs on the GPU" in capsys.readouterr().err
