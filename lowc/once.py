"""What there is one of in a process, whichever threads ask for it first.

``functools.cache`` lets two of them make it at the same time, and each have its own."""

from collections.abc import Callable, Hashable
from functools import wraps
from threading import Lock
from typing import TypeVar, TypeVarTuple

Made = TypeVar("Made")
Given = TypeVarTuple("Given")


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


def same(make: Callable[[*Given], Made]) -> Callable[[*Given], Made]:
    """``make``, whose result for equal arguments (hashable, by position) is one object for all callers, kept for ever: loaded
    code, say, of which somebody holds the address.  Nobody waits, so that a process may be forked meanwhile: threads that ask
    at the same time may each make one, and get the one that was there first (``dict.setdefault`` is atomic)."""
    found: dict[Hashable, Made] = {}

    @wraps(make)
    def get(*args: *Given) -> Made:
        if args not in found:
            found.setdefault(args, make(*args))
        return found[args]

    return get
