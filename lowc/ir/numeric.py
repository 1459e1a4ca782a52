"""What scalar types and ops are in numpy: the arithmetic of the interpreter, shared by tests of backends.

Two forms.  *Storage* is what memory holds: numpy's own type of the same width, bf16 as the bits in uint16.  *Values* are what
is computed with: the same, except that f16 and bf16 are float32 arrays whose elements are representable in the narrow type.
Values of float8 are their bits, which only ``convert`` reads.

Computation is under ``np.errstate(all="ignore")`` of the caller: nothing traps, integers wrap.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from lowc.ir.ops import FIRST_INDEX, MATHS, OPS, REDUCERS, identity
from lowc.ir.types import DType, bool_, f32

Array = Any
"""A numpy array or scalar (numpy's stubs tell neither shapes nor dtypes apart usefully here)."""

_STORAGE: dict[str, type[np.generic]] = {
    "bool": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "f16": np.float16,
    "bf16": np.uint16,
    "f32": np.float32,
    "f64": np.float64,
    "c64": np.complex64,
    "c128": np.complex128,
    "f8e4m3": np.uint8,
    "f8e5m2": np.uint8,
}


def _of_bits(exponents: int, infinite: bool) -> Array:
    """The 256 values of a float of 8 bits, by its bits; where none is infinite, only the last of a sign is NaN (OCP 8-bit
    Floating Point Specification, 2023)."""
    digits, bias = 7 - exponents, 2 ** (exponents - 1) - 1
    sizes: list[float] = []
    for bits in range(128):
        exponent, fraction = bits >> digits, bits % 2**digits / 2**digits
        sizes.append((1 + fraction) * 2.0 ** (exponent - bias) if exponent else fraction * 2.0 ** (1 - bias))
    if infinite:
        sizes[-(2**digits) :] = [math.inf] + [math.nan] * (2**digits - 1)
    else:
        sizes[-1] = math.nan
    return np.array(sizes + [-s for s in sizes], np.float32)


EIGHTHS = {"f8e4m3": _of_bits(4, False), "f8e5m2": _of_bits(5, True)}
"""Values of float8 by their bits."""


def _to_eighth(value: Array, dtype: DType) -> Array:
    """The bits of f32 rounded to float8, to nearest even; what is too large becomes the largest, or infinite."""
    table = EIGHTHS[dtype.name][:128].astype(np.float64)
    finite = table[np.isfinite(table)]
    if np.isinf(table).any():  # beyond the largest as if one more were finite
        finite = np.append(finite, 2 * finite[-1] - finite[-2])
    size = np.abs(value).astype(np.float64)
    search: Callable[..., Array] = np.searchsorted
    above = np.clip(search(finite, size), 1, len(finite) - 1)
    below, above_it = size - finite[above - 1], finite[above] - size
    bits = masked(above, (below > above_it) | ((below == above_it) & (above % 2 == 0)), above - 1)
    bits = masked(0x7F, np.isnan(value), bits)
    return (bits + masked(128, np.signbit(value), 0)).astype(np.uint8)


def storage_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy type of memory that holds ``dtype`` (bf16 and float8: their bits)."""
    return np.dtype(_STORAGE[dtype.name])


def value_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy type that values of ``dtype`` are computed with (f16 and bf16: float32)."""
    return np.dtype(np.float32) if dtype.name in ("f16", "bf16") else storage_dtype(dtype)


def to_storage(value: Array, dtype: DType) -> Array:
    """Values of ``dtype`` (anything numpy converts to them) as memory holds them."""
    fitted = fit(value, dtype)
    if dtype.name == "bf16":
        return (fitted.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return fitted.astype(storage_dtype(dtype), copy=False)


def from_storage(stored: Array, dtype: DType) -> Array:
    """Inverse of ``to_storage``."""
    if dtype.name == "bf16":
        return (np.asarray(stored).astype(np.uint32) << np.uint32(16)).view(np.float32)[()]
    return np.asarray(stored).astype(value_dtype(dtype), copy=False)[()]


def fit(value: Array, dtype: DType) -> Array:
    """``value`` in the numpy type of values of ``dtype``, rounded to nearest even where that is narrower.

    f64 and integers become f16 and bf16 by way of f32, as in ATen.  Single numbers come back as numpy scalars.
    """
    out = np.asarray(value).astype(value_dtype(dtype), copy=False)
    if dtype.name == "f16":
        out = out.astype(np.float16).astype(np.float32)
    elif dtype.name == "bf16":
        bits = out.view(np.uint32)
        even = (bits >> np.uint32(16)) & np.uint32(1)
        rounded = (bits + (np.uint32(0x7FFF) + even)) & np.uint32(0xFFFF0000)
        out = np.where(np.isnan(out), np.uint32(0x7FC00000), rounded).view(np.float32)
    return out[()]


def masked(value: Array, mask: Array, otherwise: Array) -> Array:
    """``value`` where ``mask`` is true."""
    select: Callable[..., Array] = np.where
    return select(mask, value, otherwise)[()]


def constant(value: bool | int | float, dtype: DType) -> Array:
    """A constant as a value; integers wrap."""
    if dtype.kind in "iu":
        whole = int(value) & (2**dtype.bits - 1)
        return np.asarray(whole, np.dtype(f"u{dtype.bits // 8}")).view(value_dtype(dtype))[()]
    return fit(np.asarray(value), dtype)


def convert(value: Array, source: DType, target: DType) -> Array:
    """cast: float → int truncates (out of range: whatever numpy gives on this machine), → bool is ``!= 0``."""
    if source.kind == "x":
        value, source = EIGHTHS[source.name][value], f32
    if target.kind == "x":
        return _to_eighth(np.asarray(value).astype(np.float32), target)
    if target == bool_:
        return value != 0
    if source.kind == "f" and target.kind in "iu":
        value = np.trunc(value)
        if target.bits < 64:  # through i64, as C compilers do on most targets
            value = value.astype(np.int64)
    return fit(value, target)


def reinterpret(value: Array, source: DType, target: DType) -> Array:
    """bitcast between types of one width."""
    return from_storage(np.asarray(to_storage(value, source)).view(storage_dtype(target)), target)


def operation(name: str, sources: Sequence[DType], dtype: DType) -> Callable[..., Array]:
    """Row ``name`` of the op table as a function of values.

    Maths on f32 is computed in f64 and rounded.  Checks only make the value safe.
    """
    if name == "cast":
        source = sources[0]
        return partial(convert, source=source, target=dtype)
    if name == "bitcast":
        source = sources[0]
        return partial(reinterpret, source=source, target=dtype)
    function = OPS[name].numpy
    carrier, narrow = value_dtype(dtype), dtype.name in ("f16", "bf16")
    if name in MATHS and value_dtype(sources[0]) == np.float32:
        return lambda *args: fit(
            np.asarray(function(*[a.astype(np.float64) for a in args])).astype(np.float32), dtype
        )

    def run(*args: Array) -> Array:
        out = function(*args)
        if narrow or out.dtype is not carrier:
            return fit(out, dtype)
        return out if out.ndim else out[()]

    return run


# ---------------------------------------------------------------- reducers


def start(reducer: str, dtypes: Sequence[DType], shape: tuple[int, ...]) -> list[Array]:
    """Accumulators of ``shape`` at the identity: one, or for argmax and argmin the value and the index."""
    neutral = [constant(identity(reducer, dtypes[0]), dtypes[0])]
    if REDUCERS[reducer].arity == 2:
        neutral.append(constant(FIRST_INDEX, dtypes[1]))
    return [np.full(shape, n) for n in neutral] if shape else neutral


def combiner(reducer: str, dtypes: Sequence[DType]) -> Callable[[list[Array], list[Array]], list[Array]]:
    """The function that combines two (arrays of) accumulators."""
    if REDUCERS[reducer].arity == 1:
        run = operation(REDUCERS[reducer].op, [dtypes[0]] * 2, dtypes[0])
        return lambda left, right: [run(left[0], right[0])]

    def pairs(left: list[Array], right: list[Array]) -> list[Array]:
        wins = _beats(reducer, right, left)
        return [masked(r, wins, x) for r, x in zip(right, left, strict=True)]

    return pairs


def _beats(reducer: str, a: list[Array], b: list[Array]) -> Array:
    """Where the pair ``a`` is to be taken: NaN first, then the better value, then the smaller index."""
    a_nan, b_nan = a[0] != a[0], b[0] != b[0]
    better = (a[0] > b[0]) if reducer == "argmax" else (a[0] < b[0])
    tie = (a[0] == b[0]) | (a_nan & b_nan)
    return (a_nan & ~b_nan) | (better & ~b_nan) | (tie & (a[1] < b[1]))


def prefix(reducer: str, first: list[Array], values: list[Array], dtypes: Sequence[DType]) -> list[Array]:
    """Inclusive prefixes of ``values`` along their first axis in serial order, ``first`` combined in before all."""
    combine = combiner(reducer, dtypes)
    rows: list[list[Array]] = []
    for place in range(len(values[0])):
        first = combine(first, [v[place] for v in values])
        rows.append(first)
    return [np.stack([row[n] for row in rows]) for n in range(len(values))]


def reduce_last(reducer: str, values: list[Array], dtypes: Sequence[DType]) -> list[Array]:
    """Reduces the last axis of ``values``.  Sums and products of f32 and narrower are formed in f64 and rounded once."""
    if REDUCERS[reducer].arity == 1:
        dtype = dtypes[0]
        ufunc: Any = OPS[REDUCERS[reducer].op].numpy
        wide = np.dtype(np.float64) if dtype.kind == "f" and reducer in ("add", "mul") else value_dtype(dtype)
        initial = constant(identity(reducer, dtype), dtype).astype(wide)[()]
        return [fit(ufunc.reduce(values[0].astype(wide, copy=False), axis=-1, initial=initial), dtype)]
    value, index = values
    if not value.shape[-1]:
        return start(reducer, dtypes, value.shape[:-1])
    nan = value != value
    best = (np.maximum if reducer == "argmax" else np.minimum).reduce(value, axis=-1)
    chosen = masked(nan, np.any(nan, axis=-1)[..., None], value == best[..., None])
    first = np.argmin(masked(index, chosen, constant(FIRST_INDEX, dtypes[1])), axis=-1)[..., None]
    return [
        np.take_along_axis(v, first, axis=-1)[..., 0][()] for v in values
    ]  # 0.0 and -0.0 are equal, but not the same
