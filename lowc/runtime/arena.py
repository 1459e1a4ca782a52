"""Workspaces: the memory of placed temps, one for each call in flight.

A pool hands out arenas and takes them back; ``list.pop`` and ``append`` are atomic, so concurrent and nested
calls (an extern op may run another compiled function) never share one, and a call that raises just drops its
own.  Arenas above ``KEEP`` bytes are not kept, as eager would not keep that memory either; smaller ones save
the page faults of fresh memory.

A forward pass is the exception: it builds up what the backward pass will need, and at its end memory is at its peak.
A workspace that lies idle meanwhile, usually the last backward pass's, would come on top, so it is freed first: its memory serves
what the forward pass saves.
"""

from collections.abc import Sequence

import torch

KEEP = 1 << 27
SMALL = 1 << 20
_SPARE = 8
_LEAST = 1 << 12


class Arena:
    """``size`` bytes at ``address`` (64-byte aligned), as a tensor of any dtype."""

    __slots__ = ("_typed", "address", "size", "storage")

    def __init__(self, size: int) -> None:
        tensor = torch.empty(size, dtype=torch.uint8)
        self.size = size
        self.address = tensor.data_ptr()
        self.storage = tensor.untyped_storage()
        self._typed: dict[torch.dtype, torch.Tensor] = {torch.uint8: tensor}

    def typed(self, dtype: torch.dtype) -> torch.Tensor:
        """The whole arena, in elements of ``dtype``."""
        if dtype not in self._typed:
            self._typed[dtype] = self._typed[torch.uint8].view(dtype)
        return self._typed[dtype]


class Pool:
    """The spare arenas of a process."""

    __slots__ = ("_spare",)

    def __init__(self) -> None:
        self._spare: list[Arena] = []

    def take(self, size: int) -> Arena:
        """An arena of at least ``size`` bytes, the caller's until ``give``."""
        try:
            arena = self._spare.pop()
        except IndexError:
            arena = None
        if arena is not None and arena.size >= size:
            return arena
        del arena  # before the larger one is allocated: the two must not add up
        return Arena(-(-max(size, _LEAST) // 64) * 64)

    def give(self, arena: Arena) -> None:
        if arena.size <= KEEP and len(self._spare) < _SPARE:
            self._spare.append(arena)

    def shrink(self) -> None:
        """Frees the spare arenas above ``SMALL`` bytes."""
        kept: list[Arena] = []
        for _ in range(len(self._spare)):
            # Taken out one by one, as calls take them: one that a call takes meanwhile must not come back with the rest.
            try:
                arena = self._spare.pop()
            except IndexError:
                break
            if arena.size <= SMALL:
                kept.append(arena)
        self._spare.extend(reversed(kept))

    def clear(self) -> None:
        """Frees the spare arenas."""
        self._spare.clear()


def placed(
    arena: Arena, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], start: int
) -> torch.Tensor:
    """A tensor on ``arena``, ``start`` bytes from its beginning (a multiple of the dtype's size)."""
    return torch.as_strided(arena.typed(dtype), shape, strides, start // dtype.itemsize)
