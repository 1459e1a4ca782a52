"""A word to the log when a rank of a process group compiles for long: the others are waiting for it in their next collective.

Nothing else is done about it.  Ranks compile each for itself and share only the cache's folder, of which no reader ever waits.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

import torch

log = logging.getLogger("lowc")

PATIENCE = 10.0
"""Seconds."""


@contextmanager
def noted(name: str, patience: float = PATIENCE) -> Iterator[None]:
    """Logs once, at level WARNING of logger "lowc", if what is inside takes longer than ``patience`` seconds, while it is at it.
    ``name``: of the graph.  Outside of process groups of several ranks nothing happens."""
    rank = _rank()
    if rank is None:
        yield
        return
    timer = Timer(patience, log.warning, (_TEXT, rank, name, patience))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


_TEXT = (
    "rank %d has been compiling a graph (%s) for %g s; the other ranks wait for it in their next collective, "
    "where their process group's timeout runs"
)


def _rank() -> int | None:
    """This process's rank in the default process group; None if it is alone."""
    group = torch.distributed
    if not group.is_available() or not group.is_initialized() or group.get_world_size() < 2:
        return None
    return group.get_rank()
