"""A worker that breaks without an end, for a test of what starts workers; it needs nothing but this file."""

import os
from collections.abc import Iterator
from typing import Any


def breaking(task: Any, skip: int) -> Iterator[tuple[Any, ...]]:
    """Two samples; the first leaves a process in which nothing runs any more, as a fault on a GPU does."""
    for number in range(skip, 2):
        yield "try", number, ""
        yield "result", "skipped" if number == 0 else "lowered", "AcceleratorError: CUDA error", (), ()
        if number == 0:
            yield ("broken",)
            os._exit(1)
