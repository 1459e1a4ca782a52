"""Symbolic sizes: what torch holds as sympy expressions over a ShapeEnv becomes ``ir.index.Index``.

Truth values (SymBool) become an Index that is 0 or 1, so that assertions on sizes can be
passed on as numbers.  Ranges of symbols are those of the ShapeEnv; a symbol that is by itself the size of a dimension is also
at least 0, whatever the ShapeEnv knows.  The sizes of the traced call come along as hints.
"""

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as tf
from torch.utils._sympy.symbol import SymT, symbol_is_type

from lowc.errors import Unsupported
from lowc.frontend.symbols import hint_of_symbol, numbers
from lowc.ir.index import ONE, Index, Symbol, constant, floordiv, ix, lower_bound, maximum, minimum, mod

# Bounds beyond these say nothing that an i64 does not say by itself.
_LEAST, _MOST = -(2**63), 2**62


Symbols = dict[Any, Symbol]
"""Symbols by their names and, where an expression has become one (see ``sizes.py``), by sympy's expression."""


def index_of(value: int | torch.SymInt | torch.SymBool | sympy.Basic, symbols: Mapping[Any, Symbol]) -> Index:
    """``value`` as an Index over ``symbols`` (see ``symbols_of``).  Raises Unsupported for what an Index cannot say."""
    if isinstance(value, int):
        return ix(int(value))
    return _convert(value if isinstance(value, sympy.Basic) else value.node.expr, symbols)


def symbols_of(values: Iterable[Any]) -> Symbols:
    """The symbols in ``values`` (tensors and symbolic numbers), by name, with their ranges, in order of appearance."""
    found: dict[str, tuple[sympy.Symbol, Any]] = {}
    dims: set[str] = set()
    for value in values:
        for number in numbers(value):
            if not isinstance(number, torch.SymInt | torch.SymBool | torch.SymFloat):
                continue
            for symbol in sorted(number.node.expr.free_symbols, key=str):
                if symbol_is_type(symbol, SymT.FLOAT) or symbol_is_type(symbol, SymT.UNBACKED_FLOAT):
                    continue  # no size: a 0-d tensor, see floats.py
                found.setdefault(str(symbol), (symbol, number.node.shape_env))
        if isinstance(value, torch.Tensor):
            sizes = [n.node.expr for n in value.shape if isinstance(n, torch.SymInt)]
            dims.update(str(e) for e in sizes if isinstance(e, sympy.Symbol))
    return {name: range_of(name, *where, name in dims) for name, where in found.items()}


def range_of(name: str, expr: Any, shape_env: Any, is_dim: bool, slack: int = 0) -> Symbol:
    """``expr``, a symbol of sympy's or an expression, as a Symbol.  ``slack``: so much wider is its range than torch's (torch's
    floats may round otherwise)."""
    bounds = shape_env.bound_sympy(expr)
    low = max(_bound(bounds.lower, _LEAST) - slack, 0 if is_dim else _LEAST)
    high = _bound(bounds.upper, _MOST) + slack
    return Symbol(name, low, None if high >= _MOST else high, _hint(expr, shape_env))


def _hint(expr: Any, shape_env: Any) -> int | None:
    if isinstance(expr, sympy.Symbol):
        return hint_of_symbol(expr, shape_env)
    hints = {symbol: hint_of_symbol(symbol, shape_env) for symbol in expr.free_symbols}
    value = expr.xreplace({symbol: sympy.Integer(hint) for symbol, hint in hints.items() if hint is not None})
    return int(value) if value.is_Integer else None


def _bound(value: Any, otherwise: int) -> int:
    return min(max(int(value), _LEAST), _MOST) if value.is_Integer else otherwise


# ---------------------------------------------------------------- expressions

ROUNDING = (tf.TruncToInt, tf.FloorToInt, tf.CeilToInt, tf.RoundToInt)
"""What makes an integer of a float."""


def _convert(expr: Any, symbols: Mapping[Any, Symbol]) -> Index:
    if expr.is_Integer:
        return ix(int(expr))
    if expr in (sympy.true, sympy.false):
        return ix(int(bool(expr)))
    if isinstance(expr, sympy.Symbol):
        if str(expr) not in symbols:
            raise Unsupported(f"size {expr} is unknown in this graph")
        return ix(symbols[str(expr)])
    if isinstance(expr, sympy.Piecewise):  # the first value whose condition holds
        chosen = ix(0)
        branches: Any = reversed(expr.args)
        for value, cond in branches:
            chosen = _where(_convert(cond, symbols), _convert(value, symbols), chosen)
        return chosen
    if isinstance(expr, ROUNDING) and expr in symbols:
        return ix(symbols[expr])
    rule = _RULES.get(type(expr))
    if rule is None:
        raise Unsupported(f"sizes with {type(expr).__name__} are not supported: {expr}")
    if rule in (_ceil_to_int, _floor_to_int, _trunc_to_int):
        return rule(*_quotient(expr, symbols))
    return rule(*(_convert(a, symbols) for a in expr.args))


def _quotient(expr: Any, symbols: Mapping[Any, Symbol]) -> tuple[Index, Index]:
    """(a, b) of ``to_int(a / b)`` or ``to_int(c * a)``: exact here; torch goes through a float, which is the same for sizes
    below 2**33 (and factors that are short binary fractions, as 1.5)."""
    inner = expr.args[0]
    if isinstance(inner, tf.IntTrueDiv):
        return _convert(inner.args[0], symbols), _convert(inner.args[1], symbols)
    factor = Fraction(1)
    for part in inner.args if isinstance(inner, sympy.Mul) else (inner,):
        if isinstance(part, sympy.Float | sympy.Integer):
            factor *= Fraction(float(part))
        elif isinstance(part, tf.ToFloat):
            inner = part.args[0]
        else:
            raise Unsupported(f"sizes computed in floating point are not supported: {expr}")
    if max(abs(factor.numerator), factor.denominator) > 2**20 or inner is expr.args[0]:
        raise Unsupported(f"sizes computed in floating point are not supported: {expr}")
    return _convert(inner, symbols) * factor.numerator, ix(factor.denominator)


def _sum(*args: Index) -> Index:
    out = ix(0)
    for arg in args:
        out = out + arg
    return out


def _product(*args: Index) -> Index:
    out = ONE
    for arg in args:
        out = out * arg
    return out


def _power(base: Index, exponent: Index) -> Index:
    times = constant(exponent)
    if times is None or not 0 <= times <= 16:
        raise Unsupported(f"a size to the power of {exponent!r} is not supported")
    return _product(*[base] * times)


def _divisor(b: Index) -> Index:
    low = lower_bound(b)
    if low is None or low < 0:
        raise Unsupported(f"division by {b!r}, which may be negative, is not supported in sizes")
    return b


def _floordiv(a: Index, b: Index) -> Index:
    return floordiv(a, _divisor(b))


def _mod(a: Index, b: Index) -> Index:
    return mod(a, _divisor(b))


def _c_mod(a: Index, b: Index) -> Index:
    low = lower_bound(a)
    if low is None or low < 0:
        raise Unsupported(f"remainder of {a!r}, which may be negative, is not supported in sizes")
    return _mod(a, b)


def _ceildiv(a: Index, b: Index) -> Index:
    return -_floordiv(-a, b)


def _ceil_to_int(a: Index, b: Index) -> Index:
    return _ceildiv(a, b)


def _trunc_to_int(a: Index, b: Index) -> Index:
    low = lower_bound(a)
    if low is None or low < 0:
        raise Unsupported(f"truncation of {a!r} / {b!r}, which may be negative, is not supported in sizes")
    return _floordiv(a, b)


def _floor_to_int(a: Index, b: Index) -> Index:
    return _floordiv(a, b)


def _fold(f: Callable[[Index, Index], Index]) -> Callable[..., Index]:
    def folded(first: Index, *rest: Index) -> Index:
        for arg in rest:
            first = f(first, arg)
        return first

    return folded


def _where(cond: Index, a: Index, b: Index) -> Index:
    return cond * a + (1 - cond) * b


def _ge(a: Index, b: Index) -> Index:
    """1 if ``a >= b``, else 0."""
    return minimum(maximum(a - b + 1, ix(0)), ONE)


def _not(a: Index) -> Index:
    return ONE - a


def _eq(a: Index, b: Index) -> Index:
    return _ge(a, b) * _ge(b, a)


_RULES: dict[type, Callable[..., Index]] = {
    sympy.Add: _sum,
    sympy.Mul: _product,
    sympy.Pow: _power,
    tf.PowByNatural: _power,
    tf.FloorDiv: _floordiv,
    tf.CleanDiv: _floordiv,
    tf.CeilDiv: _ceildiv,
    tf.PythonMod: _mod,
    tf.Mod: _c_mod,
    sympy.Mod: _mod,
    tf.ModularIndexing: lambda a, d, m: _mod(_floordiv(a, d), m),
    tf.Min: _fold(minimum),
    tf.Max: _fold(maximum),
    sympy.Min: _fold(minimum),
    sympy.Max: _fold(maximum),
    sympy.Abs: lambda a: maximum(a, -a),
    tf.LShift: lambda a, n: a * _power(ix(2), n),
    tf.RShift: lambda a, n: floordiv(a, _power(ix(2), n)),
    tf.CeilToInt: _ceil_to_int,
    tf.FloorToInt: _floor_to_int,
    tf.TruncToInt: _trunc_to_int,
    tf.Identity: lambda a: a,
    tf.Where: _where,
    sympy.Ge: _ge,
    sympy.Gt: lambda a, b: _ge(a, b + 1),
    sympy.Le: lambda a, b: _ge(b, a),
    sympy.Lt: lambda a, b: _ge(b, a + 1),
    sympy.Eq: _eq,
    sympy.Ne: lambda a, b: _not(_eq(a, b)),
    sympy.And: _product,
    sympy.Or: _fold(maximum),
    sympy.Not: _not,
}
