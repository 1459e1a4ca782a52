"""Scans on a GPU: which kernels they become, and that these mean what the program did, in whatever order free loops run."""

import random

import numpy as np
import pytest

from lowc.ir.interp import run_module
from lowc.ir.nodes import For, Kernel, Launch, Module
from lowc.ir.numeric import to_storage
from lowc.ir.parser import parse_module
from lowc.ir.scan import running
from lowc.ir.types import DTYPES
from lowc.ir.verify_gpu import verify_threads
from lowc.ir.walk import statements
from lowc.options import Options
from lowc.scheduler import pipeline
from lowc.target import Target

TARGET = Target("nvptx", "sm_90a", "", 128, 255, 48 << 10, 1 << 18, 1 << 25, 132, frozenset({"fma", "f16c"}))


def scheduled(text: str) -> Module:
    """``text`` after all passes for a GPU, by the rules after each."""
    module = parse_module(text)
    for row in pipeline.PASSES:
        if row.only in ("", "nvptx"):
            module = pipeline.apply(row, module, TARGET, Options(check=True))
    verify_threads(module)
    return module


def kernels(module: Module) -> list[Kernel]:
    return [step.kernel for step in module.steps if isinstance(step, Launch)]


def scans(kernel: Kernel) -> list[For]:
    """Loops of several threads that hold prefixes."""
    loops = [s for s in statements(kernel.body) if isinstance(s, For) and s.kind.name == "thread"]
    return [loop for loop in loops if loop.kind.width > 1 and running(loop)]


def program(rows: int, columns: int, dtype: str, reducer: str, acc: str, more: str = "") -> str:
    """A running ``reducer`` along rows; one row: no loop over rows."""
    shape = f"{rows}, {columns}" if rows > 1 else f"{columns}"
    at = "i, k" if rows > 1 else "k"
    body = f"""acc s: {acc} = {reducer}
      for k in {columns} {{
        s {reducer}= {acc}(x[{at}])
        out[{at}] = {dtype}(s)
      }}
      {more or "last[" + ("i" if rows > 1 else "0") + f"] = {dtype}(s)"}"""
    return f"""
module @LOOPS() {{
  input x: {dtype}[{shape}]
  temp out: {dtype}[{shape}]
  temp last: {dtype}[{rows}]
  launch k(x, out, last)
  return out, last
}}
kernel k(x: {dtype}[{shape}], out: {dtype}[{shape}], last: {dtype}[{rows}]) {{
  {f"for i in {rows} {{" if rows > 1 else ""}
      {body}
  {"}" if rows > 1 else ""}
}}
"""


@pytest.mark.parametrize(
    "rows, columns, launches, threads, lanes",
    [
        (32768, 4096, 1, 512, 4),
        (1000, 100, 1, 32, 4),
        (600, 4097, 1, 512, 1),
        (40000, 64, 1, 32, 4),
        (1, 10_000_000, 4, 1024, 4),
        (1, 3000, 1, 1024, 4),
        (1, 1000, 1, 256, 4),
        (4, 1_000_000, 3, 512, 4),
    ],
)
def test_shapes(rows: int, columns: int, launches: int, threads: int, lanes: int) -> None:
    found = kernels(scheduled(program(rows, columns, "f32", "add", "f64")))
    assert len(found) == launches
    *_, last = [k for k in found if scans(k)]
    (loop,) = scans(last)
    vectors = [s.kind.width for s in loop.body if isinstance(s, For) and s.kind.name == "vector"]
    assert (loop.kind.width, vectors) == (threads, [lanes] if lanes > 1 else [])
    if launches >= 3:  # a fourth one stores the total
        assert [len(scans(k)) for k in found[:3]] == [0, 1, 1]


@pytest.mark.parametrize("dtype, reducer, acc", [
    ("f32", "add", "f64"), ("f64", "mul", "f64"), ("bf16", "max", "f32"), ("i32", "add", "i64"), ("f32", "min", "f32"),
])  # fmt: skip
@pytest.mark.parametrize("rows, columns", [(1, 9_001), (1, 16_384), (3, 9_000), (5, 333)])
def test_meaning(rows: int, columns: int, dtype: str, reducer: str, acc: str) -> None:
    text = program(rows, columns, dtype, reducer, acc)
    rng = np.random.default_rng(rows + columns)
    kind = DTYPES[dtype]
    x = rng.integers(-9, 10, rows * columns)
    if kind.kind == "f":
        values = 1 + x * 1e-4 if reducer == "mul" else np.where(rng.random(len(x)) < 0.0001, np.nan, x * 1.0)
        x = to_storage(values.astype(np.float64 if kind.bits == 64 else np.float32), kind)
    else:
        x = x.astype(np.int32)
    module = scheduled(text)
    assert (len(kernels(module)) >= 3) == (columns > 8_000)
    want = run_module(parse_module(text), [x.copy()])
    got = run_module(module, [x.copy()], shuffle=random.Random(3))
    for a, b in zip(got, want, strict=True):
        if dtype == "f32" or dtype == "f64":
            np.testing.assert_allclose(a, b, rtol=1e-6)
        else:
            assert (a == b).all()


@pytest.mark.parametrize("name, body", {
    "twice": "acc s: f32 = add\nfor k in 100 {\ns add= x[i, k]\ns add= 1.0\nout[i, k] = s\n}",
    "before": "acc s: f32 = add\nfor k in 100 {\nout[i, k] = s\ns add= x[i, k]\n}",
    "feedback": "acc s: f32 = add\nfor k in 100 {\ns add= x[i, k]\nout[i, k] = s\nx[i, 0] = s\n}",
    "another sum": "acc s: f32 = add\nfor k in 100 {\ns add= x[i, k]\nout[i, k] = s\n}\n"
    "for j in 100 {\ns add= x[i, j]\n}\nlast[i] = s",
}.items())  # fmt: skip
def test_what_no_threads_share(name: str, body: str) -> None:
    """Loops that need their order for more than a scan stay with one thread each."""
    params = "x: f32[500, 100], out: f32[500, 100], last: f32[500]"
    kernel = f"kernel k({params}) {{\nfor i in 500 {{\n{body}\n}}\n}}"
    inputs = "input x: f32[500, 100]\ninput out: f32[500, 100]\ninput last: f32[500]"
    module = scheduled(
        f"module @LOOPS() {{\n{inputs}\nlaunch k(x, out, last)\nreturn out, last, x\n}}\n{kernel}"
    )
    assert not any(scans(k) for k in kernels(module)), name


def test_with_reductions_and_maps() -> None:
    """A scan, a maximum of its prefixes and a map behind them are one kernel, whose row stays in registers."""
    module = scheduled(
        """
module @LOOPS() {
  input x: bf16[2000, 1024]
  temp t: f32[2000, 1024]
  temp out: f32[2000, 1024]
  launch k(x, t)
  launch scale(t, out)
  return out
}
kernel k(x: bf16[2000, 1024], t: f32[2000, 1024]) {
  for i in 2000 {
    acc s: f32 = add
    for k in 1024 {
      s add= f32(x[i, k])
      t[i, k] = s
    }
  }
}
kernel scale(t: f32[2000, 1024], out: f32[2000, 1024]) {
  for i in 2000 {
    acc m: f32 = max
    for k in 1024 {
      m max= abs(t[i, k])
    }
    for j in 1024 {
      out[i, j] = t[i, j] / m
    }
  }
}
"""
    )
    (kernel,) = kernels(module)
    assert len(scans(kernel)) == 1
    assert [p.name for p in kernel.params] == ["x", "out"]


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 5000])
def test_sizes_known_when_called(size: int) -> None:
    text = """
module @LOOPS(n: 0..) {
  input x: i32[n]
  temp out: i32[n]
  launch k(x, out)
  return out
}
kernel k(n: size 0.., x: i32[n], out: i32[n]) {
  acc s: i32 = add
  for k in n {
    s add= x[k]
    out[k] = s
  }
}
"""
    module = scheduled(text)
    assert any(scans(k) for k in kernels(module))
    x = np.arange(size, dtype=np.int32) - 7
    (found,) = run_module(module, [x], sizes={"n": size}, shuffle=random.Random(1))
    assert (found == np.cumsum(x, dtype=np.int32)).all()


@pytest.mark.parametrize("more", ["", "last[i] = s + out[2999, i]", "x[0, i] = s"])
@pytest.mark.parametrize("stage", ["s add= x[k, i] * a", "s add= x[k, i] * a\nout[k, i] = s"])
def test_columns_in_chunks(stage: str, more: str) -> None:
    """Few long columns, and a value of each that is computed before its loop."""
    module = f"""
module @LOOPS() {{
  input x: i32[3000, 6]
  input m: i32[6]
  input out: i32[3000, 6]
  temp last: i32[6]
  launch k(x, m, out, last)
  return out, last, x
}}
kernel k(x: i32[3000, 6], m: i32[6], out: i32[3000, 6], last: i32[6]) {{
  for i in 6 {{
    a = m[i]
    acc s: i32 = add
    for k in 3000 {{
      {stage}
    }}
    last[i] = s + a
    {more}
  }}
}}
"""
    found = scheduled(module)
    if not more:
        assert len(kernels(found)) == (3 if "out" in stage else 1)
    rng = np.random.default_rng(5)
    inputs = [rng.integers(-9, 9, n).astype(np.int32) for n in (18000, 6, 18000)]
    want = run_module(parse_module(module), [a.copy() for a in inputs])
    got = run_module(found, [a.copy() for a in inputs], shuffle=random.Random(3))
    assert all((a == b).all() for a, b in zip(got, want, strict=True))


def test_values_of_a_row_before_its_reduction_in_chunks() -> None:
    text = """
module @LOOPS() {
  input x: i32[4, 20000]
  input m: i32[4]
  temp out: i32[4]
  launch k(x, m, out)
  return out
}
kernel k(x: i32[4, 20000], m: i32[4], out: i32[4]) {
  for i in 4 {
    a = m[i]
    acc s: i32 = add
    for k in 20000 {
      s add= x[i, k] * a
    }
    out[i] = s
  }
}
"""
    module = scheduled(text)
    assert len(kernels(module)) == 2
    x, m = np.arange(80000, dtype=np.int32) % 17, np.array([1, -2, 3, 4], np.int32)
    (found,) = run_module(module, [x, m], shuffle=random.Random(2))
    assert (found == (x.reshape(4, -1) * m[:, None]).sum(1)).all()
