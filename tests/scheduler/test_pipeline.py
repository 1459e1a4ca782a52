"""The pass table: its order, its levels, its switches."""

import numpy as np
import pytest

from lowc.errors import OptionError, ScheduleError
from lowc.ir.interp import run_module
from lowc.ir.nodes import LEVELS, Kind
from lowc.ir.parser import parse_kernel, parse_module
from lowc.ir.printer import print_kernel
from lowc.options import Options
from lowc.scheduler import cascade, choose, pipeline, schedule, share
from lowc.scheduler.apply import Bind, Block, Interchange, Reorder, Split, apply
from lowc.scheduler.partial import Partial
from lowc.target import Target

TARGET = Target("x86", "", "", 512, 32, 32 << 10, 1 << 20, 8 << 20, 2, frozenset({"fma", "scalef", "masked"}))


@pytest.mark.parametrize(("before", "after", "reason"), pipeline.ORDER)
def test_order(before: str, after: str, reason: str) -> None:
    names = [p.name for p in pipeline.PASSES]
    assert names.index(before) < names.index(after), reason


def test_each_pass_takes_what_the_one_before_gives() -> None:
    level = "LOOPS"
    for row in pipeline.PASSES:
        assert row.takes == level
        level = row.gives
    assert level == LEVELS[-1]
    assert len({p.name for p in pipeline.PASSES}) == len(pipeline.PASSES)


MODULE = """
module @LOOPS() {
  input x: f32[64]
  temp y: f32[64]
  launch double(x, y)
  return y
}

kernel double(x: f32[64], y: f32[64]) {
  for i in 64 {
    y[i] = x[i] * 2.0
  }
}
"""


def test_switching_off() -> None:
    module = parse_module(MODULE)
    kinds = []
    for off in ("", "schedule"):
        out = pipeline.run(module, TARGET, Options(off=off, check=True))
        assert out.level == "MACHINE"
        kinds.append("vector" in print_kernel(out.steps[0].kernel))  # type: ignore[union-attr]
    assert kinds == [True, False]


@pytest.mark.parametrize("off", ["legalise", "nonsense"])
def test_what_cannot_be_switched_off(off: str) -> None:
    with pytest.raises(OptionError, match="passes are"):
        pipeline.run(parse_module(MODULE), TARGET, Options(off=off))


SUM = """
kernel total(x: f32[1000], out: f32[1]) {
  acc s: f32 = add
  for k in 1000 {
    s add= x[k]
  }
  out[0] = s
}
"""
MEETING = SUM.replace("x: f32[1000],", "x: f32[1000], y: f32[8],").replace("  }", "    y[(k) % 8] max= x[k]\n  }")
PREFIX = SUM.replace("  }", "    x[k] = s\n  }")
COPY = """
kernel copy(x: f32[600], y: f32[600]) {
  for i in 20 {
    for j in 30 {
      y[i*30 + j] = x[i + j*20]
    }
  }
}
"""


@pytest.mark.parametrize(
    ("text", "primitive", "why"),
    [
        (SUM, Bind("k", Kind("parallel")), "updates s"),
        (PREFIX, Bind("k", Kind("vector", 16)), "updates s"),
        (PREFIX, Block("k", (64,)), "scan"),
        (SUM, Reorder(("k", "j")), "not directly nested"),
        (SUM, Split("j", 4), "no loop over j"),
        (COPY, Partial("i", 4, 4), "updates no accumulator"),
        (MEETING, Partial("k", 4, 4), "iterations meet in y"),
        (COPY, Interchange("i", Kind("vector", 16)), "does more than reduce"),
        (COPY.replace("y[i*30 + j]", "y[j]"), Bind("i", Kind("parallel")), "iterations meet in y"),
        (COPY.replace("y[i*30 + j]", "y[i*29 + j]"), Bind("i", Kind("parallel")), "iterations meet in y"),
    ],
)
def test_illegal_schedules_are_refused(text: str, primitive: object, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        apply(parse_kernel(text), (primitive,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "primitive", "line"),
    [
        (COPY, Bind("i", Kind("parallel")), "for i in 20 parallel {"),
        (COPY, Bind("j", Kind("vector", 16)), "for j in 30 vector(16) {"),
        (COPY, Split("j", 8), "for j_i in min(-j_o*8 + 30, 8) {"),
        (COPY, Split("j", 10), "for j_i in 10 {"),
        (SUM, Block("k", (100,)), "for k_i in 100 {"),
        (SUM, Partial("k", 4, 4), "for k_c in 4 parallel {"),
    ],
)
def test_legal_schedules(text: str, primitive: object, line: str) -> None:
    assert line in [each.strip() for each in print_kernel(apply(parse_kernel(text), (primitive,))).splitlines()]  # type: ignore[arg-type]


SCAN_AND_SUM = """
kernel both(x: f32[100000], y: f32[100000], out: f32[2]) {
  acc s: f32 = add
  acc t: f32 = add
  for k in 100000 {
    s add= x[k]
    y[k] = s
    t add= s
  }
  out[0] = s
  out[1] = t
}
"""
COLUMNS = """
kernel columns(x: f32[6400000], out: f32[64]) {
  for j in 64 {
    acc s: f32 = add
    for k in 100000 {
      s add= x[k*64 + j]
    }
    out[j] = s
  }
}
"""


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (SUM, []),
        (SUM.replace("for k in 1000 ", "for k in 1000000 "), [(8192,)]),
        (SUM.replace("for k in 1000 ", "for k in 33554432 "), [(8192, 64)]),
        (SUM.replace("x[k]", "x[7*k]").replace("for k in 1000 ", "for k in 33554432 "), [(16, 64, 64, 64)]),
        (SCAN_AND_SUM, [(16, 64)]),
        (COLUMNS, [(16, 64)]),
        (SUM.replace("add", "mul").replace("for k in 1000 ", "for k in 1000000 "), []),
        (SUM.replace("f32", "i32").replace("for k in 1000 ", "for k in 1000000 "), []),
    ],
)
def test_long_sums_in_blocks(text: str, sizes: list[tuple[int, ...]]) -> None:
    kernel = parse_kernel(text)
    bound = schedule.scheduled(kernel, choose.choose(kernel, TARGET, False))
    blocks = cascade.choose(bound)
    assert [b.sizes for b in blocks if isinstance(b, Block)] == sizes
    assert cascade.choose(apply(bound, blocks)) == ()


def test_dumps_of_one_kernel_only() -> None:
    module = parse_module(MODULE)
    assert pipeline.listing(module, Options(only="doub")).startswith("kernel double(")
    assert pipeline.listing(module, Options(only="other")) == ""
    assert pipeline.listing(module, Options()).lstrip().startswith("module @LOOPS")


RUNNING = """
module @LOOPS() {
  input x: f32[4, 32]
  temp y: f32[4, 32]
  temp z: f32[4, 32]
  launch shifted(x, y, z)
  return y, z
}

kernel shifted(x: f32[4, 32], y: f32[4, 32], z: f32[4, 32]) {
  for i in 4 {
    acc s: f32 = add
    for j in 32 {
      s add= x[i, j]
      y[i, j] = exp(x[i, j] - s)
    }
    for k in 32 {
      z[i, k] = exp(x[i, k] - s)
    }
  }
}
"""


def test_what_hangs_on_a_running_sum_is_not_shared_with_what_hangs_on_the_total() -> None:
    module = parse_module(RUNNING)
    rows = np.random.default_rng(0).random((4, 32), dtype=np.float32)
    shared = share.run(module, TARGET, Options())
    assert [a.tolist() for a in run_module(shared, [rows])] == [a.tolist() for a in run_module(module, [rows])]
