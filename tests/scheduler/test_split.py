"""``split``: reductions of few rows in chunks, where rows do not wait for one another."""

import numpy as np
import pytest

from lowc.ir.interp import run_module
from lowc.ir.parser import parse_module
from tests.scheduler.test_scans_simt import kernels, scheduled


def program(other: str) -> str:
    """Eight rows of a long sum, each times ``other``, after another loop that fills what they are stored to."""
    return f"""
module @LOOPS() {{
  input x: f32[30000]
  temp p: f32[8]
  launch k(x, p)
  return p
}}
kernel k(x: f32[30000], p: f32[8]) {{
  for j in 8 {{
    p[j] = 1.0
  }}
  for i in 8 {{
    acc s: f32 = add
    for k in 30000 {{
      s add= x[k] * {other}
    }}
    p[i] = s
  }}
}}
"""


@pytest.mark.parametrize(
    "other, launches",
    [
        ("p[i]", 3),  # the loop before, partial sums, sums of those
        ("p[max(i - 1, 0)]", 2),  # a row reads the sum before it: no row's parts can be made first
    ],
)
def test_rows_in_chunks(other: str, launches: int) -> None:
    text = program(other)
    x = (np.random.default_rng(0).random(30_000) / 10_000).astype(np.float32)
    module = scheduled(text)
    assert len(kernels(module)) == launches
    (wanted,), (found,) = run_module(parse_module(text), [x]), run_module(module, [x])
    assert np.allclose(found, wanted, rtol=1e-5)
