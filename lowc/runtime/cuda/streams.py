"""Streams and events of lowc's own, and the lanes made of them.

A call of a compiled function takes a lane for itself and gives it back at its end: nobody else puts work on its stream or records
its event meanwhile.  Streams are never destroyed, since torch's allocator may remember them.
"""

import ctypes
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

from lowc.artifact import RECORD_WORDS, Record
from lowc.runtime.cuda.driver import Driver


class Event:
    """A point in the work of a stream, without a time.  Waiting for it means the last ``record`` before."""

    __slots__ = ("_driver", "handle")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.handle = driver.event()

    def record(self, stream: int) -> None:
        self._driver.record(self.handle, stream)

    def wait(self, stream: int) -> None:
        """What ``stream`` is given from now on runs after this event."""
        self._driver.wait(stream, self.handle)


class Stream:
    """A stream that does not wait for the default one."""

    __slots__ = ("_driver", "handle")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.handle = driver.stream()

    def capturing(self) -> bool:
        return self._driver.capturing(self.handle)


Walk = Callable[[Any, int, int, Any, int], int]

_CALLER, _OWN, _EVENT = range(3)


def _link(source: int, target: int) -> Any:
    """The launch table that has ``target`` wait for what ``source`` has been given (slots of a lane)."""
    records = (
        (Record.RECORD, _EVENT, source, 0, 0, 0, 0, 0),
        (Record.WAIT, _EVENT, target, 0, 0, 0, 0, 0),
    )
    return (ctypes.c_int64 * (2 * RECORD_WORDS))(*(int(w) for record in records for w in record))


_FORK, _JOIN = _link(_CALLER, _OWN), _link(_OWN, _CALLER)


class Lane:
    """A stream and an event of one call in flight.

    ``fork(caller)`` has the stream wait for the caller's, ``join()`` the other way round; both give an error code of the walker.
    ``captured``: the stream belongs to somebody's capture.  What the call in flight keeps here (``calls.Calls``): ``work``, the
    stream of its kernels; ``before``, torch's name of the caller's stream while torch works on this one; ``sides``, more lanes,
    and ``handles``, the main event and their streams and events; ``done``, whether all steps have been given to the driver.
    """

    __slots__ = (
        "_fork",
        "_slots",
        "before",
        "captured",
        "done",
        "event",
        "handles",
        "join",
        "name",
        "sides",
        "stream",
        "stream_object",
        "work",
    )

    def __init__(self, driver: Driver, walk: Walk, functions: Any) -> None:
        self.stream_object = Stream(driver)
        self.event = Event(driver)
        self.stream = self.stream_object.handle
        self._slots = (ctypes.c_int64 * 3)(0, _signed(self.stream), _signed(self.event.handle))
        self._fork = partial(walk, functions, ctypes.addressof(_FORK), 2, self._slots, 0)
        self.join: Callable[[], int] = partial(walk, functions, ctypes.addressof(_JOIN), 2, self._slots, 0)
        self.captured = False
        self.name: tuple[int, int, int] | None = None
        self.before: tuple[int, int, int] | None = None
        self.work = self.stream
        self.sides: tuple[Lane, ...] = ()
        self.handles: tuple[int, ...] = ()
        self.done = False

    @property
    def caller(self) -> int:
        return self._slots[_CALLER]

    def fork(self, caller: int) -> int:
        self._slots[_CALLER] = caller
        return self._fork()


def _signed(handle: int) -> int:
    return handle - (1 << 64) if handle >> 63 else handle


class Pool:
    """The spare lanes of a device; ``make`` makes one more.

    ``list.pop`` and ``append`` are atomic, so threads need no lock.  A stream that took part in somebody's capture stays in it
    until that ends: such lanes are kept apart until then.
    """

    __slots__ = ("_captured", "_lock", "_make", "spare")

    def __init__(self, make: Callable[[], Lane]) -> None:
        self._make = make
        self.spare: list[Lane] = []
        self._captured: list[Lane] = []
        self._lock = Lock()

    def take(self) -> Lane:
        try:
            return self.spare.pop()
        except IndexError:
            return self._make()

    def take_for_capture(self) -> Lane:
        with self._lock:
            free = [lane for lane in self._captured if not lane.stream_object.capturing()]
            if free:
                self._captured.remove(free[0])
        lane = free[0] if free else self._make()
        lane.captured = True
        return lane

    def give(self, lane: Lane) -> None:
        (self._captured if lane.captured else self.spare).append(lane)
