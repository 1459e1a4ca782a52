"""Errors of f32 functions in units in the last place, and the arguments to look for them at."""

from typing import Any

import numpy as np

from lowc.ir.ops import OPS

Array = Any

EDGES = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1.0,
        -1.0,
        0.5,
        -0.5,
        2.0,
        -2.0,
        1e-45,
        -1e-45,
        1.1754942e-38,
        1.17549435e-38,
    ]
    + [
        3.4028235e38,
        -3.4028235e38,
        88.72283,
        88.72284,
        88.3762,
        -87.33654,
        -103.97208,
        -103.97209,
        127.99999,
        128.0,
    ]
    + [
        -126.0,
        -149.0,
        -150.0,
        0.99999994,
        1.0000001,
        -0.99999994,
        1e-8,
        -1e-8,
        6e-8,
        9.0,
        10.0,
        10.05,
        3.9192059,
        17.0,
    ]
    + [
        np.pi / 2,
        np.pi,
        -np.pi,
        1e5,
        1e10,
        16367173.0 * 2.0**72,
        0.921875,
        0.5625,
        2 / 3,
        4 / 3,
        0.7071,
        1.4142,
    ],
    np.float32,
)
POW_EDGES = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.0,
        3.0,
        -3.0,
        0.5,
        -0.5,
        1.5,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-45,
        3.4e38,
        -3.4e38,
    ]
    + [16777215.0, 16777216.0, 8388607.5, -8388609.0, 0.99999994, 1.0000001, -0.99999994, 2.0**31, -1e-20],
    np.float32,
)


def reference(name: str, *values: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(OPS[name].numpy(*[v.astype(np.float64) for v in values]), np.float64)


def error(got: Array, true: Array) -> Array:
    """|got - true| in units in the last place of the f32 nearest to ``true``.

    It is inf where NaN, infinity or the sign of zero is wrong.
    """
    with np.errstate(all="ignore"):
        near = true.astype(np.float32)
        _, exponent = np.frexp(true)
        unit = np.ldexp(1.0, np.maximum(exponent, -125) - 24)
        # past the largest f32, infinity counts as 2**128
        top = 2.0**128
        wide, clipped = np.clip(got.astype(np.float64), -top, top), np.clip(true, -top, top)
        unit = np.minimum(unit, 2.0**104)
        out = np.abs(wide - clipped) / unit
    out = np.where(np.isinf(near) & (near == got), 0.0, out)
    out = np.where(np.isnan(true) | np.isnan(got), np.where(np.isnan(true) & np.isnan(got), 0.0, np.inf), out)
    wrong_zero = (near == 0) & (got == 0) & (np.signbit(true) != np.signbit(got))
    return np.where(wrong_zero, np.inf, out)


def double_error(got: Array, true: Array) -> Array:
    """As ``error`` for f64, against a wider type."""
    with np.errstate(all="ignore"):
        near = true.astype(np.float64)
        _, exponent = np.frexp(true)
        unit = np.ldexp(np.longdouble(1), np.maximum(exponent, -1021) - 53)
        out = (np.abs(got - true) / unit).astype(np.float64)
    out = np.where(np.isinf(near) | np.isinf(got), np.where(near == got, 0.0, np.inf), out)
    out = np.where(np.isnan(true) | np.isnan(got), np.where(np.isnan(true) & np.isnan(got), 0.0, np.inf), out)
    wrong_zero = (near == 0) & (got == 0) & (np.signbit(true) != np.signbit(got))
    return np.where(wrong_zero, np.inf, out)


def sample(step: int, start: int = 0) -> Array:
    """Every ``step``-th bit pattern of f32, NaNs and denormals included, and the edges."""
    bits = np.arange(start, 2**32, step, dtype=np.uint64).astype(np.uint32)
    return np.concatenate([bits.view(np.float32), EDGES])


def pairs(count: int) -> list[tuple[Array, Array]]:
    """Arguments of pow and atan2: edges with each other and with anything, bit patterns, and what is usual."""
    rng = np.random.default_rng(3)
    edges = np.meshgrid(POW_EDGES, POW_EDGES)
    bits = rng.integers(0, 2**32, (2, count), dtype=np.uint32).view(np.float32)
    usual = np.exp(rng.normal(0, 3, count)).astype(np.float32)
    with np.errstate(all="ignore"):
        to_the_ends = (rng.uniform(-151, 129, count) / np.log2(usual)).astype(np.float32)
    return [
        (edges[0].ravel(), edges[1].ravel()),
        (bits[0], bits[1]),
        (rng.choice(POW_EDGES, count), bits[1]),
        (bits[0], rng.choice(POW_EDGES, count)),
        (usual, rng.normal(0, 10, count).astype(np.float32)),
        (-usual, np.round(rng.normal(0, 9, count)).astype(np.float32)),
        (usual, to_the_ends),
    ]
