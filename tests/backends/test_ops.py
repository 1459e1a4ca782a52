"""Every row of the op table that reaches the backend, on scalars and on lanes, compared with its numpy
meaning.
"""

import numpy as np
import pytest

from lowc.errors import CodegenError
from lowc.ir.numeric import storage_dtype
from lowc.ir.ops import APPROXIMATE, MATHS, OPS
from lowc.ir.types import DTYPES, DType
from tests.backends.harness import ISAS, check, sample

COUNT = 203
all_isas = pytest.mark.parametrize("isa", ISAS)
NUMBERS = [t for t in DTYPES.values() if t.kind in "biuf" and t.bits != 16 or t.kind in "iu"]
# not by themselves here: they have a test of their own, or need more than values
SPECIAL = {
    "cast",
    "bitcast",
    "check_index",
    "check_nonzero",
    "ldexp",
    "fma",
    "mad",
    "mulhi",
    "rarely",
    "shl",
    "shr",
}


def kernel(lines: list[str], outputs: dict[str, str], inputs: dict[str, str]) -> str:
    """Each of ``lines`` (with @ for the axis) on lanes, and one by one into the second half of the outputs."""
    params = [f"{n}: {t}[{COUNT}]" for n, t in inputs.items()] + [
        f"{n}: {t}[{2 * COUNT}]" for n, t in outputs.items()
    ]
    loops = []
    for axis, kind, shift in (("i", "vector(16)", 0), ("j", "", COUNT)):
        body = "\n".join(line.replace("@out", f"{axis} + {shift}").replace("@", axis) for line in lines)
        loops.append(f"for {axis} in {COUNT} {kind} {{\n{body}\n}}")
    return f"kernel k({', '.join(params)}) {{\n" + "\n".join(loops) + "\n}"


def rows(dtype: DType) -> list[str]:
    return [
        name
        for name, row in OPS.items()
        if dtype.kind in row.kinds and row.takes is None and name not in MATHS | APPROXIMATE and name not in SPECIAL
    ]


@all_isas
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_ops_without_error(isa: str, dtype: DType) -> None:
    inputs = {"a": str(dtype), "b": str(dtype), "c": "bool"}
    lines, outputs = [], {}
    for name in rows(dtype):
        row = OPS[name]
        if dtype.kind == "f" and name == "fmod" and dtype.bits == 32:
            continue  # below
        args = ["a[@]", "b[@]"][: row.arity] if row.rule != "select" else ["c[@]", "a[@]", "b[@]"]
        lines.append(f"y_{name}[@out] = {name}({', '.join(args)})")
        outputs[f"y_{name}"] = "bool" if row.rule == "bool" else str(dtype)
    for seed in range(3):
        check(kernel(lines, outputs, inputs), isa, seed=seed)


@all_isas
@pytest.mark.parametrize("dtype", ("f32", "f64"))
def test_float_remainder(isa: str, dtype: str) -> None:
    check(kernel(["y[@out] = fmod(a[@], b[@])"], {"y": dtype}, {"a": dtype, "b": dtype}), isa)


@all_isas
@pytest.mark.parametrize("dtype", [t for t in NUMBERS if t.kind in "iu"], ids=str)
def test_integer_division_by_constants(isa: str, dtype: DType) -> None:
    numbers = [1, 2, 3, 7, 64, 100] + ([-1, -2, -5, -(2 ** (dtype.bits - 1))] if dtype.kind == "i" else [255])
    lines, outputs = [], {}
    for name in ("floordiv", "truncdiv", "floormod", "truncmod"):
        for place, number in enumerate(numbers):
            lines.append(f"y_{name}{place}[@out] = {name}(a[@], {number}:{dtype})")
            outputs[f"y_{name}{place}"] = str(dtype)
    check(kernel(lines, outputs, {"a": str(dtype)}), isa)


@all_isas
@pytest.mark.parametrize("dtype", [t for t in NUMBERS if t.kind in "iu"], ids=str)
def test_shifts(isa: str, dtype: DType) -> None:
    rng = np.random.default_rng(5)
    counts = rng.integers(0, dtype.bits + 3, COUNT)
    if dtype.kind == "i":
        counts = np.where(rng.random(COUNT) < 0.1, -1, counts)
    given = {"b": counts.astype(storage_dtype(dtype))}
    lines = ["y[@out] = shl(a[@], b[@])", "z[@out] = shr(a[@], b[@])"]
    check(
        kernel(lines, {"y": str(dtype), "z": str(dtype)}, {"a": str(dtype), "b": str(dtype)}),
        isa,
        given=given,
    )


@all_isas
@pytest.mark.parametrize("source", [t for t in DTYPES.values() if t.kind in "biuf"], ids=str)
def test_casts(isa: str, source: DType) -> None:
    """Floats in the range of the integer types (what lies outside is the target's)."""
    if source.name == "f16" and isa == "sse2":
        pytest.skip("legalise spells it in integers")
    rng = np.random.default_rng(7)
    data = sample(rng, source, COUNT)
    if source.kind == "f":
        small = rng.choice(np.array([0.0, -0.0, 0.5, 1.5, 2.5, 99.9, 127.0, 3.99, 1e-40]), COUNT)
        floats = "".join(f"y_{t}[@out] = {t}(a[@])\n" for t in ("f32", "f64") if t != str(source))
        check(
            kernel(
                floats.splitlines(),
                {f"y_{t}": t for t in ("f32", "f64") if t != str(source)},
                {"a": str(source)},
            ),
            isa,
        )
        from lowc.ir.numeric import to_storage

        data = to_storage(small.astype(np.float64), source)
    if source.name in ("f16", "bf16"):
        narrow: tuple[str, ...] = ()  # legalise goes by way of f32
    else:
        narrow = ("bf16",) if source.name == "f32" else ()
    targets = [
        t for t in DTYPES.values() if t.kind in "biuf" and t.bits != 16 or t.kind in "iu" or t.name in narrow
    ]
    lines = [f"y_{t}[@out] = {t}(a[@])" for t in targets if t != source]
    outputs = {f"y_{t}": str(t) for t in targets if t != source}
    check(kernel(lines, outputs, {"a": str(source)}), isa, given={"a": data})


@all_isas
@pytest.mark.parametrize("name", ("bf16", "f16"))
def test_narrow_floats(isa: str, name: str) -> None:
    """All bit patterns widened, and narrowed back from values on and between them."""
    if name == "f16" and isa == "sse2":
        pytest.skip("legalise spells it in integers")
    patterns = np.arange(0, 65536, dtype=np.uint16)
    lines = f"""kernel k(a: {name}[65536], w: f32[65536], b: f32[65536], n: {name}[65536]) {{
      for i in 65536 vector(16) {{
        w[i] = f32(a[i])
        n[i] = {name}(b[i])
      }}
    }}"""
    rng = np.random.default_rng(3)
    between = (rng.integers(0, 2**16, 65536, dtype=np.uint32) << 16) | rng.choice(
        np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32), 65536
    )
    floats = between.view(np.float32)
    if name == "f16":
        near = patterns.view(np.float16).astype(np.float32)
        with np.errstate(all="ignore"):
            floats = np.where(
                rng.random(65536) < 0.5, floats, np.nextafter(near, np.float32(rng.choice([-9e9, 9e9])))
            )
    check(lines, isa, given={"a": patterns.view(np.float16) if name == "f16" else patterns, "b": floats})


@all_isas
def test_bitcasts(isa: str) -> None:
    pairs = (
        ("f32", "i32"),
        ("f32", "u32"),
        ("f64", "i64"),
        ("bf16", "i16"),
        ("f16", "u16"),
        ("i8", "u8"),
        ("u64", "i64"),
    )
    lines, outputs, inputs = [], {}, {}
    for a, b in pairs:
        lines += [f"y_{a}_{b}[@out] = bitcast:{b}(x_{a}[@])", f"y_{b}_{a}[@out] = bitcast:{a}(x_{b}[@])"]
        outputs |= {f"y_{a}_{b}": b, f"y_{b}_{a}": a}
        inputs |= {f"x_{a}": a, f"x_{b}": b}
    check(kernel(lines, outputs, inputs), isa)


@all_isas
@pytest.mark.parametrize("dtype", ("f32", "f64"))
def test_scaling_by_powers_of_two_rounds_once(isa: str, dtype: str) -> None:
    rng = np.random.default_rng(11)
    with np.errstate(all="ignore"):
        x = sample(rng, DTYPES[dtype], COUNT)
        exponents = {"f32": (-149, 128), "f64": (-1074, 1024)}[dtype]
        wide = np.ldexp(rng.uniform(1, 2, COUNT), rng.integers(*exponents, COUNT)).astype(x.dtype)
    x = np.where(rng.random(COUNT) < 0.6, wide, x)
    for span in (5, 200, 1100, 2200):
        n = rng.integers(-span, span + 1, COUNT).astype(x.dtype)
        check(
            kernel(["y[@out] = ldexp(a[@], b[@])"], {"y": dtype}, {"a": dtype, "b": dtype}),
            isa,
            given={"a": x, "b": n},
        )


@all_isas
@pytest.mark.parametrize("dtype", ("f32", "f64"))
def test_fused_multiply_add_rounds_once(isa: str, dtype: str) -> None:
    text = kernel(["y[@out] = fma(a[@], b[@], c[@])"], {"y": dtype}, {n: dtype for n in "abc"})
    if isa == "sse2":
        with pytest.raises(CodegenError, match="fused"):
            check(text, isa)
        return
    check(text, isa)
    rng = np.random.default_rng(2)
    a, b = (rng.uniform(1, 2, COUNT).astype(dtype.replace("f", "float")) for _ in "ab")
    check(text, isa, given={"a": a, "b": b, "c": -(a * b)})


@all_isas
@pytest.mark.parametrize("dtype", ("u32", "u64"))
def test_high_half_of_a_product(isa: str, dtype: str) -> None:
    check(kernel(["y[@out] = mulhi(a[@], b[@])"], {"y": dtype}, {"a": dtype, "b": dtype}), isa)


@all_isas
@pytest.mark.parametrize("dtype", ("f32", "f64"))
def test_maths_of_the_c_library(isa: str, dtype: str) -> None:
    """What legalise leaves is called lane by lane."""
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.normal(0, 2, COUNT - 6), [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0]])
    inputs = {"a": dtype, "b": dtype}
    names = sorted(name for name in MATHS if not name.startswith("near_"))  # those are never left
    lines = [
        f"y_{name}[@out] = {name}({'a[@], b[@]' if OPS[name].arity == 2 else 'a[@]'})"
        for name in names
    ]
    outputs = {f"y_{name}": dtype for name in names}
    given = {"a": x, "b": rng.permutation(x)}
    check(kernel(lines, outputs, inputs), isa, given=given, tolerance=1e-6 if dtype == "f32" else 1e-13)


@all_isas
def test_rarely_is_select(isa: str) -> None:
    text = kernel(
        [
            "t = a[@] * 2.0",
            "y[@out] = rarely(a[@] > 3.0, sqrt(t) + b[@], t) + t",
            "z[@out] = rarely(true, b[@], 1.0)",
        ],
        {"y": "f32", "z": "f32"},
        {"a": "f32", "b": "f32"},
    )
    text = (
        text.replace("t = ", "t_# = ")
        .replace("(t)", "(t_#)")
        .replace(", t)", ", t_#)")
        .replace("+ t\n", "+ t_#\n")
    )
    first, second = text.split("for j", 1)
    text = first.replace("#", "i") + "for j" + second.replace("#", "j")
    check(text, isa)
    check(text, isa, given={"a": np.zeros(COUNT)})


@all_isas
def test_arithmetic_on_narrow_floats_is_refused(isa: str) -> None:
    with pytest.raises(CodegenError, match="widened"):
        check(kernel(["y[@out] = a[@] + a[@]"], {"y": "bf16"}, {"a": "bf16"}), isa)
