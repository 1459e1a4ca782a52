"""Three hundred of the graphs of ``python -m tests.property.graphs``, and that the tool finds, shrinks and shows what is wrong.

LOWC_SEEDS=N tries N graphs, LOWC_FIRST_SEED=M starts at another.
"""

import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.property.graphs import judge as judging
from tests.property.graphs.generate import random_program
from tests.property.graphs.judge import compare, excess, judge, taint
from tests.property.graphs.program import Input, Line, Noise, Program, function, make_inputs
from tests.property.graphs.ran import Ran, home, run
from tests.property.graphs.repro import repro
from tests.property.graphs.shrink import shrink
from tests.property.graphs.wide import double, wide_run
from tests.property.graphs.workers import Settings, attempt, judged

COUNT = int(os.environ.get("LOWC_SEEDS", "300"))
FIRST = int(os.environ.get("LOWC_FIRST_SEED", "0"))
BATCH = 10
BAD = ("wrong", "error")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, BATCH))
def test_graphs_are_right(first: int) -> None:
    """Every 50th through torch.compile, the rest through AOTAutograd."""
    all_right(first, Settings(dynamo=50, check=False, shrink=False))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT // 3, BATCH))
def test_graphs_are_right_on_a_gpu(first: int) -> None:
    all_right(first, Settings(dynamo=50, check=False, shrink=False, device="cuda"))


def all_right(first: int, settings: Settings) -> None:
    """None of a batch is wrong, and more than half are compared indeed."""
    right = 0
    seeds = range(first, min(first + BATCH, FIRST + COUNT))
    for seed in seeds:
        found = attempt(seed, settings)
        assert not found.bad, f"seed {seed}: {found.status}: {found.detail}\n{found.source}"
        right += found.status == "right"
    assert right > len(seeds) // 2


# ---------------------------------------------------------------- the tool itself


def vector(name: str, **given: Any) -> Input:
    return Input(name, "float32", (6,), (1,), 0, 6, "normal", 1, **given)


def program(*lines: Line, outputs: tuple[str, ...], inputs: tuple[Input, ...] = (vector("x0"), vector("x1"))) -> Program:
    return Program(0, inputs, lines, outputs)


ADD = Line("v0 = x0 + x1", "v0", ("x0", "x1"), "exact")
EXP = Line("v1 = torch.exp(v0)", "v1", ("v0",), "round")
NEG = Line("v2 = -v0", "v2", ("v0",), "exact")


def test_programs_are_the_same_each_time() -> None:
    for seed in range(5):
        assert random_program(seed) == random_program(seed)
        made = random_program(seed)
        if judge(made).status != "eager":
            assert len(function(made)(*make_inputs(made.inputs))) == len(made.outputs)


def moved(ran: Ran, number: int, by: float) -> Ran:
    values = list(ran.values)
    value = values[number]
    assert value is not None
    values[number] = value * (1 + by)
    return replace(ran, values=values)


def test_exact_lines_are_compared_bit_by_bit_and_others_nearly() -> None:
    made = program(ADD, EXP, NEG, outputs=("v1", "v2"))
    eager = run(made, function(made))
    assert compare(made, eager, eager).status == "right"
    assert compare(made, moved(eager, 0, 2e-7), eager).status == "right"
    assert compare(made, moved(eager, 0, 1e-4), eager).status == "wrong"
    assert "exact" in compare(made, moved(eager, 1, 2e-7), eager).detail
    assert taint(made) == {"v1"}


def test_a_choice_that_rounding_turns_over_is_left_open() -> None:
    """sin(x)**2 + cos(x)**2 is 1 or nearly so: whether it is below 1 says nothing; whether it is below 2 does."""
    lines = (
        Line("v0 = torch.sin(x0)**2 + torch.cos(x0)**2", "v0", ("x0",), "sum"),
        Line("v1 = v0 < 1", "v1", ("v0",)),
        Line("v2 = v0 < 2", "v2", ("v0",)),
    )
    made = program(*lines, outputs=("v1", "v2"))
    eager = run(made, function(made))
    flipped = replace(eager, values=[~v if n == 0 else v for n, v in enumerate(eager.values) if v is not None])
    assert compare(made, flipped, eager).status == "right"
    flipped = replace(eager, values=[~v if n == 1 else v for n, v in enumerate(eager.values) if v is not None])
    assert compare(made, flipped, eager).status == "wrong"


def test_nan_infinity_and_signs_of_zeros_are_compared() -> None:
    inf, nan = float("inf"), float("nan")
    exact = torch.tensor([1.0, nan, inf, -0.0], dtype=torch.float64)
    eager = exact.float()
    for place, other in ((0, nan), (1, 1.0), (2, -inf), (2, 1.0), (3, 0.0)):
        ours = eager.clone()
        ours[place] = other
        wrong = excess(ours, eager, exact, [exact, exact], False, 2.0**-23)
        assert wrong.nonzero().flatten().tolist() == [place]


def test_what_depends_on_written_memory_is_tainted() -> None:
    write = Line("v3.mul_(2)", "v3", (), "round", True)
    view = Line("v3 = v0[1:]", "v3", ("v0",))
    made = program(ADD, view, write, NEG, outputs=("v2", "v3"))
    assert {"v0", "v2", "v3"} <= taint(made)


def test_failures_are_found_shrunk_and_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a compiler whose cosh is wrong: what is left of a program is the one line, and the file shows that lowc is right."""
    cosh = Line("v3 = torch.cosh(v2)", "v3", ("v2",), "round")
    more = Line("v4 = torch.cat([v3, v1], -1)", "v4", ("v3", "v1"))
    made = program(ADD, EXP, NEG, cosh, more, outputs=("v4", "v1"))

    def compiled(given: Program, *_: Any) -> Any:
        return function(replace(given, lines=tuple(replace(x, text=x.text.replace("cosh", "sinh")) for x in given.lines)))

    monkeypatch.setattr(judging, "through_aot", compiled)
    verdict = judge(made)
    assert verdict.status == "wrong" and "result v4" in verdict.detail
    small = shrink(made, lambda p: judge(p).status == "wrong")
    assert [line.text.split(" = ")[1].split("(")[0] for line in small.lines] == ["torch.cosh"]
    assert len(small.inputs) == 1 and small.inputs[0].shape == (1,)
    file = tmp_path / "shown.py"
    file.write_text(repro(small, verdict.detail))
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    broken = re.sub(r"torch\.compile\(.*?\)\)", "lambda x: (x + 1,))", file.read_text())
    file.write_text(broken)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 1 and "in eager" in done.stdout, done.stdout + done.stderr


def test_windows_of_inputs_and_their_writes_are_compared() -> None:
    write = Line("x0[1:].mul_(2)", "x0", (), "exact", True)
    made = program(write, Line("v0 = x0[:2]", "v0", ("x0",)), outputs=("v0",))
    eager = run(made, function(made))
    assert eager.windows == [0]
    assert judge(made).status == "right"
    copied = replace(eager, windows=[None])
    assert "window" in compare(made, copied, eager).detail
    assert compare(made, moved(eager, 1, 2e-7), eager).status == "wrong"  # what x0 holds afterwards


def test_values_come_home_as_they_lie_in_memory() -> None:
    x = torch.arange(12.0).as_strided((3, 2), (1, 4), 2).requires_grad_()
    y = torch.arange(3).as_strided((2, 2), (1, 1), 0)
    for there in (x, y, x.detach().expand(2, 3, 2), x.detach()[:0]):
        back = home(there)
        assert back is not None and torch.equal(back, there)
        assert (back.stride(), back.requires_grad) == (there.stride(), there.requires_grad)


def test_workers_report_each_seed() -> None:
    found = list(judged(range(3), 1, 250.0, shrink=False))
    assert [f.seed for f in found] == [0, 1, 2] and all(f.status in ("right", "inherited", "eager") for f in found)


# ---------------------------------------------------------------- what the judge leaves open, and what not


def one_line(text: str, uses: tuple[str, ...], noise: str, inputs: tuple[Input, ...]) -> Program:
    return program(Line(text, "v0", uses, noise), outputs=("v0",), inputs=inputs)


def changed(ran: Ran, number: int, change: Any) -> Ran:
    values = list(ran.values)
    value = values[number]
    assert value is not None
    values[number] = change(value.detach().clone())
    return replace(ran, values=values)


def judged_after(made: Program, number: int, change: Any) -> str:
    eager = run(made, function(made))
    return compare(made, changed(eager, number, change), eager).status


def test_a_gradient_whose_terms_cancel() -> None:
    """1 - tanh(x)**2 is as good as a unit of 1, however small it is, no worse; where nothing cancels as its own units."""
    given = replace(vector("x0", grad=True), kind="positive")
    made = one_line("v0 = torch.tanh(x0 + 3)", ("x0",), "round", (given,))
    assert judged_after(made, 2, lambda g: g + 6e-8) == "right"
    assert judged_after(made, 2, lambda g: g + 3e-6) == "wrong"
    made = one_line("v0 = torch.exp(-x0)", ("x0",), "round", (given,))
    assert judged_after(made, 2, lambda g: g * (1 + 2e-5)) == "wrong"


def test_thresholds_are_no_excuse() -> None:
    """hardsigmoid's gradient is 0 beyond 3, and eager's inputs, a little larger, are beyond it."""
    given = Input("x0", "float32", (3,), (1,), 0, 3, "place 4", 3, grad=True)
    made = one_line("v0 = F.hardsigmoid(x0 * 1.5)", ("x0",), "round", (given,))
    assert judged_after(made, 2, lambda g: torch.where(g == 0, g, 0.0)) == "wrong"


def test_nan_where_eagers_vector_code_has_nan() -> None:
    """And nowhere else."""
    given = Input("x0", "float32", (3,), (1,), 0, 3, "special", 55, grad=True)
    nan = make_inputs((given,))[0].isnan()
    assert nan.any() and not nan.all()
    made = one_line("v0 = F.elu(x0)", ("x0",), "round", (given,))
    assert judged_after(made, 2, lambda g: torch.where(nan, float("nan"), g)) == "right"
    assert judged_after(made, 2, lambda g: g * float("nan")) == "wrong"
    assert judged_after(made, 0, lambda y: torch.where(nan, 1.0, y)) == "wrong"


def test_the_sign_of_a_nan_is_left_open_that_of_numbers_is_not() -> None:
    given = Input("x0", "float32", (3,), (1,), 0, 3, "special", 55)
    nan = make_inputs((given,))[0].isnan()
    lines = (Line("v0 = x0 + 1", "v0", ("x0",), "exact"), Line("v1 = torch.signbit(v0)", "v1", ("v0",)))
    made = program(*lines, outputs=("v1",), inputs=(given,))
    assert judged_after(made, 0, lambda s: s ^ nan) == "right"
    assert judged_after(made, 0, lambda s: ~s) == "wrong"


def test_remainder_by_a_denormal_number_may_be_that_of_eagers_scalar_code() -> None:
    inputs = (Input("x0", "float32", (64,), (1,), 0, 64, "small", 1), Input("x1", "float32", (64,), (1,), 0, 64, "special", 2))
    made = one_line("v0 = torch.sign(torch.remainder(x0, x1))", ("x0", "x1"), "exact", inputs)
    x, y = make_inputs(inputs)
    scalar = torch.stack([torch.sign(torch.remainder(a, b)) for a, b in zip(x, y, strict=True)])
    assert judged_after(made, 0, lambda _: scalar) == "right"
    assert judged_after(made, 0, lambda v: -v) == "wrong"


def test_a_variance_of_float64_is_compared_with_two_passes_as_well() -> None:
    given = Input("x0", "float64", (4000,), (1,), 0, 4000, "small", 5)
    made = one_line("v0 = torch.var(x0)", ("x0",), "sum", (given,))
    (x,) = make_inputs((given,))
    right = ((x - x.mean()) ** 2).sum() / (x.numel() - 1)
    assert judged_after(made, 0, lambda _: right) == "right"
    assert judged_after(made, 0, lambda v: v * (1 + 1e-11)) == "wrong"


@pytest.mark.parametrize("grad", [False, True])
def test_conversions_are_copies_in_float64_too(grad: bool) -> None:
    """What is written to the copy does not reach what was converted; where nothing was converted it does."""
    given = vector("x0", grad=grad)
    for dtype in ("bfloat16", "float32"):
        lines = (
            Line("v0 = torch.sin(x0)", "v0", ("x0",), "round"),
            Line(f"v1 = v0.to(torch.{dtype})", "v1", ("v0",), "exact"),
            Line("v1[1:].zero_()", "v1", (), "exact", True),
        )
        made = program(*lines, outputs=("v0", "v1"), inputs=(given,))
        with double():
            exact = wide_run(made).values[0]
        assert exact is not None and (exact[1:] == 0).all() == (dtype == "float32")
        assert judged_after(made, 0, lambda v, grad=grad: (v * (1 + 1e-5)).requires_grad_(grad)) == "wrong"


def test_gelu_with_tanh_is_compared_with_a_formula_that_does_not_cancel() -> None:
    given = Input("x0", "float64", (6,), (1,), 0, 6, "positive", 5)
    lines = (Line("v0 = -4 - x0", "v0", ("x0",), "exact"), Line("v1 = F.gelu(v0, approximate='tanh')", "v1", ("v0",), "round"))
    made = program(*lines, outputs=("v1",), inputs=(given,))
    x = -4 - make_inputs((given,))[0]
    right = x * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))
    assert not torch.allclose(right, function(made)(*make_inputs((given,)))[0], rtol=1e-14, atol=0.0)
    assert judged_after(made, 0, lambda _: right) == "right"
    assert judged_after(made, 0, lambda y: y * (1 + 1e-6)) == "wrong"


def test_a_product_whose_factors_underflow_first_has_no_value() -> None:
    """Others have."""
    given = replace(vector("x0"), kind="positive")
    for small, statuses in ((1e-20, ("right", "right", "wrong", "wrong")), (1.0, ("wrong", "right", "wrong", "wrong"))):
        lines = (
            Line(f"v0 = x0 * {small}", "v0", ("x0",), "exact"),
            Line("v1 = x0 * float('inf')", "v1", ("x0",), "exact"),
            Line("v2 = torch.cat([v0, v1])", "v2", ("v0", "v1")),
            Line("v3 = torch.prod(v2)", "v3", ("v2",), "sum"),
        )
        made = program(*lines, outputs=("v3",), inputs=(given,))
        answers = (float("nan"), float("inf"), -float("inf"), 1.0)
        found = tuple(judged_after(made, 0, lambda y, answer=answer: torch.full_like(y, answer)) for answer in answers)
        assert found == statuses


def test_noise_of_denormal_numbers() -> None:
    """Rounding takes one that float32 does not have to zero; it does no more to others than to move them by a few units."""
    noise = Noise(random.Random(0), {})
    x = torch.tensor([1e-46, 1.0, 1e-38], dtype=torch.float64)
    runs = torch.stack([noise.spread(x, torch.float32, 1.0) for _ in range(20)])
    lost = runs[:, 0] == 0
    assert lost.any() and not lost.all()
    assert ((runs / x - 1)[:, 1:].abs() <= 3 * 2.0**-23).all() and (runs[~lost] > 0).all()


def test_a_write_to_an_expanded_tensor_is_as_aotautograd_has_it() -> None:
    """It adds up what is written to one place; in which order is open."""
    write = Line("v0[:100].fill_(0)", "v0", (), "exact", True)
    scalar = Input("x0", "float32", (), (), 0, 1, "normal", 783542)
    made = program(Line("v0 = x0.expand([1000])", "v0", ("x0",)), write, outputs=("v0",), inputs=(scalar,))
    assert judge(made).status == "inherited"


def test_what_float64_says_to_be_finite_may_be_finite() -> None:
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    eager = torch.tensor([float("nan"), float("inf")])
    assert not excess(exact.float(), eager, exact, [exact], False, 2.0**-23).any()
    assert excess(exact.float() * 1.01, eager, exact, [exact], False, 2.0**-23).all()
    unsettled = torch.tensor([float("nan"), float("inf")], dtype=torch.float64)
    assert excess(torch.tensor([3.0, 3.0]), eager, exact, [exact], False, 2.0**-23, [unsettled]).all()


def test_the_sign_of_a_zero_is_eagers_or_that_of_float64() -> None:
    exact = torch.tensor([0.0, -0.0, 0.0], dtype=torch.float64)
    eager = torch.tensor([-0.0, 0.0, 0.0])
    assert excess(eager, eager, exact, [exact], False, 2.0**-23).tolist() == [False, False, False]
    assert excess(exact.float(), eager, exact, [exact], False, 2.0**-23).tolist() == [False, False, False]
    assert excess(-eager, eager, exact, [exact], False, 2.0**-23).tolist() == [False, False, True]


@pytest.mark.parametrize(
    "text, ordered",
    [
        ("torch.scatter(x0, 0, x1, x2)", True),
        ("torch.index_copy(x0, -1, x1, x2)", True),
        ("torch.index_put(x0, (x1,), x2, accumulate=False)", True),
        ("torch.index_put(x0, (x1,), x2, accumulate=True)", False),
        ("torch.scatter_add(x0, 0, x1, x2)", False),
        ("torch.index_add(x0, 0, x1, x2)", False),
        ("torch.index_select(x0, 0, x1)", False),
    ],
)
def test_writes_whose_order_is_open_on_a_gpu(text: str, ordered: bool) -> None:
    program = Program(0, (), (Line(f"v0 = {text}", "v0", ("x0", "x1", "x2")),), ("v0",))
    assert judging.is_ordered(program) == ordered


def test_gelu_with_tanh_far_below_0() -> None:
    """lowc's is right to as many digits as the exponential of a rounded argument has, eager's is 0; but not anything is right."""
    line = Line("v0 = F.gelu(x0, approximate='tanh')", "v0", ("x0",), "round")
    made = program(line, outputs=("v0",), inputs=(Input("x0", "float32", (4,), (1,), 0, 4, "normal", 3),))
    exact = torch.tensor([-7.5, -8.25, -6.0, -7.0], dtype=torch.float64)
    x = exact.float()
    right = (exact * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (exact + 0.044715 * exact**3))).double()
    eager, zero = torch.zeros(4), torch.zeros(4, dtype=torch.float64)
    near = (right * (1 + 3e-6)).float()
    assert not excess(near, eager, zero, [zero], False, 2.0**-23, [right, right]).any()
    assert excess((right * 1.001).float(), eager, zero, [zero], False, 2.0**-23, [right, right]).all()
    options = {"strict_errors": True, "cache": False}
    ours = torch.compile(torch.nn.functional.gelu, backend="lowc", options=options)(x, approximate="tanh")
    torch.testing.assert_close(ours.double(), right, rtol=1e-5, atol=0)
    assert judge(made).status == "right"
