"""Maps on a GPU: which loops they become, and that these mean what the program did."""

import numpy as np
import pytest

from lowc.ir.interp import run_module
from lowc.ir.nodes import For
from lowc.ir.parser import parse_module
from lowc.ir.walk import statements
from tests.scheduler.test_scans_simt import kernels, scheduled


def program(rows: int, width: int, table: int) -> str:
    return f"""
module @LOOPS() {{
  input at: i64[{rows}]
  input w: f32[{table}, {width}]
  temp out: f32[{rows}, {width}]
  launch k(at, w, out)
  return out
}}
kernel k(at: i64[{rows}], w: f32[{table}, {width}], out: f32[{rows}, {width}]) {{
  for i in {rows} {{
    for j in {width} {{
      p = check_index(at[i], {table}, true)
      out[i, j] = w[p, j] * 2.0
    }}
  }}
}}
"""


@pytest.mark.parametrize(
    "rows, width, turns",
    [(70_000, 64, 4), (70_001, 60, 4), (100, 64, 1)],  # few rows: every thread takes one turn, so that all processors have some
)
def test_a_thread_waits_once_for_several_addresses(rows: int, width: int, turns: int) -> None:
    module = scheduled(program(rows, width, 50))
    (kernel,) = kernels(module)
    unrolled = [s.kind.width for s in statements(kernel.body) if isinstance(s, For) and s.kind.name == "unroll"]
    assert unrolled == ([turns] if turns > 1 else [])


def test_gathers_in_turns_mean_the_same() -> None:
    text = program(70_001, 12, 50)
    at = np.random.default_rng(0).integers(0, 50, 70_001)
    w = np.random.default_rng(1).standard_normal((50, 12)).astype(np.float32)
    (found,) = run_module(scheduled(text), [at, w])
    assert np.array_equal(found, w[at] * 2)
    (found,) = run_module(parse_module(text), [at, w])
    assert np.array_equal(found, w[at] * 2)


CAT = """
module @LOOPS() {
  input x: f32[3000, 64]
  temp a: f32[3000, 32]
  temp out: f32[3000, 64]
  launch half(x, a)
  launch cat(x, a, out)
  return out
}
kernel half(x: f32[3000, 64], a: f32[3000, 32]) {
  for i in 3000 {
    for j in 32 {
      a[i, j] = x[i, j] * 2.0 - x[i, j + 32]
    }
  }
}
kernel cat(x: f32[3000, 64], a: f32[3000, 32], out: f32[3000, 64]) {
  for i in 3000 {
    for j in 64 {
      first = idx(j) < 32
      out[i, j] = select(first, a[i, j if first], x[i, j])
    }
  }
}
"""


def test_half_of_a_cat_is_computed_where_it_is_written() -> None:
    """What a mask turns off costs a GPU nothing: an element is evaluated once, not twice."""
    module = scheduled(CAT)
    assert len(kernels(module)) == 1 and not module.workspace.terms
    x = np.random.default_rng(0).standard_normal((3000, 64)).astype(np.float32)
    (found,) = run_module(module, [x])
    assert np.array_equal(found, np.concatenate([x[:, :32] * 2 - x[:, 32:], x[:, 32:]], 1))


@pytest.mark.parametrize("sizes", [(3, 0, 3), (0, 3, 3), (3, 3, 0), (0, 0, 3), (300, 0, 400)])
def test_maps_of_nothing(sizes: tuple[int, int, int]) -> None:
    """Loops of which an inner one is empty, behind what is computed for each row, become one as any others do."""
    i, j, k = sizes
    text = f"""
module @LOOPS() {{
  input x: f32[{j}, {k}, 4]
  temp out: f32[{j}, {k}, {i}]
  launch k(x, out)
  return out
}}
kernel k(x: f32[{j}, {k}, 4], out: f32[{j}, {k}, {i}]) {{
  for i in {i} {{
    v = f32(idx(i)) * 1.5
    for j in {j} {{
      for k in {k} {{
        p = check_index(i64(v), 4, true)
        out[j, k, i] = x[j, k, p]
      }}
    }}
  }}
}}
"""
    (found,) = run_module(scheduled(text), [np.zeros((j, k, 4), np.float32)])
    assert found.shape == (j, k, i)
