"""What is to be done once in a process, whichever threads ask for it (``functools.cache`` lets two do it at the same time)."""

from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import TypeVar

Made = TypeVar("Made")


def once(make: Callable[[], Made]) -> Callable[[], Made]:
    """``make``, which is called by the first caller; the others wait, and all get what it returned."""
    lock = Lock()
    found: list[Made] = []

    @wraps(make)
    def get() -> Made:
        if not found:
            with lock:
                if not found:
                    found.append(make())
        return found[0]

    return get
