"""Emission: vectors are stored to an address that nobody owns."""

from typing import Any

from lowc.backends.x86 import access

_right = access._store_vector


def _store_vector(r: Any, buffer: Any, index: Any, value: Any, mask: Any) -> None:
    found = access.address
    access.address = lambda *_: "inttoptr (i64 4096 to ptr)"
    try:
        _right(r, buffer, index, value, mask)
    finally:
        access.address = found


access._store_vector = _store_vector
