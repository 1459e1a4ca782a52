"""Warps that multiply by ``mma.sync``, and copies that threads do not wait for, in the simulator of kernels on tensor cores.

A copy happens when the thread that has started it waits for it; until then its place is NaN.
"""

import ctypes
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lowc.ir.ops import OPS

NARROW: dict[str, Any] = {
    "bf16": lambda words: (words.view(np.uint16).astype(np.uint32) << 16).view(np.float32),
    "f32": lambda words: words.view(np.float16).astype(np.float32),
    "tf32": lambda words: words.view(np.float32),
    "s8": lambda words: words.view(np.int8).astype(np.int32),
}
PATIENCE = 100.0  # seconds, on a machine that others use
COPY = r"call void @llvm\.nvvm\.cp\.async\.c[ag]\.shared\.global\."
DECLARED = """declare void @sim_matrices(i32, ptr, ptr)
declare void @sim_copy(i32, ptr, ptr, i32)
declare void @sim_group()
declare void @sim_copied(i32)
declare void @sim_mma_whole(i32, ptr, i32, i32, i32, i32, i32, i32, i32, i32, i32, i32)
declare i32 @sim_tf32(float)
declare i16 @sim_half(i32, ptr, i1)
declare void @sim_mma(i32, ptr, i32, i32, i32, i32, i32, i32, float, float, float, float)
"""
HALF = re.compile(r'call i16 asm sideeffect "[^"]*@\$2 ld\.global\.b16 \$0, \[\$1\+(-?\d+)\]; }", "=h,l,b"\(')
OWN = re.compile(r"declare .*(ldmatrix|nvvm\.mma|f2tf32|cp\.async\.c|async\.wait\.group\()")
WORDS = "{i32, i32, i32, i32}"
FLOATS = "{float, float, float, float}"


class Meeting:
    """Of the lanes of a warp, one after another."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.given: list[Any] = [None] * 32
        self.made: list[Any] = []
        self.count = self.turn = 0


class Fragments:
    """What a block's threads share for that; part of ``Machine``."""

    local: Any
    shared: Any
    base: int
    failed: list[BaseException]
    meetings: list["Meeting"]

    def copy_later(self, width: int, to: int, source: int, size: int) -> None:
        assert to % width == 0, "where a piece goes is no multiple of its size"
        assert source % width == 0 or not size, "a piece of memory is no multiple of its size"
        place = to - self.base
        self.shared[place : place + width] = 0xFF  # NaN

        def copy() -> None:
            given = (ctypes.c_uint8 * size).from_address(source) if size else []
            self.shared[place : place + width] = np.array([*given, *[0] * (width - size)], np.uint8)

        self.local.copies.append(copy)

    def half(self, further: int, source: int, inside: bool) -> int:
        """A load under a predicate."""
        return ctypes.c_int16.from_address(source + further).value if inside else 0

    def commit_copies(self) -> None:
        self.local.copy_groups.append(self.local.copies)
        self.local.copies = []

    def wait_for_copies(self, pending: int) -> None:
        while len(self.local.copy_groups) > pending:
            for copy in self.local.copy_groups.pop(0):
                copy()

    def together(self, mine: Any, made: Callable[[list[Any]], list[Any]]) -> Any:
        """A lane's part of what is ``made``, once, of what each lane of its warp has."""
        me = self.local.thread
        warp = self.meetings[me // 32]
        with warp.changed:
            warp.given[me % 32] = mine
            warp.count += 1
            turn = warp.turn
            if warp.count == 32:
                warp.made, warp.count, warp.turn = made(warp.given), 0, turn + 1
                warp.changed.notify_all()
            ends = time.monotonic() + PATIENCE
            while warp.turn == turn:
                if self.failed or time.monotonic() > ends:
                    raise TimeoutError("a warp waits for ever")
                warp.changed.wait(0.5)
            return warp.made[me % 32]

    def read_matrices(self, turned: int, out: int, at: int) -> None:
        """``ldmatrix``: lane ``8 * n + r`` says where row ``r`` of matrix ``n`` is; a lane gets two neighbours of each."""

        def made(given: list[int]) -> list[Any]:
            places = np.array(given) - self.base
            assert not (places % 16).any()
            banks = places.reshape(4, 8) // 16 % 8
            assert all(len(set(rows)) == 8 for rows in banks.tolist()), "rows of a matrix are in the same banks"
            rows = self.shared[places[:, None] + np.arange(16)].view(np.uint16).reshape(4, 8, 8)
            rows = rows.transpose(0, 2, 1) if turned else rows
            words = np.ascontiguousarray(rows).reshape(4, 32, 2).astype(np.uint32)
            return list((words[..., 0] | words[..., 1] << 16).T)

        np.ctypeslib.as_array((ctypes.c_uint32 * 4).from_address(out))[:] = self.together(at, made)

    def multiply_fragments(self, kind: int, out: int, *given: Any) -> None:
        """``mma``: how a warp holds both factors is figures in the PTX ISA, 9.7.14.5."""

        def made(every: list[Any]) -> list[Any]:
            words = np.array([[w & 0xFFFFFFFF for w in one[:6]] for one in every], np.uint32)
            values = NARROW[list(NARROW)[kind]](words).reshape(8, 4, 6, -1)
            # [row, lane of four, register, what is in it] → [row, register, place along the depth]
            pieces = values.transpose(0, 2, 1, 3).reshape(8, 6, -1)
            left = np.block([[pieces[:, 0], pieces[:, 2]], [pieces[:, 1], pieces[:, 3]]])
            right = np.hstack([pieces[:, 4], pieces[:, 5]])
            products = left @ right.T  # [16, 8]
            assert not np.isnan(products).any(), "what has not come is multiplied"  # no test of these has NaN among its data
            mine = products.reshape(2, 8, 4, 2).transpose(1, 2, 0, 3).reshape(32, 4)
            return list(mine + np.array([one[6:] for one in every], mine.dtype))

        four = (ctypes.c_int32 if list(NARROW)[kind] == "s8" else ctypes.c_float) * 4
        np.ctypeslib.as_array(four.from_address(out))[:] = self.together(given, made)


def translated_fragments(text: str) -> str:
    """LLVM IR with calls of the simulator for ``ldmatrix``, ``mma`` and ``cp.async``."""
    if "inttoptr" in text:  # addresses in shared memory are numbers of bytes into it
        text = re.sub(r"ptrtoint ptr addrspace\(3\) @lowc_shared to i32", "add i32 0, 0", text)
        pointer = r"getelementptr i8, ptr addrspace(3) @lowc_shared, i32 \1"
        text = re.sub(r"inttoptr i32 (\S+) to ptr addrspace\(3\)", pointer, text)
    multiplied = "\n".join(x for x in text.splitlines() if "@llvm.nvvm.mma" in x)
    halves = set(re.findall(r"<2 x half> (%[\w.]+)[,)]", multiplied))
    lines: list[str] = []
    for line in text.splitlines():
        cast = re.match(r"  (%\S+) = bitcast i32 (\S+) to <2 x half>", line)
        read = re.match(r"  (%\S+) = call \{[^}]*\} @llvm\.nvvm\.ldmatrix\.[\w.]*\.x4(\.trans)?\.b16\.p3\((.*)\)", line)
        product = re.match(r"  (%\S+) = call \{[^}]*\} @llvm\.nvvm\.mma\.m16n8k\d+\.row\.col\.([\w.]+)\((.*)\)", line)
        if cast and cast[1] in halves:
            lines.append(f"  {cast[1]} = add i32 {cast[2]}, 0")
        elif read:
            lines += [f"  call void @sim_matrices(i32 {int(bool(read[2]))}, ptr %sim.words, {read[3]})", *_taken(read[1], "i32")]
        elif product:
            kind, given = list(NARROW).index(product[2].split(".")[-1]), product[3].replace("<2 x half>", "i32")
            type_, name = ("i32", "sim_mma_whole") if product[2] == "s8" else ("float", "sim_mma")
            lines += [f"  call void @{name}(i32 {kind}, ptr %sim.words, {given})", *_taken(product[1], type_)]
        elif not OWN.match(line):
            lines.append(line)
    text = HALF.sub(r"call i16 @sim_half(i32 \1, ", "\n".join(lines))
    text = re.sub(COPY + r"(\d+)\.s\(", r"call void @sim_copy(i32 \1, ", text)
    text = re.sub(COPY + r"(\d+)\((.*)\)", r"call void @sim_copy(i32 \1, \2, i32 \1)", text)
    text = text.replace("@llvm.nvvm.cp.async.commit.group(", "@sim_group(")
    text = text.replace("@llvm.nvvm.cp.async.wait.group(", "@sim_copied(")
    text = re.sub(r"@llvm\.nvvm\.f2tf32\.rna?\(", "@sim_tf32(", text)
    return DECLARED + text.replace("entry:\n", "entry:\n  %sim.words = alloca [4 x i32], align 16\n", 1)


def _taken(name: str, type_: str) -> list[str]:
    """Lines that make ``name`` the struct of the four words."""
    struct, before, out = WORDS if type_ == "i32" else FLOATS, "undef", list[str]()
    for n in range(4):
        after = name if n == 3 else f"{name}.r{n}"
        out.append(f"  {name}.p{n} = getelementptr i32, ptr %sim.words, i64 {n}")
        out.append(f"  {name}.l{n} = load {type_}, ptr {name}.p{n}")
        out.append(f"  {after} = insertvalue {struct} {before}, {type_} {name}.l{n}, {n}")
        before = after
    return out


def functions(m: Any, made: Any) -> dict[str, Any]:
    """What the translated code calls."""
    word, place, number = ctypes.c_int32, ctypes.c_void_p, ctypes.c_float
    return {
        "sim_copy": made(None, [word, place, place, word], m.copy_later),
        "sim_group": made(None, [], m.commit_copies),
        "sim_copied": made(None, [word], m.wait_for_copies),
        "sim_half": made(ctypes.c_int16, [word, place, ctypes.c_bool], m.half, 0),
        "sim_mma_whole": made(None, [word, place, *[word] * 10], m.multiply_fragments),
        "sim_tf32": made(word, [number], lambda x: int(OPS["tf32"].numpy(np.float32(x)).view(np.int32)), 0),
        "sim_matrices": made(None, [word, place, place], m.read_matrices),
        "sim_mma": made(None, [word, place, *[word] * 6, *[number] * 4], m.multiply_fragments),
    }
