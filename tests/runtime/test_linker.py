"""lowc's linker: the code that LLVM's linker loads as well does the same, and what it does not know it refuses."""

import ctypes
import gc
import math
import random
import struct
from typing import Any

import pytest

from lowc.errors import CodegenError
from lowc.runtime.linker import Library, _sections

pytest.importorskip("llvmlite")

from lowc.backends.llvm import toolchain  # noqa: E402

ADD = "define i64 @add(i64 %a, i64 %b) {\n  %c = add i64 %a, %b\n  ret i64 %c\n}\n"
CALLS = "declare double @exp(double)\ndefine double @f(double %x) {\n %y = call double @exp(double %x)\n ret double %y\n}\n"
TABLE = """
@table = private unnamed_addr constant [4 x i64] [i64 3, i64 5, i64 7, i64 11], align 64
define i64 @at(i64 %n) {
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %n
  %v = load i64, ptr %p
  %w = call i64 @twice(i64 %v)
  ret i64 %w
}
define internal i64 @twice(i64 %v) noinline {
  %w = add i64 %v, %v
  ret i64 %w
}
define double @half(double %x) {
  %y = fmul double %x, 5.0e-1
  ret double %y
}
define ptr @which() {
  ret ptr @outside
}
declare i64 @outside(i64)
define i64 @call(i64 %v) {
  %w = call i64 @outside(i64 %v)
  ret i64 %w
}
"""


def function(library: Library, name: str, result: Any, *given: Any) -> Any:
    return ctypes.CFUNCTYPE(result, *given)(library.address(name))


def test_code_is_loaded_beside_other_code_of_the_same_names_and_unloaded() -> None:
    code = toolchain.emit_object(ADD, "x86-64", "")
    other = toolchain.emit_object(ADD.replace("add i64", "mul i64"), "x86-64", "")
    libraries = [Library(c, ("add",), {}) for c in (code, other, code)]
    call = [function(x, "add", ctypes.c_int64, ctypes.c_int64, ctypes.c_int64) for x in libraries]
    assert [f(6, 7) for f in call] == [13, 42, 13]
    address = libraries[1].address("add")
    assert any(_has(line, address) for line in open("/proc/self/maps"))
    del libraries[1]
    gc.collect()
    assert [call[n](2, 3) for n in (0, 2)] == [5, 5]


def _has(line: str, address: int) -> bool:
    start, end = (int(x, 16) for x in line.split()[0].split("-"))
    if start <= address < end:
        assert line.split()[1] == "r-xp"  # code, and not to be written to
        return True
    return False


def test_constants_calls_and_addresses() -> None:
    library = Library(toolchain.emit_object(CALLS, "x86-64", ""), ("f",), {})
    assert function(library, "f", ctypes.c_double, ctypes.c_double)(1.0) == math.exp(1.0)
    outside = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda n: n * 100)
    address = ctypes.cast(outside, ctypes.c_void_p).value or 0
    library = Library(toolchain.emit_object(TABLE, "x86-64", ""), ("at", "half", "which", "call"), {"outside": address})
    at = function(library, "at", ctypes.c_int64, ctypes.c_int64)
    assert [at(n) for n in range(4)] == [6, 10, 14, 22]
    assert function(library, "half", ctypes.c_double, ctypes.c_double)(3.0) == 1.5
    assert function(library, "which", ctypes.c_void_p)() == address
    assert function(library, "call", ctypes.c_int64, ctypes.c_int64)(7) == 700


@pytest.mark.parametrize(
    "text",
    [
        CALLS.replace("@exp", "@no_such_function"),
        "@x = global i64 0\ndefine ptr @f() {\n ret ptr @x\n}\n",
        "@x = thread_local global i64 0\ndefine ptr @f() {\n ret ptr @x\n}\n",
    ],
    ids=["missing", "writable", "thread_local"],
)
def test_what_it_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(CodegenError):
        Library(toolchain.emit_object(text, "x86-64", ""), ("f",), {})


def test_a_function_that_is_not_there() -> None:
    with pytest.raises(CodegenError, match="no g"):
        Library(toolchain.emit_object(ADD, "x86-64", ""), ("g",), {})


@pytest.mark.parametrize("code", [b"", b"\x7fELF", bytes(200), b"\x7fELF\x02\x01" + bytes(200)])
def test_what_is_no_object_file(code: bytes) -> None:
    with pytest.raises(CodegenError):
        Library(code, ("f",), {})


def test_damaged_object_files_end_in_codegen_errors_only() -> None:
    """Headers, tables of symbols and of relocations with wrong bytes: linked (nothing is called), or refused."""
    sound = toolchain.emit_object(TABLE, "x86-64", "")
    (table,) = struct.unpack_from("<Q", sound, 0x28)
    rng, refused = random.Random(0), 0
    for n in range(400):
        code = bytearray(sound)
        start = 0 if n % 2 else table
        code[rng.randrange(start, min(start + 512, len(code)))] = rng.randrange(256)
        try:
            Library(bytes(code), ("at",), {"outside": 4096})
        except CodegenError:
            refused += 1
    assert refused > 50
    for length in range(0, len(sound), 7):
        try:
            Library(sound[:length], ("at",), {"outside": 4096})
        except CodegenError:
            refused += 1
    assert refused > 150


def test_a_relocation_to_no_symbol() -> None:
    """Found by ``tests.property.files``: the first symbol of a table has no name and no section."""
    sound = toolchain.emit_object(TABLE, "x86-64", "")
    code, known = bytearray(sound), _sections(sound)
    (section,) = [s for s in known if s.kind == 4 and known[s.info].flags & 4 and s.size]
    struct.pack_into("<I", code, section.start + 12, 0)
    with pytest.raises(CodegenError, match="a symbol without a name"):
        Library(bytes(code), ("at",), {"outside": 4096})
