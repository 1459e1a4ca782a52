"""Statements, memory and modules in the interpreter: hand-written programs against what numpy computes."""

import random
from typing import Any

import numpy as np
import pytest

from lowc.ir import interp_kernel
from lowc.ir.interp import InterpError, Tensor, pack, run_kernel, run_module, storage_size, unpack
from lowc.ir.interp_lanes import at_once
from lowc.ir.nodes import For, Stmt
from lowc.ir.parser import parse_kernel, parse_module
from lowc.ir.types import f32
from lowc.ir.walk import statements
from tests.property.programs import differences, random_module, run

RNG = np.random.default_rng(0)


def loops_at_once(body: tuple[Stmt, ...]) -> dict[str, bool]:
    """Which loops run for all iterations at once, by axis."""
    parallel = at_once(body).parallel
    return {s.axis.name: id(s) in parallel for s in statements(body) if isinstance(s, For)}


def run_text(text: str, sizes: dict[str, int] | None = None, **buffers: Any) -> None:
    run_kernel(parse_kernel(text), buffers, sizes)


SOFTMAX = """
kernel softmax(x: f32[5, 7 : 1, 5], out: f32[5, 7]) {
  for i in 5 {
    acc m: f32 = max
    for k in 7 { m max= x[i, k] }
    acc s: f32 = add
    for k2 in 7 { s add= exp(x[i, k2] - m) }
    for j in 7 { out[i, j] = exp(x[i, j] - m) / s }
  }
}
"""


def test_softmax_of_a_transposed_input() -> None:
    x = RNG.normal(size=(7, 5)).astype(np.float32)
    out = np.full(35, np.nan, np.float32)
    run_text(SOFTMAX, x=x.ravel(), out=out)
    exps = np.exp(x.T.astype(np.float64) - x.T.max(1, keepdims=True))
    assert np.allclose(out.reshape(5, 7), exps / exps.sum(1, keepdims=True), rtol=1e-6)
    assert loops_at_once(parse_kernel(SOFTMAX).body) == dict.fromkeys(["i", "k", "k2", "j"], True)


def test_serial_loops_see_what_earlier_iterations_wrote() -> None:
    """A recurrence through memory must not run at once."""
    text = """
    kernel f(x: f64[9]) {
      for i in 8 { x[i + 1] = x[i] * 2.0:f64 + x[i + 1] }
    }
    """
    x = RNG.normal(size=9)
    wanted = x.copy()
    for i in range(8):
        wanted[i + 1] += 2 * wanted[i]
    run_text(text, x=x)
    assert np.array_equal(x, wanted)
    assert loops_at_once(parse_kernel(text).body) == {"i": False}


def test_rows_that_are_stored_and_read_again_run_at_once() -> None:
    """Iterations that keep to rows of their own: as coordinates, as linear addresses, and with a coarser axis inside."""
    text = """
    kernel f(x: i64[40], t: i64[40], y: i64[80]) {
      for i in 8 {
        for j in 5 { t[i*5 + j] = x[i*5 + j] + 1 }
        acc s: i64 = add
        for k in 5 { s add= t[i*5 + k] }
        for l in 5 { t[i*5 + l] = t[i*5 + l] * s }
      }
      for a in 40 {
        for b in 2 {
          y[b*40 + a] = t[a] + b
          y[b*40 + a] = y[b*40 + a] * 3
        }
      }
    }
    """.replace("t[a] + b", "t[a] + idx(b)")
    x = RNG.integers(-9, 9, 40)
    t, y = np.zeros(40, np.int64), np.zeros(80, np.int64)
    run_text(text, x=x, t=t, y=y)
    rows = x.reshape(8, 5) + 1
    wanted = rows * rows.sum(1, keepdims=True)
    assert np.array_equal(t.reshape(8, 5), wanted)
    assert np.array_equal(y.reshape(2, 40), (wanted.ravel() + np.array([[0], [1]])) * 3)
    assert all(loops_at_once(parse_kernel(text).body).values())


def test_last_of_several_stores_to_one_place_stays() -> None:
    text = """
    kernel f(x: i32[4, 3], out: i32[6]) {
      for i in 4 {
        for j in 3 { out[i + j] = x[i, j] }
      }
    }
    """
    x = np.arange(12, dtype=np.int32)
    out = np.zeros(6, np.int32)
    run_text(text, x=x, out=out)
    wanted = np.zeros(6, np.int32)
    for i in range(4):
        for j in range(3):
            wanted[i + j] = x[i * 3 + j]
    assert np.array_equal(out, wanted)


def test_scans_in_one_loop() -> None:
    """Inclusive prefixes, the total afterwards, and a maximum with its place."""
    text = """
    kernel f(x: f32[3, 6], sums: f32[3, 6], best: f32[3, 6], place: i64[3, 6], total: f32[3]) {
      for i in 3 {
        acc s: f32 = add
        acc v: f32, w: i64 = argmax
        for k in 6 {
          s add= x[i, k]
          v, w argmax= x[i, k], idx(k) if idx(k) != 1
          sums[i, k] = s
          best[i, k] = v
          place[i, k] = w
        }
        total[i] = s
      }
    }
    """
    x = np.array([[1, 5, 3, 5, 2, 9], [2, 2, 2, np.nan, 7, 8], [-np.inf, 4, -1, -1, -2, -1]], np.float32)
    out = {
        "sums": np.zeros(18, np.float32),
        "best": np.zeros(18, np.float32),
        "place": np.zeros(18, np.int64),
    }
    total = np.zeros(3, np.float32)
    run_text(text, x=x.ravel(), total=total, **out)
    assert np.array_equal(out["sums"].reshape(3, 6), np.cumsum(x, 1), equal_nan=True)
    assert np.array_equal(total, x.sum(1), equal_nan=True)
    nan = np.nan
    best = [[1, 1, 3, 5, 5, 9], [2, 2, 2, nan, nan, nan], [-np.inf, -np.inf, -1, -1, -1, -1]]
    assert np.array_equal(out["best"].reshape(3, 6), np.array(best, np.float32), equal_nan=True)
    assert out["place"].reshape(3, 6).tolist() == [[0, 0, 2, 3, 3, 5], [0, 0, 0, 3, 3, 3], [0, 0, 2, 2, 2, 2]]
    assert all(loops_at_once(parse_kernel(text).body).values())


def test_reading_an_accumulator_before_its_update() -> None:
    """The exclusive prefix: serial, as no loop may run at once that does this."""
    text = """
    kernel f(x: i64[5], out: i64[5]) {
      acc s: i64 = add
      for k in 5 {
        out[k] = s
        s add= x[k]
      }
    }
    """
    x = np.array([3, 1, 4, 1, 5])
    out = np.zeros(5, np.int64)
    run_text(text, x=x, out=out)
    assert out.tolist() == [0, 3, 4, 8, 9]
    assert loops_at_once(parse_kernel(text).body) == {"k": False}


def test_conditions_masks_and_extents_that_vary() -> None:
    text = """
    kernel f(x: f32[6, 6], out: f32[6], count: i64[1]) {
      for i in 6 {
        acc s: f32 = add
        for k in i + 1 { s add= x[i, k] }
        if idx(i % 2) == 0 {
          out[i] = s
          for j in 2 { count[0] add= idx(i) }
        }
        out[i if idx(i) == 3] = x[i, i + 4 if idx(i) < 2] - 1.0
      }
    }
    """
    x = RNG.normal(size=(6, 6)).astype(np.float32)
    out, count = np.zeros(6, np.float32), np.zeros(1, np.int64)
    run_text(text, x=x.ravel(), out=out, count=count)
    wanted = [np.float32(np.tril(x)[i].sum(dtype=np.float64)) if i % 2 == 0 else 0 for i in range(6)]
    wanted[3] = -1
    assert np.allclose(out, wanted, rtol=1e-6)
    assert count[0] == 2 * (0 + 2 + 4)
    assert loops_at_once(parse_kernel(text).body)["i"] is False


@pytest.mark.parametrize("kind", ["parallel", "vector(4)", "unroll(2)", "thread(8)", ""])
def test_kinds_of_loops_mean_nothing_here(kind: str) -> None:
    text = f"kernel f(x: f32[9]) {{ for i in 9 {kind} {{ x[i] = x[i] + 1.0 }} }}"
    x = np.zeros(9, np.float32)
    run_text(text, x=x)
    assert x.tolist() == [1.0] * 9


def test_random_order_exposes_a_race() -> None:
    """A parallel loop that reads what another iteration writes."""
    racy = parse_kernel("kernel f(x: i64[20]) { for i in 19 parallel { x[i + 1] = x[i] + 1 } }")
    results = set()
    for seed in range(4):
        x = np.zeros(20, np.int64)
        run_kernel(racy, {"x": x}, shuffle=random.Random(seed))
        results.add(tuple(x))
    assert len(results) > 1


def test_local_memory_belongs_to_each_iteration() -> None:
    text = """
    kernel f(x: f32[4, 8], out: f32[4, 8]) {
      for i in 4 {
        alloc t: f32[8] @local
        alloc sums: f32[2] @local = add
        for j in 8 {
          t[7 - j] = x[i, j]
          sums[j % 2] add= x[i, j]
        }
        for k in 8 { out[i, k] = t[k] + sums[k % 2] }
      }
    }
    """
    x = RNG.integers(-4, 5, (4, 8)).astype(np.float32)
    out = np.zeros(32, np.float32)
    run_text(text, x=x.ravel(), out=out)
    sums = np.stack([x[:, 0::2].sum(1), x[:, 1::2].sum(1)], 1)
    assert np.array_equal(out.reshape(4, 8), x[:, ::-1] + np.tile(sums, 4))


def test_reducing_stores_round_each_time() -> None:
    """bf16: 256 + 1 is 256, so that ten ones change nothing; f32 counts."""
    text = "kernel f(n: {0}[1], v: {0}[10]) {{ for i in 10 {{ n[0] add= v[i] }} }}"
    bits = lambda x: (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)  # noqa: E731
    narrow = bits([256.0])
    run_text(text.format("bf16"), n=narrow, v=bits(np.ones(10)))
    assert narrow.tolist() == bits([256.0]).tolist()
    wide = np.array([256.0], np.float32)
    run_text(text.format("f32"), n=wide, v=np.ones(10, np.float32))
    assert wide.tolist() == [266.0]


@pytest.mark.parametrize("rows", [0, 1, 2, 9])
def test_sizes(rows: int) -> None:
    text = """
    kernel f(n: size 0.., x: f32[n, 3], out: f32[3, n]) {
      for i in n {
        for j in 3 { out[j, i] = x[i, j] }
      }
    }
    """
    x = RNG.normal(size=(rows, 3)).astype(np.float32)
    out = np.zeros(rows * 3, np.float32)
    run_text(text, {"n": rows}, x=x.ravel(), out=out)
    assert np.array_equal(out.reshape(3, rows), x.T)
    with pytest.raises(InterpError, match="size n"):
        run_text(text, x=x.ravel(), out=out)


@pytest.mark.parametrize(
    "body, message",
    [
        ("for i in 5 { x[i] = x[i + 1] }", "outside 0 .. 4"),
        ("for i in 5 { x[i - 1] = 0.0 }", "index i - 1 = -1"),
        ("for i in 5 { x[i] = x[i + 9 if idx(i) == 4] }", "i \\+ 9 = 13"),
    ],
)
def test_accesses_out_of_bounds_are_errors(body: str, message: str) -> None:
    with pytest.raises(InterpError, match=message):
        run_text(f"kernel f(x: f32[5]) {{ {body} }}", x=np.zeros(5, np.float32))


def test_gather_checks_only_where_its_condition_holds() -> None:
    text = """
    kernel f(x: f32[5], at: i64[3], out: f32[3]) {
      for i in 3 {
        if idx(i) != 1 {
          p = check_index(at[i], 5, true)
          out[i] = x[p]
        }
      }
    }
    """
    x, out = np.arange(5, dtype=np.float32), np.full(3, -1, np.float32)
    run_text(text, x=x, at=np.array([4, 77, 0]), out=out)
    assert out.tolist() == [4, -1, 0]
    with pytest.raises(IndexError, match="index -1 .* size 5"):
        run_text(text, x=x, at=np.array([4, 77, -1]), out=out)


@pytest.mark.parametrize("seed", range(40))
def test_at_once_is_as_in_turn(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random programs give the same when every iteration runs by itself."""
    program = random_module(seed, steps=3)
    if sum(storage_size([8] * len(t.shape), [1] * len(t.shape)) for t in program.module.temps) > 400:
        pytest.skip("large")
    expected = run(program, program.module, 1)
    monkeypatch.setattr(interp_kernel, "MAX_LANES", 0)
    assert differences(program, expected, run(program, program.module, 1)) == []


# ---------------------------------------------------------------- modules

MODULE = """
module @LOOPS(s: 0..) {
  input size s
  input x: f32[s, 4 : 6, 1]
  input none
  input y: i64[s]
  temp t: f32[s, 4]
  temp u: f32[4, s : 1, 4]
  launch double(x, t)
  u = extern test.flip(t as f32[4, s : 1, 4], 3, dim=(1,))
  launch count(y)
  return u, idx(s*2), t as f32[s, 2 : 4, 2] + 1, 1.5
}

kernel double(s: size 0.., x: f32[s, 4 : 6, 1], t: f32[s, 4]) {
  for i in s {
    for j in 4 { t[i, j] = x[i, j] * 2.0 }
  }
}

kernel count(s: size 0.., y: i64[s]) {
  for i in s { y[i] = y[i] + 1 }
}
"""


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_module(rows: int) -> None:
    """Strided inputs given as arrays, an extern call on a view, a mutated input, and outputs of all kinds."""
    module = parse_module(MODULE)
    x = RNG.normal(size=(rows, 4)).astype(np.float32)
    y = np.arange(rows * 2)[::2]
    calls: list[Any] = []

    def extern(step: Any, args: Any, kwargs: Any) -> Any:
        tensor, number = args
        assert isinstance(tensor, Tensor) and tensor.dtype == f32 and tensor.array.shape == (4, rows)
        calls.append((step.target, number, kwargs))
        return [tensor.array[:, ::-1]]

    u, size, window, constant = run_module(module, [rows, x, None, y], extern)
    assert calls == [("test.flip", 3, {"dim": (1,)})]
    assert np.array_equal(u, (x * 2).T[:, ::-1])
    assert (size, constant) == (rows * 2, 1.5)
    assert np.array_equal(window, (x * 2)[:, 1::2])
    assert np.array_equal(y, np.arange(rows * 2)[::2] + 1)


def test_storages_are_used_in_place() -> None:
    module = parse_module(MODULE)
    x = pack(np.ones((2, 4), np.float32), (6, 1))
    assert x.shape == (10,) and np.isnan(x[4:6]).all()
    y = np.zeros(2, np.int64)
    run_module(module, [2, x, None, y], lambda step, args, kwargs: [args[0].array])
    assert y.tolist() == [1, 1]


def test_workspace_is_shared_memory() -> None:
    """Temps placed over each other destroy each other, as they would in machine code."""
    text = """
    module @BUFFERED() {
      input x: f32[4]
      temp a: f32[4] at 0
      temp b: f32[4] at OFFSET
      temp out: f32[4]
      workspace 64
      launch copy(x, a)
      launch copy(a, b)
      launch sum(a, b, out)
      return out
    }
    kernel copy(x: f32[4], y: f32[4]) { for i in 4 { y[i] = x[i] + 1.0 } }
    kernel sum(x: f32[4], y: f32[4], z: f32[4]) { for i in 4 { z[i] = x[i] + y[i] } }
    """
    for offset, wanted in (("16", 3.0), ("0", 4.0)):
        (out,) = run_module(parse_module(text.replace("OFFSET", offset)), [np.zeros(4, np.float32)])
        assert out.tolist() == [wanted] * 4
    with pytest.raises(InterpError, match="outside the workspace"):
        run_module(parse_module(text.replace("OFFSET", "60")), [np.zeros(4, np.float32)])


def test_pack_and_unpack() -> None:
    array = RNG.normal(size=(3, 1, 4))
    storage = pack(array, (1, 7, 5))
    assert len(storage) == storage_size((3, 1, 4), (1, 7, 5)) == 18
    assert np.array_equal(unpack(storage, (3, 1, 4), (1, 7, 5)), array)
    assert unpack(storage, (2, 0), (1, 1)).shape == (2, 0)
    with pytest.raises(InterpError, match="window"):
        unpack(storage, (3, 1, 4), (1, 7, 5), offset=1)
