"""Warps that multiply by ``mma.sync``, and copies that threads do not wait for, in the simulator of kernels on tensor cores.

A copy happens when the thread that has started it waits for it; until then its place is NaN.
"""

import ctypes
import re
from typing import Any

import numpy as np

NARROW = {
    "bf16": lambda raw: (raw.astype(np.uint32) << 16).view(np.float32),
    "f32": lambda raw: raw.view(np.float16).astype(np.float32),
}
WORDS = "{i32, i32, i32, i32}"
FLOATS = "{float, float, float, float}"


class Fragments:
    """What a block's threads share for that; part of ``Machine``."""

    local: Any
    shared: Any
    base: int
    threads: int
    held: list[Any]

    def meet_warp(self) -> None:
        raise NotImplementedError

    def copy_later(self, width: int, to: int, source: int, size: int) -> None:
        assert to % width == 0, "where a piece goes is no multiple of its size"
        assert source % width == 0 or not size, "a piece of memory is no multiple of its size"
        place = to - self.base
        self.shared[place : place + width] = 0xFF  # NaN

        def copy() -> None:
            given = (ctypes.c_uint8 * size).from_address(source) if size else []
            self.shared[place : place + width] = np.array([*given, *[0] * (width - size)], np.uint8)

        self.local.copies.append(copy)

    def commit_copies(self) -> None:
        self.local.copy_groups.append(self.local.copies)
        self.local.copies = []

    def wait_for_copies(self, pending: int) -> None:
        while len(self.local.copy_groups) > pending:
            for copy in self.local.copy_groups.pop(0):
                copy()

    def exchanged(self, mine: Any) -> list[Any]:
        """What each lane of the warp has."""
        me = self.local.thread
        self.held[me] = mine
        self.meet_warp()
        found = self.held[me // 32 * 32 : me // 32 * 32 + 32]
        self.meet_warp()
        return found

    def read_matrices(self, turned: int, out: int, at: int) -> None:
        """``ldmatrix``: lane ``8 * n + r`` says where row ``r`` of matrix ``n`` is; a lane gets two neighbours of each."""
        lane, words = self.local.thread % 32, np.ctypeslib.as_array((ctypes.c_uint32 * 4).from_address(out))
        places = np.array(self.exchanged(at)) - self.base
        assert not (places % 16).any()
        banks = places.reshape(4, 8) // 16 % 8
        assert all(len(set(rows)) == 8 for rows in banks.tolist()), "rows of a matrix are in the same banks"
        for n in range(4):
            rows = places[8 * n : 8 * n + 8]
            halves = np.stack([self.shared[p : p + 16].view(np.uint16) for p in rows])
            halves = halves.T if turned else halves
            low, high = halves[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2].tolist()
            words[n] = low | high << 16

    def multiply_fragments(self, kind: int, out: int, *given: Any) -> None:
        words, sums = given[:6], given[6:]
        lane, every = self.local.thread % 32, np.array(self.exchanged([w & 0xFFFFFFFF for w in words]), np.uint32)
        values = NARROW[list(NARROW)[kind]](np.ascontiguousarray(every).view(np.uint16).reshape(32, 6, 2))
        left, right = np.zeros((16, 16), np.float32), np.zeros((16, 8), np.float32)
        for other in range(32):
            row, pair = other // 4, other % 4 * 2
            for n in range(4):
                left[row + n % 2 * 8, pair + n // 2 * 8 : pair + n // 2 * 8 + 2] = values[other, n]
            for n in range(2):
                right[pair + n * 8 : pair + n * 8 + 2, row] = values[other, 4 + n]
        row, column = lane // 4, lane % 4 * 2
        mine = (left[[row, row + 8]] @ right[:, column : column + 2]).ravel()
        assert not np.isnan(mine).any(), "what has not come is multiplied"  # no test of these has NaN among its data
        np.ctypeslib.as_array((ctypes.c_float * 4).from_address(out))[:] = mine + np.array(sums, np.float32)


def translated_fragments(text: str) -> str:
    """LLVM IR with calls of the simulator for ``ldmatrix``, ``mma`` and ``cp.async``."""
    if "inttoptr" in text:  # addresses in shared memory are numbers of bytes into it
        text = re.sub(r"ptrtoint ptr addrspace\(3\) @lowc_shared to i32", "add i32 0, 0", text)
        text = re.sub(r"inttoptr i32 (\S+) to ptr addrspace\(3\)", r"getelementptr i8, ptr addrspace(3) @lowc_shared, i32 \1", text)
    for name in set(re.findall(r"<2 x half> (%[\w.]+)[,)]", "\n".join(x for x in text.splitlines() if "@llvm.nvvm.mma" in x))):
        text = re.sub(rf"  {re.escape(name)} = bitcast i32 (\S+) to <2 x half>", rf"  {name} = add i32 \1, 0", text)
    lines: list[str] = []
    for line in text.splitlines():
        read = re.match(r"  (%\S+) = call \{[^}]*\} @llvm\.nvvm\.ldmatrix\.[\w.]*\.x4(\.trans)?\.b16\.p3\((.*)\)", line)
        multiplied = re.match(r"  (%\S+) = call \{[^}]*\} @llvm\.nvvm\.mma\.m16n8k16\.row\.col\.([\w.]+)\((.*)\)", line)
        if line.startswith("declare") and ("ldmatrix" in line or "nvvm.mma" in line or "nvvm.cp.async.c" in line or "async.wait.group(" in line):
            continue
        if read:
            lines += [f"  call void @sim_matrices(i32 {int(bool(read[2]))}, ptr %sim.words, {read[3]})", *_taken(read[1], "i32")]
        elif multiplied:
            kind = list(NARROW).index(multiplied[2].split(".")[-1])
            given = multiplied[3].replace("<2 x half>", "i32")
            lines += [f"  call void @sim_mma(i32 {kind}, ptr %sim.words, {given})", *_taken(multiplied[1], "float")]
        else:
            lines.append(line)
    text = "\n".join(lines)
    text = re.sub(r"call void @llvm\.nvvm\.cp\.async\.c[ag]\.shared\.global\.(\d+)\.s\(", r"call void @sim_copy(i32 \1, ", text)
    text = re.sub(r"call void @llvm\.nvvm\.cp\.async\.c[ag]\.shared\.global\.(\d+)\((.*)\)", r"call void @sim_copy(i32 \1, \2, i32 \1)", text)
    text = text.replace("@llvm.nvvm.cp.async.commit.group(", "@sim_group(").replace("@llvm.nvvm.cp.async.wait.group(", "@sim_copied(")
    declared = "declare void @sim_matrices(i32, ptr, ptr)\ndeclare void @sim_copy(i32, ptr, ptr, i32)\ndeclare void @sim_group()\n"
    declared += f"declare void @sim_copied(i32)\ndeclare void @sim_mma(i32, ptr{', i32' * 6}{', float' * 4})\n"
    return declared + text.replace("entry:\n", "entry:\n  %sim.words = alloca [4 x i32], align 16\n", 1)


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
        "sim_matrices": made(None, [word, place, place], m.read_matrices),
        "sim_mma": made(None, [word, place, *[word] * 6, *[number] * 4], m.multiply_fragments),
    }
