"""Native calls as NVTX ranges (option ``nvtx``): Nsight shows which kernels a run of launches has, by lowc's names."""

from collections.abc import Callable, Mapping
from typing import Any

Run = Callable[[Any, int], int]


def ranged(functions: Mapping[str, Run], titles: Mapping[str, str], seam: Any) -> dict[str, Run]:
    """``functions``, each of which opens a range of its title and closes it again; ``seam`` opens and closes."""

    def around(run: Run, title: str) -> Run:
        push, pop = seam.push_range, seam.pop_range

        def native(slots: Any, stream: int) -> int:
            push(title)
            try:
                return run(slots, stream)
            finally:
                pop()

        return native

    return {symbol: around(run, titles[symbol]) for symbol, run in functions.items()}
