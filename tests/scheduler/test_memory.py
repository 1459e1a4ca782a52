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
  e = extern aten.f.default(t)
  launch copy(e, u)
  g = extern aten.h.default(t, u)
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

# ``big`` dies before ``small`` begins; the size ``u`` is known only once the extern call has been made.
SYMBOLIC = """module @SCHEDULED(s: 2.. ~ 100, u: 0..) {
  input x: f32[s]
  temp big: f32[s*3]
  temp found: f32[u]
  temp small: f32[s]
  temp late: f32[u]
  temp out: f32[s]
  temp end: f32[u]
  launch grow(x, big)
  found = extern aten.select.default(big)
  launch cut(x, small)
  launch copy(found, late)
  launch cut(small, out)
  launch copy(late, end)
  return out, end
}

kernel grow(s: size 2.. ~ 100, x: f32[s], y: f32[s*3]) {
  for i in s {
    y[i*3] = x[i]
    y[i*3 + 1] = x[i]
    y[i*3 + 2] = x[i]
  }
}

kernel cut(s: size 2.. ~ 100, x: f32[s], y: f32[s]) {
  for i in s {
    y[i] = x[i]
  }
}

kernel copy(u: size 0.., x: f32[u], y: f32[u]) {
  for i in u {
    y[i] = x[i]
  }
}
"""


def test_symbolic_sizes_share_what_is_surely_large_enough() -> None:
    module = memory.run(parse_module(SYMBOLIC), TARGET, Options())
    verify_module(module)
    assert {name: str(offset) for name, offset in module.placed} == {"big": "0", "small": "0"}
    assert str(module.workspace) == "((s*3 + 15) // 16)*64"


def test_sizes_that_a_step_tells_are_not_in_the_workspace() -> None:
    module = memory.run(parse_module(SYMBOLIC), TARGET, Options())
    assert "late" not in dict(module.placed)
    assert "u" not in str(module.workspace)
