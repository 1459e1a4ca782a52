"""Scalar operations as LLVM instructions: one function or template a row, the same for scalars and lanes.

What has no row raises CodegenError; nothing else reaches LLVM (some operations that it cannot select end
the process).
"""

from collections.abc import Callable

from lowc.backends.llvm.builder import Builder
from lowc.backends.llvm.rows import (
    Row,
    absolute,
    by_steps,
    choose,
    extreme,
    integer_division,
    inverse_root,
    neg,
    not_,
    reinterpret,
    round_to_bf16,
    shift,
    shl,
    tf32,
    widen_bf16,
)
from lowc.backends.llvm.types import scalar, vector
from lowc.backends.llvm.values import Val, binary, bits, const, intrinsic, select, simple, splat
from lowc.backends.x86 import dots
from lowc.errors import CodegenError
from lowc.ir.types import DType, f32, f64, i32, i64


def apply(b: Builder, name: str, args: list[Val], dtype: DType, ops: frozenset[str]) -> Val:
    """The op ``name`` on ``args``; ``ops`` are the abilities of the target.  Raises CodegenError if there
    is no row.
    """
    lanes = max(a.lanes for a in args)
    if name not in _MOVES and any(a.dtype.kind == "f" and a.dtype.bits == 16 for a in args):
        raise CodegenError(f"{name} on {args[0].dtype} must be widened before it reaches the backend")
    if name == "select" and not args[0].lanes:
        args = [args[0], *(splat(b, a, lanes) for a in args[1:])]
    else:
        args = [splat(b, a, lanes) for a in args]
    value = simple(b, name, args, dtype)
    if value is not None:
        return value
    function = _FUNCTIONS.get(name)
    if function is None:
        raise CodegenError(f"no x86 code for {name} on {', '.join(str(a.dtype) for a in args)}")
    return function(b, args, dtype, lanes, ops)


_MOVES = frozenset({"cast", "bitcast", "select", "pair", "quad"})
# ---------------------------------------------------------------- rows with more to them


def _fma(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    if "fma" not in ops:
        raise CodegenError("no fused multiply-add on this target")
    return intrinsic(b, "fma", args, lanes)


def _mad(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    if "fma" in ops:
        return intrinsic(b, "fma", args, lanes)
    return binary(b, "add", binary(b, "mul", args[0], args[1]), args[2])


def _unary_intrinsic(name: str, needs: str = "") -> Row:
    def row(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
        if needs and needs not in ops:
            return _ROUND_BY_HAND[name](b, args[0], lanes)
        return intrinsic(b, name, args, lanes)

    return row


def _rint_by_hand(b: Builder, x: Val, lanes: int) -> Val:
    """Round to nearest even by adding and subtracting 2**(mantissa bits); values that large are integral
    already.
    """
    magic = 2.0**23 if x.dtype == f32 else 2.0**52
    size = intrinsic(b, "fabs", [x], lanes)
    limit = const(magic, x.dtype, lanes)
    rounded = binary(b, "sub", binary(b, "add", size, limit), limit)
    rounded = _copysign(b, [rounded, x], x.dtype, lanes, frozenset())
    return select(b, binary(b, "lt", size, limit), rounded, x)


def _toward(compare: str, step: float) -> Callable[[Builder, Val, int], Val]:
    """floor and ceil from the nearest integer: one back where it went the wrong way."""

    def by_hand(b: Builder, x: Val, lanes: int) -> Val:
        near = _rint_by_hand(b, x, lanes)
        moved = binary(b, "sub" if step < 0 else "add", near, const(abs(step), x.dtype, lanes))
        out = select(b, binary(b, compare, near, x), moved, near)
        return _copysign(b, [out, x], x.dtype, lanes, frozenset())

    return by_hand


def _trunc_by_hand(b: Builder, x: Val, lanes: int) -> Val:
    size = intrinsic(b, "fabs", [x], lanes)
    return _copysign(b, [_toward("gt", -1.0)(b, size, lanes), x], x.dtype, lanes, frozenset())


_ROUND_BY_HAND: dict[str, Callable[[Builder, Val, int], Val]] = {
    "rint": _rint_by_hand,
    "roundeven": _rint_by_hand,
    "floor": _toward("gt", -1.0),
    "ceil": _toward("lt", 1.0),
    "trunc": _trunc_by_hand,
}


def _quotient(b: Builder, x: Val, y: Val, literal: bool, ops: frozenset[str]) -> Val:
    """x / y rounded toward 0; y is neither 0 nor, for signed types, -1.

    Lanes have no integer division.  Up to 32 bits it goes by floats: between x/y and the next integer, if
    it is none, lies at least 1/y, relative to x/y 1/x, which is more than the error of a float with twice
    the bits of x.
    """
    dtype = x.dtype
    if not x.lanes or literal or dtype.bits > 32:
        return Val(
            b.pure(f"{'s' if dtype.kind == 'i' else 'u'}div {x.type} {x.text}, {y.text}"), dtype, x.lanes
        )
    wide = f64 if dtype.bits == 32 else f32
    a, c = (cast(b, cast(b, v, i32, ops) if dtype.bits < 32 else v, wide, ops) for v in (x, y))
    ratio = binary(b, "div", a, c)
    if dtype.bits < 32:
        return cast(b, cast(b, ratio, i32, ops), dtype, ops)
    word = "fptosi" if dtype.kind == "i" else "fptoui"
    return Val(b.pure(f"{word} {ratio.type} {ratio.text} to {x.type}"), dtype, x.lanes)


def _mulhi(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    narrow, wide = f"i{dtype.bits}", f"i{2 * dtype.bits}"
    shift = str(dtype.bits)
    if lanes:
        shift = f"<{', '.join([f'{wide} {shift}'] * lanes)}>"
        narrow, wide = vector(narrow, lanes), vector(wide, lanes)
    x, y = (b.pure(f"zext {narrow} {a.text} to {wide}") for a in args)
    product = b.pure(f"mul {wide} {x}, {y}")
    high = b.pure(f"lshr {wide} {product}, {shift}")
    return Val(b.pure(f"trunc {wide} {high} to {narrow}"), dtype, lanes)


def _copysign(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    """By integers: LLVM merges its own copysign with the conversions around it, into conversions from f64 to half that it
    then has to call a library for."""
    word = _WORDS[dtype.bits]
    sign = -(2 ** (dtype.bits - 1))
    size = binary(b, "and", bits(b, args[0], word), const(~sign, word, lanes))
    return bits(b, binary(b, "or", size, binary(b, "and", bits(b, args[1], word), const(sign, word, lanes))), dtype)


_WORDS = {32: i32, 64: i64}


# ---------------------------------------------------------------- x * 2**n


def _ldexp(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    if "scalef" in ops:
        return _scalef(b, args[0], args[1], lanes)
    if dtype != f32:
        return by_steps(b, args[0], args[1], lanes)
    # in f64 the scaled value is exact, so that the conversion back is the only rounding
    x, n = (cast(b, a, f64, ops) for a in args)
    return cast(b, binary(b, "mul", x, _power(b, n, lanes)), f32, ops)


def _scalef(b: Builder, x: Val, n: Val, lanes: int) -> Val:
    """vscalefps, vscalefpd on whole registers; narrower and wider values go through those."""
    full = 512 // x.dtype.bits
    short = "ps" if x.dtype == f32 else "pd"
    if lanes > full:
        half = lanes // 2
        a, c = (_scalef(b, _part(b, x, k, half), _part(b, n, k, half), half) for k in (0, half))
        order = ", ".join(f"i32 {k}" for k in range(lanes))
        text = b.pure(f"shufflevector {a.type} {a.text}, {c.type} {c.text}, <{lanes} x i32> <{order}>")
        return Val(text, x.dtype, lanes)
    if lanes < 128 // x.dtype.bits:
        whole = 128 // x.dtype.bits
        x, n = (_widen(b, v, whole) if v.lanes else splat(b, v, whole) for v in (x, n))
        out = _scalef(b, x, n, whole)
        if lanes:
            return _part(b, out, 0, lanes)
        return Val(b.pure(f"extractelement {out.type} {out.text}, i64 0"), x.dtype)
    width = lanes * x.dtype.bits
    mask = f"i{max(8, lanes)}"
    args = [(x.type, x.text), (n.type, n.text), (x.type, x.text), (mask, "-1")]
    if width == 512:
        args.append(("i32", "4"))
    return Val(b.call(f"llvm.x86.avx512.mask.scalef.{short}.{width}", x.type, args), x.dtype, lanes)


def _part(b: Builder, x: Val, start: int, count: int) -> Val:
    order = ", ".join(f"i32 {start + k}" for k in range(count))
    return Val(
        b.pure(f"shufflevector {x.type} {x.text}, {x.type} poison, <{count} x i32> <{order}>"), x.dtype, count
    )


def _widen(b: Builder, x: Val, lanes: int) -> Val:
    order = ", ".join(f"i32 {k if k < x.lanes else 0}" for k in range(lanes))
    return Val(
        b.pure(f"shufflevector {x.type} {x.text}, {x.type} poison, <{lanes} x i32> <{order}>"), x.dtype, lanes
    )


def _power(b: Builder, n: Val, lanes: int) -> Val:
    """2**n in f64 for an integral n, as far as it is a normal number."""
    low, high = const(-1000.0, f64, lanes), const(1000.0, f64, lanes)
    n = select(b, binary(b, "gt", n, low), n, low)
    n = select(b, binary(b, "lt", n, high), n, high)
    count = Val(b.pure(f"fptosi {n.type} {n.text} to {vector('i32', lanes)}"), i32, lanes)
    exponent = cast(b, binary(b, "add", count, const(1023, i32, lanes)), i64, frozenset())
    return bits(b, shl(b, exponent, 52), f64)


# ---------------------------------------------------------------- conversions


def cast(b: Builder, x: Val, dtype: DType, ops: frozenset[str]) -> Val:
    """``x`` converted: float → integer truncates, → bool is "not zero", between floats rounds to nearest
    even.
    """
    source = x.dtype
    if source == dtype:
        return x
    lanes = x.lanes
    if source.kind == "f" and source.bits == 16:
        return cast(b, _widen_float(b, x, ops), dtype, ops)
    if dtype.kind == "f" and dtype.bits == 16:
        return _narrow_float(b, cast(b, x, f32, ops), dtype, ops)  # f64 by way of f32, as ATen does
    to = Val("", dtype, lanes).type
    if dtype.kind == "b":
        return binary(b, "ne", x, const(0, source, lanes))
    if source.kind == "f" and dtype.kind == "f":
        word = "fpext" if dtype.bits > source.bits else "fptrunc"
    elif source.kind == "f":
        if dtype.bits < 32:
            return cast(b, cast(b, x, i32, ops), dtype, ops)
        if dtype.kind == "u" and dtype.bits == 32:
            return cast(b, cast(b, x, i64, ops), dtype, ops)
        word = "fptoui" if dtype.kind == "u" else "fptosi"
    elif dtype.kind == "f":
        word = "sitofp" if source.kind == "i" else "uitofp"
    elif source.kind == "b" or dtype.bits > source.bits:
        word = "sext" if source.kind == "i" else "zext"
    elif dtype.bits < source.bits:
        word = "trunc"
    else:
        return Val(x.text, dtype, lanes)
    return Val(b.pure(f"{word} {x.type} {x.text} to {to}"), dtype, lanes)


def _cast(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    return cast(b, args[0], dtype, ops)


def _widen_float(b: Builder, x: Val, ops: frozenset[str]) -> Val:
    lanes = x.lanes
    if x.dtype.name == "bf16":
        return widen_bf16(b, x)
    if "f16c" not in ops:
        raise CodegenError("no conversion from f16 without F16C")
    half = b.pure(f"bitcast {x.type} {x.text} to {vector('half', lanes)}")
    return Val(b.pure(f"fpext {vector('half', lanes)} {half} to {vector('float', lanes)}"), f32, lanes)


def _narrow_float(b: Builder, x: Val, dtype: DType, ops: frozenset[str]) -> Val:
    lanes = x.lanes
    if dtype.name == "f16":
        if "f16c" not in ops:
            raise CodegenError("no conversion to f16 without F16C")
        half = b.pure(f"fptrunc {x.type} {x.text} to {vector('half', lanes)}")
        return Val(b.pure(f"bitcast {vector('half', lanes)} {half} to {vector('i16', lanes)}"), dtype, lanes)
    return round_to_bf16(b, x)


# ---------------------------------------------------------------- the C maths library, lane by lane

LIBM: dict[str, str] = {
    "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log10": "log10", "log1p": "log1p",
    "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "atan2": "atan2",
    "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh",
    "erf": "erf", "erfc": "erfc", "pow": "pow", "fmod": "fmod",
}  # fmt: skip


def _libm(name: str) -> Row:
    def row(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
        function = LIBM[name] + ("f" if dtype == f32 else "")
        element = scalar(dtype)
        if not lanes:
            return Val(b.call(function, element, [(element, a.text) for a in args]), dtype)
        out = "poison"
        for lane in range(lanes):
            single = [b.pure(f"extractelement {a.type} {a.text}, i64 {lane}") for a in args]
            value = b.call(function, element, [(element, s) for s in single])
            out = b.pure(f"insertelement {vector(element, lanes)} {out}, {element} {value}, i64 {lane}")
        return Val(out, dtype, lanes)

    return row


def _sigmoid(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    one = const(1.0, dtype, lanes)
    power = apply(b, "exp", [apply(b, "neg", args, dtype, ops)], dtype, ops)
    return binary(b, "div", one, binary(b, "add", one, power))


_FUNCTIONS: dict[str, Row] = {
    **{name: _libm(name) for name in LIBM},
    "neg": neg,
    "not": not_,
    "abs": absolute,
    "min": extreme("lt"),
    "max": extreme("gt"),
    "fma": _fma,
    "mad": _mad,
    "mulhi": _mulhi,
    "pair": dots.pair,
    "dot2": dots.dot2,
    "quad": dots.quad,
    "dot4": dots.dot4,
    "sqrt": _unary_intrinsic("sqrt"),
    "copysign": _copysign,
    "floor": _unary_intrinsic("floor", "round"),
    "ceil": _unary_intrinsic("ceil", "round"),
    "trunc": _unary_intrinsic("trunc", "round"),
    "round": _unary_intrinsic("roundeven", "round"),
    "tf32": tf32,
    "shl": shift("shl"),
    "shr": shift("shr"),
    "floordiv": integer_division("floordiv", _quotient),
    "truncdiv": integer_division("truncdiv", _quotient),
    "floormod": integer_division("floormod", _quotient),
    "truncmod": integer_division("truncmod", _quotient),
    "cast": _cast,
    "bitcast": reinterpret,
    "select": choose,
    "ldexp": _ldexp,
    "sigmoid": _sigmoid,
    "rsqrt": inverse_root,
}
