"""Rows of the op table that take several instructions and are the same on every target, for scalars and lanes."""

from collections.abc import Callable

from lowc.backends.llvm import literals
from lowc.backends.llvm.builder import Builder
from lowc.backends.llvm.types import vector
from lowc.backends.llvm.values import Val, binary, bits, const, intrinsic, select
from lowc.errors import CodegenError
from lowc.ir.types import DType, bf16, bool_, f32, f64, i32, i64

Row = Callable[[Builder, list[Val], DType, int, frozenset[str]], Val]
Quotient = Callable[[Builder, Val, Val, bool, frozenset[str]], Val]
"""x / y rounded toward 0, where y is neither 0 nor, for signed types, -1; the bool: y is a constant."""


def neg(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    return binary(b, "sub", const(0, dtype, lanes), args[0])


def not_(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    return binary(b, "xor", args[0], const(True if dtype.kind == "b" else -1, dtype, lanes))


def absolute(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    if dtype.kind == "f":
        return intrinsic(b, "fabs", args, lanes)
    if dtype.kind == "u":
        return args[0]
    negative = binary(b, "lt", args[0], const(0, dtype, lanes))
    return select(b, negative, neg(b, args, dtype, lanes, ops), args[0])


def choose(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    return select(b, *args)


def reinterpret(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    if args[0].dtype.bits != dtype.bits:
        raise CodegenError(f"bitcast from {args[0].dtype} to {dtype}: sizes differ")
    return bits(b, args[0], dtype)


def inverse_root(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    return binary(b, "div", const(1.0, dtype, lanes), intrinsic(b, "sqrt", args, lanes))


def extreme(compare: str) -> Row:
    def row(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
        x, y = args
        best = select(b, binary(b, compare, x, y), x, y)
        if dtype.kind != "f":
            return best
        # y is already taken where it is NaN (the comparison is then false); x must be as well
        nan = Val(b.pure(f"fcmp uno {x.type} {x.text}, {x.text}"), bool_, lanes)
        return select(b, nan, x, best)

    return row


def shift(instruction: str) -> Row:
    def row(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
        x, y = args
        word = instruction if instruction == "shl" else ("ashr" if dtype.kind == "i" else "lshr")
        last = const(dtype.bits - 1, dtype, lanes)
        wide = Val(b.pure(f"icmp ugt {y.type} {y.text}, {last.text}"), bool_, lanes)
        count = select(b, wide, last if word == "ashr" else const(0, dtype, lanes), y)
        out = Val(b.pure(f"{word} {x.type} {x.text}, {count.text}"), dtype, lanes)
        return out if word == "ashr" else select(b, wide, const(0, dtype, lanes), out)

    return row


def integer_division(name: str, quotient_of: Quotient) -> Row:
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
        quotient = quotient_of(b, x, safe, literal, ops)
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


def by_steps(b: Builder, x: Val, n: Val, lanes: int) -> Val:
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
    biased = binary(b, "add", left, const(1023, i32, lanes))
    exponent = Val(b.pure(f"sext {biased.type} {biased.text} to {vector('i64', lanes)}"), i64, lanes)
    return binary(b, "mul", x, bits(b, shl(b, exponent, 52), f64))


def widen_bf16(b: Builder, x: Val) -> Val:
    """bf16 as f32: its bits are the upper half."""
    wide = Val(b.pure(f"zext {x.type} {x.text} to {vector('i32', x.lanes)}"), i32, x.lanes)
    return bits(b, shl(b, wide, 16), f32)


def round_to_bf16(b: Builder, x: Val) -> Val:
    """f32 to the nearest bf16, ties to even, by integers; a NaN stays one."""
    lanes = x.lanes
    word = bits(b, x, i32)
    odd = binary(b, "and", lshr(b, word, 16), const(1, i32, lanes))
    rounded = binary(b, "add", binary(b, "add", word, const(0x7FFF, i32, lanes)), odd)
    nan = Val(b.pure(f"fcmp uno {x.type} {x.text}, {x.text}"), bool_, lanes)
    high = lshr(b, select(b, nan, const(0x7FC00000, i32, lanes), rounded), 16)
    return Val(b.pure(f"trunc {high.type} {high.text} to {vector('i16', lanes)}"), bf16, lanes)


def tf32(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    """The nearest with 10 bits of mantissa, ties to even, by integers; NaN and infinities stay."""
    (x,) = args
    word, dropped = (i32, 13) if dtype == f32 else (i64, 42)
    whole = bits(b, x, word)
    odd = binary(b, "and", lshr(b, whole, dropped), const(1, word, lanes))
    up = binary(b, "add", binary(b, "add", whole, const((1 << dropped - 1) - 1, word, lanes)), odd)
    kept = bits(b, binary(b, "and", up, const(-(1 << dropped), word, lanes)), dtype)
    nan = Val(b.pure(f"fcmp uno {x.type} {x.text}, {x.text}"), bool_, lanes)
    return select(b, nan, x, kept)


def shl(b: Builder, x: Val, count: int) -> Val:
    return Val(b.pure(f"shl {x.type} {x.text}, {const(count, x.dtype, x.lanes).text}"), x.dtype, x.lanes)


def lshr(b: Builder, x: Val, count: int) -> Val:
    return Val(b.pure(f"lshr {x.type} {x.text}, {const(count, x.dtype, x.lanes).text}"), x.dtype, x.lanes)
