"""once: what is made of constants alone is made in front, by launches that need not be repeated, and nothing else is."""

import numpy as np
import pytest

from lowc.ir.interp import run_module
from lowc.ir.nodes import Buffer, Launch, Module
from lowc.ir.parser import parse_module
from lowc.ir.printer import print_module
from lowc.ir.verify import verify_module
from lowc.options import Options
from lowc.scheduler import once, pipeline
from tests.scheduler.test_pipeline import TARGET

COPY = "for j in 96 { for k in 40 { turned[k*96 + j] = w[j*40 + k] } }"
PRODUCT = """for i in 5 { for j2 in 96 {
    acc s: f32 = add
    for k2 in 40 { s add= x[i*40 + k2] * turned[k2*96 + j2] }
    out[i*96 + j2] = s
  } }"""
BOTH = f"{COPY}\n{PRODUCT}"


def module(body: str = BOTH, fixed: str = "constant", weights: str = "f32", before: str = "", after: str = "") -> Module:
    return parse_module(f"""
module @SCHEDULED() {{
  input x: f32[200]
  input w: {weights}[3840] {fixed}
  temp turned: f32[3840]
  temp out: f32[480]
  {before}
  launch f(x, w, turned, out)
  {after}
  return out
}}
kernel f(x: f32[200], w: {weights}[3840], turned: f32[3840], out: f32[480]) {{
  {body}
}}
kernel g(w: {weights}[3840], turned: f32[3840]) {{
  for i in 3840 {{ turned[i] = w[i] }}
}}""".replace("kernel g", "kernel g" if before or after else "#", 1).split("#")[0])


def values(given: Module) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-4, 5, 200).astype(np.float32), rng.integers(-4, 5, 3840).astype(np.float32)]


def test_a_copy_of_weights_is_made_in_front() -> None:
    given = module()
    done = once.run(given, TARGET, Options())
    verify_module(done, "SCHEDULED")
    assert [s.kernel.name for s in done.steps if isinstance(s, Launch)] == ["f_once", "f"]
    assert once.count(done) == 1 and [b.name for b in once.made(done)] == ["turned"]
    assert done.constants == ("w", "turned") and "turned" not in {t.name for t in done.temps}
    kept = np.zeros(3840, np.float32)
    (found,) = run_module(done, [*values(given), kept])
    (wanted,) = run_module(given, values(given))
    np.testing.assert_array_equal(found, wanted)
    x, w = values(given)
    np.testing.assert_array_equal(kept.reshape(40, 96), w.reshape(96, 40).T)
    # who has it need not run what makes it
    rest = Module(done.level, (), done.inputs, done.temps, done.outputs, done.steps[1:])
    np.testing.assert_array_equal(run_module(rest, [x, np.full_like(w, np.nan), kept])[0], wanted)


def test_the_text_says_what_is_constant() -> None:
    text = print_module(once.run(module(), TARGET, Options()))
    assert "input w: f32[3840] constant" in text and "input turned: f32[3840] constant" in text
    assert print_module(parse_module(text)) == text


@pytest.mark.parametrize(
    "given",
    [
        module(fixed=""),
        module(body=BOTH.replace("w[j*40 + k]", "w[j*40 + k] + x[k]")),
        module(body="a = x[0]\n" + BOTH.replace("= w[j*40 + k]", "= w[j*40 + k] * a")),
        module(body=BOTH + "\nfor l in 3 { turned[l] = x[l] }"),
        module(after="launch g(w, turned)"),
        module(body=BOTH.replace("= w[", "= f32(w[").replace("+ k] }", "+ k]) }", 1), weights="i8"),
    ],
    ids=["no constant", "another input", "a name", "written twice", "written elsewhere", "wider than what is read"],
)
def test_what_is_left_where_it_stands(given: Module) -> None:
    verify_module(given, "SCHEDULED")
    assert once.run(given, TARGET, Options()) is given


def test_what_is_made_of_what_was_made() -> None:
    given = parse_module("""
module @SCHEDULED() {
  input w: f32[64] constant
  input x: f32[64]
  temp a: f32[64]
  temp b: f32[64]
  temp out: f32[64]
  launch first(x, a, out, w)
  launch second(a, b, out)
  return out
}
kernel first(x: f32[64], a: f32[64], out: f32[64], w: f32[64]) {
  for i in 64 { out[i] = x[i] }
  for i1 in 64 { a[i1] = w[i1] + 1.0 }
}
kernel second(a: f32[64], b: f32[64], out: f32[64]) {
  for i in 64 { b[i] = a[63 - i] }
  for i1 in 64 { out[i1] add= b[i1] }
}""")
    done = once.run(given, TARGET, Options())
    verify_module(done, "SCHEDULED")
    assert [s.kernel.name for s in done.steps if isinstance(s, Launch)] == ["first_once", "second_once", "first", "second"]
    w, x = np.arange(64, dtype=np.float32), np.ones(64, np.float32)
    found = run_module(done, [w, x, *(np.zeros(64, np.float32) for _ in range(2))])
    np.testing.assert_array_equal(found[0], run_module(given, [w, x])[0])


@pytest.mark.parametrize("rows", [2, 16, 200])
def test_panels_of_a_product(rows: int) -> None:
    text = f"""
module @LOOPS() {{
  input x: f32[{rows}, 300]
  input w: f32[500, 300] constant
  temp out: f32[{rows}, 500]
  launch f(x, w, out)
  return out
}}
kernel f(x: f32[{rows}, 300], w: f32[500, 300], out: f32[{rows}, 500]) {{
  for i in {rows} {{ for j in 500 {{
    acc s: f32 = add
    for k in 300 {{ s add= product(x[i, k], w[j, k]) }}
    out[i, j] = s
  }} }}
}}"""
    done = pipeline.run(parse_module(text), TARGET, Options(check=True))
    (kept,) = once.made(done)
    assert isinstance(kept, Buffer) and once.count(done) == 1
    for off, changed in (("once", text), ("", text.replace(" constant", ""))):
        module = pipeline.run(parse_module(changed), TARGET, Options(off=off, check=True))
        assert once.count(module) == 0 and not once.made(module)
