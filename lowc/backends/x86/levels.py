"""Targets that need not be this machine: the microarchitecture levels of the System V ABI, for artifacts."""

from dataclasses import replace

from lowc.backends.x86.detect import ABILITIES, AMX, LEVELS, detect
from lowc.errors import OptionError
from lowc.target import Target

# Caches and cores of a machine that schedules are right for, if not best: any processor since 2015 or so has them.
_CACHES = (32 << 10, 1 << 20, 16 << 20)
_CORES = 8
_ISA = {"x86-64-v4": "avx512", "x86-64-v3": "avx2", "x86-64-v2": "sse2", "x86-64": "sse2"}


def level(name: str) -> Target:
    """The Target for the level ``name``, or "native": this processor.  Raises OptionError for another name.

    What is compiled for a level does not depend on this machine.
    """
    if name == "native":
        here = detect("auto")
        return replace(here, ops=here.ops.difference(AMX))  # each process that runs it would have to ask for the permission
    if name not in _ISA:
        raise OptionError(f"unknown target {name!r}", hint="targets are native, " + ", ".join(_ISA))
    isa = _ISA[name]
    _, _, bits, registers = LEVELS[isa]
    return Target("x86", name, "", bits, registers, *_CACHES, _CORES, frozenset(ABILITIES[isa]))
