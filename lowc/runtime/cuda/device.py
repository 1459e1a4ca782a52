"""A GPU as lowc sees it: facts, the primary context that torch uses too, the error word, spare lanes."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from lowc.artifact import DRIVER_FUNCTIONS
from lowc.runtime.cuda.driver import Driver, driver
from lowc.runtime.cuda.late import Word
from lowc.runtime.cuda.seam import Seam
from lowc.runtime.cuda.streams import Lane, Pool, Walk

_PROTOTYPE = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64
)


@dataclass(frozen=True, slots=True)
class Facts:
    """``capability``: (9, 0) for sm_90.  ``l2`` and ``shared`` (the most that a block can have) in bytes.  ``driver``: 13000 for
    CUDA 13.0, which bounds the PTX that can be loaded.  ``bandwidth``: what memory can give in bytes a second (0: unknown)."""

    name: str
    capability: tuple[int, int]
    processors: int
    l2: int
    shared: int
    driver: int
    bandwidth: int = 0


def facts(index: int, source: Driver | None = None) -> Facts:
    """What is known of device ``index``; needs no context.  Raises LowcError where there is no driver or no such device."""
    source = source or driver()

    def attribute(name: str) -> int:
        return source.attribute(index, name)

    return Facts(
        source.device_name(index),
        (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
        attribute("MULTIPROCESSOR_COUNT"),
        attribute("L2_CACHE_SIZE"),
        attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        source.version(),
        # kHz, twice a clock, over so many wires
        2000 * attribute("MEMORY_CLOCK_RATE") * attribute("GLOBAL_MEMORY_BUS_WIDTH") // 8,
    )


class Device:
    """Device ``index`` (torch's number and the driver's).  ``functions``: the table that the walker takes.  ``held``: what CUDA
    graphs of others may read, for as long as the process lives."""

    def __init__(self, index: int, walker: int, source: Driver, seam: Any) -> None:
        self.index = index
        self.driver = source
        self.seam = seam
        self.context = source.retain(index)
        self.walk: Walk = _PROTOTYPE(walker)
        addresses = source.addresses(DRIVER_FUNCTIONS)
        self.functions = (ctypes.c_int64 * (1 + len(addresses)))(self.context, *addresses)
        with source.inside(self.context):
            self.word = Word(*source.pinned(8))
        self.lanes = Pool(self._lane)
        self.held: list[Any] = []

    def _lane(self) -> Lane:
        with self.driver.inside(self.context):
            return Lane(self.driver, self.walk, ctypes.addressof(self.functions))


_devices: dict[int, Device] = {}
_lock = Lock()


def device(index: int, walker: int, make: Callable[..., Device] = Device) -> Device:
    """The one Device of this number.  ``walker``: address of the walker of launch tables."""
    with _lock:
        if index not in _devices:
            seam = Seam(index)  # torch makes its context first
            _devices[index] = make(index, walker, driver(), seam)
        return _devices[index]


@contextmanager
def unreported() -> Iterator[None]:
    """What kernels report inside is forgotten; what others had reported before is not raised inside, but after.  Waits for all
    devices that lowc has used, before and after."""
    held = {each: each.word.put(0) for each in _settled()}
    try:
        yield
    finally:
        for each in _settled():
            each.word.put(held.get(each, 0))


def _settled(index: int | None = None) -> list[Device]:
    """Device ``index`` (None: all that lowc has used), which has nothing left to do."""
    with _lock:
        found = [d for n, d in _devices.items() if index in (None, n)]
    for each in found:
        each.seam.synchronize()
    return found


def synchronize(index: int | None = None) -> None:
    """Waits for device ``index`` (None: all that lowc has used) and raises what its kernels have reported."""
    for each in _settled(index):
        each.word.look()
