"""sympy sizes to Index: every function of torch's that shapes contain, checked by evaluating both."""

import itertools

import pytest
import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy import functions as tf

from lowc.errors import Unsupported
from lowc.frontend.shapes import _convert, symbols_of
from lowc.ir.index import Symbol, evaluate

A, B = sympy.Symbol("a", integer=True, positive=True), sympy.Symbol("b", integer=True, positive=True)
SYMBOLS = {"a": Symbol("a", 0), "b": Symbol("b", 1)}

EXPRESSIONS = [
    A * B + 3 * A - 7,
    A**3,
    tf.FloorDiv(A * 5 + B, B),
    tf.CeilDiv(A, B),
    tf.PythonMod(A + 3, B),
    tf.Mod(A * 7, B),
    tf.ModularIndexing(A, 3, 4),
    tf.Min(A, B, 5),
    tf.Max(A, 2 * B, 6),
    tf.CleanDiv(A * B, B),
    tf.CeilToInt(tf.IntTrueDiv(A, B)),
    tf.FloorToInt(tf.IntTrueDiv(A, 2)),
    tf.TruncToInt(1.5 * tf.ToFloat(A)),
    tf.CeilToInt(0.375 * tf.ToFloat(A + B)),
    tf.LShift(A, 3),
    tf.RShift(A, 1),
    tf.PowByNatural(A, 2),
    sympy.Abs(A - B),
]
TRUTHS = [
    A >= B,
    A > B,
    A <= 4,
    A < B,
    sympy.Eq(A, B),
    sympy.Ne(A, 3),
    sympy.And(A > 2, B > 2),
    sympy.Or(A > 5, B > 5),
    ~(A > B),
]


@pytest.mark.parametrize("expr", [*EXPRESSIONS, *TRUTHS], ids=str)
def test_value(expr: sympy.Basic) -> None:
    index = _convert(expr, SYMBOLS)
    for a, b in itertools.product((0, 1, 2, 3, 7, 12), (1, 2, 3, 5, 12)):
        value = expr.subs({A: a, B: b})
        assert evaluate(index, {"a": a, "b": b}) == int(bool(value) if expr in TRUTHS else value), (a, b)


REFUSED = [
    tf.FloatTrueDiv(A, B),
    tf.TruncToInt(1.1 * tf.ToFloat(A)),
    tf.FloorDiv(A, A - B),
    sympy.Symbol("other"),
    A**B,
]


@pytest.mark.parametrize("expr", REFUSED, ids=str)
def test_refused(expr: sympy.Basic) -> None:
    with pytest.raises(Unsupported):
        _convert(expr, SYMBOLS)


def test_ranges_come_from_the_shape_env() -> None:
    env = ShapeEnv()
    free = env.create_unbacked_symint()
    bounded = env.create_unbacked_symint()
    torch._check(bounded >= 3)
    torch._check(bounded <= 9)
    found = symbols_of([free, bounded * 2])
    assert [(s.lo, s.hi) for s in found.values()] == [(-(2**63), None), (3, 9)]


def test_a_dimension_is_not_negative() -> None:
    from torch._subclasses import FakeTensorMode

    env = ShapeEnv()
    with FakeTensorMode(shape_env=env):
        size = env.create_unbacked_symint()
        torch._check(size >= 0)
        x = torch.empty(size, 3)
    (symbol,) = symbols_of([x, size]).values()
    assert symbol.lo == 0 and symbol.hi is None
