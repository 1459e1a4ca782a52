"""What this processor can do, as a Target."""

import os
from functools import cache

import llvmlite.binding as llvm

from lowc.errors import CodegenError
from lowc.machine import data_caches, may_use_tiles
from lowc.target import Target

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
