"""The ops ``quad`` and ``dot4`` natively, in all numbers of lanes, signed or not: exact, sums wrapping."""

import numpy as np
import pytest

from lowc.backends import x86
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.options import Options
from lowc.scheduler import legalise
from tests.backends.harness import ISAS, check, module_of, target

DOTS = """kernel k(n: size 0.., x: {x}[800], y: {y}[800], out: i32[200], total: i32[1], one: i32[1], bits: {q}[200]) {{
  for i in n {kind} {{ bits[i] = quad(x[4*i], x[4*i + 1], x[4*i + 2], x[4*i + 3]) }}
  for i1 in n {kind} {{
    out[i1] = dot4(
      quad(x[4*i1], x[4*i1 + 1], x[4*i1 + 2], x[4*i1 + 3]), quad(y[i1], y[i1 + 200], y[i1 + 400], y[i1 + 600])
    )
  }}
  acc s: i32 = add
  for i2 in n {kind} {{
    s add= dot4(
      quad(x[4*i2], x[4*i2 + 1], x[4*i2 + 2], x[4*i2 + 3]),
      quad(y[4*i2], y[4*i2 + 1], y[4*i2 + 2], y[4*i2 + 3 if idx(i2) < 7])
    )
  }}
  total[0] = s
  one[0] = dot4(quad(x[3], x[4], x[5], x[6]), quad(y[0], y[9], y[1] + y[2], y[4]))
}}"""


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("kind", "x", "y"),
    [
        ("", "i8", "u8"),
        ("vector(4)", "u8", "i8"),
        ("vector(8)", "i8", "i8"),
        ("vector(8)", "u8", "i8"),
        ("vector(16, 3)", "i8", "u8"),
        ("vector(16, 3)", "u8", "u8"),
        ("vector(32)", "i8", "i8"),
    ],
)
def test_quads_and_dots(isa: str, kind: str, x: str, y: str) -> None:
    text = DOTS.format(kind=kind, x=x, y=y, q="i32" if x == "i8" else "u32")
    machine = print_kernel(legalise.legalise_kernel(parse_kernel(text), target(isa)))
    sizes = [{"n": n} for n in (0, 1, 5, 67, 200)]
    rng = np.random.default_rng(0)
    extreme = {"i8": np.array([-128, 127, -1], np.int8), "u8": np.array([255, 0, 128], np.uint8)}
    given = {"x": rng.choice(extreme[x], 800), "y": rng.choice(extreme[y], 800)}
    check(machine, isa, sizes, given)
    given = {name: np.full(800, extreme[t][0]) for name, t in zip("xy", (x, y), strict=True)}
    check(machine, isa, sizes, given)


def test_what_lies_in_memory_is_read_at_once_and_multiplied_by_one_instruction() -> None:
    quad = "quad({0}[4*i], {0}[4*i + 1], {0}[4*i + 2], {0}[4*i + 3])"
    text = f"""kernel k(x: u8[512], y: i8[512], out: i32[128]) {{
      for i in 128 vector(16) {{ out[i] = dot4({quad.format("x")}, {quad.format("y")}) }}
    }}"""
    found = target("avx512")
    if "avx512vnni" not in found.ops:
        pytest.skip("no AVX512_VNNI here")
    assembly = x86.stages(found, Options())[".s"](module_of(parse_kernel(text)))
    assert "vpdpbusd" in assembly and "vpmovzx" not in assembly and "vpgather" not in assembly


def test_levels_of_other_processors_know_no_instruction_of_this_one() -> None:
    assert target("avx2").ops.isdisjoint({"avx512vnni", "avx512bf16"})
