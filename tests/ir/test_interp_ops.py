"""Every row of the op table and of the reducers, run by the interpreter, against torch and against Python's own integers."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from lowc.ir.index import Axis, ix
from lowc.ir.interp import run_kernel
from lowc.ir.nodes import Acc, Buffer, Const, Expr, For, FromIndex, Kernel, Load, Op, Store, Update, Var
from lowc.ir.numeric import from_storage, storage_dtype, to_storage, value_dtype
from lowc.ir.ops import APPROXIMATE, MATHS, OPS, REDUCERS, result_dtype
from lowc.ir.types import DTYPES, DType, bf16, bool_, f16, f32, f64, i8, i32, i64, is_computable, u8, u32

TORCH = {
    **{n: getattr(torch, n.replace("i", "int")) for n in ("i8", "i16", "i32", "i64")},
    **{n: getattr(torch, n.replace("u", "uint")) for n in ("u8", "u16", "u32", "u64")},
    "bool": torch.bool,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}
COMPUTABLE = [t for t in DTYPES.values() if is_computable(t)]
FLOATS = [t for t in COMPUTABLE if t.kind == "f"]
INTEGERS = [t for t in COMPUTABLE if t.kind in "iu"]
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -2.5,
    3.5,
    7.25,
    math.inf,
    -math.inf,
    math.nan,
    1e30,
    -1e30,
    1e-41,
    88.7,
    -104.0,
    0.1,
    1e-8,
]


def numbers(dtype: DType) -> Any:
    """Values that show what an op does: extremes, signs, zeros, NaN."""
    if dtype.kind == "b":
        return np.array([True, False, True])
    if dtype.kind in "iu":
        low, high = (
            (0 if dtype.kind == "u" else -(2 ** (dtype.bits - 1))),
            2 ** (dtype.bits - (dtype.kind == "i")) - 1,
        )
        picks = [
            low,
            low + 1,
            high,
            high - 1,
            0,
            1,
            2,
            3,
            7,
            8,
            31,
            100,
            *([-1, -2, -7, -100] if low else []),
        ]
        return np.array(picks, dtype=storage_dtype(dtype))
    with np.errstate(all="ignore"):
        return from_storage(to_storage(np.array(SPECIAL), dtype), dtype)


def pairs(*dtypes: DType) -> list[Any]:
    """Every combination of ``numbers``."""
    return [g.ravel() for g in np.meshgrid(*[numbers(t) for t in dtypes], indexing="ij")]


def run_op(name: str, dtypes: list[DType], args: list[Any], target: DType | None = None) -> Any:
    """``name`` applied to arrays of values, by a kernel (all at once) and by one that goes element by element."""
    out_type = result_dtype(OPS[name], tuple(dtypes), target)
    count = ix(len(args[0]))
    params = [Buffer(f"x{n}", t, (count,), (ix(1),)) for n, t in enumerate(dtypes)]
    out = Buffer("out", out_type, (count,), (ix(1),))
    axis = Axis("i", count)
    value = Op(name, tuple(Load(p, (ix(axis),)) for p in params), out_type)
    both = []
    # An array of length 1 that an inner loop reads back keeps the outer loop serial: the same op on single numbers.
    same = Buffer("one", i64, (ix(1),), (ix(1),))
    step = Store(same, (ix(0),), Op("add", (Load(same, (ix(0),)), Const(1, i64)), i64))
    for body in ((Store(out, (ix(axis),), value),), (step, Store(out, (ix(axis),), value))):
        kernel = Kernel("k", (*params, out, same), (), (For(axis, body),))
        memory = {f"x{n}": to_storage(a, t) for n, (a, t) in enumerate(zip(args, dtypes, strict=True))}
        memory["one"] = np.zeros(1, np.int64)
        memory["out"] = np.zeros(len(args[0]), storage_dtype(out_type))
        run_kernel(kernel, memory)
        assert memory["one"][0] in (0, len(args[0]))
        both.append(from_storage(memory["out"], out_type))
    if name in MATHS and out_type == f64:  # numpy has two implementations, for arrays and for numbers
        assert np.allclose(both[0], both[1], rtol=1e-15, atol=0, equal_nan=True)
    else:
        assert np.array_equal(both[0], both[1], equal_nan=out_type.kind == "f")
    return both[0]


def same(found: Any, wanted: Any, signs: bool = True) -> bool:
    """Bitwise, any NaN being as good as another."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    if found.dtype.kind != "f":
        return bool(np.array_equal(found, wanted))
    nan = np.isnan(found)
    signed = np.signbit(found) == np.signbit(wanted) if signs else True
    return bool(np.all((nan & np.isnan(wanted)) | ((found == wanted) & signed)))


# ---------------------------------------------------------------- floats


def _fmod(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """torch's own gives NaN for denormals."""

    def one(x: float, y: float) -> float:
        return math.fmod(x, y) if math.isfinite(x) and y == y and y != 0 else math.nan

    with np.errstate(all="ignore"):
        return torch.from_numpy(np.vectorize(one, otypes=[a.numpy().dtype])(a, b))


def _sqrt(x: torch.Tensor) -> torch.Tensor:
    """torch's own may be off by one in f64."""
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.sqrt(x.numpy().astype(np.longdouble)).astype(x.numpy().dtype))


def _tf32(x: torch.Tensor) -> torch.Tensor:
    """To multiples of the last of 11 bits."""
    wide = x.numpy().astype(np.longdouble)
    finite = np.where(np.isfinite(wide), wide, 0)
    last = np.maximum(np.frexp(finite)[1], np.finfo(x.numpy().dtype).minexp + 1) - 11
    with np.errstate(over="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(finite, -last)), last).astype(x.numpy().dtype)
    return torch.from_numpy(np.where(np.isfinite(wide), rounded, x.numpy()))


EXACT: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "product": torch.mul,
    "div": torch.div,
    "fmod": _fmod,
    "min": torch.minimum,
    "max": torch.maximum,
    "copysign": torch.copysign,
    "neg": torch.neg,
    "abs": torch.abs,
    "sqrt": _sqrt,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "tf32": _tf32,
}
COMPARE: dict[str, Callable[..., Any]] = {n: getattr(torch, n) for n in ("eq", "ne", "lt", "le", "gt", "ge")}
INEXACT: dict[str, Callable[..., Any]] = {
    **{n: getattr(torch, n) for n in MATHS if hasattr(torch, n)},
    "rsqrt": lambda x: 1 / torch.sqrt(x),
    "near_exp": torch.exp,
    "near_sigmoid": torch.sigmoid,
    "near_erfc": torch.erfc,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", [*EXACT, *COMPARE])
def test_float_ops(name: str, dtype: DType) -> None:
    """Rounded once for f32 and f64; in f32 and then rounded for narrower types."""
    args = pairs(*[dtype] * OPS[name].arity)
    found = run_op(name, [dtype] * len(args), args)
    wide = [torch.from_numpy(a) for a in args]
    if name in COMPARE:
        assert np.array_equal(found, COMPARE[name](*wide).numpy())
        return
    wanted = EXACT[name](*wide).to(TORCH[dtype.name]).to(wide[0].dtype).numpy()
    assert same(found, wanted, signs=name not in ("min", "max"))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", sorted(MATHS))
def test_maths(name: str, dtype: DType) -> None:
    """Maths of f32 and narrower is the f64 result rounded (to f32, then to the type)."""
    args = pairs(*[dtype] * OPS[name].arity)
    found = run_op(name, [dtype] * len(args), args)
    wanted = INEXACT[name](*[torch.from_numpy(a.astype(np.float64)) for a in args])
    if dtype != f64:
        wanted = wanted.to(torch.float32).to(TORCH[dtype.name]).to(torch.float32)
    wanted = wanted.numpy()
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    good = ~np.isnan(wanted)
    limit = {f32: 2e-7, f64: 4e-15, bf16: 2**-8, f16: 2**-10}[dtype]
    assert np.allclose(found[good], wanted[good], rtol=limit, atol=6e-8 if dtype == f16 else 1e-44)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["fma", "mad"])
def test_fma(name: str, dtype: DType) -> None:
    args = pairs(dtype, dtype, dtype)
    found = run_op(name, [dtype] * 3, args)
    carrier = np.float64 if dtype == f64 else np.float32
    for a, b, c, got in zip(*args, found, strict=True):
        with np.errstate(all="ignore"):
            twice = carrier(a) * carrier(b) + carrier(c)
        if math.isfinite(a) and math.isfinite(b) and not math.isfinite(c):
            wanted = [c] if name == "fma" else [c, twice]
        elif not all(map(math.isfinite, (a, b))):
            wanted = [twice]
        else:
            exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
            once = _round(exact, carrier) if exact else twice
            wanted = [once] if name == "fma" else [once, twice]
        rounded = [from_storage(to_storage(np.asarray(w), dtype), dtype) for w in wanted]
        assert any(same(got, w, signs=bool(w)) for w in rounded), (a, b, c, got, rounded)


def _round(exact: Fraction, carrier: Any) -> Any:
    """The nearest number of ``carrier``, by comparing neighbours."""
    with np.errstate(all="ignore"):
        try:
            near = carrier(float(exact))
        except OverflowError:
            return carrier(math.copysign(math.inf, exact))
        around = [np.nextafter(near, carrier(-np.inf)), near, np.nextafter(near, carrier(np.inf))]
    finite = [x for x in around if np.isfinite(x)]
    if len(finite) < 3:
        return near
    best = min(finite, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(f"u{x.itemsize}")) & 1))
    return best


def test_fma_rounds_once() -> None:
    """A product whose last bit decides: two roundings lose it."""
    a = np.float32(1 + 2**-12)
    args = [np.array([a]), np.array([a]), np.array([-1 - 2.0**-11], np.float32)]
    assert run_op("fma", [f32] * 3, args)[0] == np.float32(2.0**-24)
    assert math.isclose(
        run_op("fma", [f64] * 3, [np.array([1 + 2.0**-30])] * 2 + [np.array([-1 - 2.0**-29])])[0], 2.0**-60
    )


def test_fma_of_hard_cases() -> None:
    """f64: addends that cancel the product but for its last bits, ties, and addends far above and below."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 4000)) * 2.0 ** rng.integers(-30, 30, (2, 4000))
    scale = 2.0 ** rng.choice([-120, -60, -53, -1, 0, 0, 0, 53, 60, 120], 4000)
    c = -a * b * scale * rng.choice([1, 1 + 2.0**-52, 1 - 2.0**-53, -1], 4000)
    few = rng.random(4000) < 0.3  # short factors, whose products meet ties
    a[few], b[few] = np.round(a[few] * 4096), np.round(b[few] * 4096)
    found = run_op("fma", [f64] * 3, [a, b, c])
    for x, y, z, got in zip(a, b, c, found, strict=True):
        total = Fraction(x) * Fraction(y) + Fraction(z)
        assert got == (float(total) if total else 0.0)


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_ldexp(dtype: DType) -> None:
    carrier = value_dtype(dtype).type
    values = [0.0, -0.0, 1.0, -1.5, 1.9999999, 3e-39, 1e-41, math.inf, math.nan]
    powers = [0.0, 1.0, -1.0, 127.0, -126.0, -149.0, -150.0, 300.0, -1100.0, 2000.0]
    args = [g.ravel().astype(carrier) for g in np.meshgrid(values, powers)]
    found = run_op("ldexp", [dtype] * 2, args)
    wanted = []
    for x, n in zip(*args, strict=True):
        x, n = float(x), int(n)
        try:
            exact = math.ldexp(x, n)
        except OverflowError:
            exact = math.copysign(math.inf, x)
        with np.errstate(all="ignore"):
            wanted.append(carrier(exact))
    assert same(found, np.array(wanted))


# ---------------------------------------------------------------- integers


def wrap(value: int, dtype: DType) -> int:
    value &= 2**dtype.bits - 1
    return value - 2**dtype.bits if dtype.kind == "i" and value >> (dtype.bits - 1) else value


def _shift_left(a: int, b: int, t: DType) -> int:
    return a << b if 0 <= b < t.bits else 0


def _shift_right(a: int, b: int, t: DType) -> int:
    return a >> b if 0 <= b < t.bits else -(a < 0)


INTEGER: dict[str, Callable[..., int]] = {
    "add": lambda a, b, t: a + b,
    "sub": lambda a, b, t: a - b,
    "mul": lambda a, b, t: a * b,
    "floordiv": lambda a, b, t: a // b,
    "truncdiv": lambda a, b, t: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "floormod": lambda a, b, t: a % b,
    "truncmod": lambda a, b, t: abs(a) % abs(b) * (-1 if a < 0 else 1),
    "min": lambda a, b, t: min(a, b),
    "max": lambda a, b, t: max(a, b),
    "and": lambda a, b, t: a & b,
    "or": lambda a, b, t: a | b,
    "xor": lambda a, b, t: a ^ b,
    "shl": _shift_left,
    "shr": _shift_right,
    "eq": lambda a, b, t: a == b,
    "ne": lambda a, b, t: a != b,
    "lt": lambda a, b, t: a < b,
    "le": lambda a, b, t: a <= b,
    "gt": lambda a, b, t: a > b,
    "ge": lambda a, b, t: a >= b,
    "neg": lambda a, t: -a,
    "abs": lambda a, t: abs(a),
    "not": lambda a, t: ~a,
    "mulhi": lambda a, b, t: (a * b) >> t.bits,
}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", sorted(INTEGER))
def test_integer_ops(name: str, dtype: DType) -> None:
    """Two's complement at every width."""
    if dtype.kind not in OPS[name].kinds:
        with pytest.raises(ValueError):
            result_dtype(OPS[name], (dtype,) * OPS[name].arity, None)
        return
    args = pairs(*[dtype] * OPS[name].arity)
    if "div" in name or "mod" in name:
        kept = args[1] != 0
        args = [a[kept] for a in args]
    found = run_op(name, [dtype] * len(args), args)
    for got, *operands in zip(found, *args, strict=True):
        wanted = INTEGER[name](*map(int, operands), dtype)
        wanted = wanted if OPS[name].rule == "bool" else wrap(wanted, dtype)
        assert got == wanted, (operands, got, wanted)


@pytest.mark.parametrize("name", ["floordiv", "truncdiv", "floormod", "truncmod"])
def test_division_by_zero_does_not_trap(name: str) -> None:
    assert run_op(name, [i32, i32], [np.array([5, -5], np.int32), np.zeros(2, np.int32)]).dtype == np.int32


@pytest.mark.parametrize("name", ["and", "or", "xor", "not", "min", "max", "eq", "ne", "lt", "ge"])
def test_bool_ops(name: str) -> None:
    args = pairs(*[bool_] * OPS[name].arity)
    found = run_op(name, [bool_] * len(args), args)
    meaning = {**INTEGER, "not": lambda a, t: 1 - a}[name]
    assert [bool(meaning(*map(int, p), bool_)) for p in zip(*args, strict=True)] == list(found)


# ---------------------------------------------------------------- types


@pytest.mark.parametrize("target", COMPUTABLE, ids=str)
@pytest.mark.parametrize("source", COMPUTABLE, ids=str)
def test_cast(source: DType, target: DType) -> None:
    """As torch converts, where the value is in range."""
    values = numbers(source)
    if source.kind == "f" and target.kind in "iu":
        high = 2.0 ** min(target.bits - (target.kind == "i"), 30)
        with np.errstate(all="ignore"):
            values = values[(values < high) & (values > (-high if target.kind == "i" else -1))]
    found = run_op("cast", [source], [values], target)
    given = torch.from_numpy(values).to(TORCH[source.name])
    if source.kind == "f" and source.bits == 64 and target in (f16, bf16):
        given = given.to(torch.float32)
    wanted = given.to(TORCH[target.name])
    wide = wanted.to(torch.float32) if target in (f16, bf16) else wanted
    assert same(found, wide.numpy())


@pytest.mark.parametrize(
    "source, target",
    [
        ("f32", "i32"),
        ("i32", "f32"),
        ("f32", "u32"),
        ("f64", "i64"),
        ("u64", "f64"),
        ("bf16", "i16"),
        ("i16", "bf16"),
        ("f16", "u16"),
    ],
)
def test_bitcast(source: str, target: str) -> None:
    values = numbers(DTYPES[source])
    found = run_op("bitcast", [DTYPES[source]], [values], DTYPES[target])
    bits = to_storage(values, DTYPES[source]).view(storage_dtype(DTYPES[target]))
    assert same(found, from_storage(bits, DTYPES[target]))


@pytest.mark.parametrize("dtype", COMPUTABLE, ids=str)
@pytest.mark.parametrize("name", [n for n in OPS if OPS[n].rule == "select"])
def test_select(name: str, dtype: DType) -> None:
    values = numbers(dtype)
    cond = np.arange(len(values)) % 3 == 0
    found = run_op(name, [bool_, dtype, dtype], [cond, values, values[::-1].copy()])
    assert same(found, np.where(cond, values, values[::-1]))


def test_checks() -> None:
    """A failing check raises where its mask is true, and yields something safe where it is not."""
    index = np.array([0, 4, -1, 5, 100])
    good = np.array([True, True, False, False, False])
    size = np.full(5, 5)
    found = run_op("check_index", [i64, i64, bool_], [index, size, good])
    assert list(found[:2]) == [0, 4]
    assert all(0 <= v < 5 for v in found)
    for bad in (2, 3, 4):
        with pytest.raises(IndexError, match=f"index {index[bad]} is out of bounds .* size 5"):
            run_op("check_index", [i64, i64, bool_], [index, size, good | (np.arange(5) == bad)])
    divisor = np.array([3, 0], np.uint32)
    assert list(run_op("check_nonzero", [u32, bool_], [divisor, np.array([True, False])])) == [3, 1]
    with pytest.raises(ZeroDivisionError):
        run_op("check_nonzero", [u32, bool_], [divisor, np.array([True, True])])


@pytest.mark.parametrize("dtype", [f32, i64], ids=str)
def test_what_is_wanted_soon_changes_nothing(dtype: DType) -> None:
    here, later = np.array([1, 2, 3]), np.array([7, 8, 9])
    assert list(run_op("soon", [dtype, dtype], [here, later])) == [1, 2, 3]


def test_pairs_are_two_numbers_and_dots_the_sum_of_two_products() -> None:
    low, high, other, last = (np.random.default_rng(n).permutation(numbers(bf16)) for n in range(4))
    finite = np.isfinite(low) & np.isfinite(high) & np.isfinite(other) & np.isfinite(last)
    x, y = run_op("pair", [bf16, bf16], [low, high]), run_op("pair", [bf16, bf16], [other, last])
    assert x.dtype == np.uint32
    np.testing.assert_array_equal(from_storage((x & 0xFFFF).astype(np.uint16), bf16), low)
    np.testing.assert_array_equal(from_storage((x >> 16).astype(np.uint16), bf16), high)
    with np.errstate(all="ignore"):
        wanted = low.astype(np.float64) * other + high.astype(np.float64) * last
        np.testing.assert_allclose(run_op("dot2", [u32, u32], [x, y])[finite], wanted.astype(np.float32)[finite], rtol=3e-7)


@pytest.mark.parametrize("left", [i8, u8])
@pytest.mark.parametrize("right", [i8, u8])
def test_quads_are_four_bytes_and_dots_the_sum_of_four_products(left: DType, right: DType) -> None:
    rng = np.random.default_rng(0)
    sides = []
    for dtype in (left, right):
        low, high = (-128, 127) if dtype == i8 else (0, 255)
        values = [np.concatenate([rng.integers(low, high + 1, 50), [low, high]]) for _ in range(4)]
        packed = run_op("quad", [dtype] * 4, values)
        assert packed.dtype == (np.int32 if dtype == i8 else np.uint32)
        for n, value in enumerate(values):
            np.testing.assert_array_equal(packed.view(np.uint32) >> np.uint32(8 * n) & 0xFF, value.astype(np.int64) & 0xFF)
        sides.append((packed, values))
    (x, a), (y, c) = sides
    wanted = sum(p.astype(np.int64) * q for p, q in zip(a, c, strict=True))
    kinds = [i32 if dtype == i8 else u32 for dtype in (left, right)]
    np.testing.assert_array_equal(run_op("dot4", kinds, [x, y]), wanted)


def test_quads_take_bytes_of_one_kind() -> None:
    for dtypes in ([i8, i8, u8, i8], [i32] * 4, [f32] * 4):
        with pytest.raises(ValueError, match="quad"):
            result_dtype(OPS["quad"], tuple(dtypes), None)
    assert result_dtype(OPS["dot4"], (u32, i32), None) == i32


def test_every_row_is_tested() -> None:
    others = {"fma", "mad", "ldexp", "cast", "bitcast", "check_index", "check_nonzero", "soon", "pair", "dot2", "quad", "dot4"}
    selects = {n for n in OPS if OPS[n].rule == "select"}
    others |= APPROXIMATE
    assert set(EXACT) | set(COMPARE) | set(INEXACT) | set(INTEGER) | others | selects == set(OPS)


# ---------------------------------------------------------------- reducers


def run_reducer(reducer: str, dtype: DType, values: Any, inner: bool) -> tuple[list[Any], list[list[Any]]]:
    """The accumulators after a loop over ``values``, and the running ones; ``inner`` reduces rows of a [2, n] buffer at once."""
    count = ix(values.shape[-1])
    x = Buffer("x", dtype, (ix(2), count), (count, ix(1)))
    names = [Var("a", dtype), Var("b", i64)][: REDUCERS[reducer].arity]
    outs = [Buffer(f"out{n}", v.dtype, (ix(2),), (ix(1),)) for n, v in enumerate(names)]
    runs = [Buffer(f"run{n}", v.dtype, (ix(2), count), (count, ix(1))) for n, v in enumerate(names)]
    row, axis = Axis("i", ix(2)), Axis("k", count)
    here = (ix(row), ix(axis))
    update = Update(tuple(names), reducer, (Load(x, here), FromIndex(ix(axis), i64))[: len(names)])
    loop = [update, *([] if inner else [Store(r, here, v) for r, v in zip(runs, names, strict=True)])]
    stores = [Store(o, (ix(row),), v) for o, v in zip(outs, names, strict=True)]
    kernel = Kernel(
        "k", (x, *outs, *runs), (), (For(row, (Acc(tuple(names), reducer), For(axis, tuple(loop)), *stores)),)
    )
    memory = {
        b.name: np.zeros(values.size if b in runs else 2, storage_dtype(b.dtype)) for b in (*outs, *runs)
    }
    memory["x"] = to_storage(values, dtype).ravel()
    run_kernel(kernel, memory)
    finals = [from_storage(memory[o.name], o.dtype) for o in outs]
    return finals, [from_storage(memory[r.name], r.dtype).reshape(values.shape) for r in runs]


def expected(reducer: str, dtype: DType, row: Any) -> list[Any]:
    """The reduction of ``row`` by a loop in Python."""
    if reducer in ("argmax", "argmin"):
        best, where = None, 2**63 - 1
        for place, value in enumerate(row):
            better = best is None or (value > best if reducer == "argmax" else value < best)
            if best is None or (best == best and (better or value != value)):
                best, where = value, place
        return [best, where]
    total = torch.from_numpy(np.asarray(row)).to(TORCH[dtype.name])
    if reducer in ("add", "mul") and dtype.kind == "f":
        wide = total.to(torch.float64)
        return [(wide.sum() if reducer == "add" else wide.prod()).item()]
    if reducer in ("max", "min"):
        return [(getattr(np, reducer)(row)).item()]
    meaning = {
        "add": lambda a, b: a + b,
        "mul": lambda a, b: a * b,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
    }[reducer]
    out = {"add": 0, "mul": 1, "and": -1, "or": 0}[reducer]
    for value in row:
        out = meaning(out, int(value))
    return [bool(out & 1) if dtype.kind == "b" else wrap(out, dtype)]


@pytest.mark.parametrize("dtype", COMPUTABLE, ids=str)
@pytest.mark.parametrize("reducer", REDUCERS)
def test_reducers(reducer: str, dtype: DType) -> None:
    """Whole reductions (many at once), and prefixes."""
    if dtype.kind not in REDUCERS[reducer].kinds:
        return
    base = numbers(dtype)
    if reducer in ("add", "mul") and dtype.kind == "f":
        base = base[np.isfinite(base) & (np.abs(base) < 100) & ((np.abs(base) > 0.01) | (base == 0))]
    values = np.stack([base, np.roll(base[::-1], 3)])
    for inner in (True, False):
        finals, runs = run_reducer(reducer, dtype, values, inner)
        for row in range(2):
            wanted = expected(reducer, dtype, values[row])
            for got, want in zip(finals, wanted, strict=True):
                check_close(got[row], want, reducer, dtype)
            if not inner:
                for place in (0, 1, len(base) // 2, len(base) - 1):
                    wanted = expected(reducer, dtype, values[row][: place + 1])
                    for got, want in zip(runs, wanted, strict=True):
                        check_close(got[row][place], want, reducer, dtype)


def check_close(got: Any, want: Any, reducer: str, dtype: DType) -> None:
    if dtype.kind == "f" and reducer in ("add", "mul"):
        assert math.isclose(
            got,
            want,
            rel_tol={f64: 1e-14, f32: 1e-5}.get(dtype, 0.05),
            abs_tol=0.1 if dtype.bits < 32 else 1e-6,
        )
    else:
        assert got == want or (got != got and want != want)


@pytest.mark.parametrize("reducer", REDUCERS)
def test_reducing_nothing_gives_the_identity(reducer: str) -> None:
    dtype = i32
    finals, _ = run_reducer(reducer, dtype, np.zeros((2, 0), np.int32), True)
    combined: Expr
    for value in (-5, 0, 7):
        x = [Const(value, dtype), Const(finals[0][0].item(), dtype)]
        if REDUCERS[reducer].op:
            combined = Op(REDUCERS[reducer].op, tuple(x), dtype)
            out = Buffer("out", dtype, (), ())
            memory = {"out": np.zeros(1, np.int32)}
            run_kernel(Kernel("k", (out,), (), (Store(out, (), combined),)), memory)
            assert memory["out"][0] == value
        else:
            assert finals[1][0] == 2**63 - 1
