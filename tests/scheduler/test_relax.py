"""``relax``: near maths where a rounding hides the difference, and nowhere else."""

import pytest

from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.scheduler import relax


def relaxed(body: str, to: str = "bf16") -> str:
    text = (
        f"kernel k(x: f32[64], z: f32[64], y: {to}[64]) {{\n  for i in 64 {{\n"
        + "".join(f"    {line.strip()}\n" for line in body.strip().splitlines())
        + "  }\n}\n"
    )
    return print_kernel(relax._relax(parse_kernel(text)))


@pytest.mark.parametrize(
    "body, found",
    [
        ("y[i] = bf16(exp(x[i]))", "near_exp"),
        ("y[i] = bf16(x[i] * sigmoid(z[i]))", "near_sigmoid"),
        ("y[i] = bf16(0.5 * x[i] * (1.0 + erf(x[i] * 0.7)))", "near_erfc(-(x[i] * 0.7))"),
        ("y[i] = bf16(0.5 * x[i] * (tanh(x[i]) + 1.0))", "near_sigmoid(x[i] * 2.0) * 2.0"),
        ("y[i] = bf16(x[i] / (1.0 + exp(-x[i])))", "x[i] * near_sigmoid(x[i])"),
        ("v = exp(x[i])\ny[i] = bf16(v / (1.0 + v * v))", "near_exp"),
        ("v = exp(x[i])\nw = v * v\ny[i] = bf16(w * w)", "near_exp"),
        ("v = -x[i]\nw = 1.0 + exp(v)\ny[i] = bf16(z[i] / w)", "z[i] * near_sigmoid(-v)"),
        ("y[i] = bf16(max(exp(x[i]), z[i]))", "near_exp"),
        ("y[i] = bf16(select(x[i] < 0.0, z[i], exp(x[i])))", "near_exp"),
    ],
)
def test_near(body: str, found: str) -> None:
    assert found in relaxed(body)


@pytest.mark.parametrize(
    "body",
    [
        "y[i] = bf16(exp(x[i]) - 1.0)",
        "y[i] = bf16(exp(x[i]) + z[i])",
        "y[i] = bf16(log(exp(x[i])))",
        "y[i] = bf16(1.0 + erf(x[i]) - 1.0)",
        "y[i] = bf16(select(exp(x[i]) < 1.0, z[i], x[i]))",
        "v = exp(x[i])\nz[i] = v\ny[i] = bf16(v)",
        "v = exp(x[i])\nw = v * 2.0\ny[i] = bf16(w)\nz[i] = w - 1.0",
        "y[i] = bf16(sin(exp(x[i])))",
        "y[i] = bf16(f32(i32(exp(x[i]))))",
        "v = exp(x[i])\nw = v * v\na = w * w\nb = a * a\ny[i] = bf16(b)",  # eight errors
    ],
)
def test_exact(body: str) -> None:
    assert "near" not in relaxed(body)


def test_results_in_f32_are_exact() -> None:
    assert "near" not in relaxed("y[i] = sigmoid(x[i])", "f32")


SOFTMAX = """kernel k(x: f32[64], y: bf16[64]) {
  acc m: f32 = max
  for i in 64 {
    m max= x[i]
  }
  acc s: f32 = add
  alloc row: f32[64] @local
  for j in 64 {
    e = exp(x[j] - m)
    row[j] = e
    s add= e
  }
  for k in 64 {
    y[k] = bf16(row[k] / s)
  }
}
"""


def test_what_is_not_negative_may_be_summed() -> None:
    assert "near_exp" in print_kernel(relax._relax(parse_kernel(SOFTMAX)))
    for old, new in (
        ("s add= e", "s add= e * x[j]"),  # a sum that may cancel
        ("s add= e", "s add= e\n    s add= -x[j]"),
        ("row[j] = e", "row[j] = e * row[j - 1 if idx(j) > 0]"),  # errors that gather from turn to turn
        ("bf16(row[k] / s)", "bf16(row[k] - s)"),
        ("bf16(row[k] / s)", "bf16(x[k] / log(s))"),
        ("row[k] / s", "(row[k] - 1.0) / s"),
    ):
        assert old in SOFTMAX
        assert "near" not in print_kernel(relax._relax(parse_kernel(SOFTMAX.replace(old, new)))), new


def test_a_scan_reads_its_sums_in_the_loop() -> None:
    text = SOFTMAX.replace("    row[j] = e\n", "").replace("s add= e\n", "s add= e\n    row[j] = s - 1.0\n")
    assert "near" not in print_kernel(relax._relax(parse_kernel(text.replace("row[k] / s", "row[k]"))))


def test_ops_on_narrow_floats_round_by_themselves() -> None:
    text = "kernel k(x: bf16[8], y: bf16[8]) {\n  for i in 8 {\n    y[i] = exp(x[i]) - x[i]\n  }\n}\n"
    assert "near_exp(x[i]) - x[i]" in print_kernel(relax._relax(parse_kernel(text)))
