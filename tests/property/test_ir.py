"""The fuzzers of IR text and of files find nothing in a few cases, and find what is planted.

    python -m tests.property.ir --cases 20000        # and --start N for others
    python -m tests.property.files --cases 20000
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest

from lowc.ir.nodes import Const, Expr, Op
from lowc.scheduler import fold
from tests.property.children import Outcome, explored
from tests.property.ir.judge import judge
from tests.property.ir.mutate import text_of

ROOT = Path(__file__).resolve().parent.parent.parent


def test_texts_are_refused_or_right() -> None:
    counts = Counter[str]()
    for seed in range(300):
        outcome = judge(text_of(seed)[1], seed, emit=seed % 5 == 0)
        assert not outcome.bad, f"python -m tests.property.ir --start {seed} --cases 1: {outcome}"
        counts[outcome.status] += 1
    assert counts["refused"] > 100 and counts["right"] > 20


QUOTIENT = """
module @LOOPS() {
  input x: f32[8]
  temp y: f32[8]
  launch f(x, y)
  return y
}
kernel f(x: f32[8], y: f32[8]) { for i in 8 { y[i] = x[i] / 4.0 } }
"""


def test_a_pass_that_changes_the_meaning_is_found() -> None:
    def wrong(expr: Expr) -> Expr:
        return Op("mul", expr.args, expr.dtype) if isinstance(expr, Op) and isinstance(expr.args[-1], Const) else expr

    assert judge(QUOTIENT, 0).status == "right"
    with patch.object(fold, "_product", wrong):
        outcome = judge(QUOTIENT, 0)
    assert (outcome.status, outcome.detail[:10]) == ("wrong", "after fold")


def test_programs_without_a_meaning_are_not_run() -> None:
    """One reads what nobody has written, in the other iterations of a parallel loop meet."""
    unwritten = QUOTIENT.replace("y[i] = x[i] / 4.0", "if idx(i) < 3 { y[i] = x[i] }")
    meeting = QUOTIENT.replace("@LOOPS", "@SCHEDULED").replace("for i in 8 { y[i] =", "for i in 8 parallel { y[0] =")
    assert [judge(text, 0).status for text in (unwritten, meeting)] == ["not run", "not run"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_case_that_dies_or_hangs_costs_itself_alone() -> None:
    code = """
import os, signal, time
from tests.property.children import Outcome, explored
def case(seed):
    if seed == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    while seed == 5:
        pass
    return Outcome("right", "of two\\nlines")
print(sorted((seed, outcome.status) for seed, outcome in explored(case, range(8), 2, 0.3)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    found = [(n, {3: "crash", 5: "hang"}.get(n, "right")) for n in range(8)]
    assert done.stdout.strip() == str(found), done.stderr


def test_damaged_files_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.property.files", "--cases", "60", "--jobs", "1"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()][:6] == [
        "artifact", "manifest", "entry", "sections", "object", "archive",
    ]  # fmt: skip


def test_outcomes() -> None:
    assert Outcome("wrong").bad and not Outcome("refused").bad
    assert list(explored(lambda s: Outcome("right"), range(0), 2, 1.0)) == []
