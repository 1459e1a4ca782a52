"""A GPU as artifacts use it: the primary context, a pool of memory, and spare streams; nothing here knows torch."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from threading import Lock

from lowc.errors import LowcError
from lowc.runtime.cuda.direct import Direct


class Word:
    """8 bytes of pinned memory, to which kernels write a failed check: ``kind + 16 * step``.  ``device``: as kernels see it."""

    def __init__(self, driver: Direct) -> None:
        self.host, self.device = driver.pinned(8)
        self._value = ctypes.c_int64.from_address(self.host)

    def take(self) -> int:
        """What was written since the last time; 0 if nothing was."""
        found = self._value.value
        if found:
            self._value.value = 0
        return found


@dataclass(frozen=True, slots=True)
class Lane:
    """A stream and a word that one call at a time has."""

    stream: int
    word: Word


class GpuDevice:
    """GPU ``index``.  ``capability``: 90 for 9.0.  ``version``: of CUDA, that its driver is for (13000 for 13.0).

    Lanes and the pool are kept as long as the process: others may still wait for their streams.  So is what is ``held``: models
    whose weights CUDA graphs of others may read."""

    def __init__(self, index: int, driver: Direct) -> None:
        """Raises LowcError if there is no such GPU."""
        if index >= (count := driver.count()):
            raise LowcError(f"there is no cuda:{index}: this process has {count} GPUs")
        self.index, self.driver = index, driver
        self.name = driver.device_name(index)
        major, minor = (driver.attribute(index, f"COMPUTE_CAPABILITY_{what}") for what in ("MAJOR", "MINOR"))
        self.capability, self.version = 10 * major + minor, driver.version()
        self.context = driver.retain(index)
        with driver.inside(self.context):
            self.pool = driver.pool(index)
        self._spare: list[Lane] = []
        self.held: list[object] = []

    def take(self) -> Lane:
        """A lane that no other call has; ``list.pop`` and ``append`` are atomic.  The context is current."""
        try:
            return self._spare.pop()
        except IndexError:
            return Lane(self.driver.stream(), Word(self.driver))

    def give(self, lane: Lane) -> None:
        self._spare.append(lane)


_lock = Lock()


def device(index: int, make: Callable[[], Direct] = Direct) -> GpuDevice:
    """The one GpuDevice of this number.  Raises LowcError where there is no driver, or no such GPU."""
    with _lock:
        return _device(index, make)


@cache
def _device(index: int, make: Callable[[], Direct]) -> GpuDevice:
    return GpuDevice(index, make())
