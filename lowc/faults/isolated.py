"""A process for each trial, which may crash or never end.

A child is forked, so that it begins with all that has been captured and computed.  OpenMP's threads do not survive that: the
caller must not have run anything on more than one thread (``torch.set_num_threads(1)`` before the first op); the child may.
"""

import os
import pickle
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Made = TypeVar("Made")


@dataclass(frozen=True)
class Ended(Generic[Made]):
    """How a child ended: with a ``value``; or ``died``: of which signal, or with which exit status; "timeout" if it was killed.

    ``said``: the last line that it wrote to standard error.
    """

    value: Made | None
    died: str = ""
    said: str = ""


def isolated(work: Callable[[], Made], seconds: float) -> Ended[Made]:
    """What ``work()``, run in a child, returns (pickled); an exception is the child's death with status 1.  Needs ``fork``."""
    results, complaints = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        _in_child(work, results[1], complaints[1])
    os.close(results[1])
    os.close(complaints[1])
    content, said, late = _read(results[0], complaints[0], time.monotonic() + seconds)
    if late:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    last = next((line for line in reversed(said.decode(errors="replace").splitlines()) if line.strip()), "")
    if late:
        return Ended(None, "timeout", last)
    if status == 0 and content:
        return Ended(pickle.loads(content), "", last)
    return Ended(None, signal.Signals(-status).name if status < 0 else f"exit status {status}", last)


def _in_child(work: Callable[[], Made], results: int, complaints: int) -> None:
    status = 1
    try:
        os.dup2(complaints, 2)
        content = pickle.dumps(work())
        with os.fdopen(results, "wb") as file:
            file.write(content)
        status = 0
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


def _read(results: int, complaints: int, until: float) -> tuple[bytes, bytes, bool]:
    """(all of ``results``, the end of ``complaints``, whether time ran out); closes both."""
    parts: dict[int, bytearray] = {results: bytearray(), complaints: bytearray()}
    open_ = set(parts)
    late = False
    while open_ and not late:
        ready, _, _ = select.select(list(open_), [], [], max(until - time.monotonic(), 0))
        late = not ready
        for pipe in ready:
            piece = os.read(pipe, 1 << 16)
            parts[pipe] += piece
            if pipe == complaints:
                del parts[pipe][:-4096]
            if not piece:
                open_.discard(pipe)
    for pipe in parts:
        os.close(pipe)
    return bytes(parts[results]), bytes(parts[complaints]), late
