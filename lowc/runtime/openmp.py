"""The OpenMP runtime that torch has loaded: lowc's parallel loops run on its threads and never bring a second
pool.

``functions()`` gives the addresses that the loader of native code binds, found in the library already mapped
into this process.
"""

import ctypes
import os
from functools import cache

NAMES = (
    "GOMP_parallel",
    "GOMP_barrier",
    "omp_get_thread_num",
    "omp_get_num_threads",
    "omp_get_max_threads",
    "omp_in_parallel",
)


def library() -> str | None:
    """Path of the OpenMP library in this process (libgomp, or libomp/libiomp5, which have the same entry
    points), or None.

    torch's own copy wins where several are loaded.
    """
    import torch

    home = os.path.dirname(torch.__file__)
    for folder in (os.path.join(home, "lib"), f"{home}.libs"):
        # A look at two folders: the system takes a millisecond to write down what is mapped, as ``loaded`` has it do.
        names = sorted(filter(_is_runtime, os.listdir(folder))) if os.path.isdir(folder) else []
        for path in (os.path.join(folder, name) for name in names):
            if _handle(path) is not None:
                return path
    return next(iter(loaded()), None)


def _is_runtime(name: str) -> bool:
    return name.startswith(("libgomp", "libiomp5", "libomp."))


def _handle(path: str) -> ctypes.CDLL | None:
    """The library at ``path``, if it is in this process."""
    try:
        return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


def loaded() -> list[str]:
    """Paths of all OpenMP runtimes mapped into this process, each once."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            lines = [line for line in maps.read().split(b"\n") if b"omp" in line and b"/" in line]  # of hundreds
    except OSError:
        return []
    files = dict.fromkeys(os.fsdecode(line.split(maxsplit=5)[5]) for line in lines)
    return [f for f in files if _is_runtime(os.path.basename(f))]


@cache
def functions() -> dict[str, int]:
    """Name: address for each of ``NAMES``; empty where torch runs without OpenMP (then nothing may run in
    parallel).
    """
    path = library()
    if path is None:
        return {}
    handle = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    found = {
        name: ctypes.cast(getattr(handle, name), ctypes.c_void_p).value
        for name in NAMES
        if hasattr(handle, name)
    }
    return {name: address for name, address in found.items() if address}
