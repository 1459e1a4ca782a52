"""Which loops may run at once."""

import pytest

from lowc.ir.nodes import For, Kind
from lowc.ir.parser import parse_kernel
from lowc.scheduler.conflict import conflict

PLANES = """
kernel planes(x: f32[64], y: f32[400]) {{
  for i in 64 {{
    y[i + 5] = x[i]
    y[i + {apart}] = x[i]
  }}
}}
"""


@pytest.mark.parametrize(("apart", "meet"), [(69, False), (5 + 4 * 64, False), (5, False), (6, True), (68, True), (70, True)])
def test_planes_that_lie_behind_one_another(apart: int, meet: bool) -> None:
    """Iteration i writes element i of several planes, no two of which meet: gradients of the taps of one channel."""
    (loop,) = parse_kernel(PLANES.format(apart=apart)).body
    assert isinstance(loop, For)
    assert bool(conflict(loop, Kind("vector", 16))) is meet
