"""From LLVM IR text to functions in memory, and the description of the processor."""

import ctypes
import gc
import subprocess
import sys

import pytest

from lowc.errors import CodegenError
from lowc.options import Options
from tests.backends.harness import ISAS, target

pytest.importorskip("llvmlite")

from lowc.backends import x86  # noqa: E402
from lowc.backends.llvm import toolchain  # noqa: E402

ADD = "define i64 @add(i64 %a, i64 %b) {\n  %c = add i64 %a, %b\n  ret i64 %c\n}\n"
CALLS = "declare double @exp(double)\ndefine double @f(double %x) {\n %y = call double @exp(double %x)\n ret double %y\n}\n"


def function(library: toolchain.Library, name: str = "add") -> object:
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(library.address(name))


def test_code_is_loaded_beside_other_code_of_the_same_names() -> None:
    code = toolchain.emit_object(ADD, "x86-64", "")
    other = toolchain.emit_object(ADD.replace("add i64", "mul i64"), "x86-64", "")
    libraries = [toolchain.Library(c, ("add",), {}) for c in (code, other, code)]
    assert [function(x)(6, 7) for x in libraries] == [13, 42, 13]  # type: ignore[operator]
    del libraries[1]
    gc.collect()
    assert [function(x)(2, 3) for x in libraries] == [5, 5]  # type: ignore[operator]


def test_imports_are_bound_by_address() -> None:
    code = toolchain.emit_object(CALLS, "x86-64", "")
    library = toolchain.Library(code, ("f",), toolchain.libm(frozenset({"exp"})))
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(library.address("f"))(0.0) == 1.0
    with pytest.raises(CodegenError, match="linked"):
        toolchain.Library(toolchain.emit_object(CALLS.replace("@exp", "@no_such"), "x86-64", ""), ("f",), {})


def test_text_that_is_no_ir_is_an_error_with_the_place() -> None:
    with pytest.raises(CodegenError, match="expected"):
        toolchain.emit_object("define i64 @f() {\n ret\n}\n", "x86-64", "")
    with pytest.raises(CodegenError, match="LLVM"):
        toolchain.emit_object(
            "define i64 @f() {\n br label %x\nx:\n %a = add i64 %b, 1\n %b = add i64 1, 1\n ret i64 %a\n}\n",
            "x86-64",
            "",
        )


def test_a_process_ends_cleanly_with_code_loaded() -> None:
    script = (
        "from lowc.backends.llvm import toolchain as t\n"
        f"x = t.Library(t.emit_object({ADD!r}, 'x86-64', ''), ('add',), {{}})\n"
        "import sys; sys.modules['kept'] = x\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr


def test_assembly_is_for_the_instruction_set() -> None:
    for isa, register in zip(ISAS, ("zmm", "ymm", "xmm"), strict=True):
        try:
            found = x86.detect(Options(isa=isa))
        except CodegenError:
            continue
        lanes = found.vector_bits // 32
        text = f"define void @f(ptr %p) {{\n %x = load <{lanes} x float>, ptr %p, align 4\n %y = fadd <{lanes} x float> %x, %x\n"
        text += f" store <{lanes} x float> %y, ptr %p, align 4\n ret void\n}}\n"
        assembly = toolchain.emit_assembly(text, found.cpu, found.features)
        assert register in assembly
        assert (isa == "avx512") == ("zmm" in assembly)


@pytest.mark.parametrize("isa", ISAS)
def test_target(isa: str) -> None:
    found = target(isa)
    assert found.kind == "x86" and found.vector_bits == {"avx512": 512, "avx2": 256, "sse2": 128}[isa]
    assert 8 << 10 <= found.l1 <= found.l2 <= max(found.l2, found.l3) and found.cores >= 1
    assert ("fma" in found.ops) == (isa != "sse2")


def test_auto_is_the_best_there_is() -> None:
    widths = []
    for isa in ISAS:
        try:
            widths.append(x86.detect(Options(isa=isa)).vector_bits)
        except CodegenError:
            pass
    assert x86.detect(Options()).vector_bits == max(widths)
    with pytest.raises(CodegenError, match="has no avx1024"):
        x86.detect(Options(isa="avx1024"))


SCATTERED = r"""
import ctypes, mmap
from lowc.backends.llvm import toolchain

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
PAGE, BIG = mmap.PAGESIZE, 3 << 30

def reserve(size):
    return libc.mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, -1, 0)  # MAP_NORESERVE

table = ", ".join(f"float {n}.5" for n in range(64))
code = toolchain.emit_object(
    f"@table = private constant [64 x float] [{table}]\n"
    "define float @f(i64 %i) {\n %p = getelementptr float, ptr @table, i64 %i\n"
    " %x = load float, ptr %p\n ret float %x\n}\n", "x86-64", "")
load = lambda: toolchain.Library(code, ("f",), {})
first = load()
big = reserve(BIG)
while reserve(PAGE) > big:  # leave no other hole above
    pass
for n in range(9):
    libc.munmap(big + BIG - (60 - 2 * n) * PAGE, PAGE)
for library in [load() for _ in range(40)]:
    assert ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64)(library.address("f"))(7) == 7.5
print("right")
"""


def test_code_and_its_constants_lie_near_each_other_in_a_full_address_space() -> None:
    """Single free pages, and the next free memory 3 GiB away: sections loaded one by one would scatter."""
    run = subprocess.run([sys.executable, "-c", SCATTERED], capture_output=True, text=True)
    assert run.stdout == "right\n", run.stderr
