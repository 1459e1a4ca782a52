"""Which of an artifact's codes this processor runs."""

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
    have = processor_flags() if flags is None else flags
    known = [code for code in codes if code.format == "elf"]
    for code in known:
        if have.issuperset(code.needs):
            return code
    if not known:
        formats = ", ".join(sorted({code.format for code in codes})) or "nothing"
        raise LowcError(f"the artifact has no code for a CPU, but {formats}", hint="lowc compile --target x86-64 adds it")
    least = known[-1]
    missing = " ".join(sorted(set(least.needs) - have))
    raise LowcError(
        f"this processor cannot run the artifact: its code is for {', '.join(c.level for c in known)}, and there is no {missing}",
        hint="lowc compile --target x86-64 makes code for every processor",
    )

# Flags that code for one processor may depend on, as LLVM uses what such names stand for when it selects instructions.
_SELECTED = ("sse", "ssse", "avx", "amx", "bmi", "fma", "f16c", "popcnt", "abm", "movbe", "xsave", "cx16", "lahf_lm", "gfni",
             "vaes", "vpclmul", "xop", "tbm", "sha")  # fmt: skip


def native_needs() -> tuple[str, ...]:
    """What code for this very processor needs."""
    return tuple(sorted(flag for flag in processor_flags() if flag.startswith(_SELECTED)))
