"""Equal kernels are scheduled once."""

from unittest.mock import patch

import pytest

from lowc.ir.nodes import Launch, Module
from lowc.ir.parser import parse_module
from lowc.ir.verify import verify_module
from lowc.options import Options
from lowc.scheduler import schedule
from lowc.target import Target

TARGET = Target("x86", "", "", 512, 32, 32 << 10, 1 << 20, 8 << 20, 2, frozenset({"fma", "masked"}))
LAYERS = """module @SCHEDULED() {
  input a: f32[4096]
  input b: f32[4096]
  temp t: f32[4096]
  temp u: f32[4096]
  temp v: f32[4096]
  launch first(a, b, t)
  launch second(b, t, u)
  launch third(b, u, v)
  return v
}

kernel first(x: f32[4096], y: f32[4096], z: f32[4096]) {
  for i in 4096 {
    z[i] = x[i] - y[i]
  }
}

kernel second(p: f32[4096], q: f32[4096], r: f32[4096]) {
  for k in 4096 {
    r[k] = p[k] - q[k]
  }
}

kernel third(p: f32[4096], q: f32[4096], r: f32[4096]) {
  for k in 4096 {
    r[k] = q[k] - p[k]
  }
}
"""


def kernels(module: Module) -> list[str]:
    return [step.kernel.name for step in module.steps if isinstance(step, Launch)]


def test_layers_that_differ_in_names_alone_are_scheduled_once() -> None:
    module = parse_module(LAYERS)
    with patch.object(schedule, "choose", wraps=schedule.choose) as chosen:
        made = schedule.run(module, TARGET, Options())
    verify_module(made)
    assert kernels(made) == ["first", "first", "third"]
    assert [call.args[0].name for call in chosen.call_args_list] == ["first", "third"]
    launched = ["".join(a.name for a in s.args) for s in made.steps if isinstance(s, Launch)]
    assert launched == ["abt", "btu", "buv"]


@pytest.mark.parametrize("change", ["x[i] + y[i]", "y[i] - x[i]", "x[i] - 2.0 * y[i]"])
def test_other_kernels_stay_apart(change: str) -> None:
    made = schedule.run(parse_module(LAYERS.replace("x[i] - y[i]", change)), TARGET, Options(check=True))
    assert kernels(made)[0] == "first" and kernels(made)[1] == "second"
