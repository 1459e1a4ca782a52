"""Loops over few columns, distributed: the same values, and rows shared among cores."""

from dataclasses import replace

import numpy as np
import pytest

from lowc.ir.interp import run_kernel
from lowc.ir.nodes import For, Kernel, Launch
from lowc.ir.parser import parse_kernel
from lowc.ir.walk import statements
from lowc.options import Options
from lowc.scheduler import pipeline
from lowc.scheduler.distribute import distribute
from lowc.target import Target
from tests.backends.harness import ISAS, call, compiled, module_of, target

ROWS = 1024
TARGET = Target("x86", "x", "", 512, 32, 32 << 10, 1 << 20, 32 << 20, 2, frozenset({"fma"}))
NORM = """
kernel norm(x: f32[{size}], w: f32[{c}], y: f32[{size}], rate: f32[{c}]) {{
  for c in {c} {{
    acc s: f32 = add
    for k in {rows} {{
      s add= x[k*{c} + c]
    }}
    m = s / {rows}.0
    acc v: f32 = add
    acc top: f32 = max
    for l in {rows} {{
      d = x[l*{c} + c] - m
      v add= d * d
      top max= d
    }}
    r = rsqrt(v / {rows}.0 + 0.001) + top
    rate[c] = r
    for n in {rows} {{
      y[n*{c} + c] = (x[n*{c} + c] - m) * r * w[c]
    }}
  }}
}}
"""


def norm(columns: int, rows: int = ROWS) -> Kernel:
    return parse_kernel(NORM.format(c=columns, rows=rows, size=rows * columns))


def memory_of(kernel: Kernel) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {p.name: generator.standard_normal(int(str(p.shape[0]))).astype(np.float32) for p in kernel.params}


def results(kernel: Kernel) -> dict[str, np.ndarray]:
    memory = memory_of(kernel)
    run_kernel(kernel, memory)
    return memory


def tops(kernel: Kernel) -> list[str]:
    return [str(s.axis.extent) for s in kernel.body if isinstance(s, For)]


@pytest.mark.parametrize("columns", [17, 32, 50])
def test_one_loop_for_each_time_down_the_rows(columns: int) -> None:
    kernel = norm(columns)
    new = distribute(kernel, TARGET)
    assert tops(new) == [str(columns), str(columns), str(ROWS)]
    before, after = results(kernel), results(new)
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y[n*32 + c]", "y[n + c*1024]"),  # a transpose
        ("x[l*32 + c]", "x[l + c*1024]"),
        ("y[n*32 + c]", "y[n]"),  # iterations meet
        ("rate[c] = r", "rate[c] add= r"),
        ("* r * w[c]", "* select(idx(count) > idx(n), r, w[c])"),  # a let that no other loop has
    ],
)
def test_other_loops_stay(old: str, new: str) -> None:
    text = NORM.format(c=32, rows=ROWS, size=ROWS * 32)
    assert old in text
    text = text.replace(old, new)
    if "count" in new:
        text = text.replace("    rate[c] = r", "    count = i64(r)\n    rate[c] = r")
    kernel = parse_kernel(text)
    assert distribute(kernel, TARGET) is kernel


def test_a_sum_that_is_done_is_handed_on() -> None:
    text = NORM.format(c=32, rows=ROWS, size=ROWS * 32).replace("v add= d * d", "v add= s * s")
    kernel = parse_kernel(text)
    before, after = results(kernel), results(distribute(kernel, TARGET))
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])


def test_short_columns_many_columns_and_small_kernels_stay() -> None:
    for kernel in (norm(32, 200), norm(5000, 300), norm(16, 512)):
        assert distribute(kernel, TARGET) is kernel


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("columns", [3, 32, 33, 160])
def test_native_code(isa: str, columns: int) -> None:
    """On several threads, sums in registers and in memory, lanes that are left over."""
    kernel = norm(columns, 6000)
    options = Options(isa=isa)
    module = pipeline.run(replace(module_of(kernel), level="LOOPS"), target(isa), options)
    artifact, library = compiled(module, isa, True)
    memory, wanted = memory_of(kernel), {k: v.astype(np.float64) for k, v in results(kernel).items()}
    assert call(artifact, library, memory, {}) == 0
    for name in ("y", "rate"):
        np.testing.assert_allclose(memory[name], wanted[name], rtol=2e-4, atol=2e-4)


def test_loops_with_places_that_data_tells_stay() -> None:
    text = NORM.format(c=32, rows=ROWS, size=ROWS * 32)
    text = text.replace("r = rsqrt(", "place = cast:i64(x[c])\n    r = cast:f32(idx(place)) + rsqrt(")
    kernel = parse_kernel(text)
    assert distribute(kernel, TARGET) is kernel


SUM = """
kernel total(x: f32[{size}], y: f32[{c}]) {{
  for c in {c} {{
    acc s: f32 = add
    for k in {rows} {{
      s add= x[k*{c} + c]
    }}
    y[c] = s
  }}
}}
"""


@pytest.mark.parametrize(("cores", "columns"), [(2, 1024), (8, 4096), (16, 8192), (64, 4096), (64, 30000)])
def test_parts_of_sums_fit_on_a_stack_whatever_the_cores(cores: int, columns: int) -> None:
    kernel = parse_kernel(SUM.format(c=columns, rows=2000, size=columns * 2000))
    machine = replace(target("sse2"), cores=cores)
    module = pipeline.run(replace(module_of(kernel), level="LOOPS"), machine, Options(isa="sse2"))
    compiled(module, "sse2", True)  # raises if not
    (step,) = module.steps
    assert isinstance(step, Launch)
    assert any(isinstance(s, For) and s.kind.name == "parallel" for s in statements(step.kernel.body))
