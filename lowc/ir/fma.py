"""Fused multiply-add in numpy, exactly rounded: what the op ``fma`` means, on machines with and without the instruction.

Source: S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE
Transactions on Computers 57(4), 2008.
"""

from fractions import Fraction
from math import isfinite
from typing import Any

import numpy as np

SAFE = (2.0**-400, 2.0**400)
"""Factors and addends of these magnitudes neither overflow nor underflow in ``_emulated``."""


def fma(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` with one rounding, for f32 or f64 arrays or scalars."""
    with np.errstate(all="ignore"):
        plain = a * b + c
        if plain.dtype == np.float32:
            return _to_odd(a.astype(np.float64) * b, c.astype(np.float64)).astype(np.float32)
        a, b, c = np.broadcast_arrays(a, b, c)
        out = np.asarray(_emulated(a, b, c))
        safe = _between(a) & _between(b) & (_between(c) | (c == 0))
        for place in np.argwhere(~safe):
            here = tuple(place)
            out[here] = _exact(float(a[here]), float(b[here]), float(c[here]))
        return out[()]


def _between(x: Any) -> Any:
    return (np.abs(x) > SAFE[0]) & (np.abs(x) < SAFE[1])


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """(s, e) with s the rounded sum and ``s + e == a + b`` (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _two_product(a: Any, b: Any) -> tuple[Any, Any]:
    """(p, e) with p the rounded product and ``p + e == a * b`` (Dekker)."""
    product = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _split(x: Any) -> tuple[Any, Any]:
    scaled = x * 134217729.0  # 2**27 + 1
    high = scaled - (scaled - x)
    return high, x - high


def _to_odd(a: Any, b: Any) -> Any:
    """``a + b`` in f64, rounded to odd: if inexact, to the neighbour whose last bit is 1.

    Rounding that to a shorter format then gives what rounding the exact sum would.
    """
    total, error = _two_sum(a, b)
    total = np.asarray(total)
    odd = (total.view(np.uint64) & np.uint64(1)) == 1
    toward = np.nextafter(total, np.copysign(np.inf, error))
    return np.where(odd | (error == 0) | ~np.isfinite(total), total, toward)


def _emulated(a: Any, b: Any, c: Any) -> Any:
    high, low = _two_product(a, b)
    middle, tail = _two_sum(c, low)
    top, rest = _two_sum(high, middle)
    return top + _to_odd(tail, rest)


def _exact(a: float, b: float, c: float) -> float:
    """One fma in rational numbers."""
    if not (isfinite(a) and isfinite(b) and isfinite(c)):
        return c if isfinite(a) and isfinite(b) else float(np.float64(a) * b + c)
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        return a * b + c  # the sign of the zero
    try:
        return float(total)
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")
