"""``lowc::random``: the generator Philox on the number of an element, as arithmetic on u32.

``frontend/random.py`` defines the op in terms of torch.
"""

from collections.abc import Sequence
from math import pi

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import ZERO, Index, constant
from lowc.ir.nodes import Const, Expr
from lowc.ir.philox import FRACTION_BITS, MULTIPLIERS, ROUNDS, WEYL, WORD, needs_two
from lowc.ir.types import DType, f32, f64, i32, i64, u32, u64
from lowc.lowering.builder import Builder, Operand
from lowc.lowering.scalars import bitcast, cast, const, like, op, select
from lowc.lowering.values import Coords, Value, product, ravel


def random(
    b: Builder,
    out: TensorMeta,
    seed: Value,
    number: int,
    kind: str,
    size: Sequence[Operand],
    stride: Sequence[Operand],
    dtype: DType,
    low: float,
    high: float,
) -> Value:
    """Numbers of the type of ``out``; ``kind``, ``low``, ``high``: see ``frontend.random.register``."""
    if isinstance(number, Index) or isinstance(low, Index) or isinstance(high, Index):
        raise NotLowered("bounds that are known only when called")
    if kind in ("uniform", "normal") and dtype.name not in FRACTION_BITS:
        raise NotLowered(f"{kind} numbers of {dtype}")

    def element(c: Coords) -> Expr:
        key = b.let(bitcast(b.load(seed, (ZERO,)), u64))
        position = ravel(c, out.shape)
        four = words(b, position // 4, out.shape, number, key)
        if kind == "normal":
            drawn = gaussian(b, four, position, f64 if dtype == f64 else f32)
            if (low, high) != (0.0, 1.0):
                drawn = op("add", like(low, drawn), op("mul", like(high, drawn), drawn))
            return cast(drawn, dtype)
        x = y = _picked(b, four, position)
        if needs_two(kind, low, high, dtype == f64):
            y = _picked(b, words(b, position // 4, out.shape, ~number & WORD, key), position)
        if kind == "integers":
            picked = below(b, int(high) - int(low), x, y)
            return cast(op("add", cast(picked, i64), const(int(low), i64)), dtype)
        if kind == "bernoulli":
            return cast(op("lt", fraction(x, x, f32), const(low, f32)), dtype)
        drawn = cast(fraction(x, y, dtype), f64 if dtype == f64 else f32)
        if (low, high) == (0.0, 1.0):
            return cast(drawn, dtype)
        rounded = b.let(cast(op("add", like(low, drawn), op("mul", like(high - low, drawn), drawn)), dtype))
        return select(op("lt", rounded, like(high, rounded)), rounded, like(low, rounded))

    return b.map(out, element)


def _picked(b: Builder, words: Sequence[Expr], position: Index) -> Expr:
    """The word of this position among the four."""
    place = b.let(b.index(position % 4))
    first, second = (select(_is(place, n), words[n], words[n + 1]) for n in (0, 2))
    return b.let(select(op("lt", place, const(2, i64)), first, second))


def _is(place: Expr, number: int) -> Expr:
    return op("eq", place, const(number, i64))


def words(b: Builder, position: Index, shape: Coords, number: int, key: Expr) -> list[Expr]:
    """The four words of the generator for the counter (``position``, ``number``) and the key (u64)."""
    at = b.let(b.index(position))
    count = constant(product(shape))
    few = count is not None and count <= 1 << 32
    above: Expr = const(0, u32) if few else b.let(cast(op("shr", cast(at, u64), const(32, u64)), u32))
    c: list[Expr] = [b.let(cast(at, u32)), above, const(number, u32), const(0, u32)]
    keys = b.let(cast(key, u32)), b.let(cast(op("shr", key, const(32, u64)), u32))
    for turn in range(ROUNDS):
        k0, k1 = (op("add", k, const(turn * w & WORD, u32)) if turn else k for k, w in zip(keys, WEYL, strict=True))
        (high0, low0), (high1, low1) = (_product(m, c[n]) for m, n in zip(MULTIPLIERS, (0, 2), strict=True))
        c = [b.let(word) for word in (_xor(_xor(high1, c[1]), k0), low1, _xor(_xor(high0, c[3]), k1), low0)]
    return c


def _product(a: int, x: Expr) -> tuple[Expr, Expr]:
    """The high and the low word of a * x."""
    if isinstance(x, Const):
        return const(a * int(x.value) >> 32, u32), const(a * int(x.value) & WORD, u32)
    return op("mulhi", const(a, u32), x), op("mul", const(a, u32), x)


def _xor(x: Expr, y: Expr) -> Expr:
    if isinstance(x, Const) and isinstance(y, Const):
        return const(int(x.value) ^ int(y.value), u32)
    return y if isinstance(x, Const) and x.value == 0 else x if isinstance(y, Const) and y.value == 0 else op("xor", x, y)


def below(b: Builder, count: int, x: Expr, y: Expr) -> Expr:
    """An integer (u32) from 0 to ``count`` - 1: ``count`` times the number of 64 bits that ``x`` and ``y`` make, over 2**64."""
    (high, low), (added, _) = _product(count, x), _product(count, y)
    low = b.let(low)
    carry = op("lt", op("add", low, added), low)
    return op("add", high, cast(carry, u32))


def fraction(x: Expr, y: Expr, dtype: DType) -> Expr:
    """A number from 0 to 1, without 1, in f64 for f64, else in f32."""
    bits = FRACTION_BITS[dtype.name]
    if bits <= 32:  # as i32, whose conversion every processor has
        return op("mul", cast(bitcast(op("shr", x, const(32 - bits, u32)), i32), f32), const(2.0**-bits, f32))
    high = op("shl", cast(op("shr", x, const(5, u32)), i64), const(26, i64))
    whole = op("or", high, cast(op("shr", y, const(6, u32)), i64))
    return op("mul", cast(whole, f64), const(2.0**-bits, f64))


def gaussian(b: Builder, words: Sequence[Expr], position: Index, dtype: DType) -> Expr:
    """A standard normal number, two of each two words.

    G. Box and M. Muller, "A Note on the Generation of Random Normal Deviates", 1958.
    """
    place = b.let(b.index(position % 4))
    first = b.let(op("lt", place, const(2, i64)))
    x, y = (select(first, words[n], words[n + 2]) for n in (0, 1))
    above_zero = op("mul", cast(op("add", cast(x, i64), const(1, i64)), dtype), const(2.0**-32, dtype))
    radius = b.let(op("sqrt", op("mul", const(-2.0, dtype), op("log", above_zero))))
    turned = b.let(op("mul", op("mul", cast(cast(y, i64), dtype), const(2.0**-32, dtype)), const(2 * pi, dtype)))
    odd = op("ne", b.index(position % 2), const(0, i64))
    return op("mul", radius, select(odd, op("sin", turned), op("cos", turned)))
