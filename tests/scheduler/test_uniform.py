"""``uniform``: comparisons that all lanes decide alike, and those that only look so."""

import numpy as np
import pytest

from lowc.ir.interp_kernel import run_kernel
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.scheduler import uniform


def kernel(left: str, right: str) -> str:
    return f"""kernel k(x: f32[64], y: f32[64]) {{
  for t in 8 {{
    for v in 8 vector(8) {{
      y[t*8 + v] = x[t*8 + v if idx({left}) < idx({right})]
    }}
  }}
}}
"""


@pytest.mark.parametrize(
    "left, right, decided",
    [
        ("t*8 + v", "40", True),
        ("t*16 + v", "t*8 + 24", True),
        ("t*8 + v", "43", False),
        ("t*4 + v", "16", False),
        ("t*8 + v*2", "40", False),
        ("v + ((t*8 + v + 3) // 8)*8", "24", False),  # a multiple of 8, but not the same one for all lanes
    ],
)
def test_comparisons(left: str, right: str, decided: bool) -> None:
    before = parse_kernel(kernel(left, right))
    after = uniform._uniform(before)
    assert (print_kernel(after) != print_kernel(before)) == decided
    x = np.arange(1, 65, dtype=np.float32)
    results: list[np.ndarray] = []
    for each in (before, after):
        y = np.zeros(64, np.float32)
        run_kernel(each, {"x": x, "y": y})
        results.append(y)
    assert np.array_equal(*results)
