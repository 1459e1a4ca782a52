"""Scalar operations and reducers: one row each.

A row gives the arity, the kinds of dtype it takes (letters of ``types.DType.kind``), the rule for the result dtype, and its
numpy meaning, which is the reference for the interpreter and for every backend.  Rules: ``same`` (all arguments and the
result have one dtype), ``bool`` (arguments of one dtype, result bool), ``given`` (the node says), ``select`` (bool, T, T → T),
``first`` (the dtype of the first argument), ``fixed`` (``takes`` says what it takes and gives).

numpy functions see arrays already widened to the compute dtype (f32 for f16 and bf16) and are rounded afterwards.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowc.ir.fma import fma
from lowc.ir.types import DType, bf16, bool_, f32, i8, i32, u8, u32


@dataclass(frozen=True, slots=True)
class OpRow:
    """``ulp``, ``double``: bounds of the error of lowc's own expansions of f32 and (with fma) f64, in units in the last place
    (0: exactly rounded or exact).  ``takes``: which dtypes arguments have, each with that of the result, where rows have but
    those; all arguments must make one dtype of the result."""

    name: str
    arity: int
    kinds: str
    rule: str
    numpy: Callable[..., Any]
    commutative: bool = False
    ulp: float = 0.0
    double: float = 0.0
    infix: str = ""
    takes: tuple[tuple[DType, DType], ...] | None = None


_where: Callable[..., Any] = np.where


def _identity(a: Any) -> Any:
    return a


def _first(a: Any, b: Any) -> Any:
    return a


def _mad(a: Any, b: Any, c: Any) -> Any:
    return a * b + c


def _rsqrt(x: Any) -> Any:
    return 1 / np.sqrt(x)


def _ldexp(x: Any, n: Any) -> Any:
    return np.ldexp(x, np.clip(np.nan_to_num(n), -3000, 3000).astype(np.int32))


def _tf32(x: Any) -> Any:
    word, dropped = (np.uint32, 13) if np.asarray(x).dtype == np.float32 else (np.uint64, 42)
    bits = np.asarray(x).view(word)
    odd = (bits >> word(dropped)) & word(1)
    kept = (bits + word((1 << dropped - 1) - 1) + odd) & ~word((1 << dropped) - 1)
    return _where(np.isnan(x), x, kept.view(np.asarray(x).dtype))


def _pair(a: Any, b: Any) -> Any:
    low, high = (np.asarray(x, np.float32).view(np.uint32) for x in (a, b))
    return (low >> np.uint32(16)) | (high & np.uint32(0xFFFF0000))


def _dot2(x: Any, y: Any) -> Any:
    halves = [[h.view(np.float32) for h in (v << np.uint32(16), v & np.uint32(0xFFFF0000))] for v in map(np.asarray, (x, y))]
    (a, b), (c, d) = halves
    return (a * c + np.float32(0.0)) + b * d


def _quad(*parts: Any) -> Any:
    wide = np.int32 if np.asarray(parts[0]).dtype == np.int8 else np.uint32
    total: Any = np.uint32(0)
    for n, part in enumerate(parts):
        total = total | (np.asarray(part).view(np.uint8).astype(np.uint32) << np.uint32(8 * n))
    return np.asarray(total).view(wide)


def _dot4(x: Any, y: Any) -> Any:
    total: Any = np.int32(0)
    for n in range(4):
        total = total + _byte(x, n) * _byte(y, n)
    return total


def _byte(x: Any, n: int) -> Any:
    """Byte ``n`` of each element, with a sign if the element has one."""
    x = np.asarray(x)
    return ((x << x.dtype.type(24 - 8 * n)) >> x.dtype.type(24)).astype(np.int32)


def _check_index(value: Any, size: Any, mask: Any) -> Any:
    return _where((value >= 0) & (value < size), value, 0)


def _check_nonzero(value: Any, mask: Any) -> Any:
    return _where(value == 0, np.ones_like(value), value)


def _pow(a: Any, b: Any) -> Any:
    # A copy of the exponent for each element: numpy turns a lone 0.5 into a square root, which differs at -inf and -0.0.
    shape = np.broadcast(a, b).shape
    return np.power(a, np.broadcast_to(b, shape or (1,)).copy()).reshape(shape)


def _erf(x: Any) -> Any:
    from math import erf

    return np.vectorize(erf, otypes=[np.asarray(x).dtype])(x)


def _erfc(x: Any) -> Any:
    from math import erfc

    return np.vectorize(erfc, otypes=[np.asarray(x).dtype])(x)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _truncdiv(a: Any, b: Any) -> Any:
    quotient = np.floor_divide(a, b)
    return quotient + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0))).astype(quotient.dtype)


def _mulhi(a: Any, b: Any) -> Any:
    """The upper half of the exact product; of 64 bits from four products of halves."""
    bits = np.asarray(a).dtype.itemsize * 8
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    if bits < 64:
        return ((x * y) >> bits).astype(a.dtype)
    low = np.uint64(2**32 - 1)
    x0, x1, y0, y1 = x & low, x >> 32, y & low, y >> 32
    middle = x1 * y0 + ((x0 * y0) >> 32)
    return x1 * y1 + (middle >> 32) + ((x0 * y1 + (middle & low)) >> 32)


def _shift(f: Callable[..., Any], fill: Callable[[Any], Any]) -> Callable[..., Any]:
    def shifted(a: Any, b: Any) -> Any:
        bits = np.asarray(a).dtype.itemsize * 8
        wide = (b < 0) | (b >= bits)
        return _where(wide, fill(a), f(a, _where(wide, 0, b).astype(b.dtype)))

    return shifted


def _sign(a: Any) -> Any:
    return _where(a < 0, -1, 0).astype(a.dtype)


OPS: dict[str, OpRow] = {
    row.name: row
    for row in (
        # arithmetic
        OpRow("add", 2, "iuf", "same", np.add, commutative=True, infix="+"),
        OpRow("sub", 2, "iuf", "same", np.subtract, infix="-"),
        OpRow("mul", 2, "iuf", "same", np.multiply, commutative=True, infix="*"),
        OpRow("div", 2, "f", "same", np.divide, infix="/"),
        OpRow("floordiv", 2, "iu", "same", np.floor_divide),
        OpRow("truncdiv", 2, "iu", "same", _truncdiv),
        OpRow("floormod", 2, "iu", "same", np.remainder),
        OpRow("truncmod", 2, "iu", "same", np.fmod),
        OpRow("fmod", 2, "f", "same", np.fmod),
        OpRow("neg", 1, "iuf", "same", np.negative),
        OpRow("abs", 1, "iuf", "same", np.abs),
        OpRow("min", 2, "biuf", "same", np.minimum, commutative=True),
        OpRow("max", 2, "biuf", "same", np.maximum, commutative=True),
        OpRow("fma", 3, "f", "same", fma),
        OpRow("mad", 3, "f", "same", _mad),
        # a product that a sum may take up before it is rounded (``v add= product(a, b)``); a target without fma rounds it
        OpRow("product", 2, "iuf", "same", np.multiply, commutative=True),
        OpRow("mulhi", 2, "u", "same", _mulhi),
        # two bf16 in 32 bits, the first in the lower half
        OpRow("pair", 2, "f", "fixed", _pair, takes=((bf16, u32),)),
        # of two pairs, the sum of both products from +0.0 on, for sums as ``product`` is: products are exact, additions round to
        # f32; what is denormal, of factors or of sums, may count as 0
        OpRow("dot2", 2, "u", "fixed", _dot2, commutative=True, takes=((u32, f32),)),
        # four integers of 8 bits in 32, the first in the lowest byte; signed if they are
        OpRow("quad", 4, "iu", "fixed", _quad, takes=((i8, i32), (u8, u32))),
        # of two such, signed bytes or not each, the sum of the four products, which is exact
        OpRow("dot4", 2, "iu", "fixed", _dot4, commutative=True, takes=((i32, i32), (u32, i32))),
        OpRow("sqrt", 1, "f", "same", np.sqrt),
        OpRow("copysign", 2, "f", "same", np.copysign),
        # instructions of GPUs, a few units in the last place off: 2**x, 1/x (for normal x and 1/x)
        OpRow("ex2", 1, "f", "same", np.exp2),
        OpRow("ex2_normal", 1, "f", "same", np.exp2),  # where neither x nor 2**x is denormal
        OpRow("rcp", 1, "f", "same", np.reciprocal),
        # rounding to integral values
        OpRow("floor", 1, "f", "same", np.floor),
        OpRow("ceil", 1, "f", "same", np.ceil),
        OpRow("trunc", 1, "f", "same", np.trunc),
        OpRow("round", 1, "f", "same", np.rint),
        # to 10 bits of mantissa, as tensor cores have factors of f32; nearest, ties to even
        OpRow("tf32", 1, "f", "same", _tf32),
        # comparison: NaN compares false, but ne is true
        OpRow("eq", 2, "biuf", "bool", np.equal, commutative=True, infix="=="),
        OpRow("ne", 2, "biuf", "bool", np.not_equal, commutative=True, infix="!="),
        OpRow("lt", 2, "biuf", "bool", np.less, infix="<"),
        OpRow("le", 2, "biuf", "bool", np.less_equal, infix="<="),
        OpRow("gt", 2, "biuf", "bool", np.greater, infix=">"),
        OpRow("ge", 2, "biuf", "bool", np.greater_equal, infix=">="),
        # bits; on bool they are the logical operations
        OpRow("and", 2, "biu", "same", np.bitwise_and, commutative=True, infix="&"),
        OpRow("or", 2, "biu", "same", np.bitwise_or, commutative=True, infix="|"),
        OpRow("xor", 2, "biu", "same", np.bitwise_xor, commutative=True, infix="^"),
        OpRow("not", 1, "biu", "same", np.invert),
        OpRow("shl", 2, "iu", "same", _shift(np.left_shift, np.zeros_like), infix="<<"),
        OpRow("shr", 2, "iu", "same", _shift(np.right_shift, _sign), infix=">>"),
        # types: cast float → int truncates (out of range: the target's value), → bool is "!= 0"
        # of float8, nothing but a cast to another type, which is exact for floats, and a bitcast
        OpRow("cast", 1, "biufx", "given", _identity),
        OpRow("bitcast", 1, "iufx", "given", _identity),
        OpRow("select", 3, "biuf", "select", np.where),
        # the same; the condition is seldom true, and a backend may branch around the second argument
        OpRow("rarely", 3, "biuf", "select", np.where),
        # the first argument; a backend may ask for the memory of the second, a load within bounds, which is wanted soon
        OpRow("soon", 2, "biuf", "first", _first),
        # checks: the value, made safe; where mask is true and the check fails, the call raises
        OpRow("check_index", 3, "i", "first", _check_index),
        OpRow("check_nonzero", 2, "iu", "first", _check_nonzero),
        # scaling by a power of two: x * 2**n for an integral-valued n of the same dtype, with one rounding
        OpRow("ldexp", 2, "f", "same", _ldexp),
        # maths: expanded by lowc itself (f32, f64)
        OpRow("exp", 1, "f", "same", np.exp, ulp=2, double=2),
        OpRow("exp2", 1, "f", "same", np.exp2, ulp=2, double=2),
        OpRow("expm1", 1, "f", "same", np.expm1, ulp=2, double=2),
        OpRow("log", 1, "f", "same", np.log, ulp=2, double=2),
        OpRow("log2", 1, "f", "same", np.log2, ulp=2, double=2),
        OpRow("log10", 1, "f", "same", np.log10, ulp=2, double=2),
        OpRow("log1p", 1, "f", "same", np.log1p, ulp=2, double=2),
        OpRow("sin", 1, "f", "same", np.sin, ulp=2, double=2),
        OpRow("cos", 1, "f", "same", np.cos, ulp=2, double=2),
        OpRow("tan", 1, "f", "same", np.tan, ulp=4, double=2),
        OpRow("asin", 1, "f", "same", np.arcsin, ulp=4, double=2),
        OpRow("acos", 1, "f", "same", np.arccos, ulp=4, double=2),
        OpRow("atan", 1, "f", "same", np.arctan, ulp=3, double=2),
        OpRow("atan2", 2, "f", "same", np.arctan2, ulp=4, double=2),
        OpRow("sinh", 1, "f", "same", np.sinh, ulp=3, double=2),
        OpRow("cosh", 1, "f", "same", np.cosh, ulp=3, double=2),
        OpRow("tanh", 1, "f", "same", np.tanh, ulp=2, double=2),
        OpRow("asinh", 1, "f", "same", np.arcsinh, ulp=4, double=2),
        OpRow("acosh", 1, "f", "same", np.arccosh, ulp=4, double=2),
        OpRow("atanh", 1, "f", "same", np.arctanh, ulp=4, double=2),
        OpRow("erf", 1, "f", "same", _erf, ulp=2, double=2),
        OpRow("erfc", 1, "f", "same", _erfc, ulp=4, double=3),
        OpRow("sigmoid", 1, "f", "same", _sigmoid, ulp=3, double=2.5),
        OpRow("rsqrt", 1, "f", "same", _rsqrt, ulp=2, double=2),
        OpRow("pow", 2, "f", "same", _pow, ulp=2, double=2),
        # the same for what is rounded to f16 or bf16 afterwards
        OpRow("near_exp", 1, "f", "same", np.exp, ulp=256),
        OpRow("near_sigmoid", 1, "f", "same", _sigmoid, ulp=256),
        OpRow("near_erfc", 1, "f", "same", _erfc, ulp=256),
    )
}

MATHS = frozenset(name for name, row in OPS.items() if row.ulp)
CHECKS = frozenset({"check_index", "check_nonzero"})
APPROXIMATE = frozenset({"ex2", "ex2_normal", "rcp"})  # instructions that only targets with the ability "ex2" have


@dataclass(frozen=True, slots=True)
class Reducer:
    """``arity`` accumulators; ``op`` is the row that combines two of them (empty for pairs, which backends expand)."""

    name: str
    arity: int
    op: str
    kinds: str


REDUCERS: dict[str, Reducer] = {
    r.name: r
    for r in (
        Reducer("add", 1, "add", "iuf"),
        Reducer("mul", 1, "mul", "iuf"),
        Reducer("max", 1, "max", "biuf"),
        Reducer("min", 1, "min", "biuf"),
        Reducer("and", 1, "and", "biu"),
        Reducer("or", 1, "or", "biu"),
        Reducer("argmax", 2, "", "biuf"),
        Reducer("argmin", 2, "", "biuf"),
    )
}


def identity(reducer: str, dtype: DType) -> bool | int | float:
    """What an accumulator of ``dtype`` starts from.  argmax and argmin: of the value; the index starts at 2**63 - 1.

    A float sum starts from +0.0, as ATen's does.
    """
    if reducer in ("max", "argmax", "min", "argmin"):
        low = reducer in ("max", "argmax")
        if dtype.kind == "f":
            return float("-inf") if low else float("inf")
        if dtype.kind == "b":
            return not low
        if dtype.kind == "u":
            return 0 if low else 2**dtype.bits - 1
        return -(2 ** (dtype.bits - 1)) if low else 2 ** (dtype.bits - 1) - 1
    if reducer == "add":
        return 0.0 if dtype.kind == "f" else 0
    if reducer == "mul":
        return 1.0 if dtype.kind == "f" else 1
    if reducer == "and":
        return True if dtype.kind == "b" else (2**dtype.bits - 1 if dtype.kind == "u" else -1)
    return False if dtype.kind == "b" else 0


FIRST_INDEX = 2**63 - 1


def result_dtype(row: OpRow, args: tuple[DType, ...], given: DType | None) -> DType:
    """The dtype of ``row`` applied to ``args``; raises ValueError, naming the op, if the arguments do not fit the row."""
    if len(args) != row.arity:
        raise ValueError(f"{row.name} takes {row.arity} arguments, got {len(args)}")
    checked = args[1:] if row.rule == "select" else args[:1] if row.rule == "first" else args
    for dtype in checked:
        if dtype.kind not in row.kinds:
            raise ValueError(f"{row.name} does not take {dtype}")
    if row.takes is not None:
        made = {dict(row.takes).get(d) for d in args}
        result = made.pop()
        if made or result is None:
            known = " or ".join(str(d) for d, _ in row.takes)
            raise ValueError(f"{row.name} takes {known}, got {', '.join(map(str, args))}")
        return result
    if row.rule in ("same", "bool") and any(d != args[0] for d in args):
        raise ValueError(f"{row.name} takes arguments of one dtype, got {', '.join(map(str, args))}")
    if row.rule == "select" and (args[0] != bool_ or args[1] != args[2]):
        raise ValueError(f"select takes (bool, T, T), got {', '.join(map(str, args))}")
    if row.rule == "bool":
        return bool_
    if row.rule == "given":
        if given is None:
            raise ValueError(f"{row.name} needs a target dtype")
        return given
    return args[1] if row.rule == "select" else args[0]
