"""Sizes computed with floats: text, value and form of the computation, and the module's text."""

import math

import numpy as np
import pytest

from lowc.errors import VerifyError
from lowc.ir import arithmetic
from lowc.ir.index import Symbol, ix
from lowc.ir.interp import Tensor, run_module
from lowc.ir.nodes import Arg
from lowc.ir.parser import parse_module
from lowc.ir.printer import print_module
from lowc.ir.types import f32
from lowc.ir.verify import verify_module

S = ix(Symbol("s0", 0))
TREES: list[tuple[Arg, str]] = [
    (("trunc", ("mul", ("float", S), 0.3)), "math.trunc((float(s0) * 0.3))"),
    (("ceil", ("truediv", S, 7)), "math.ceil((s0 / 7))"),
    (("round", ("pow", ("add", S, 2), -0.5)), "round(((s0 + 2) ** (-0.5)))"),
    (("trunc", ("pow", -2, 3.0)), "math.trunc(((-2) ** 3.0))"),
    (("floor", ("neg", ("max", ("sqrt", S * S + 1), 1.5))), "math.floor((-max(math.sqrt((s0*s0 + 1)), 1.5)))"),
]

MODULE = """
module @LOOPS(s0: 0.., f0: 0..) {
  input x: f32[s0]
  temp out: f32[f0]
  f0 = extern lowc.size.default(("trunc", ("mul", ("float", idx(s0)), 0.3)))
  launch copy(x, out)
  return out
}
kernel copy(s0: size 0.., f0: size 0.., x: f32[s0], out: f32[f0]) {
  for i in f0 {
    out[i] = x[i]
  }
}
"""


@pytest.mark.parametrize(("tree", "text"), TREES, ids=[text for _, text in TREES])
def test_value_is_that_of_the_text(tree: Arg, text: str) -> None:
    assert arithmetic.text(tree) == text
    assert arithmetic.wrong(tree) == ""
    assert set(arithmetic.symbols(tree)) == ({Symbol("s0", 0)} if "s0" in text else set())
    for size in (0, 1, 10, 12345, 2**53 + 1):
        assert arithmetic.evaluate(tree, {"s0": size}) == eval(text, {"s0": size, "math": math})


@pytest.mark.parametrize(
    "tree",
    ["trunc", ("open", "x"), ("mul", S), ("trunc", math.inf), ("add", S, True), ("float", ("system", S)), ()],
    ids=str,
)
def test_anything_else_is_refused(tree: Arg) -> None:
    assert arithmetic.wrong(tree)


def test_a_module_with_such_a_size() -> None:
    module = parse_module(MODULE)
    assert print_module(parse_module(print_module(module))) == print_module(module)
    verify_module(module)
    (out,) = run_module(module, [Tensor(np.arange(10, dtype=np.float32), f32)])
    assert len(np.asarray(getattr(out, "array", out))) == 3
    assert arithmetic.known_from(module.steps, {module.symbols[0]}) == set(module.symbols)
    assert arithmetic.known_from(module.steps, set()) == set()


def test_the_verifier_knows_the_form() -> None:
    with pytest.raises(VerifyError, match="no arithmetic that is known"):
        verify_module(parse_module(MODULE.replace('"trunc"', '"int"')))
