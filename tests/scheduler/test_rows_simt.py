"""Rows of symbolic length on a GPU: up to a length they lie in registers, and whatever it is, one launch does the work."""

import re

import numpy as np
import pytest

from lowc.ir.index import evaluate, ix
from lowc.ir.interp import run_module
from lowc.ir.nodes import Alloc, For, Kernel, Module
from lowc.ir.parser import parse_module
from lowc.ir.walk import loads, statements
from tests.scheduler.test_scans_simt import kernels, scheduled

SOFTMAX = """
module @LOOPS(b: 0.. ~ 300, n: 0.. ~ HINT) {
  input size b
  input size n
  input x: f32[b, n]
  temp out: f32[b, n]
  launch k(x, out)
  return out
}
kernel k(b: size 0.. ~ 300, n: size 0.. ~ HINT, x: f32[b, n], out: f32[b, n]) {
  for i in b {
    acc m: f32 = max
    for k in n {
      m max= x[i, k]
    }
    acc s: f32 = add
    for l in n {
      s add= exp(x[i, l] - m)
    }
    for j in n {
      out[i, j] = exp(x[i, j] - m) / s
    }
  }
}
"""


def text(hint: int) -> str:
    return SOFTMAX.replace("HINT", str(hint))


def blocks(kernel: Kernel, **sizes: int) -> int:
    """Iterations of its block loops."""
    total, body = ix(1), kernel.body
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind.name == "block":
        total, body = total * body[0].axis.extent, body[0].body
    return int(evaluate(total, sizes))


def held(kernel: Kernel) -> bool:
    return any(isinstance(s, Alloc) and s.buffer.space == "local" for s in statements(kernel.body))


def global_loads(kernel: Kernel) -> int:
    return sum(load.buffer.space == "global" for load in loads(kernel.body))


def agree(program: str, module: Module, *inputs: object) -> None:
    (wanted,), (found,) = run_module(parse_module(program), list(inputs)), run_module(module, list(inputs))
    assert found.shape == wanted.shape
    assert np.allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "hint, names",
    [
        (1024, ["k_by4_upto1024", "k_by4", "k"]),
        (1025, ["k_by4", "k_upto1152", "k"]),  # 128 threads take 9 turns
        (100, ["k_by4_upto128", "k_by4", "k"]),
    ],
)
def test_the_version_of_the_traced_size_holds_rows(hint: int, names: list[str]) -> None:
    found = kernels(scheduled(text(hint)))
    assert [k.name for k in found] == names
    assert [held(k) for k in found] == ["upto" in name for name in names]
    assert [global_loads(k) for k in found] == [1 if "upto" in name else 3 for name in names]


@pytest.mark.parametrize("hint", [1024, 1025, 100, 7])
def test_one_launch_does_the_work(hint: int) -> None:
    found = kernels(scheduled(text(hint)))
    bounds = [int(n) for k in found for n in re.findall(r"upto(\d+)", k.name)]
    lengths = {0, 1, 2, 3, 4, 5, 997, 5000, 5001, *(b + d for b in (hint, *bounds) for d in (-4, -1, 0, 1, 4))}
    for n in lengths:
        assert sorted(blocks(k, b=10, n=n) > 0 for k in found)[-2:] in ([False, True], [True]), n
        assert all(blocks(k, b=0, n=n) == 0 for k in found)


@pytest.mark.parametrize("n", [0, 1, 2, 4, 7, 31, 64, 97, 100, 101, 124, 127, 128, 129, 131, 132, 200, 1021])
@pytest.mark.parametrize("hint", [100, 101])
def test_rows_of_any_length(hint: int, n: int) -> None:
    for rows in (1, 3):
        values = np.random.default_rng(n).standard_normal((rows, n)).astype(np.float32)
        agree(text(hint), scheduled(text(hint)), np.int64(rows), np.int64(n), values)


def test_rows_that_cannot_be_long_have_one_version_of_each_kind() -> None:
    """All lengths that there may be are below the bound: nothing is left for a version of longer rows."""
    program = text(100).replace("n: 0.. ~", "n: 0..120 ~").replace("n: size 0.. ~", "n: size 0..120 ~")
    found = kernels(scheduled(program))
    assert [k.name for k in found] == ["k_by4_upto128", "k"]
    for n in (0, 1, 99, 100, 119, 120):
        assert sorted(blocks(k, b=10, n=n) > 0 for k in found) == [False, True]
        values = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32)
        agree(program, scheduled(program), np.int64(3), np.int64(n), values)


def test_rows_of_sizes_from_data_are_not_held() -> None:
    """Without a traced size there is no length to hold rows up to."""
    program = text(100).replace("n: 0.. ~ 100", "n: 0..").replace("n: size 0.. ~ 100", "n: size 0..")
    assert not any(held(k) for k in kernels(scheduled(program)))


def test_rows_that_are_too_long_for_registers_are_not_held() -> None:
    assert not any(held(k) for k in kernels(scheduled(text(1 << 20))))


BIAS = """
module @LOOPS(b: 0.. ~ 300, n: 0.. ~ HINT) {
  input size b
  input size n
  input x: f32[b, n]
  input w: f32[n]
  temp out: f32[b, n]
  launch k(x, w, out)
  return out
}
kernel k(b: size 0.. ~ 300, n: size 0.. ~ HINT, x: f32[b, n], w: f32[n], out: f32[b, n]) {
  for i in b {
    for j in n {
      out[i, j] = x[i, j] + w[j]
    }
  }
}
"""


def divisions(kernel: Kernel) -> int:
    """Remainders in addresses."""
    return sum("%" in str(load.index[0]) for load in loads(kernel.body))


@pytest.mark.parametrize("hint, by_rows", [(2048, True), (2049, True), (100, False)])
def test_long_rows_of_maps_are_rows_of_blocks(hint: int, by_rows: bool) -> None:
    """So no thread divides its place by the length to find its column; short rows would leave threads idle."""
    found = kernels(scheduled(BIAS.replace("HINT", str(hint))))
    plain = found[-1] if hint % 4 else found[0]
    assert (divisions(plain) == 0) == by_rows


@pytest.mark.parametrize("rows, columns", [(3, 2048), (2, 2047), (1, 1), (0, 5), (5, 0), (3, 257), (4, 1024)])
@pytest.mark.parametrize("hint", [2048, 2049, 100])
def test_maps_by_rows_of_blocks(hint: int, rows: int, columns: int) -> None:
    program = BIAS.replace("HINT", str(hint))
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, columns), (columns,)))
    agree(program, scheduled(program), np.int64(rows), np.int64(columns), x, w)
