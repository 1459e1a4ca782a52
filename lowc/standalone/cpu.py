"""Which of an artifact's codes this processor runs."""

import os
from collections.abc import Sequence

from lowc.errors import LowcError
from lowc.machine import processor_flags
from lowc.standalone.manifest import Code

_V2 = ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3 = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")
LEVELS: dict[str, tuple[str, ...]] = {
    "x86-64-v4": (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "x86-64-v3": _V3,
    "x86-64-v2": _V2,
    "x86-64": (),
}
"""The microarchitecture levels of the System V ABI, best first, and what they need, as /proc/cpuinfo calls it."""


def best(codes: Sequence[Code], flags: frozenset[str] | None = None) -> Code:
    """The first of ``codes`` that a processor with ``flags`` (None: this one) runs.  Raises LowcError if there is none."""
    if os.name != "posix" or os.uname()[::4] != ("Linux", "x86_64"):
        raise LowcError("artifacts run on Linux on x86-64, which this is not")
    have = processor_flags() if flags is None else flags
    known = [code for code in codes if code.format == "elf"]
    for code in known:
        if have.issuperset(code.needs):
            return code
    if not known:
        levels = ", ".join(code.level for code in codes) or "nothing"
        hint = "lowc compile --target x86-64 adds it" + ('; device="cuda:0" loads it for a GPU' if codes else "")
        raise LowcError(f"the artifact has no code for a CPU, but for {levels}", hint=hint)
    least = known[-1]
    missing = " ".join(sorted(set(least.needs) - have))
    raise LowcError(
        f"this processor cannot run the artifact: its code is for {', '.join(c.level for c in known)}, and there is no {missing}",
        hint="lowc compile --target x86-64 makes code for every processor",
    )

# Where cpuid says what LLVM may use when it selects instructions: (leaf, sub-leaf, register) → (flag of /proc/cpuinfo, bit), …
_CPUID: dict[tuple[int, int, int], dict[str, int]] = {
    (1, 0, 2): {"ssse3": 9, "fma": 12, "cx16": 13, "sse4_1": 19, "sse4_2": 20, "movbe": 22, "popcnt": 23, "xsave": 26, "avx": 28,
                "f16c": 29},
    (7, 0, 1): {"bmi1": 3, "avx2": 5, "bmi2": 8, "avx512f": 16, "avx512dq": 17, "avx512ifma": 21, "avx512cd": 28, "sha_ni": 29,
                "avx512bw": 30, "avx512vl": 31},
    (7, 0, 2): {"avx512vbmi": 1, "avx512_vbmi2": 6, "gfni": 8, "vaes": 9, "vpclmulqdq": 10, "avx512_vnni": 11,
                "avx512_bitalg": 12, "avx512_vpopcntdq": 14},
    (7, 0, 3): {"avx512_vp2intersect": 8, "amx_bf16": 22, "avx512_fp16": 23, "amx_tile": 24, "amx_int8": 25},
    (7, 1, 0): {"avx_vnni": 4, "avx512_bf16": 5, "avx_ifma": 23},
    (7, 1, 3): {"avx_vnni_int8": 4, "avx_ne_convert": 5},
    (0x80000001, 0, 2): {"lahf_lm": 0, "abm": 5, "sse4a": 6, "misalignsse": 7, "xop": 11, "fma4": 16, "tbm": 21},
}  # fmt: skip
# What the system must save of a thread (bits of xcr0) for flags that begin so.
_SAVED = {"avx512": 0xE6, "avx": 0x6, "amx": 0x60006}


def native_needs() -> tuple[str, ...]:
    """What code for this very processor needs."""
    return tuple(sorted(processor_flags() & {flag for row in _CPUID.values() for flag in row}))


def cpuid_bits(needs: Sequence[str]) -> tuple[list[tuple[int, int, int, int]], int]:
    """``needs`` as (leaf, sub-leaf, register 0 to 3, bits) of cpuid, and the bits of xcr0."""
    rows = [
        (*place, sum(1 << bit for flag, bit in flags.items() if flag in needs)) for place, flags in _CPUID.items()
    ]
    saved = 0
    for flag in needs:
        saved |= next((bits for start, bits in _SAVED.items() if flag.startswith(start)), 0)
    return [row for row in rows if row[3]], saved
