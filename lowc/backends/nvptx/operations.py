"""Scalar operations of a thread as LLVM instructions: one row each.

Only what has a row reaches LLVM: what it cannot select (most maths functions) ends the process.  Maths has no rows, since there
is no C library on the GPU: ``legalise`` has expanded it.  CodegenError names what has none, and it goes to ATen.
"""

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
    tf32,
    widen_bf16,
)
from lowc.backends.llvm.types import scalar
from lowc.backends.llvm.values import Val, binary, const, intrinsic, simple
from lowc.backends.nvptx.remainder import fmod
from lowc.errors import CodegenError
from lowc.ir.types import DType, f16, f32, f64, i32, i64

MOVES = frozenset({"cast", "bitcast", "select"})
AMPERE = "ampere"
"""In the abilities given to a row: max.NaN and conversions to bf16 are instructions (compute capability 8.0)."""
TIES_TO_EVEN = "tf32, ties to even"
"""Likewise: one instruction rounds to TF32 as the op does (compute capability 9.0)."""
FOUR_SUMS = "four sums"
"""Likewise: ``detect.adds_four``."""


def apply(b: Builder, name: str, args: list[Val], dtype: DType, ops: frozenset[str]) -> Val:
    """The op ``name`` on ``args``; ``ops`` are the abilities of the target.  Raises CodegenError if there is no row."""
    if name not in MOVES and any(a.dtype.kind == "f" and a.dtype.bits == 16 for a in args):
        raise CodegenError(f"{name} on {args[0].dtype} must be widened before it reaches the backend")
    value = simple(b, name, args, dtype)
    if value is not None:
        return value
    function = FUNCTIONS.get(name)
    if function is None:
        raise CodegenError(f"no code on a GPU for {name} of {', '.join(str(a.dtype) for a in args)}")
    return function(b, args, dtype, 0, ops)


def _extreme(name: str, compare: str) -> Row:
    by_compare = extreme(compare)

    def row(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
        if dtype == f32 and AMPERE in ops:
            return intrinsic(b, name, args, 0)
        return by_compare(b, args, dtype, 0, ops)

    return row


def _unary(name: str) -> Row:
    def row(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
        return intrinsic(b, name, args, 0)

    return row


def _quotient(b: Builder, x: Val, y: Val, literal: bool, ops: frozenset[str]) -> Val:
    return Val(b.pure(f"{'s' if x.dtype.kind == 'i' else 'u'}div {x.type} {x.text}, {y.text}"), x.dtype)


def _mulhi(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    narrow, wide = f"i{dtype.bits}", f"i{2 * dtype.bits}"
    x, y = (b.pure(f"zext {narrow} {a.text} to {wide}") for a in args)
    product = b.pure(f"mul {wide} {x}, {y}")
    high = b.pure(f"lshr {wide} {product}, {dtype.bits}")
    return Val(b.pure(f"trunc {wide} {high} to {narrow}"), dtype)


def _ldexp(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    if dtype == f64:
        return by_steps(b, args[0], args[1], 0)
    # in f64 the scaled value is as good as exact, so that the conversion back is the only rounding
    x, n = (cast(b, a, f64, ops) for a in args)
    return cast(b, by_steps(b, x, n, 0), f32, ops)


def _ex2(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    return _approximate(b, "llvm.nvvm.ex2.approx.f", args[0])


def _ex2_normal(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    return _approximate(b, "llvm.nvvm.ex2.approx.ftz.f", args[0])


def _rcp(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    return _approximate(b, "llvm.nvvm.rcp.approx.ftz.f", args[0])


def _approximate(b: Builder, function: str, x: Val) -> Val:
    if x.dtype != f32:
        raise CodegenError(f"{function} on {x.dtype}")
    return Val(b.call(function, "float", [("float", x.text)]), f32)


# ---------------------------------------------------------------- conversions


def cast(b: Builder, x: Val, dtype: DType, ops: frozenset[str]) -> Val:
    """``x`` converted: float → integer truncates, → bool is "not zero", between floats rounds to nearest even."""
    source = x.dtype
    if source == dtype:
        return x
    if source.kind == "f" and source.bits == 16:
        return cast(b, _widen(b, x), dtype, ops)
    if dtype.kind == "f" and dtype.bits == 16:
        return _narrow(b, cast(b, x, f32, ops), dtype, ops)  # f64 by way of f32, as ATen does
    if dtype.kind == "b":
        return binary(b, "ne", x, const(0, source))
    if source.kind == "f" and dtype.kind == "f":
        word = "fpext" if dtype.bits > source.bits else "fptrunc"
    elif source.kind == "f":
        if dtype.bits < 32:
            return cast(b, cast(b, x, i32, ops), dtype, ops)
        if dtype.kind == "u" and dtype.bits == 32:
            return cast(b, cast(b, x, i64, ops), dtype, ops)
        if dtype.kind == "u":  # of negative numbers as well, as if by way of a wider signed integer
            large = b.pure(f"fptoui {x.type} {x.text} to i64")
            small = b.pure(f"fptosi {x.type} {x.text} to i64")
            fits = binary(b, "lt", x, const(2.0**63, source))
            return Val(b.pure(f"select i1 {fits.text}, i64 {small}, i64 {large}"), dtype)
        word = "fptosi"
    elif dtype.kind == "f":
        word = "sitofp" if source.kind == "i" else "uitofp"
    elif source.kind == "b" or dtype.bits > source.bits:
        word = "sext" if source.kind == "i" else "zext"
    elif dtype.bits < source.bits:
        word = "trunc"
    else:
        return Val(x.text, dtype)
    return Val(b.pure(f"{word} {x.type} {x.text} to {scalar(dtype)}"), dtype)


def _cast(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    return cast(b, args[0], dtype, ops)


def _widen(b: Builder, x: Val) -> Val:
    if x.dtype == f16:
        half = b.pure(f"bitcast i16 {x.text} to half")
        return Val(b.pure(f"fpext half {half} to float"), f32)
    return widen_bf16(b, x)


def _narrow(b: Builder, x: Val, dtype: DType, ops: frozenset[str]) -> Val:
    if dtype == f16:
        half = b.pure(f"fptrunc float {x.text} to half")
        return Val(b.pure(f"bitcast half {half} to i16"), dtype)
    if AMPERE in ops:
        short = b.pure(f"fptrunc float {x.text} to bfloat")
        return Val(b.pure(f"bitcast bfloat {short} to i16"), dtype)
    return round_to_bf16(b, x)


def narrow_pair(b: Builder, x: Val, y: Val, dtype: DType) -> str:
    """Two f32 rounded to a narrow type by one instruction (on ``AMPERE``), as an i32 with ``x`` in its low half."""
    element = "half" if dtype == f16 else "bfloat"
    one = b.pure(f"insertelement <2 x float> poison, float {x.text}, i32 0")
    both = b.pure(f"insertelement <2 x float> {one}, float {y.text}, i32 1")
    short = b.pure(f"fptrunc <2 x float> {both} to <2 x {element}>")
    return b.pure(f"bitcast <2 x {element}> {short} to i32")


FUNCTIONS: dict[str, Row] = {
    "neg": neg,
    "not": not_,
    "abs": absolute,
    "min": _extreme("minimum", "lt"),
    "max": _extreme("maximum", "gt"),
    "fma": _unary("fma"),
    "mad": _unary("fma"),
    "mulhi": _mulhi,
    "sqrt": _unary("sqrt"),
    "copysign": _unary("copysign"),
    "floor": _unary("floor"),
    "ceil": _unary("ceil"),
    "trunc": _unary("trunc"),
    "round": _unary("roundeven"),
    "tf32": tf32,
    "fmod": fmod,
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
    "rsqrt": inverse_root,
    "ex2": _ex2,
    "ex2_normal": _ex2_normal,
    "rcp": _rcp,
}
