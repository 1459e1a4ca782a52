"""Failed checks of kernels, which come late: a kernel writes ``kind + 16 * number`` to a word of pinned memory, and goes on.

The word is a device's; the numbers are the process's, one for each step of each loaded artifact, so that whoever finds the word
written can say which op it was.  Of several failures the last to be written is reported.
"""

import ctypes
from bisect import bisect_right
from threading import Lock

from lowc.artifact import Artifact
from lowc.ir.nodes import Launch
from lowc.runtime.failures import LATE, failure

_lock = Lock()
_firsts: list[int] = []
_origins: list[tuple[str, ...]] = []


def enrol(artifact: Artifact) -> int:
    """The number of the first step of ``artifact``; those of the others follow."""
    steps = artifact.module.steps
    origins = tuple("; ".join(s.origin) if isinstance(s, Launch) else "" for s in steps)
    with _lock:
        first = _firsts[-1] + len(_origins[-1]) if _firsts else 0
        _firsts.append(first)
        _origins.append(origins)
    return first


def late_failure(code: int) -> Exception:
    """The exception for what a kernel wrote."""
    number = code // 16
    with _lock:
        place = bisect_right(_firsts, number) - 1
        known = place >= 0 and number - _firsts[place] < len(_origins[place])
        origin = _origins[place][number - _firsts[place]] if known else ""
    return failure(code % 16, origin, LATE) or RuntimeError(
        f"a kernel reported code {code}, which lowc does not know ({LATE})"
    )


class Word:
    """The error word of a device at ``host``, which kernels see at ``device``; ``value.value`` is what it holds."""

    __slots__ = ("device", "value")

    def __init__(self, host: int, device: int) -> None:
        self.value = ctypes.c_int64.from_address(host)
        self.device = device

    def put(self, code: int) -> int:
        """Has the word hold ``code``; what it held."""
        held, self.value.value = self.value.value, code
        return held

    def look(self) -> None:
        """Raises what has been reported since the last look; waits for nothing."""
        if self.value.value:
            raise late_failure(self.put(0))
