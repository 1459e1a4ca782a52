"""What the parallel loops of an artifact run on: OpenMP's threads if there is such a runtime, else the calling thread alone.

Native code knows three functions, ``GOMP_parallel``, ``omp_get_thread_num`` and ``omp_get_num_threads``.  A runtime that is in
the process already (torch's, say) is taken, so that there is one pool of threads; else the system's libgomp, where one is
installed; else the section SERIAL of the artifact, whose ``GOMP_parallel`` just calls.  ``OMP_NUM_THREADS`` counts.  Shared
libraries have a pool of their own, the section POOL.
"""

import ctypes
import os
from collections.abc import Callable

from lowc.runtime import openmp

NAMES = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
SERIAL, POOL = "serial.o", "pool.o"


def functions(serial: Callable[[], dict[str, int]]) -> dict[str, int]:
    """The address of each of NAMES; ``serial`` makes those of the section SERIAL, if they are needed."""
    if os.environ.get("OMP_NUM_THREADS", "").strip() == "1":
        return serial()
    for path in (*openmp.loaded(), "libgomp.so.1"):
        try:
            library = ctypes.CDLL(path)
            found = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in NAMES}
        except (OSError, AttributeError):
            continue
        return found
    return serial()
