"""What the system says of this processor, and which files the compiler's toolchain is: found out without loading any library.

LLVM's own names for a processor are a function of what ``processor`` tells, so that whoever only needs to know *whether* two
machines are the same, as the cache does, need not load LLVM (which takes longer than a warm start may).
"""

import ctypes
import os
import sys
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

# Linux: asm/unistd_64.h, asm/prctl.h, asm/fpu/types.h
ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18

# Lines of /proc/cpuinfo that say what a processor is, not how fast it runs just now.
FACTS = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")


@cache
def processor() -> str:
    """The first processor's model and flags, data caches, the number of logical processors, and whether this process may use its
    matrix unit; "" if the system does not say.

    Who looks for code by this has asked for the permission that the code may need.
    """
    found = _facts()
    if "flags" not in found:
        return ""
    lines = [f"{name}: {found[name]}" for name in FACTS if name in found]
    counts = [f"caches: {data_caches()}", f"processors: {os.cpu_count() or 1}", f"tiles: {may_use_tiles()}"]
    return "\n".join([os.uname().machine, *lines, *counts])


@cache
def may_use_tiles() -> bool:
    """Whether this processor has AMX and Linux lets this process use its tiles.  It is asked now, once, and allows it to all
    threads and to what is forked from this process (Linux, Documentation/arch/x86/xstate.rst); it says no where a thread has too
    little memory for signals."""
    if sys.platform != "linux" or os.uname().machine != "x86_64" or "amx_tile" not in processor_flags():
        return False
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    return syscall(*(ctypes.c_long(n) for n in (ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA))) == 0


@cache
def processor_flags() -> frozenset[str]:
    """What this x86 processor can do, by the names of /proc/cpuinfo; empty if the system does not say."""
    return frozenset(_facts().get("flags", "").split())


@cache
def _facts() -> dict[str, str]:
    """The first block of /proc/cpuinfo (reading on would take a millisecond for every few processors)."""
    found: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                name, colon, value = line.partition(":")
                if not colon:
                    break
                found[name.strip()] = value.strip()
    except OSError:
        return {}
    return found


@cache
def data_caches() -> tuple[int, int, int]:
    """Bytes of L1 data, L2 and L3 cache; typical sizes where the system does not tell."""
    found: dict[int, int] = {}
    base = "/sys/devices/system/cpu/cpu0/cache"
    try:
        for entry in os.listdir(base):
            if entry.startswith("index"):
                if _line(f"{base}/{entry}/type") != "Instruction":
                    found[int(_line(f"{base}/{entry}/level"))] = int(_line(f"{base}/{entry}/size").rstrip("K")) * 1024
    except (OSError, ValueError):
        pass
    return found.get(1, 32 << 10), found.get(2, 1 << 20), found.get(3, 8 << 20)


def _line(path: str) -> str:
    """What the system has in a small file.  (Buffers and decoders of text would take as long again.)"""
    with open(path, "rb", buffering=0) as file:
        return file.read(1 << 12).decode().strip()


@cache
def toolchain() -> str:
    """llvmlite's version, and which file its library, with LLVM in it, is; "" if there is none to be found."""
    spec = find_spec("llvmlite")
    if spec is None or not spec.submodule_search_locations:
        return ""
    home = Path(spec.submodule_search_locations[0])
    try:
        version = (home / "_version.py").read_text()
    except OSError:
        return ""
    found = [fingerprint(str(home / "binding" / name)) for name in LIBRARIES]
    return f"{version}{found}" if any(found) else ""


LIBRARIES = ("libllvmlite.so", "libllvmlite.dylib", "llvmlite.dll")


def fingerprint(path: str) -> str:
    """Which file this is, the same on every machine: its size, and a digest of its ends; "" for none.

    The ends of a program have its header, build number and tables, so that two builds differ there; the whole would be 100 MB.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            ends = sha256(file.read(END))
            file.seek(max(size - END, 0))
            ends.update(file.read(END))
    except OSError:
        return ""
    return f"{size} {ends.hexdigest()}"


END = 1 << 16
