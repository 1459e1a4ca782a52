"""Scalar operations as LLVM instructions: one function or template a row, the same for scalars and lanes.

What has no row raises CodegenError; nothing else reaches LLVM (some operations that it cannot select end
the process).
"""

from collections.abc import Callable
from dataclasses import dataclass

from lowc.backends.llvm.builder import Builder
from lowc.backends.llvm.types import constant, scalar, suffix, vector
from lowc.backends.x86 import literals
from lowc.errors import CodegenError
from lowc.ir.types import DType, bool_, f32, f64, i32, i64


@dataclass(frozen=True, slots=True)
class Val:
    """An operand: its LLVM text, its dtype, and its lanes (0: one value, the same in all lanes)."""

    text: str
    dtype: DType
    lanes: int = 0

    @property
    def type(self) -> str:
        return vector(scalar(self.dtype), self.lanes)


def splat(b: Builder, value: Val, lanes: int) -> Val:
    """``value`` in every lane."""
    if value.lanes or not lanes:
        return value
    type_ = vector(value.type, lanes)
    if not value.text.startswith("%"):
        return Val(f"splat ({value.type} {value.text})", value.dtype, lanes)
    one = b.pure(f"insertelement {type_} poison, {value.type} {value.text}, i64 0")
    text = b.pure(f"shufflevector {type_} {one}, {type_} poison, <{lanes} x i32> zeroinitializer")
    return Val(text, value.dtype, lanes)


def const(value: bool | int | float, dtype: DType, lanes: int = 0) -> Val:
    return Val(constant(value, dtype, lanes), dtype, lanes)


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
    folded = literals.fold(name, args[0].dtype, [a.text for a in args], dtype, lanes)
    if folded is not None:
        return Val(folded, dtype, lanes)
    row = _TEMPLATES.get((name, args[-1].dtype.kind if name == "select" else args[0].dtype.kind))
    if row is not None:
        type_ = args[0].type
        return Val(
            b.pure(row.format(t=type_, **{"abc"[n]: a.text for n, a in enumerate(args)})), dtype, lanes
        )
    function = _FUNCTIONS.get(name)
    if function is None:
        raise CodegenError(f"no x86 code for {name} on {', '.join(str(a.dtype) for a in args)}")
    return function(b, args, dtype, lanes, ops)


_MOVES = frozenset({"cast", "bitcast", "select"})
_TEMPLATES: dict[tuple[str, str], str] = {
    ("add", "f"): "fadd {t} {a}, {b}",
    ("sub", "f"): "fsub {t} {a}, {b}",
    ("mul", "f"): "fmul {t} {a}, {b}",
    ("div", "f"): "fdiv {t} {a}, {b}",
    ("neg", "f"): "fneg {t} {a}",
    ("eq", "f"): "fcmp oeq {t} {a}, {b}",
    ("ne", "f"): "fcmp une {t} {a}, {b}",
    ("lt", "f"): "fcmp olt {t} {a}, {b}",
    ("le", "f"): "fcmp ole {t} {a}, {b}",
    ("gt", "f"): "fcmp ogt {t} {a}, {b}",
    ("ge", "f"): "fcmp oge {t} {a}, {b}",
    **{
        (name, kind): f"{instruction} {{t}} {{a}}, {{b}}"
        for kind in "iu"
        for name, instruction in (("add", "add"), ("sub", "sub"), ("mul", "mul"))
    },
    **{
        (name, kind): f"{instruction} {{t}} {{a}}, {{b}}"
        for kind in "biu"
        for name, instruction in (
            ("and", "and"),
            ("or", "or"),
            ("xor", "xor"),
            ("eq", "icmp eq"),
            ("ne", "icmp ne"),
        )
    },
    **{(f"{c}", "i"): f"icmp s{c} {{t}} {{a}}, {{b}}" for c in ("lt", "le", "gt", "ge")},
    **{(f"{c}", kind): f"icmp u{c} {{t}} {{a}}, {{b}}" for c in ("lt", "le", "gt", "ge") for kind in "ub"},
}

Row = Callable[[Builder, list[Val], DType, int, frozenset[str]], Val]


def binary(b: Builder, name: str, x: Val, y: Val) -> Val:
    """An op of two arguments of one dtype that has a template."""
    dtype = bool_ if name in ("eq", "ne", "lt", "le", "gt", "ge") else x.dtype
    return apply(b, name, [x, y], dtype, frozenset())


def select(b: Builder, cond: Val, x: Val, y: Val) -> Val:
    lanes = max(cond.lanes, x.lanes, y.lanes)
    x, y = splat(b, x, lanes), splat(b, y, lanes)
    text = b.pure(f"select {cond.type} {cond.text}, {x.type} {x.text}, {y.type} {y.text}")
    return Val(text, x.dtype, lanes)


def intrinsic(b: Builder, name: str, args: list[Val], lanes: int) -> Val:
    """``llvm.NAME`` on arguments of one float or integer type."""
    type_ = args[0].type
    function = f"llvm.{name}.{suffix(scalar(args[0].dtype), lanes)}"
    return Val(b.call(function, type_, [(type_, a.text) for a in args]), args[0].dtype, lanes)


def bits(b: Builder, x: Val, dtype: DType) -> Val:
    """``x`` reinterpreted as ``dtype`` of equal size."""
    new = Val("", dtype, x.lanes)
    if new.type == x.type:
        return Val(x.text, dtype, x.lanes)
    return Val(b.pure(f"bitcast {x.type} {x.text} to {new.type}"), dtype, x.lanes)


# ---------------------------------------------------------------- rows with more to them


def _neg(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    return binary(b, "sub", const(0, dtype, lanes), args[0])


def _not(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    return binary(b, "xor", args[0], const(True if dtype.kind == "b" else -1, dtype, lanes))


def _abs(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    if dtype.kind == "f":
        return intrinsic(b, "fabs", args, lanes)
    if dtype.kind == "u":
        return args[0]
    negative = binary(b, "lt", args[0], const(0, dtype, lanes))
    return select(b, negative, _neg(b, args, dtype, lanes, ops), args[0])


def _extreme(compare: str) -> Row:
    def row(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
        x, y = args
        best = select(b, binary(b, compare, x, y), x, y)
        if dtype.kind != "f":
            return best
        # y is already taken where it is NaN (the comparison is then false); x must be as well
        nan = Val(b.pure(f"fcmp uno {x.type} {x.text}, {x.text}"), bool_, lanes)
        return select(b, nan, x, best)

    return row


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
    rounded = intrinsic(b, "copysign", [rounded, x], lanes)
    return select(b, binary(b, "lt", size, limit), rounded, x)


def _toward(compare: str, step: float) -> Callable[[Builder, Val, int], Val]:
    """floor and ceil from the nearest integer: one back where it went the wrong way."""

    def by_hand(b: Builder, x: Val, lanes: int) -> Val:
        near = _rint_by_hand(b, x, lanes)
        moved = binary(b, "sub" if step < 0 else "add", near, const(abs(step), x.dtype, lanes))
        out = select(b, binary(b, compare, near, x), moved, near)
        return intrinsic(b, "copysign", [out, x], lanes)

    return by_hand


def _trunc_by_hand(b: Builder, x: Val, lanes: int) -> Val:
    size = intrinsic(b, "fabs", [x], lanes)
    return intrinsic(b, "copysign", [_toward("gt", -1.0)(b, size, lanes), x], lanes)


_ROUND_BY_HAND: dict[str, Callable[[Builder, Val, int], Val]] = {
    "rint": _rint_by_hand,
    "roundeven": _rint_by_hand,
    "floor": _toward("gt", -1.0),
    "ceil": _toward("lt", 1.0),
    "trunc": _trunc_by_hand,
}


def _shift(instruction: str) -> Row:
    def row(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
        x, y = args
        word = instruction if instruction == "shl" else ("ashr" if dtype.kind == "i" else "lshr")
        last = const(dtype.bits - 1, dtype, lanes)
        wide = Val(b.pure(f"icmp ugt {y.type} {y.text}, {last.text}"), bool_, lanes)
        count = select(b, wide, last if word == "ashr" else const(0, dtype, lanes), y)
        out = Val(b.pure(f"{word} {x.type} {x.text}, {count.text}"), dtype, lanes)
        return out if word == "ashr" else select(b, wide, const(0, dtype, lanes), out)

    return row


def _integer_division(name: str) -> Row:
    """Quotients and remainders that never trap: x // 0 and x % 0 are 0, and MIN / -1 wraps to MIN."""

    def row(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
        x, y = args
        zero, one = const(0, dtype, lanes), const(1, dtype, lanes)
        known = literals.read(y.text, lanes)
        literal = known is not None
        nothing = binary(b, "eq", y, zero)
        safe, minus = y, None
        if known is None or not {0, -1}.isdisjoint(known):
            unsafe = nothing
            if dtype.kind == "i":
                minus = binary(b, "eq", y, const(-1, dtype, lanes))
                unsafe = binary(b, "or", nothing, minus)
            safe = select(b, unsafe, one, y)
        quotient = _quotient(b, x, safe, literal, ops)
        rest = binary(b, "sub", x, binary(b, "mul", quotient, safe))
        if minus is not None:
            quotient = select(b, minus, binary(b, "sub", zero, x), quotient)
        if name.startswith("floor") and dtype.kind == "i":
            differ = binary(b, "lt", binary(b, "xor", rest, safe), zero)
            off = binary(b, "and", differ, binary(b, "ne", rest, zero))
            quotient = select(b, off, binary(b, "sub", quotient, one), quotient)
            rest = select(b, off, binary(b, "add", rest, safe), rest)
        if "mod" in name:
            return rest
        return quotient if known is not None and 0 not in known else select(b, nothing, zero, quotient)

    return row


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


def _bitcast(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    if args[0].dtype.bits != dtype.bits:
        raise CodegenError(f"bitcast from {args[0].dtype} to {dtype}: sizes differ")
    return bits(b, args[0], dtype)


def _select(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    return select(b, *args)


def _mulhi(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    wide = [cast(b, a, i64, ops) for a in args]
    product = binary(b, "mul", *wide)
    return cast(
        b,
        Val(b.pure(f"lshr {product.type} {product.text}, {const(32, i64, lanes).text}"), i64, lanes),
        dtype,
        ops,
    )


def _copysign(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    return intrinsic(b, "copysign", args, lanes)


# ---------------------------------------------------------------- x * 2**n


def _ldexp(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    if "scalef" in ops:
        return _scalef(b, args[0], args[1], lanes)
    if dtype != f32:
        return _by_steps(b, args[0], args[1], lanes)
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


def _by_steps(b: Builder, x: Val, n: Val, lanes: int) -> Val:
    """x * 2**n in f64 by three factors whose exponent bits are made from n.

    The first two are powers of 2 that only huge n want: up by 2**1023 at most, down by 2**-969, which
    leaves 53 bits above the smallest normal number to what the last factor may still round (as in musl's
    scalbn): one rounding in all.
    """
    low, high = const(-2100.0, f64, lanes), const(2100.0, f64, lanes)
    n = select(b, binary(b, "gt", n, low), n, low)  # also where n is NaN
    n = select(b, binary(b, "lt", n, high), n, high)
    left = Val(b.pure(f"fptosi {n.type} {n.text} to {vector('i32', lanes)}"), i32, lanes)
    for _ in range(2):
        above, below = (
            binary(b, "gt", left, const(1023, i32, lanes)),
            binary(b, "lt", left, const(-1022, i32, lanes)),
        )
        factor = select(b, below, const(2.0**-969, f64, lanes), const(1.0, f64, lanes))
        x = binary(b, "mul", x, select(b, above, const(2.0**1023, f64, lanes), factor))
        taken = select(b, below, const(-969, i32, lanes), const(0, i32, lanes))
        left = binary(b, "sub", left, select(b, above, const(1023, i32, lanes), taken))
    left = select(b, binary(b, "gt", left, const(1023, i32, lanes)), const(1023, i32, lanes), left)
    left = select(b, binary(b, "lt", left, const(-1022, i32, lanes)), const(-1022, i32, lanes), left)
    exponent = cast(b, binary(b, "add", left, const(1023, i32, lanes)), i64, frozenset())
    return binary(b, "mul", x, bits(b, _shl(b, exponent, 52), f64))


def _power(b: Builder, n: Val, lanes: int) -> Val:
    """2**n in f64 for an integral n, as far as it is a normal number."""
    low, high = const(-1000.0, f64, lanes), const(1000.0, f64, lanes)
    n = select(b, binary(b, "gt", n, low), n, low)
    n = select(b, binary(b, "lt", n, high), n, high)
    count = Val(b.pure(f"fptosi {n.type} {n.text} to {vector('i32', lanes)}"), i32, lanes)
    exponent = cast(b, binary(b, "add", count, const(1023, i32, lanes)), i64, frozenset())
    return bits(b, _shl(b, exponent, 52), f64)


def _shl(b: Builder, x: Val, count: int) -> Val:
    return Val(b.pure(f"shl {x.type} {x.text}, {const(count, x.dtype, x.lanes).text}"), x.dtype, x.lanes)


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
        wide = Val(b.pure(f"zext {x.type} {x.text} to {vector('i32', lanes)}"), i32, lanes)
        return bits(b, _shl(b, wide, 16), f32)
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
    word = bits(b, x, i32)
    odd = binary(b, "and", _lshr(b, word, 16), const(1, i32, lanes))
    rounded = binary(b, "add", binary(b, "add", word, const(0x7FFF, i32, lanes)), odd)
    nan = Val(b.pure(f"fcmp uno {x.type} {x.text}, {x.text}"), bool_, lanes)
    high = _lshr(b, select(b, nan, const(0x7FC00000, i32, lanes), rounded), 16)
    return Val(b.pure(f"trunc {high.type} {high.text} to {vector('i16', lanes)}"), dtype, lanes)


def _lshr(b: Builder, x: Val, count: int) -> Val:
    return Val(b.pure(f"lshr {x.type} {x.text}, {const(count, x.dtype, x.lanes).text}"), x.dtype, x.lanes)


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


def _rsqrt(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    return binary(b, "div", const(1.0, dtype, lanes), intrinsic(b, "sqrt", args, lanes))


_FUNCTIONS: dict[str, Row] = {
    **{name: _libm(name) for name in LIBM},
    "neg": _neg,
    "not": _not,
    "abs": _abs,
    "min": _extreme("lt"),
    "max": _extreme("gt"),
    "fma": _fma,
    "mad": _mad,
    "mulhi": _mulhi,
    "sqrt": _unary_intrinsic("sqrt"),
    "copysign": _copysign,
    "floor": _unary_intrinsic("floor", "round"),
    "ceil": _unary_intrinsic("ceil", "round"),
    "trunc": _unary_intrinsic("trunc", "round"),
    "round": _unary_intrinsic("roundeven", "round"),
    "shl": _shift("shl"),
    "shr": _shift("shr"),
    "floordiv": _integer_division("floordiv"),
    "truncdiv": _integer_division("truncdiv"),
    "floormod": _integer_division("floormod"),
    "truncmod": _integer_division("truncmod"),
    "cast": _cast,
    "bitcast": _bitcast,
    "select": _select,
    "ldexp": _ldexp,
    "sigmoid": _sigmoid,
    "rsqrt": _rsqrt,
}
