"""Object code calls nothing but the C maths library and OpenMP: no helper of a compiler's runtime, which no process need have.

LLVM turns what it cannot select into such calls, mostly conversions of half, some of them only where it has merged several.
"""

from typing import Any

import pytest

from lowc.errors import CodegenError
from lowc.ir.ops import APPROXIMATE, CHECKS, OPS, result_dtype
from lowc.ir.parser import parse_kernel
from lowc.ir.types import DTYPES, DType, bool_, f64
from lowc.options import Options
from lowc.scheduler.legalise import legalise_kernel
from tests.backends.harness import ISAS, module_of, target

pytest.importorskip("llvmlite")

from lowc.backends import x86  # noqa: E402
from lowc.backends.llvm import toolchain  # noqa: E402
from lowc.backends.x86.module import LIBM_NAMES  # noqa: E402

COUNT = 40
KNOWN = [t for t in DTYPES.values() if t.kind in "biuf" and t.bits >= 8 and not t.name.startswith("f8")]
# not of one dtype; made by legalise alone; not there
LEFT_OUT = {isa: {"cast", "bitcast", "mulhi", "rarely"} | ({"fma"} if isa == "sse2" else set()) for isa in ISAS}
TO = ("f16", "bf16", "f32", "f64", "i8", "u8", "i32", "i64", "bool")


def undefined(lines: list[tuple[str, str]], isa: str) -> set[str]:
    """What the code for ``lines`` (result dtype, expression with @ for the axis) calls, on scalars and on lanes."""
    inputs = ", ".join(f"in_{t}: {t}[{COUNT}]" for t in map(str, KNOWN))
    outputs = "".join(f", y{n}: {dtype}[{COUNT}]" for n, (dtype, _) in enumerate(lines))
    loops = []
    for axis, kind in (("i", ""), ("j", "vector(16)"), ("k", "vector(4, 2)")):
        body = "\n".join(f"y{n}[{axis}] = {line.replace('@', axis)}" for n, (_, line) in enumerate(lines))
        loops.append(f"for {axis} in {COUNT} {kind} {{\n{body}\n}}")
    kernel = parse_kernel(f"kernel k({inputs}{outputs}) {{\n" + "\n".join(loops) + "\n}")
    chosen = target(isa)
    artifact = x86.compile_module(module_of(legalise_kernel(kernel, chosen)), chosen, Options(isa=isa, threads=False))
    return set(toolchain.undefined(artifact.code)) - LIBM_NAMES


def cast(dtype: str, value: str) -> str:
    return f"{dtype}({value})"


def expressions(dtype: DType, isa: str) -> list[tuple[str, str]]:
    """Each op on ``dtype``, on what is in memory and on what was converted from f64 and i64, and what becomes of its result."""
    lines: list[tuple[str, str]] = []
    for name, row in OPS.items():
        if dtype.kind not in row.kinds or name in CHECKS | APPROXIMATE or name in LEFT_OUT[isa]:
            continue
        if row.takes is not None and row.takes[0] != dtype:
            continue
        if name.startswith("near_") and dtype == f64:  # for what is rounded to f16 or bf16
            continue
        own = f"in_{dtype}[@]"
        double, whole = (own if t == str(dtype) else cast(str(dtype), f"in_{t}[@]") for t in ("f64", "i64"))
        for sources in ((own, own, own), (own, double, whole), (double, own, own)):
            args = list(sources)
            if row.rule == "select":
                args = ["in_bool[@]", *args[:2]]
            call = f"{name}({', '.join(args[: row.arity])})"
            kinds = (bool_, dtype, dtype) if row.rule == "select" else (dtype,) * row.arity
            result = str(result_dtype(row, kinds, None))
            lines.append((result, call))
            if (str(dtype), name) == ("u64", "min"):
                continue  # LLVM 20 aborts on uitofp of lanes that it knows to be 0, which no op of eager's comes to
            lines += [(to, cast(to, call)) for to in ("f16", "f64") if to != result]
    return lines


@pytest.mark.parametrize(
    ("dtype", "isa"),
    [
        pytest.param(d, i, marks=[pytest.mark.slow] * ((d.name, i) == ("bf16", "sse2")), id=f"{d}-{i}")
        for d in KNOWN
        for i in ISAS
    ],
)
def test_ops(dtype: DType, isa: str) -> None:
    lines = expressions(dtype, isa)
    for start in range(0, len(lines), 40):
        assert not undefined(lines[start : start + 40], isa)


@pytest.mark.parametrize("isa", ISAS)
def test_conversions(isa: str) -> None:
    lines: list[tuple[str, str]] = []
    for source in map(str, KNOWN):
        for to in TO:
            if to == source:
                continue
            once = cast(to, f"in_{source}[@]")
            lines.append((to, once))
            lines += [(last, cast(last, once)) for last in ("f16", "bf16") if last != to]
    for start in range(0, len(lines), 40):
        assert not undefined(lines[start : start + 40], isa)


def test_what_is_missing_is_named_and_nothing_is_printed(capfd: Any) -> None:
    code = toolchain.emit_object(
        "declare double @no_such(double)\n"
        "define double @f(double %x) {\n %y = call double @no_such(double %x)\n ret double %y\n}\n",
        "x86-64",
        "",
    )
    with pytest.raises(CodegenError, match="no_such"):
        toolchain.Library(code, ("f",), {})
    assert capfd.readouterr().err == ""
