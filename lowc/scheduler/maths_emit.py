"""``Emit``: what the expansions of ``maths_*.py`` build expressions with.

Expansions see a target only through it: ``mad`` becomes one ``fma`` where the target has it, scaling by a
power of two one ``ldexp`` where the target has "scalef".  Values used more than once are named with
``let``, which appends to ``statements``; the caller puts these right before the statement that it rewrites.
Numbers given for an operand become constants of the dtype of the other operands.
"""

from lowc.ir.nodes import Const, Expr, Let, Op, Var
from lowc.ir.types import DType, bool_, f32, i32, i64, u32, u64

# 1.5 * 2**23 and 1.5 * 2**52: adding one rounds to an integer, which is then found in the low bits of the sum
ROUND32 = 12582912.0
ROUND64 = 6755399441055744.0
ROUND32_BITS = 0x4B400000
ROUND64_BITS = 0x4338000000000000
# bits of factors as signed integers
_POWERS32 = {1.0: 0x3F800000, 0.5: 0x3F000000, 0.125: 0x3E000000, -1.0: 0x3F800000 - 2**31}
_POWERS64 = {1.0: 0x3FF << 52, 0.5: 0x3FE << 52, 0.125: 0x3FC << 52, -1.0: (0x3FF << 52) - 2**63}

Operand = Expr | float | int


class Emit:
    """Builds ops and collects the Lets they need.  ``abilities`` is ``Target.ops``; ``taken`` are names not to be used."""

    __slots__ = ("_count", "_names", "_taken", "abilities", "approximate", "branches", "fused", "scales", "statements")

    def __init__(self, abilities: frozenset[str], taken: set[str]) -> None:
        self.statements: list[Let] = []
        self.abilities = abilities
        self.branches = "rarely" in abilities
        self.fused = "fma" in abilities
        self.scales = "scalef" in abilities
        self.approximate = "ex2" in abilities
        self._taken = taken
        self._count = 0
        self._names = True

    def unnamed(self) -> "Emit":
        """One that gives no names: what it builds shares nodes instead, and needs no statement before it."""
        other = Emit(self.abilities, self._taken)
        other._names = False
        return other

    def fresh(self) -> str:
        """A name that nothing has: t0, t1, …"""
        while True:
            name = f"t{self._count}"
            self._count += 1
            if name not in self._taken:
                return name

    def let(self, value: Expr) -> Expr:
        """``value`` under a name, unless it is a name or a constant."""
        if isinstance(value, Const | Var) or not self._names:
            return value
        var = Var(self.fresh(), value.dtype)
        self.statements.append(Let(var, value))
        return var

    def of(self, value: float | int, like: Expr) -> Expr:
        """A constant of the dtype of ``like``."""
        return constant(value, like.dtype)

    # ------------------------------------------------------------ arithmetic

    def add(self, a: Expr, b: Operand) -> Expr:
        return Op("add", (a, constant(b, a.dtype)), a.dtype)

    def sub(self, a: Operand, b: Operand) -> Expr:
        a, b = both(a, b)
        return Op("sub", (a, b), a.dtype)

    def mul(self, a: Expr, b: Operand) -> Expr:
        return Op("mul", (a, constant(b, a.dtype)), a.dtype)

    def div(self, a: Operand, b: Operand) -> Expr:
        a, b = both(a, b)
        return Op("div", (a, b), a.dtype)

    def mad(self, a: Expr, b: Operand, c: Operand) -> Expr:
        """a * b + c, rounded once on targets with "fma", twice on others."""
        b, c = constant(b, a.dtype), constant(c, a.dtype)
        if self.fused:
            return Op("fma", (a, b, c), a.dtype)
        return Op("add", (Op("mul", (a, b), a.dtype), c), a.dtype)

    def poly(self, x: Expr, coefficients: tuple[float, ...]) -> Expr:
        """c[0] + c[1] x + c[2] x**2 + …, by Horner's rule; ``x`` should be a name."""
        value: Expr = Const(coefficients[-1], x.dtype)
        for c in reversed(coefficients[:-1]):
            value = self.mad(x, value, c)
        return value

    def neg(self, a: Expr) -> Expr:
        return Op("neg", (a,), a.dtype)

    def abs(self, a: Expr) -> Expr:
        return Op("abs", (a,), a.dtype)

    def ex2(self, a: Expr, normal: bool = False) -> Expr:
        """2**a, where ``approximate``; ``normal``: 2**a is not denormal, and a denormal ``a`` may count as 0."""
        return Op("ex2_normal" if normal else "ex2", (a,), a.dtype)

    def quotient(self, a: Operand, b: Expr) -> Expr:
        """a / b for b from 1 to 2**60: within two units in the last place where ``approximate``."""
        if self.approximate and b.dtype == f32:
            return self.mul(Op("rcp", (b,), b.dtype), a)
        return self.div(a, b)

    def clamp(self, a: Expr, low: float, high: float) -> Expr:
        """``a`` from ``low`` to ``high``; NaN stays."""
        return Op("min", (Op("max", (a, self.of(low, a)), a.dtype), self.of(high, a)), a.dtype)

    def sqrt(self, a: Expr) -> Expr:
        return Op("sqrt", (a,), a.dtype)

    def floor(self, a: Expr) -> Expr:
        return Op("floor", (a,), a.dtype)

    def copysign(self, a: Expr, sign: Expr) -> Expr:
        return Op("copysign", (a, sign), a.dtype)

    # ------------------------------------------------------------ choice

    def lt(self, a: Expr, b: Operand) -> Expr:
        return Op("lt", (a, constant(b, a.dtype)), bool_)

    def gt(self, a: Expr, b: Operand) -> Expr:
        return Op("gt", (a, constant(b, a.dtype)), bool_)

    def le(self, a: Expr, b: Operand) -> Expr:
        return Op("le", (a, constant(b, a.dtype)), bool_)

    def ge(self, a: Expr, b: Operand) -> Expr:
        return Op("ge", (a, constant(b, a.dtype)), bool_)

    def eq(self, a: Expr, b: Operand) -> Expr:
        return Op("eq", (a, constant(b, a.dtype)), bool_)

    def ne(self, a: Expr, b: Operand) -> Expr:
        return Op("ne", (a, constant(b, a.dtype)), bool_)

    def select(self, cond: Expr, a: Operand, b: Operand) -> Expr:
        a, b = both(a, b)
        return Op("select", (cond, a, b), a.dtype)

    def rarely(self, cond: Expr, a: Expr, b: Expr) -> Expr:
        """``select`` for targets that can skip ``a`` where ``cond`` holds in no lane."""
        return Op("rarely", (cond, a, b), a.dtype)

    def floor_at(self, a: Expr, least: float) -> Expr:
        """``least`` where a < least, else a, NaN included (cheaper than ``max``)."""
        a = self.let(a)
        return self.let(self.select(self.lt(a, least), least, a))

    def cap_at(self, a: Expr, most: float) -> Expr:
        """``most`` where a > most, else a, NaN included."""
        a = self.let(a)
        return self.let(self.select(self.gt(a, most), most, a))

    # ------------------------------------------------------------ bits

    def bit_and(self, a: Expr, b: Operand) -> Expr:
        return Op("and", (a, constant(b, a.dtype)), a.dtype)

    def invert(self, a: Expr) -> Expr:
        return Op("not", (a,), a.dtype)

    def bit_or(self, a: Expr, b: Operand) -> Expr:
        return Op("or", (a, constant(b, a.dtype)), a.dtype)

    def bit_xor(self, a: Expr, b: Operand) -> Expr:
        return Op("xor", (a, constant(b, a.dtype)), a.dtype)

    def shl(self, a: Expr, b: Operand) -> Expr:
        return Op("shl", (a, constant(b, a.dtype)), a.dtype)

    def shr(self, a: Expr, b: Operand) -> Expr:
        return Op("shr", (a, constant(b, a.dtype)), a.dtype)

    def mulhi(self, a: Expr, b: Operand) -> Expr:
        return Op("mulhi", (a, constant(b, a.dtype)), a.dtype)

    def cast(self, a: Expr, dtype: DType) -> Expr:
        return Op("cast", (a,), dtype)

    def bitcast(self, a: Expr, dtype: DType) -> Expr:
        return Op("bitcast", (a,), dtype)

    def bits(self, a: Expr) -> Expr:
        """The bits of a float as a signed integer of its width."""
        return Op("bitcast", (a,), i32 if a.dtype == f32 else i64)

    def unsigned_bits(self, a: Expr) -> Expr:
        return Op("bitcast", (a,), u32 if a.dtype == f32 else u64)

    # ------------------------------------------------------------ powers of two

    def nearest(self, x: Expr, scale: float) -> tuple[Expr, Expr]:
        """(n, t): n the integer nearest to x * scale, as a float, |n| < 2**21; t holds n in its low bits.

        ``shl(bits(t), 23)`` is n << 23, the rest of t being shifted out (f64: 52).
        """
        magic = ROUND32 if x.dtype == f32 else ROUND64
        product = self.mad(x, scale, magic) if scale != 1.0 else self.add(x, magic)
        t = self.let(product)
        return self.let(self.sub(t, magic)), t

    def integer(self, t: Expr) -> Expr:
        """The n of ``nearest`` as an integer."""
        return self.sub(self.bits(t), ROUND32_BITS if t.dtype == f32 else ROUND64_BITS)

    def power(self, t: Expr, factor: float = 1.0) -> Expr:
        """factor * 2**n for the t of ``nearest``; factor is 1, 1/2, 1/8 or -1, the result a normal number."""
        bits, shift = (_POWERS32[factor], 23) if t.dtype == f32 else (_POWERS64[factor], 52)
        return self.bitcast(self.add(self.shl(self.bits(t), shift), bits), t.dtype)

    def scale(self, y: Expr, n: Expr, t: Expr) -> Expr:
        """y * 2**n rounded once, for 0.5 <= |y| <= 2 and -151 <= n <= 128 (f64: -1077, 1024); n, t of ``nearest``."""
        if self.scales:
            return Op("ldexp", (y, n), y.dtype)
        # in two steps, since 2**n need be no normal number; the first one is exact
        shift, one = (23, _POWERS32[1.0]) if t.dtype == f32 else (52, _POWERS64[1.0])
        i = self.let(self.integer(t))
        half = self.let(self.shr(i, 1))
        powers = (self.add(self.shl(k, shift), one) for k in (half, self.sub(i, half)))
        first, rest = (self.bitcast(p, t.dtype) for p in powers)
        return self.mul(self.mul(y, first), rest)


def constant(value: Operand, dtype: DType) -> Expr:
    """``value`` as it is if it is an expression, else a constant of ``dtype``."""
    if isinstance(value, int | float):
        return Const(float(value) if dtype.kind == "f" else value, dtype)
    return value


def both(a: Operand, b: Operand) -> tuple[Expr, Expr]:
    """The operands as expressions; at least one of them must be one, and says the dtype of the other."""
    if isinstance(a, int | float):
        assert not isinstance(b, int | float)
        return constant(a, b.dtype), b
    return a, constant(b, a.dtype)
