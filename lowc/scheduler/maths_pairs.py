"""Sums and products of two numbers as pairs (rounded, what the rounding left over), on targets with fma.

T. Dekker, "A floating-point technique for extending the available precision", 1971; D. Knuth, "The Art of Computer
Programming" 2, 4.2.2.  The leftovers are exact as long as nothing overflows or falls below the normal numbers.
"""

from lowc.ir.nodes import Expr
from lowc.ir.types import f32, f64
from lowc.scheduler.maths_emit import Emit, Operand

Pair = tuple[Expr, Expr]


def product(e: Emit, a: Expr, b: Operand) -> Pair:
    high = e.let(e.mul(a, b))
    return high, e.let(e.mad(a, b, e.neg(high)))


def fast_sum(e: Emit, a: Expr, b: Expr) -> Pair:
    """Of |a| >= |b|, or of an ``a`` that is 0."""
    high = e.let(e.add(a, b))
    return high, e.let(e.sub(b, e.sub(high, a)))


def full_sum(e: Emit, a: Expr, b: Expr) -> Pair:
    high = e.let(e.add(a, b))
    back = e.let(e.sub(high, a))
    return high, e.let(e.add(e.sub(a, e.sub(high, back)), e.sub(b, back)))


def quotient(e: Emit, a: Pair, b: Pair) -> Expr:
    """Of two pairs, rounded about once."""
    inverse = e.let(e.div(1.0, b[0]))
    near = e.let(e.mul(a[0], inverse))
    minus = e.let(e.neg(near))
    return e.mad(e.mad(minus, b[1], e.add(e.mad(minus, b[0], a[0]), a[1])), inverse, near)


def ratio(e: Emit, a: Expr, b: Expr) -> Expr:
    """a / b in f64 to 20 bits, enough for a leftover, where f32 has |a|, |b| and 1 / |b| or ``a`` is negligible."""
    return e.cast(e.quotient(e.cast(a, f32), e.let(e.cast(b, f32))), f64)
