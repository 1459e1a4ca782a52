"""GPU kernels for sizes that are known at run time only: which loops they become, and that these mean what the program did."""

import numpy as np
import pytest

from lowc.ir.index import constant
from lowc.ir.interp import run_module
from lowc.ir.nodes import For, Kernel, Module
from lowc.ir.parser import parse_module
from lowc.ir.walk import statements
from tests.scheduler.test_scans_simt import kernels, scheduled

SIZES = [(3, 16), (3, 17), (1, 8), (2, 1), (5, 0), (0, 8), (4, 100), (2, 999)]


def widths(kernel: Kernel, kind: str) -> set[int]:
    return {s.kind.width for s in statements(kernel.body) if isinstance(s, For) and s.kind.name == kind}


def means_the_same(text: str, module: Module, *inputs: np.ndarray) -> None:
    (wanted,), (found,) = run_module(parse_module(text), list(inputs)), run_module(module, list(inputs))
    assert found.shape == wanted.shape
    assert np.allclose(found, wanted, rtol=1e-4, atol=1e-6)


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


ROWS = """
module @LOOPS(b: 0.. ~ 500, n: 0.. ~ 1001) {
  input size b
  input size n
  input x: f32[b, n]
  temp out: f32[b, n]
  launch k(x, out)
  return out
}
kernel k(b: size 0.. ~ 500, n: size 0.. ~ 1001, x: f32[b, n], out: f32[b, n]) {
  for i in b {
    acc s: f32 = add
    for k in n {
      s add= x[i, k]
    }
    for j in n {
      out[i, j] = x[i, j] - s
    }
  }
}
"""


def test_rows_of_symbolic_length_have_a_version_in_lanes() -> None:
    wide, held, plain = kernels(scheduled(ROWS))
    assert wide.name == "k_by4" and widths(wide, "vector") == {4}
    assert widths(held, "vector") == widths(plain, "vector") == set()


@pytest.mark.parametrize("rows, columns", SIZES)
def test_one_of_the_versions_runs(rows: int, columns: int) -> None:
    means_the_same(ROWS, scheduled(ROWS), np.int64(rows), np.int64(columns), values(rows, columns))


def test_rows_of_a_multiple_need_no_versions_by_multiples() -> None:
    held, longer = kernels(scheduled(ROWS.replace("[b, n]", "[b, n*8]").replace("in n {", "in n*8 {")))
    assert widths(held, "vector") == widths(longer, "vector") == {4}


TRANSPOSE = """
module @LOOPS(b: 0.. ~ 500, n: 0.. ~ 1001) {
  input size b
  input size n
  input x: f32[b, n]
  temp out: f32[n, b]
  launch k(x, out)
  return out
}
kernel k(b: size 0.. ~ 500, n: size 0.. ~ 1001, x: f32[b, n], out: f32[n, b]) {
  for i in n {
    for j in b {
      out[i, j] = x[j, i] + 1.0
    }
  }
}
"""


def test_transposes_of_symbolic_sizes_go_through_shared_memory() -> None:
    (kernel,) = kernels(scheduled(TRANSPOSE))
    assert "shared" in {s.buffer.space for s in statements(kernel.body) if hasattr(s, "buffer")}


def test_transposes_of_whole_tiles_are_a_version() -> None:
    """Tried where the traced sizes are such."""
    whole, ragged = kernels(scheduled(TRANSPOSE.replace("~ 500", "~ 512").replace("~ 1001", "~ 1024")))
    assert all(constant(s.axis.extent) for s in statements(whole.body) if isinstance(s, For) and s.kind.name == "thread")
    assert not all(constant(s.axis.extent) for s in statements(ragged.body) if isinstance(s, For) and s.kind.name == "thread")


@pytest.mark.parametrize("rows, columns", [(3, 70), (33, 65), (1, 1), (0, 5), (64, 32), (64, 128)])
@pytest.mark.parametrize("traced", ["1001", "1024"])
def test_transposes_of_symbolic_sizes(rows: int, columns: int, traced: str) -> None:
    text = TRANSPOSE.replace("500", "512").replace("1001", traced)
    means_the_same(text, scheduled(text), np.int64(rows), np.int64(columns), values(rows, columns))


SCAN = """
module @LOOPS(b: 0.. ~ 4, n: 0.. ~ 100001) {
  input size b
  input size n
  input x: f32[b, n]
  temp out: f32[b, n]
  launch k(x, out)
  return out
}
kernel k(b: size 0.. ~ 4, n: size 0.. ~ 100001, x: f32[b, n], out: f32[b, n]) {
  for i in b {
    acc s: f32 = add
    for k in n {
      s add= x[i, k]
      out[i, k] = s
    }
  }
}
"""


def test_long_scans_of_symbolic_rows_go_in_chunks() -> None:
    found = kernels(scheduled(SCAN))
    assert {kernel.name for kernel in found} == {"k_0", "k_0_by4", "k_1", "k_2", "k_2_by4"}
    assert all(max(widths(kernel, "thread")) > 1 for kernel in found)


@pytest.mark.parametrize("rows, columns", [(3, 170), (1, 48), (2, 1), (0, 5), (2, 0), (5, 47)])
def test_long_scans_of_symbolic_rows(rows: int, columns: int) -> None:
    means_the_same(SCAN, scheduled(SCAN), np.int64(rows), np.int64(columns), values(rows, columns))


SUMS = """
module @LOOPS(b: 0.. ~ 4, n: 0.. ~ 100001) {
  input size b
  input size n
  input x: f32[b, n]
  temp out: f32[b]
  launch k(x, out)
  return out
}
kernel k(b: size 0.. ~ 4, n: size 0.. ~ 100001, x: f32[b, n], out: f32[b]) {
  for i in b {
    acc s: f32 = add
    for k in n {
      s add= x[i, k]
    }
    out[i] = s
  }
}
"""


@pytest.mark.parametrize("rows, columns", [(3, 170), (1, 48), (2, 1), (0, 5), (2, 0), (5, 47)])
def test_sums_of_few_symbolic_rows_go_in_chunks(rows: int, columns: int) -> None:
    module = scheduled(SUMS)
    assert len(kernels(module)) >= 2
    means_the_same(SUMS, module, np.int64(rows), np.int64(columns), values(rows, columns))


GROUPS = """
module @LOOPS() {
  input x: f32[600, 16, 200]
  temp mean: f32[600, 4]
  temp out: f32[600, 16, 200]
  launch sums(x, mean)
  launch less(x, mean, out)
  return out
}
kernel sums(x: f32[600, 16, 200], mean: f32[600, 4]) {
  for i in 600 {
    for g in 4 {
      acc s: f32 = add
      for k in 800 {
        s add= x[i, g*4 + (k // 200), (k % 200)]
      }
      mean[i, g] = s / 800.0
    }
  }
}
kernel less(x: f32[600, 16, 200], mean: f32[600, 4], out: f32[600, 16, 200]) {
  for i in 600 {
    for c in 16 {
      for j in 200 {
        out[i, c, j] = x[i, c, j] - mean[i, (c // 4)]
      }
    }
  }
}
"""


def test_groups_of_channels_are_joined_group_by_group() -> None:
    """A loop over 16 channels becomes one over 4 groups and one within, so that a block has a group, and all threads share it."""
    (kernel,) = kernels(scheduled(GROUPS))
    assert not any(s for s in statements(kernel.body) if type(s).__name__ == "Alloc" and s.buffer.space == "shared")
    means_the_same(GROUPS, scheduled(GROUPS), values(600, 16, 200))


def test_long_rows_are_not_left_to_a_thread_each() -> None:
    """5 is no part of 16: joined under the first loop alone, a row of 800 elements would be summed up by one thread."""
    text = GROUPS.replace("[600, 4]", "[600, 5]").replace("for g in 4", "for g in 5").replace("g*4 +", "g*3 +")
    assert len(kernels(scheduled(text))) == 2
    means_the_same(text, scheduled(text), values(600, 16, 200))
