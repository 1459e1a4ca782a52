"""``legalise``: what it gives, that it means the same, and that it leaves alone what is legal."""

import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from lowc.errors import CodegenError
from lowc.ir import numeric
from lowc.ir.interp import run_kernel
from lowc.ir.nodes import Const, Kernel, Launch, Module, Op
from lowc.ir.ops import MATHS
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.ir.types import bf16, f16, f32
from lowc.ir.walk import exprs, parts, statements
from lowc.options import Options
from lowc.scheduler import legalise
from lowc.target import Target


def target(*ops: str) -> Target:
    return Target("x86", "generic", "", 128, 16, 32768, 1 << 20, 1 << 24, 2, frozenset(ops))


TARGETS = {
    "sse2": target(),
    "avx2": target("fma", "f16c"),
    "avx512": target("fma", "f16c", "scalef", "masked"),
}


def legal(text: str, isa: str = "avx512") -> Kernel:
    return legalise.legalise_kernel(parse_kernel(text), TARGETS[isa])


def body(text: str, isa: str = "avx512") -> str:
    """The printed statements of the one loop of a kernel, legalised."""
    lines = print_kernel(legal(text, isa)).splitlines()
    return "\n".join(line.strip() for line in lines[2:-2])


def one(dtype: str, statement: str) -> str:
    return (
        f"kernel k(a: {dtype}[64] @global, b: {dtype}[64] @global, out: {dtype}[64] @global) "
        f"{{\n  for i in 64 {{\n    {statement}\n  }}\n}}"
    )


def ops_of(kernel: Kernel) -> list[Op]:
    return [p for s in statements(kernel.body) for e in exprs(s) for p in parts(e) if isinstance(p, Op)]


# ---------------------------------------------------------------- the text


def test_what_is_legal_stays_the_same_object() -> None:
    kernel = parse_kernel(one("f32", "out[i] = select(a[i] < b[i], a[i] + 1.0, max(a[i], b[i]))"))
    assert legalise.legalise_kernel(kernel, TARGETS["sse2"]) is kernel


def test_narrow_floats_compute_in_f32_and_round_after_each_op() -> None:
    assert body(one("bf16", "out[i] = a[i] + b[i]")) == "out[i] = bf16(f32(a[i]) + f32(b[i]))"
    shown = body(one("bf16", "out[i] = a[i] * b[i] + b[i]"))
    assert shown == "out[i] = bf16(f32(bf16(f32(a[i]) * f32(b[i]))) + f32(b[i]))"


def test_results_that_need_no_rounding_are_not_rounded_in_between() -> None:
    shown = body(one("f16", "out[i] = abs(max(a[i], b[i])) + b[i]"))
    assert shown == "out[i] = f16(abs(max(f32(a[i]), f32(b[i]))) + f32(b[i]))"


def test_a_cast_that_rounds_stays() -> None:
    text = one("f32", "out[i] = f32(bf16(a[i])) + b[i]")
    assert body(text) == "out[i] = f32(bf16(a[i])) + b[i]"


def test_narrow_constants_round_as_they_widen() -> None:
    (add,) = [o for o in ops_of(legal(one("bf16", "out[i] = a[i] + 0.1:bf16"))) if o.name == "add"]
    (constant,) = [a for a in add.args if isinstance(a, Const)]
    assert constant.dtype == f32
    assert constant.value == 0.10009765625


def test_narrow_selects_comparisons_and_copies() -> None:
    assert body(one("bf16", "out[i] = a[i]")) == "out[i] = a[i]"
    shown = body(one("bf16", "out[i] = select(a[i] < b[i], a[i], b[i])"))
    assert shown == "out[i] = select(f32(a[i]) < f32(b[i]), a[i], b[i])"


def test_integers_and_f64_become_narrow_by_way_of_f32() -> None:
    text = "kernel k(a: {0}[8] @global, out: bf16[8] @global) {{\n  for i in 8 {{\n    out[i] = bf16(a[i])\n  }}\n}}"
    assert body(text.format("i64")) == "out[i] = bf16(f32(a[i]))"
    assert body(text.format("f64")) == "out[i] = bf16(f32(a[i]))"
    assert body(text.format("f16")) == "out[i] = bf16(f32(a[i]))"
    assert body(text.format("f32")) == "out[i] = bf16(a[i])"


def run_one(text: str, isa: str, *arrays: Any) -> Any:
    """What the kernel of one loop over 64 elements makes of ``a`` and ``b`` (f32 or f16), legalised."""
    kernel = legal(text, isa)
    sizes = {b.name: len(array) for b, array in zip(kernel.params, arrays, strict=True)}
    assert len(set(sizes.values())) == 1
    run_kernel(kernel, dict(zip(sizes, arrays, strict=True)))
    return arrays[-1]


def test_f16_without_the_instructions() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    text = "kernel k(a: f16[65536], out: f32[65536]) {\n for i in 65536 {\n out[i] = f32(a[i])\n }\n}"
    assert not any(
        o.name == "cast" and f16 in (o.dtype, o.args[0].dtype) for o in ops_of(legal(text, "sse2"))
    )
    got = run_one(text, "sse2", bits.view(np.float16), np.zeros(65536, np.float32))
    want = bits.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(got, want)
    assert (np.signbit(got) == np.signbit(want)).all()


def test_rounding_to_f16_without_the_instructions() -> None:
    halves = np.arange(0x7C01, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves[-1] = 65536.0
    middles = (halves[1:].astype(np.float64) + halves[:-1]) / 2
    near = [
        middles,
        np.nextafter(middles.astype(np.float32), np.float32(0)),
        np.nextafter(middles.astype(np.float32), np.inf),
    ]
    values = np.concatenate([halves, *near, [np.nan, np.inf, 1e-30, 3e38, 131072.0]]).astype(np.float32)
    values = np.concatenate([values, -values])
    n = len(values)
    text = f"kernel k(a: f32[{n}], out: f16[{n}]) {{\n for i in {n} {{\n out[i] = f16(a[i])\n }}\n}}"
    got = run_one(text, "sse2", values, np.zeros(n, np.float16))
    with np.errstate(over="ignore"):
        want = values.astype(np.float16)
    np.testing.assert_array_equal(got, want)
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()


def test_fma_without_the_instruction_rounds_once() -> None:
    rng = np.random.default_rng(5)
    a, b = ((rng.integers(1 << 23, 1 << 24, 4000) * 2.0**-23).astype(np.float32) for _ in range(2))
    # sums just beside the middle of two f32, which rounding twice takes for the middle
    product = a.astype(np.float64) * b
    c = (-(product.astype(np.float32)) + np.float32(2.0**-24)).astype(np.float32)
    c[::2] = (rng.standard_normal(2000) * 2.0 ** rng.integers(-60, 40, 2000)).astype(np.float32)
    a[:4], b[:4], c[:4] = [np.inf, 0.0, np.nan, -1.0], [1.0, -1.0, 1.0, 3e38], [-np.inf, 0.0, 1.0, -3e38]
    n = len(a)
    buffers = ", ".join(f"{x}: f32[{n}]" for x in ("a", "b", "c", "out"))
    text = f"kernel k({buffers}) {{\n for i in {n} {{\n out[i] = fma(a[i], b[i], c[i])\n }}\n}}"
    got = run_one(text, "sse2", a, b, c, np.zeros(n, np.float32))
    np.testing.assert_array_equal(got[:4], np.array([np.nan, 0.0, np.nan, -np.inf], np.float32))
    for k in range(4, n):
        exact = Fraction(float(a[k])) * Fraction(float(b[k])) + Fraction(float(c[k]))
        ours = Fraction(float(got[k]))
        for other in (np.nextafter(got[k], np.float32(np.inf)), np.nextafter(got[k], np.float32(-np.inf))):
            assert abs(exact - ours) <= abs(exact - Fraction(float(other)))


def test_mad() -> None:
    text = one("f32", "out[i] = mad(a[i], b[i], 1.0)")
    assert body(text, "avx2") == "out[i] = fma(a[i], b[i], 1.0)"
    assert body(text, "sse2") == "out[i] = a[i] * b[i] + 1.0"


def test_maths_becomes_lets_before_the_statement() -> None:
    for isa in TARGETS:
        kernel = legal(one("f32", "out[i] = exp(a[i] - b[i])"), isa)
        assert not MATHS & {o.name for o in ops_of(kernel)}
        assert len(kernel.body) == 1
    lines = body(one("f32", "out[i] = exp(a[i] - b[i])")).splitlines()
    assert lines[0] == "t0 = a[i] - b[i]"
    assert lines[-1].startswith("out[i] = select(t1, 0.0, ldexp(")
    assert body(one("f64", "out[i] = erf(a[i])"), "sse2") == "out[i] = erf(a[i])"
    # with fma there is always an expansion
    assert not MATHS & {o.name for o in ops_of(legal(one("f64", "out[i] = erf(a[i])")))}


def test_fresh_names_avoid_those_of_the_kernel() -> None:
    text = "kernel k(t1: f32[8] @global, out: f32[8] @global) {\n  for t0 in 8 {\n    out[t0] = exp(t1[t0])\n  }\n}"
    lets = [s for s in statements(legal(text).body) if hasattr(s, "var")]
    found = [s.var.name for s in lets]  # pyright: ignore
    assert len(found) == len(set(found))
    assert not {"t0", "t1", "out"} & set(found)


@pytest.mark.parametrize("isa", TARGETS)
def test_bytes_beside_each_other_stay_apart(isa: str) -> None:
    """What was found for the cast of one was that of another: a new object had the address of one that was gone."""
    loads = ["bool(a[i])", "b[i]", "c[i]", "d[i]"]
    value = "f16(min(max(f16({}), f16({})), max(f16({}), f16({}))))".format(*loads)
    params = "a: f16[8], b: bool[8], c: i8[8], d: u8[8], y: f16[8]"
    kernel = legal(f"kernel k({params}) {{\n  for i in 8 {{\n    y[i] = {value}\n  }}\n}}", isa)
    shown = print_kernel(kernel)
    assert [shown.count(f"{name}[i]") for name in "abcd"] == [1, 1, 1, 1]


def test_bool_min_and_max() -> None:
    assert body(one("bool", "out[i] = max(a[i], min(a[i], b[i]))")) == "out[i] = a[i] | (a[i] & b[i])"


def test_narrow_accumulators_are_f32() -> None:
    text = """kernel k(a: bf16[4, 8] @global, out: bf16[4] @global) {
      for i in 4 {
        acc m: bf16 = max
        for j in 8 {
          m max= a[i, j]
        }
        out[i] = m
      }
    }"""
    shown = print_kernel(legal(text))
    assert "acc m: f32 = max" in shown
    assert "m max= f32(a[i, j])" in shown
    assert "out[i] = bf16(m)" in shown


def test_atomics_on_narrow_floats_are_refused() -> None:
    text = "kernel k(a: bf16[64] @global, out: bf16[1] @global) {{\n  for i in 64 {0} {{\n    out[0] add= a[i]\n  }}\n}}"
    with pytest.raises(CodegenError, match="atomic add on bf16"):
        legal(text.format("parallel"))
    assert "out[0] = bf16(f32(out[0]) + f32(a[i]))" in print_kernel(legal(text.format("")))


def test_kernels_launched_twice_stay_one_kernel() -> None:
    kernel = parse_kernel(one("f32", "out[i] = tanh(a[i])"))
    launch = Launch(kernel, kernel.params)
    module = Module("BUFFERED", (), kernel.params[:2], (kernel.params[2],), (), (launch, launch))
    new = legalise.run(module, TARGETS["avx2"], Options())
    assert new.level == "MACHINE"
    first, second = (s.kernel for s in new.steps if isinstance(s, Launch))
    assert first is second
    assert first is not kernel


# ---------------------------------------------------------------- the meaning

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, 65504.0, -65504.0, 6e-8, 1.0, -1.0]


def inputs(dtype: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    values = np.concatenate(
        [np.array(SPECIAL, np.float32), rng.standard_normal(64 - len(SPECIAL)).astype(np.float32) * 4]
    )
    rng.shuffle(values)
    with np.errstate(over="ignore"):
        return numeric.to_storage(values, dtype)


def test_what_is_negated_and_chosen_is_not_rounded_in_between() -> None:
    wide = "f32(a[i]) * select(f32(a[i]) < f32(b[i]), -f32(b[i]), f32(a[i]))"
    assert wide in body(one("bf16", "out[i] = a[i] * select(a[i] < b[i], -b[i], a[i])"))
    named = body(one("bf16", "v = select(a[i] < b[i], -b[i], a[i])\n    out[i] = a[i] * v"))
    assert "bf16(" not in named.splitlines()[0]
    assert named.splitlines()[1] == "out[i] = bf16(f32(a[i]) * v)"


PROGRAMS = [
    "out[i] = a[i] * T(select(f32(a[i]) < 1.0:f32, -f32(b[i]), max(f32(a[i]), 0.5:f32)))",
    "v = select(a[i] < b[i], -b[i], abs(a[i]))\n    out[i] = a[i] * v + select(v != v, v, b[i])",
    "out[i] = a[i] + b[i] * a[i] - 0.1",
    "out[i] = max(a[i], 0.0) / (abs(b[i]) + 1.0)",
    "out[i] = select(a[i] <= b[i], floor(a[i]), -b[i])",
    "out[i] = copysign(sqrt(abs(a[i])), b[i]) + min(a[i], b[i])",
    "out[i] = ldexp(a[i], round(b[i]))",
    "out[i] = exp(a[i])",
    "out[i] = a[i] * sigmoid(a[i]) + tanh(b[i])",
    "out[i] = log(abs(a[i])) * erf(b[i])",
]


@pytest.mark.parametrize("isa", TARGETS)
@pytest.mark.parametrize("statement", PROGRAMS)
@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
def test_the_meaning_stays(dtype: Any, statement: str, isa: str) -> None:
    kernel = parse_kernel(one(dtype.name, re.sub(r"(\d\.\d)(?!:)", rf"\1:{dtype.name}", statement).replace("T(", f"{dtype}(")))
    a, b = inputs(dtype, 1), inputs(dtype, 2)
    results: list[Any] = []
    for each in (kernel, legalise.legalise_kernel(kernel, TARGETS[isa])):
        out = np.zeros(64, numeric.storage_dtype(dtype))
        run_kernel(each, {"a": a, "b": b, "out": out})
        results.append(numeric.from_storage(out, dtype).astype(np.float64))
    want, got = results
    if any(name + "(" in statement for name in MATHS):
        # f32 maths is a few units off, which a rounding to a narrow type makes one unit at most
        steps = {"bf16": 2.0**-7, "f16": 2.0**-9, "f32": 2.0**-20}[dtype.name]
        np.testing.assert_allclose(got, want, rtol=steps, atol=1e-7 if dtype == f16 else 1e-38)
        assert (np.signbit(got) == np.signbit(want))[want == 0].all()
    else:
        np.testing.assert_array_equal(got, want)
        assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()
