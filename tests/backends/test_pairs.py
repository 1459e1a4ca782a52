"""The ops ``pair`` and ``dot2`` natively: by instructions of pairs where the processor has them, in all numbers of lanes."""

import numpy as np
import pytest

from lowc.backends import x86
from lowc.ir.numeric import to_storage
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.ir.types import bf16
from lowc.options import Options
from lowc.scheduler import legalise
from tests.backends.harness import ISAS, call, check, compiled, module_of, target

DOTS = """kernel k(n: size 0.., x: bf16[400], y: bf16[400], out: f32[200], total: f32[1], one: f32[1], bits: u32[200]) {{
  for i in n {kind} {{ bits[i] = pair(x[2*i], x[2*i + 1]) }}
  for i1 in n {kind} {{ out[i1] = dot2(pair(x[2*i1], x[2*i1 + 1]), pair(y[i1], y[i1 + 200])) }}
  acc s: f32 = add
  for i2 in n {kind} {{ s add= dot2(pair(x[2*i2], x[2*i2 + 1]), pair(y[2*i2], y[2*i2 + 1 if idx(i2) < 7])) }}
  total[0] = s
  one[0] = dot2(pair(x[3], x[4]), pair(neg(y[0]), y[9] + y[10]))
}}"""


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["", "vector(4)", "vector(8)", "vector(16)", "vector(16, 3)", "vector(32)"])
def test_pairs_and_dots(isa: str, kind: str) -> None:
    machine = print_kernel(legalise.legalise_kernel(parse_kernel(DOTS.format(kind=kind)), target(isa)))
    sizes = [{"n": n} for n in (0, 1, 5, 16, 67, 200)]
    check(machine, isa, sizes, tolerance=1e-5, special=False)
    rng = np.random.default_rng(0)
    edges = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.5], np.float32)
    given = {name: to_storage(rng.choice(edges, 400, p=[0.05, 0.05, 0.05, 0.2, 0.15, 0.25, 0.25]), bf16) for name in "xy"}
    check(machine, isa, sizes, given)


def test_what_lies_in_memory_is_read_at_once() -> None:
    text = """kernel k(x: bf16[512], y: bf16[512], out: f32[256]) {
      for i in 256 vector(16) { out[i] = dot2(pair(x[2*i], x[2*i + 1]), pair(y[2*i], y[2*i + 1])) }
    }"""
    found = target("avx512")
    if "avx512bf16" not in found.ops:
        pytest.skip("no AVX512_BF16 here")
    assembly = x86.stages(found, Options())[".s"](module_of(parse_kernel(text)))
    assert "vdpbf16ps" in assembly and "vpmovzxwd" not in assembly and "vpgather" not in assembly


def test_denormals_count_as_zero_in_whole_registers() -> None:
    """As the manual of the instruction has it."""
    if "avx512bf16" not in target("avx512").ops:
        pytest.skip("no AVX512_BF16 here")
    text = """kernel k(x: bf16[32], y: bf16[32], out: f32[16]) {
      for i in 16 vector(16) { out[i] = dot2(pair(x[2*i], x[2*i + 1]), pair(y[2*i], y[2*i + 1])) }
    }"""
    memory = {"x": np.full(32, 1, np.uint16), "y": np.full(32, 0x7F00, np.uint16), "out": np.ones(16, np.float32)}
    assert call(*compiled(module_of(parse_kernel(text)), "avx512"), memory, {}) == 0
    assert (memory["out"] == 0).all()
