"""The memory pass: what goes to the workspace, and how large that is."""

import pytest

from lowc.ir.parser import parse_module
from lowc.ir.verify import verify_module
from lowc.options import Options
from lowc.scheduler import memory
from lowc.target import Target

TARGET = Target("x86", "", "", 512, 32, 32 << 10, 1 << 20, 8 << 20, 2, frozenset())

# Two inputs that die at the first step; a temp that lives on, and one that joins it later.
DYING = """module @SCHEDULED() {{
  input a: f32[{n}]
  input b: f32[{n}]
  temp t: f32[{n}]
  temp e: f32[{n}]
  temp u: f32[{n}]
  temp g: f32[1]
  launch both(a, b, t)
  e = extern f(t)
  launch copy(e, u)
  g = extern h(t, u)
  return g{returned}
}}

kernel both(x: f32[{n}], y: f32[{n}], z: f32[{n}]) {{
  for i in {n} {{
    z[i] = x[i] + y[i]
  }}
}}

kernel copy(x: f32[{n}], y: f32[{n}]) {{
  for i in {n} {{
    y[i] = x[i]
  }}
}}
"""


def plan(n: int, *, hold: bool) -> tuple[dict[str, int], int]:
    """(offsets, bytes of the workspace); with ``hold`` the inputs are returned, so that they live on."""
    text = DYING.format(n=n, returned=", a, b" if hold else "")
    module = memory.run(parse_module(text), TARGET, Options())
    verify_module(module)
    return {name: int(str(offset)) for name, offset in module.placed}, int(str(module.workspace))


def test_a_workspace_does_not_lie_beside_inputs_that_die() -> None:
    # With both in it there would be four times n alive at the first step; three are enough.
    assert plan(1 << 16, hold=False) == ({"t": 0}, 4 << 16)


def test_temps_share_the_workspace_where_that_costs_no_memory() -> None:
    assert plan(1 << 16, hold=True) == ({"t": 0, "u": 4 << 16}, 8 << 16)


@pytest.mark.parametrize("hold", [True, False])
def test_small_temps_are_always_in_the_workspace(hold: bool) -> None:
    assert plan(1 << 10, hold=hold) == ({"t": 0, "u": 4 << 10}, 8 << 10)
