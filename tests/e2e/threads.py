"""The same call on several numbers of threads."""

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def on_threads(call: Callable[[], Result]) -> list[Result]:
    """What ``call`` returns on one thread, on two, and on three."""
    before = torch.get_num_threads()
    found: list[Result] = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(call())
    finally:
        torch.set_num_threads(before)
    return found
