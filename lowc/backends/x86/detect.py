"""What this processor can do, as a Target."""

import ctypes
import os
import platform
import sys
from functools import cache

import llvmlite.binding as llvm

from lowc.errors import CodegenError
from lowc.machine import data_caches
from lowc.target import Target

ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18  # Linux, asm/unistd_64.h, asm/prctl.h and asm/fpu/types.h
# What each level needs (LLVM's feature names), the microarchitecture level of the System V ABI that it equals, and its vectors.
LEVELS: dict[str, tuple[tuple[str, ...], str, int, int]] = {
    "avx512": (
        ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "fma", "f16c"),
        "x86-64-v4",
        512,
        32,
    ),
    "avx2": (("avx2", "fma", "f16c", "bmi2"), "x86-64-v3", 256, 16),
    "sse2": (("sse2",), "x86-64", 128, 16),
}
ABILITIES: dict[str, tuple[str, ...]] = {
    "avx512": ("fma", "scalef", "masked", "gather", "f16c", "round", "rarely"),
    "avx2": ("fma", "masked", "f16c", "round", "rarely"),
    "sse2": ("rarely",),
}
AMX = ("amx-bf16", "amx-int8")  # what needs the system's permission as well
# What a processor may have beyond its level, abilities by LLVM's names of the features; no artifact for a level relies on it.
FURTHER: dict[str, tuple[str, ...]] = {"avx512": ("avx512bf16", "avx512vnni", *AMX), "avx2": ("avxvnni",), "sse2": ()}


@cache
def may_use_tiles() -> bool:
    """Whether Linux lets this process use the tiles of AMX; it is asked now, once, and allows it to all threads and to what is
    forked from it (Linux, Documentation/arch/x86/xstate.rst).  It says no where a thread has too little memory for signals."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    return syscall(*(ctypes.c_long(n) for n in (ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA))) == 0


@cache
def _host() -> tuple[str, frozenset[str]]:
    features = llvm.get_host_cpu_features()
    return llvm.get_host_cpu_name(), frozenset(name for name, on in features.items() if on)


def detect(isa: str = "auto") -> Target:
    """The Target for ``isa`` ("auto": the best that this processor has).  Raises CodegenError if the
    processor lacks it.
    """
    cpu, features = _host()
    able = [name for name, (needs, *_) in LEVELS.items() if all(n in features for n in needs)]
    if isa == "auto":
        isa = able[0]
    if isa not in able:
        raise CodegenError(
            f"this processor ({cpu}) has no {isa}", hint="isa is one of auto, " + ", ".join(able)
        )
    _, level, bits, registers = LEVELS[isa]
    l1, l2, l3 = data_caches()
    best = isa == able[0]
    wanted = ",".join(f"+{f}" for f in sorted(features)) if best else ""
    # not the affinity of this thread: OMP_PROC_BIND ties it to one core, the others run on the rest
    cores = os.cpu_count() or 1
    able_to = {*ABILITIES[isa], *(f for f in FURTHER[isa] if best and f in features)}
    if not able_to.isdisjoint(AMX) and not ("amx-tile" in features and may_use_tiles()):
        able_to.difference_update(AMX)
    return Target("x86", cpu if best else level, wanted, bits, registers, l1, l2, l3, cores, frozenset(able_to))
