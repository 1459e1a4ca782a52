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


@pytest.mark.parametrize(("apart", "meet"), [(69, False), (5 + 4 * 64, False), (5, False), (6, True), (68, True), (70, False)])
def test_planes_that_lie_behind_one_another(apart: int, meet: bool) -> None:
    """Iteration i writes element i of several planes, no two of which meet: gradients of the taps of one channel."""
    (loop,) = parse_kernel(PLANES.format(apart=apart)).body
    assert isinstance(loop, For)
    assert bool(conflict(loop, Kind("vector", 16))) is meet


WITH_GAPS = [(1, 24, False), (1, 30, False), (1, 23, True), (-1, 30, True), (2, 48, False), (2, 46, True)]


@pytest.mark.parametrize(("step", "row", "meet"), WITH_GAPS)
def test_rows_that_are_further_apart_than_they_are_long(step: int, row: int, meet: bool) -> None:
    text = f"kernel rows(x: f32[24], y: f32[2000]) {{ for k in 24 {{ for i in 32 {{ y[200 + i*{row} + {step}*k] = x[k] }} }} }}"
    (loop,) = parse_kernel(text).body
    assert isinstance(loop, For)
    assert bool(conflict(loop, Kind("vector", 16))) is meet
