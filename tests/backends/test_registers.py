"""Arrays in local memory that become registers: the same values as the interpreter's, and no memory in the code."""

import numpy as np
import pytest

from lowc.backends.x86 import module
from lowc.ir.interp import run_kernel
from lowc.ir.parser import parse_kernel
from tests.backends.harness import ISAS, call, compiled, module_of, target

TILE = """kernel k(x: f32[{rows}], y: f32[{columns}], out: f32[{size}]) {{
  alloc tile: f32[{tile}] @local = add
  for k in 10 {{
    alloc line: f32[{wide}] @local
    for l in {wide} vector({lanes}, {flight}) {{ line[l] = y[k*{wide} + l] }}
    for i in 3 unroll(3) {{
      a = x[k*3 + i]
      for j in {wide} vector({lanes}, {flight}) {{ tile[i*{wide} + j] add= {value} }}
    }}
  }}
  for i2 in 3 unroll(3) {{ for j2 in {wide} vector({lanes}, {flight}) {{ out[i2*{wide} + j2] = tile[i2*{wide} + j2] }} }}
}}"""


def tile(lanes: int, flight: int, value: str) -> str:
    wide = lanes * flight
    return TILE.format(
        lanes=lanes, flight=flight, wide=wide, tile=3 * wide, size=3 * wide, rows=30, columns=10 * wide, value=value
    )


def both(text: str, isa: str) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel stores to ``out``: native, interpreted."""
    kernel = parse_kernel(text)
    generator = np.random.default_rng(0)
    memory = {p.name: generator.standard_normal(int(str(p.shape[0]))).astype(np.float32) for p in kernel.params}
    wanted = {name: data.copy() for name, data in memory.items()}
    artifact, library = compiled(module_of(kernel), isa)
    assert call(artifact, library, memory, {}) == 0
    run_kernel(kernel, wanted)
    return memory["out"], wanted["out"]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("flight", [1, 2, 3])
@pytest.mark.parametrize("value", ["product(a, line[j])", "a * line[j]", "line[j]"])
def test_a_tile_is_registers(isa: str, flight: int, value: str) -> None:
    lanes = target(isa).vector_bits // 32
    text = tile(lanes, flight, value)
    found, wanted = both(text, isa)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    code, _ = module.emit_module(module_of(parse_kernel(text)), target(isa), False)
    assert f"alloca [{3 * lanes * flight} x float]" not in code
    assert ("@llvm.fma" in code) == ("product" in value and isa != "sse2")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "change",
    [
        ("for i in 3 unroll(3)", "for i in 3"),  # places that the code finds out
        ("out[i2", "if x[0] > -9.0 { out[i2"),  # no: stays registers, but under a condition
    ],
    ids=["serial rows", "condition"],
)
def test_other_tiles_are_right_too(isa: str, change: tuple[str, str]) -> None:
    lanes = target(isa).vector_bits // 32
    text = tile(lanes, 2, "product(a, line[j])").replace(*change)
    if change[0] == "out[i2":
        text = text.replace("+ j2] }", "+ j2] } }", 1)
    found, wanted = both(text, isa)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_updates_under_a_condition(isa: str) -> None:
    lanes = target(isa).vector_bits // 32
    text = f"""kernel k(x: f32[8], out: f32[{lanes}]) {{
      alloc t: f32[{lanes}] @local = max
      for k in 8 {{ if x[k] > 0.0 {{ for j in {lanes} vector({lanes}) {{ t[j] max= x[k] * cast:f32(idx(j)) }} }} }}
      for i in {lanes} vector({lanes}) {{ out[i] = t[i] }}
    }}"""
    found, wanted = both(text.replace("cast:f32(idx(j))", "f32(idx(j))"), isa)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("isa", ISAS)
def test_a_sum_of_products_rounds_once_where_it_can(isa: str) -> None:
    """a*a - b with a*a that f32 cannot hold: fused, the difference keeps its last bits."""
    text = """kernel k(x: f32[2], y: f32[2], out: f32[1]) {
      acc s: f32 = add
      for k in 2 { s add= product(x[k], y[k]) }
      out[0] = s
    }"""
    a = np.float32(1 + 2**-12)
    memory = {"x": np.array([-1, a], np.float32), "y": np.array([a * a, a], np.float32), "out": np.zeros(1, np.float32)}
    artifact, library = compiled(module_of(parse_kernel(text)), isa)
    assert call(artifact, library, memory, {}) == 0
    exact = float(a) * float(a) - float(np.float32(a * a))
    assert memory["out"][0] == (np.float32(exact) if isa != "sse2" else 0)
