"""The LLVM IR of a kernel on the CPU: each GPU thread is a thread of this process, shuffles and barriers are calls of Python.

Checks what the backend writes, not what LLVM's NVPTX code generator makes of it.  Blocks run one after another, so that shared
memory may be a global variable.  Slow: for small grids.
"""

import ctypes
import re
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from lowc.artifact import Entry
from lowc.backends.llvm import toolchain
from lowc.ir.index import evaluate
from lowc.ir.nodes import Kernel

GUARD = 256
CALLS = ("tid.x", "tid.y", "ctaid.x")
SHUFFLES = ("bfly", "up", "idx")


class Block:
    """The threads of the block that runs: where they meet, and what they hand each other."""

    def __init__(self, threads: tuple[int, int]) -> None:
        self.x, count = threads[0], threads[0] * threads[1]
        self.number = 0
        self.local = threading.local()
        self.all = threading.Barrier(count)
        self.warps = [threading.Barrier(min(32, count)) for _ in range(-(-count // 32))]
        self.words: list[Any] = [0] * count

    def shuffle(self, mode: str, value: Any, distance: int) -> Any:
        me = self.local.thread
        warp = self.warps[me // 32]
        self.words[me] = value
        warp.wait(20)
        other = self.words[self.source(mode, me, distance)]
        warp.wait(20)
        return other

    def source(self, mode: str, me: int, distance: int) -> int:
        if mode == "bfly":
            return me ^ distance
        if mode == "idx":
            return me // 32 * 32 + distance
        return me - distance if me % 32 >= distance else me

    def barrier(self, number: int) -> None:
        self.all.wait(20)


def _translated(text: str, shared: int) -> str:
    """The module for the CPU: one address space, calls of the functions that ``Simulator`` gives."""
    text = (
        re.sub(r" addrspace\([13]\)", "", text).replace("ptx_kernel ", "").replace(' syncscope("device")', "")
    )
    text = text.replace(
        "@lowc_shared = external global [0 x i8]",
        f"@lowc_shared = internal global [{max(1, shared)} x i8] undef",
    )
    text = re.sub(r'"nvvm\.maxntid"="[^"]*" ', "", text)
    text = re.sub(r"call range\([^)]*\) ", "call ", text)
    for name in CALLS:
        text = text.replace(f"llvm.nvvm.read.ptx.sreg.{name}", "sim_" + name.replace(".", "_"))
    for kind in ("i32", "f32"):
        for mode in SHUFFLES:
            text = text.replace(f"llvm.nvvm.shfl.sync.{mode}.{kind}", f"sim_shuffle_{mode}_{kind}")
    for name, short in (("ex2.approx.ftz.f", "ex2_normal"), ("ex2.approx.f", "ex2"), ("rcp.approx.ftz.f", "rcp")):
        text = text.replace(f"llvm.nvvm.{name}", f"sim_{short}")
    return text.replace("llvm.nvvm.barrier.cta.sync.aligned.all", "sim_barrier")


def _f32(function: Any, x: float) -> float:
    with np.errstate(all="ignore"):
        return float(function(np.float32(x)))


class Simulator:
    """A compiled kernel; call it with memory and sizes."""

    def __init__(self, text: str, kernel: Kernel, entry: Entry) -> None:
        import llvmlite.binding as llvm

        self.kernel, self.entry = kernel, entry
        self.block = Block(entry.threads)
        int_, float_ = ctypes.c_int32, ctypes.c_float
        shuffle = self.block.shuffle
        x = entry.threads[0]
        functions: dict[str, Any] = {
            "sim_tid_x": ctypes.CFUNCTYPE(int_)(lambda: self.block.local.thread % x),
            "sim_tid_y": ctypes.CFUNCTYPE(int_)(lambda: self.block.local.thread // x),
            "sim_ctaid_x": ctypes.CFUNCTYPE(int_)(lambda: self.block.number),
            "sim_ex2": ctypes.CFUNCTYPE(float_, float_)(lambda x: _f32(np.exp2, x)),
            "sim_ex2_normal": ctypes.CFUNCTYPE(float_, float_)(lambda x: _f32(np.exp2, x)),
            "sim_rcp": ctypes.CFUNCTYPE(float_, float_)(lambda x: _f32(np.reciprocal, x)),
            "sim_barrier": ctypes.CFUNCTYPE(None, int_)(self.block.barrier),
        }
        for mode in SHUFFLES:
            for name, type_ in (("i32", int_), ("f32", float_)):
                # the mode bound now: a function of Python for each
                call: Any = lambda mask, value, distance, clamp, mode=mode: shuffle(mode, value, distance)  # noqa: E731
                functions[f"sim_shuffle_{mode}_{name}"] = ctypes.CFUNCTYPE(type_, int_, type_, int_, int_)(
                    call
                )
        self.kept = functions
        imports = {n: ctypes.cast(f, ctypes.c_void_p).value or 0 for n, f in functions.items()}
        features = ",".join(f"+{f}" for f, on in llvm.get_host_cpu_features().items() if on)
        code = toolchain.emit_object(_translated(text, entry.shared), llvm.get_host_cpu_name(), features, 1)
        self.library = toolchain.Library(code, (entry.symbol,), imports)
        self.function = ctypes.CFUNCTYPE(
            None, *[ctypes.c_int64] * (len(kernel.params) + len(kernel.sizes) + 2)
        )(self.library.address(entry.symbol))

    def __call__(self, memory: dict[str, Any], sizes: Mapping[str, int]) -> int:
        blocks: dict[str, tuple[Any, int]] = {}
        args: list[int] = []
        for number, param in enumerate(self.kernel.params):
            data = memory[param.name]
            block = np.full(data.nbytes + 2 * GUARD + 64, 0xA5, np.uint8)
            start = GUARD + (-(block.ctypes.data + GUARD)) % 64
            start += 0 if number in self.entry.aligned else data.itemsize
            block[start : start + data.nbytes] = data.view(np.uint8)
            blocks[param.name] = (block, start)
            args.append(block.ctypes.data + start)
        error = ctypes.c_int64(0)
        args += [sizes[s.name] for s in self.kernel.sizes] + [ctypes.addressof(error), 5]
        failures: list[BaseException] = []
        grid = int(evaluate(self.entry.grid, sizes))
        count = self.entry.threads[0] * self.entry.threads[1]
        between = threading.Barrier(count)

        def thread(number: int) -> None:
            self.block.local.thread = number
            for position in range(grid):
                if number == 0:
                    self.block.number = position
                between.wait(60)
                self.function(*args)
                between.wait(60)

        before = threading.stack_size(256 << 10)
        workers = [threading.Thread(target=thread, args=(n,)) for n in range(count)]
        threading.stack_size(before)
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not failures
        for name, (block, start) in blocks.items():
            size = memory[name].nbytes
            assert (block[:start] == 0xA5).all() and (block[start + size :] == 0xA5).all(), (
                f"{name} was overrun"
            )
            memory[name].view(np.uint8)[...] = block[start : start + size]
        return error.value
