"""Programs that single passes have got wrong, or could: what they mean before and after."""

import numpy as np
import pytest

from lowc.ir.interp import run_module
from lowc.ir.nodes import Launch
from lowc.ir.parser import parse_module
from lowc.ir.walk import loads
from lowc.options import Options
from lowc.scheduler import pipeline
from lowc.target import Target

TARGET = Target("x86", "", "", 512, 32, 32 << 10, 1 << 20, 8 << 20, 2, frozenset({"fma", "scalef", "masked"}))


def program(kernels: str, temps: str, *launches: str) -> str:
    lines = "\n".join(f"  launch {launch}" for launch in launches)
    declared = "\n".join(f"  temp {temp}" for temp in [*temps.split("; "), "out: f32[4, 8]"] if temp)
    inputs = "  input x: f32[4, 8]\n  input y: f32[4, 8]\n  input p: i64[4]"
    return f"module @LOOPS() {{\n{inputs}\n{declared}\n{lines}\n  return out\n}}\n{kernels}"


FORWARDED = program(
    """kernel f(x: f32[4, 8], y: f32[4, 8], t: f32[4], out: f32[4, 8]) {
      for i in 4 {
        acc v: f32 = add
        for k in 8 { v add= x[i, k] }
        t[i] = v
        for j in 8 { v add= y[i, j] }
        for l in 8 { out[i, l] = t[i] + v }
      }
    }""",
    "t: f32[4]",
    "f(x, y, t, out)",
)
FORWARDED_AT_ONCE = program(
    """kernel f(x: f32[4, 8], t: f32[4], out: f32[4, 8]) {
      for i in 4 {
        acc v: f32 = add
        for k in 8 { v add= x[i, k]; t[i] = v; v add= 1.0; out[i, k] = t[i] + v }
      }
    }""".replace("; ", "\n"),
    "t: f32[4]",
    "f(x, t, out)",
)
RECOMPUTED = program(
    """kernel f(x: f32[4, 8], y: f32[4, 8], t: f32[4, 8], out: f32[4, 8]) {
      for i in 4 {
        acc v: f32 = add
        for k in 8 { v add= x[i, k] }
        for j in 8 { t[i, j] = y[i, j] - v }
        for l in 8 { v add= y[i, l] }
        for m in 8 { out[i, m] = t[i, m] * v }
      }
    }""",
    "t: f32[4, 8]",
    "f(x, y, t, out)",
)
COORDINATES = program(
    """kernel f(x: f32[4, 8], t: f32[8]) {
      for i in 8 {
        acc s: f32 = add
        for k in 4 { s add= x[k, i] }
        t[i] = s
      }
    }
    kernel g(p: i64[4], t: f32[8], x: f32[4, 8], out: f32[4, 8]) {
      row = check_index(p[0], 4, true)
      for j in 8 { for r in 4 { out[r, j] = t[j] + x[row, j] } }
    }""",
    "t: f32[8]",
    "f(x, t)",
    "g(p, t, x, out)",
)
MASKED = program(
    """kernel f(x: f32[4, 8], y: f32[4, 8], out: f32[4, 8]) {
      for i in 4 {
        acc s: f32 = add
        for k in 8 {
          near = idx(k) < 5
          some = exp(x[i, k if near])
          s add= exp(x[i, k]) * some
        }
        for j in 8 {
          few = idx(j) < 3
          out[i, j] = exp(x[i, j]) / s + exp(x[i, j if few]) + y[i, j]
        }
      }
    }""",
    "",
    "f(x, y, out)",
)
"""exp of masked and of plain loads of one element are two values (``share`` took one for the other)."""
SHARED = program(
    """kernel f(x: f32[4, 8], out: f32[4, 8]) {
      for i in 4 { for j in 8 { out[i, j] = x[i, j] * 2.0 } }
    }
    kernel g(a: f32[4, 8], b: f32[4, 8], out: f32[4, 8]) {
      for i in 4 { for j in 8 { out[i, j] = a[i, j] - b[i, j] } }
    }""",
    "t: f32[4, 8]; u: f32[4, 8]",
    "f(x, t)",
    "f(y, u)",
    "g(t, u, out)",
)
"""A kernel of two launches (found by ``tests.property.ir``: two kernels of one name)."""


@pytest.mark.parametrize(
    "text",
    [FORWARDED, FORWARDED_AT_ONCE, RECOMPUTED, COORDINATES, MASKED, SHARED],
    ids=["forwarded", "forwarded at once", "recomputed", "coordinates", "masked", "shared"],
)
def test_every_pass_keeps_the_meaning(text: str) -> None:
    module = parse_module(text)
    rng = np.random.default_rng(0)
    inputs = [rng.random(32, np.float32), rng.random(32, np.float32), np.array([2, 0, 1, 3])]
    (wanted,) = run_module(module, [i.copy() for i in inputs])
    for row in pipeline.PASSES:
        if row.only in ("", TARGET.kind):
            module = pipeline.apply(row, module, TARGET, Options(check=True))
            (found,) = run_module(module, [i.copy() for i in inputs])
            np.testing.assert_allclose(found, wanted, rtol=1e-6, err_msg=f"after {row.name}")


UNREAD = """
module @LOOPS() {
  input checked_t: i64[4]
  temp t: i64[4]
  temp u: i64[4]
  temp out: i64[4]
  launch f(checked_t, t, u, out)
  return out
}

kernel f(checked_t: i64[4], t: i64[4], u: i64[4], out: i64[4]) {
  for i in 4 {
    t[i] = truncdiv(7, check_nonzero(checked_t[i] - 1, true))
    t[i] = truncdiv(7, check_nonzero(checked_t[i] - 2, true))
    u[i if check_nonzero(checked_t[i] - 3, true) > 0] = truncdiv(7, check_nonzero(checked_t[i] - 4, true))
    acc a: i64 = add
    a add= truncdiv(7, check_nonzero(checked_t[i] - 5, true)) if check_nonzero(checked_t[i] - 6, true) > 0
    out[i] = checked_t[i] + 1
  }
}
"""


@pytest.mark.parametrize("bad", range(7))
def test_what_nobody_reads_is_checked(bad: int) -> None:
    """Checks in values and masks of stores and updates that serve nothing; 0 is no bad value."""
    module = parse_module(UNREAD)
    for row in pipeline.PASSES:
        if row.only in ("", TARGET.kind):
            module = pipeline.apply(row, module, TARGET, Options(check=True))
            values = np.array([9, 9, bad, 9])
            if bad:
                with pytest.raises(ZeroDivisionError):
                    run_module(module, [values])
            else:
                assert run_module(module, [values])[0].tolist() == [10, 10, 1, 10]
    (step,) = module.steps
    assert isinstance(step, Launch)
    assert {load.buffer.name for load in loads(step.kernel.body)} == {"checked_t"}
