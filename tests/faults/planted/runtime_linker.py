"""Runtime: the linker puts constants four bytes beside where the code looks for them."""

from collections.abc import Mapping
from typing import Any

from lowc.runtime import linker

_right = linker._relocate


def _relocate(code: bytes, section: Any, image: bytearray, places: Mapping[int, int], *rest: Any) -> None:
    """With the sections that are not code moved."""
    moved = {number: place + (4 if number != section.info else 0) for number, place in places.items()}
    _right(code, section, image, moved, *rest)


linker._relocate = _relocate
