"""Derives the polynomial coefficients of ``lowc/scheduler/maths_*.py`` and prints them as Python source.

Usage: ``python tools/derive_coefficients.py > lowc/scheduler/maths_tables.py``, or with names of sets.
Needs mpmath and numpy.

Method.  Each set approximates F by a sum of c_k * x**p_k so that the largest weighted error max |(sum - F)
* W| over an interval is least: Remez exchange (E. Remez, 1934; as in J.-M. Muller, "Elementary Functions",
3rd ed., ch. 3) on a fine grid of Chebyshev points, F and W evaluated by mpmath to 50 digits.  Coefficients
are then rounded to the working precision one by one, the one that matters most first, and the rest is
fitted anew to what the rounding left over (a simple form of fpminimax: N. Brisebarre and S. Chevillard,
"Efficient polynomial L-infinity approximations", ARITH 2007).
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mpmath as mp
import numpy as np

GRID = 1500
Real = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Fit:
    """``target``: F; ``powers``: the p_k; ``weight``: W; ``bits``: precision of the coefficients, 24 or 53."""

    note: str
    target: Real
    powers: tuple[int, ...]
    lo: Any
    hi: Any
    weight: Real = field(default=lambda x: mp.mpf(1))
    bits: int = 24


def rounded(value: Any, bits: int) -> float:
    """``value`` (mpmath) to the nearest number of ``bits`` bits."""
    if value == 0:
        return 0.0
    mantissa, exponent = mp.frexp(value)
    return float(mp.ldexp(mp.nint(mp.ldexp(mantissa, bits)), int(exponent) - bits))


def split_constant(value: Any, bits: tuple[int, ...]) -> tuple[float, ...]:
    """``value`` as a sum of numbers of so many bits each, each the rounded rest of the former."""
    parts: list[float] = []
    for b in bits:
        parts.append(rounded(value, b))
        value = value - mp.mpf(parts[-1])
    return tuple(parts)


def two_over_pi(words: int = 7, zeros: int = 7, bits: int = 32) -> list[int]:
    """2/pi in binary after so many zeros, in words of so many bits."""
    with mp.workprec(words * bits + 100):
        whole = int(mp.floor(2 / mp.pi * mp.mpf(2) ** (bits * words - zeros)))
    return [whole >> bits * (words - 1 - k) & 2**bits - 1 for k in range(words)]


def minimax(basis: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The coefficients c with the least max |basis @ c - target| (rows are grid points): Remez exchange in long double."""
    points, terms = basis.shape
    # where the lowest term changes sign, as x does at 0, what alternates is the quotient of the error by it
    sign = np.sign(basis[:, 0])
    basis, target = basis * sign[:, None], target * sign
    best, least = np.zeros(terms, dtype=np.longdouble), np.inf
    # the exchange stalls from a start that has a point where all columns vanish: try more than one
    for start in (0.5, 0.3, 0.7):
        reference = ((np.arange(terms + 1) + start) / (terms + 1) * points).astype(int)
        found, worst, converged = _remez(basis, target, reference)
        if worst < least:
            best, least = found, worst
        if converged:
            break
    return best


def _remez(basis: np.ndarray, target: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, float, bool]:
    """(coefficients, their largest error, whether it is the least) from one start."""
    terms = basis.shape[1]
    best, least = np.zeros(terms, dtype=np.longdouble), float("inf")
    for _ in range(30):
        signs = (-1.0) ** np.arange(terms + 1)
        system = np.concatenate([basis[reference], signs[:, None]], axis=1)
        solution = _solve(system, target[reference])
        error = basis @ solution[:-1] - target
        worst = float(np.abs(error).max())
        if worst < least:
            best, least = solution[:-1], worst
        if worst <= abs(float(solution[-1])) * (1 + 1e-5):
            return best, least, True
        reference = _exchange(error, terms + 1)
    return best, least, False


def _solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Gauss elimination with mpmath (numpy has no solver for long double)."""
    rows = [[mp.mpf(float(v)) + mp.mpf(float(v - np.longdouble(float(v)))) for v in row] for row in a]
    right = [mp.mpf(float(v)) + mp.mpf(float(v - np.longdouble(float(v)))) for v in b]
    x = mp.lu_solve(mp.matrix(rows), mp.matrix(right))
    return np.array([np.longdouble(float(v)) + np.longdouble(float(v - mp.mpf(float(v)))) for v in x])


def _exchange(error: np.ndarray, count: int) -> np.ndarray:
    """``count`` grid points where the error is extreme and alternates in sign."""
    sign = np.signbit(error)
    cuts = np.concatenate([[0], np.nonzero(sign[1:] != sign[:-1])[0] + 1, [len(error)]])
    peaks = [int(lo + np.argmax(np.abs(error[lo:hi]))) for lo, hi in zip(cuts[:-1], cuts[1:], strict=True)]
    while len(peaks) > count:
        if len(peaks) == count + 1 or (len(peaks) - count) % 2:
            peaks = peaks[1:] if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else peaks[:-1]
        else:
            weakest = min(
                range(len(peaks) - 1), key=lambda i: max(abs(error[peaks[i]]), abs(error[peaks[i + 1]]))
            )
            peaks = peaks[:weakest] + peaks[weakest + 2 :]
    while len(peaks) < count:  # a degenerate start: fill the widest gap
        gaps = np.diff([0, *peaks, len(error) - 1])
        at = int(np.argmax(gaps))
        left = 0 if at == 0 else peaks[at - 1]
        peaks.insert(at, left + int(gaps[at]) // 2)
    return np.array(peaks)


def derive(fit: Fit) -> tuple[tuple[float, ...], float]:
    """(coefficients in the order of ``fit.powers``, the largest weighted error with them)."""
    lo, hi = mp.mpf(fit.lo), mp.mpf(fit.hi)
    xs = [(lo + hi) / 2 + (hi - lo) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * GRID)) for i in range(GRID)][::-1]
    weights = [fit.weight(x) for x in xs]
    columns = [[x**p * w for x, w in zip(xs, weights, strict=True)] for p in fit.powers]
    rest = [fit.target(x) * w for x, w in zip(xs, weights, strict=True)]
    known: dict[int, float] = {}
    # the column with the largest values is the one whose rounding does most harm
    order = sorted(range(len(columns)), key=lambda k: -max(abs(v) for v in columns[k]))
    for k in order:
        free = [j for j in range(len(columns)) if j not in known]
        coefficients = minimax(_array([columns[j] for j in free]).T, _array([rest])[0])
        high = coefficients[free.index(k)]
        known[k] = rounded(mp.mpf(float(high)) + mp.mpf(float(high - np.longdouble(float(high)))), fit.bits)
        rest = [r - c * mp.mpf(known[k]) for r, c in zip(rest, columns[k], strict=True)]
    return tuple(known[k] for k in range(len(columns))), float(max(abs(r) for r in rest))


def _array(rows: list[list[Any]]) -> np.ndarray:
    def long(v: Any) -> Any:
        high = float(v)
        return np.longdouble(high) + np.longdouble(float(v - mp.mpf(high)))

    return np.array([[long(v) for v in row] for row in rows], dtype=np.longdouble)


# ---------------------------------------------------------------- the sets

mp.mp.dps = 50
HALF_LN2 = mp.log(2) / 2 * mp.mpf("1.001")
THIRD = mp.mpf(1) / 3
QUARTER_PI = mp.pi / 4 * mp.mpf("1.0001")


def _log_fit(base: Any, note: str) -> Fit:
    """log_base(1 + f) less its linear term f / ln(base); ``base`` is given by its natural logarithm."""
    return Fit(
        note,
        lambda f: (mp.log1p(f) - f) / base,
        tuple(range(2, 11)),
        -THIRD,
        THIRD,
        lambda f: base / mp.log1p(f),
    )


def _erfcx_of(t: Any) -> Any:
    """exp(x**2) * erfc(x) at t = (x - 3) / (x + 3)."""
    x = 3 * (1 + t) / (1 - t)
    return mp.exp(x * x) * mp.erfc(x)


def _erfcx_of_near(k: Any) -> Any:
    """exp(x**2) * erfc(x) at k = 1 / (1 + 7/16 x)."""
    x = (1 / k - 1) * 16 / 7
    return mp.exp(x * x) * mp.erfc(x)


def _erfcx_of_double(t: Any) -> Any:
    """(1 + 2 x) * exp(x**2) * erfc(x) at t = (x - 4) / (x + 4)."""
    x = 4 * (1 + t) / (1 - t)
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


FITS: dict[str, Fit] = {
    "EXP": Fit(
        "exp(r) = 1 + r + r**2 * EXP(r) for |r| <= ln 2 / 2",
        lambda r: mp.expm1(r) - r,
        (2, 3, 4, 5, 6),
        -HALF_LN2,
        HALF_LN2,
        lambda r: mp.exp(-r),
    ),
    "EXP2": Fit(
        "2**r = 1 + r ln 2 + r**2 * EXP2(r) for |r| <= 1/2",
        lambda r: mp.expm1(r * mp.log(2)) - r * mp.log(2),
        (2, 3, 4, 5, 6),
        -0.5,
        0.5,
        lambda r: mp.mpf(2) ** -r,
    ),
    "LOG": _log_fit(mp.mpf(1), "ln(1 + f) = f + f**2 * LOG(f) for -1/3 <= f <= 1/3"),
    "LOG2": _log_fit(mp.log(2), "log2(1 + f) = f / ln 2 + f**2 * LOG2(f) for -1/3 <= f <= 1/3"),
    "LOG10": _log_fit(mp.log(10), "log10(1 + f) = f / ln 10 + f**2 * LOG10(f) for -1/3 <= f <= 1/3"),
    "ERF_SMALL": Fit(
        "erf(x) = x + x * ERF_SMALL(x**2) for |x| <= 0.922",
        lambda x: mp.erf(x) - x,
        (1, 3, 5, 7, 9, 11),
        1e-4,
        0.922,
        lambda x: 1 / mp.erf(x),
    ),
    "ERF_LARGE": Fit(
        "1 - erf(t) = exp(-t + t * ERF_LARGE(t)) for 0.921 <= t <= 4",
        lambda t: mp.log(mp.erfc(t)) + t,
        (1, 2, 3, 4, 5, 6, 7),
        0.921,
        4.0,
        lambda t: mp.erfc(t) / mp.erf(t),
    ),
    "TANH": Fit(
        "tanh(x) = x + x**3 * TANH(x**2) for |x| <= 0.5625",
        lambda x: mp.tanh(x) - x,
        (3, 5, 7, 9),
        1e-4,
        0.5626,
        lambda x: 1 / mp.tanh(x),
    ),
    "SIN": Fit(
        "sin(r) = r + r**3 * SIN(r**2) for |r| <= 0.81",
        lambda x: mp.sin(x) - x,
        (3, 5, 7),
        1e-4,
        0.81,
        lambda x: 1 / mp.sin(x),
    ),
    "COS": Fit(
        "cos(r) = 1 + r**2 * COS(r**2) for |r| <= 0.81",
        lambda x: mp.cos(x) - 1,
        (2, 4, 6, 8),
        1e-4,
        0.81,
        lambda x: 1 / mp.cos(x),
    ),
    "ASIN": Fit(
        "asin(x) = x + x**3 * ASIN(x**2) for |x| <= 1/2",
        lambda x: mp.asin(x) - x,
        (3, 5, 7, 9, 11),
        1e-4,
        0.5001,
        lambda x: 1 / mp.asin(x),
    ),
    "ATAN": Fit(
        "atan(x) = x + x**3 * ATAN(x**2) for |x| <= 1",
        lambda x: mp.atan(x) - x,
        (3, 5, 7, 9, 11, 13, 15, 17),
        1e-4,
        1.0,
        lambda x: 1 / mp.atan(x),
    ),
    "SINH": Fit(
        "sinh(x) = x + x**3 * SINH(x**2) for |x| <= 1",
        lambda x: mp.sinh(x) - x,
        (3, 5, 7, 9),
        1e-4,
        1.0,
        lambda x: 1 / mp.sinh(x),
    ),
    "EXP_WIDE": Fit(
        "exp(r) = 1 + r + r**2 * EXP_WIDE(r) for |r| <= ln 2 / 2, in f64",
        lambda r: mp.expm1(r) - r,
        (2, 3, 4, 5, 6, 7),
        -HALF_LN2,
        HALF_LN2,
        lambda r: mp.exp(-r),
        53,
    ),
    "LOG2_WIDE": Fit(
        "log2((1 + s) / (1 - s)) = s * LOG2_WIDE(s**2) for |s| <= 1/5, in f64",
        lambda s: 2 * mp.atanh(s) / mp.log(2),
        (1, 3, 5, 7, 9),
        1e-4,
        0.2001,
        lambda s: mp.log(2) / (2 * mp.atanh(s)),
        53,
    ),
    "ERFC_WIDE": Fit(
        "erfc(x) = exp(-x**2) * ERFC_WIDE((x - 3) / (x + 3)) for 0 <= x <= 10.5, in f64",
        _erfcx_of,
        tuple(range(12)),
        -1,
        mp.mpf(7.5) / 13.5,
        lambda t: 1 / _erfcx_of(t),
        53,
    ),
    "ERFC_NEAR": Fit(
        "erfc(x) = exp(-x**2) * k * ERFC_NEAR(k), k = 1 / (1 + 7/16 x), for 0 <= x <= 10.5",
        _erfcx_of_near,
        tuple(range(1, 7)),
        1 / (1 + mp.mpf(7) / 16 * mp.mpf(10.5)),
        1,
        lambda k: 1 / _erfcx_of_near(k),
    ),
    "EXP_DOUBLE": Fit(
        "as EXP, in f64",
        lambda r: mp.expm1(r) - r,
        tuple(range(2, 12)),
        -HALF_LN2,
        HALF_LN2,
        lambda r: mp.exp(-r),
        53,
    ),
    "LOG_DOUBLE": Fit(
        "ln((1 + s) / (1 - s)) = 2 s + s**3 * LOG_DOUBLE(s**2) for |s| <= 1/5, in f64",
        lambda s: 2 * (mp.atanh(s) - s),
        tuple(range(3, 18, 2)),
        mp.mpf("1e-3"),
        mp.mpf("0.2001"),
        lambda s: 1 / (2 * mp.atanh(s)),
        53,
    ),
    "TANH_DOUBLE": Fit(
        "as TANH, in f64",
        lambda x: mp.tanh(x) - x,
        tuple(range(3, 24, 2)),
        mp.mpf("1e-3"),
        mp.mpf("0.5626"),
        lambda x: 1 / mp.tanh(x),
        53,
    ),
    "SINH_DOUBLE": Fit(
        "as SINH, in f64",
        lambda x: mp.sinh(x) - x,
        tuple(range(3, 16, 2)),
        mp.mpf("1e-3"),
        1,
        lambda x: 1 / mp.sinh(x),
        53,
    ),
    "SIN_DOUBLE": Fit(
        "as SIN, in f64",
        lambda x: mp.sin(x) - x,
        tuple(range(3, 14, 2)),
        mp.mpf("1e-3"),
        mp.mpf("0.786"),
        lambda x: 1 / mp.sin(x),
        53,
    ),
    "COS_DOUBLE": Fit(
        "as COS, in f64",
        lambda x: mp.cos(x) - 1,
        tuple(range(2, 15, 2)),
        mp.mpf("1e-3"),
        mp.mpf("0.786"),
        lambda x: 1 / mp.cos(x),
        53,
    ),
    "ASIN_DOUBLE": Fit(
        "as ASIN, in f64",
        lambda x: mp.asin(x) - x,
        tuple(range(3, 28, 2)),
        mp.mpf("1e-3"),
        mp.mpf("0.5001"),
        lambda x: 1 / mp.asin(x),
        53,
    ),
    "ATAN_DOUBLE": Fit(
        "as ATAN, in f64",
        lambda x: mp.atan(x) - x,
        tuple(range(3, 42, 2)),
        mp.mpf("1e-3"),
        1,
        lambda x: 1 / mp.atan(x),
        53,
    ),
    "ASINH_DOUBLE": Fit(
        "asinh(x) = x + x**3 * ASINH_DOUBLE(x**2) for |x| <= 1/2, in f64",
        lambda x: mp.asinh(x) - x,
        tuple(range(3, 28, 2)),
        mp.mpf("1e-3"),
        mp.mpf("0.5001"),
        lambda x: 1 / mp.asinh(x),
        53,
    ),
    "ATANH_DOUBLE": Fit(
        "atanh(s) = s + s**3 / 3 + s**5 * ATANH_DOUBLE(s**2) for |s| <= 1/5, in f64",
        lambda s: mp.atanh(s) - s - s**3 / 3,
        tuple(range(5, 20, 2)),
        mp.mpf("1e-3"),
        mp.mpf("0.2001"),
        lambda s: 1 / mp.atanh(s),
        53,
    ),
    "ERF_DOUBLE": Fit(
        "erf(x) = x + x * ERF_DOUBLE(x**2) for |x| <= 1, in f64",
        lambda x: mp.erf(x) - x,
        tuple(range(1, 26, 2)),
        mp.mpf("1e-3"),
        1,
        lambda x: 1 / mp.erf(x),
        53,
    ),
    "ERFC_DOUBLE": Fit(
        "erfc(x) = exp(-x**2) / (1 + 2 x) * ERFC_DOUBLE((x - 4) / (x + 4)) for 0 <= x <= 27.3, in f64",
        _erfcx_of_double,
        tuple(range(23)),
        -1,
        mp.mpf("23.3") / mp.mpf("31.3"),
        lambda t: 1 / _erfcx_of_double(t),
        53,
    ),
}

# constants as sums of numbers of so many bits each: the parts before the last have room for an exact product with a small integer
SPLITS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "LN2": (mp.log(2), (15, 24)),
    "LN2_NEAREST": (mp.log(2), (24,)),
    "LOG10_2": (mp.log10(2), (15, 24)),
    "LOG2_E": (1 / mp.log(2), (24,)),
    "LOG10_E": (1 / mp.log(10), (24, 24)),
    "LOG10_E_SHORT": (1 / mp.log(10), (12, 24)),
    "LOG2_E_PARTS": (1 / mp.log(2), (24, 24)),
    "LOG2_E_SHORT": (1 / mp.log(2), (12, 24)),
    "TWO_OVER_PI": (2 / mp.pi, (24,)),
    "HALF_PI": (mp.pi / 2, (24, 24, 24)),
    "PI": (mp.pi, (24, 24)),
    "LOG2_E_WIDE": (1 / mp.log(2), (53,)),
    "LN2_WIDE": (mp.log(2), (53,)),
    "HALF_PI_WIDE": (mp.pi / 2, (33, 53)),
    "HALF_PI_NEAREST_WIDE": (mp.pi / 2, (53,)),
    "HALF_PI_DOUBLE": (mp.pi / 2, (53, 53, 53)),
    "HALF_PI_SHORT": (mp.pi / 2, (33, 33, 33, 53)),
    "TWO_OVER_PI_WIDE": (2 / mp.pi, (53,)),
    "PI_DOUBLE": (mp.pi, (53, 53)),
    "THIRD_DOUBLE": (THIRD, (53, 53)),
    "LN2_DOUBLE": (mp.log(2), (40, 53)),
    "LOG10_2_DOUBLE": (mp.log10(2), (40, 53)),
    "LOG10_E_DOUBLE": (1 / mp.log(10), (53, 53)),
    "LOG2_E_DOUBLE": (1 / mp.log(2), (53, 53)),
}

HEADER = '''"""Coefficients and constants of the maths expansions: printed by tools/derive_coefficients.py, which says how.

A tuple holds a polynomial's coefficients from the constant term up, or a constant as a sum of parts.
"""
'''


def main(names: list[str]) -> None:
    """Prints the sets of these names, or the whole of ``maths_tables.py``."""
    if not names:
        print(HEADER)
        print("# 2/pi in words of 32 bits after 7 bits of zeros")
        print(f"TWO_OVER_PI_BITS = ({', '.join(f'0x{word:08X}' for word in two_over_pi())})")
        print("# in words of 64 bits after 34 bits of zeros")
        print("TWO_OVER_PI_WORDS = (")
        for word in two_over_pi(19, 34, 64):
            print(f"    0x{word:016X},")
        print(")")
    for name, (value, bits) in SPLITS.items():
        if name in names or not names:
            parts = split_constant(value, bits)
            print(f"{name} = {parts if len(parts) > 1 else parts[0]}")
    for name, fit in FITS.items():
        if name in names or not names:
            coefficients, error = derive(fit)
            print(f"\n# {fit.note}: error 2**{float(mp.log(error, 2)):.1f}")
            print(f"{name} = (")
            for c in coefficients:
                print(f"    {c!r},")
            print(")")


if __name__ == "__main__":
    main(sys.argv[1:])
