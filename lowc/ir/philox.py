"""Constants of the generator Philox4x32-10, and of what is made of its words.

J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF
FRACTION_BITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
"""Bits of a number from 0 to 1 of each dtype: as many as it has, so that none is rounded to 1."""


def needs_two(kind: str, low: float, high: float, double: bool) -> bool:
    """Whether a number takes two words: fractions of f64, integers that 32 bits would not make equally likely to 2**-16."""
    return (kind == "uniform" and double) or (kind == "integers" and high - low > 1 << 16)
