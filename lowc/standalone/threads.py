"""What the parallel loops of an artifact run on.

Native code knows three functions, ``GOMP_parallel``, ``omp_get_thread_num`` and ``omp_get_num_threads``.  An OpenMP runtime that
is in the process already (torch's, say) is taken, so that there is one pool of threads; else the artifact's own pool, the section
POOL, one for the process; where that cannot be loaded, the section SERIAL, whose ``GOMP_parallel`` just calls.
``OMP_NUM_THREADS`` counts for all.
"""

import ctypes
import os
from collections.abc import Callable

from lowc.errors import CodegenError
from lowc.once import same
from lowc.runtime import openmp
from lowc.runtime.linker import Library
from lowc.standalone import shared

NAMES = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
SERIAL, POOL = "serial.o", "pool.o"


def functions(section: Callable[[str], memoryview]) -> dict[str, int]:
    """The address of each of NAMES; ``section`` gives the sections of the artifact."""
    if os.environ.get("OMP_NUM_THREADS", "").strip() != "1":
        for path in openmp.loaded():
            try:
                return _addresses(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW), "")
            except (OSError, AttributeError):
                continue
        if (found := _pool(bytes(section(POOL)))) is not None:
            return found
    library = _serial(bytes(section(SERIAL)))
    return {name: library.address(name) for name in NAMES}


@same
def _serial(code: bytes) -> Library:
    return Library(code, NAMES, {})


@same
def _pool(code: bytes) -> dict[str, int] | None:
    """The functions of a pool of threads, or None where the system does not let it be loaded.

    It is a library in memory, which the system's loader is given as a file, as it has variables; it is never unloaded.
    """
    renamed = {name: f"lowc_{name}" for name in NAMES}
    try:
        parts = shared.link([shared.Input(code, renamed)], tuple(renamed.values()), "lowc-pool.so")
        handle = os.memfd_create("lowc-pool")
        try:
            with open(handle, "wb", closefd=False) as file:
                file.writelines(parts)
            return _addresses(ctypes.CDLL(f"/proc/self/fd/{handle}"), "lowc_")
        finally:
            os.close(handle)
    except (OSError, AttributeError, CodegenError):
        return None


def _addresses(library: ctypes.CDLL, prefix: str) -> dict[str, int]:
    """Raises AttributeError if ``library`` lacks one."""
    return {name: ctypes.cast(getattr(library, prefix + name), ctypes.c_void_p).value or 0 for name in NAMES}
