"""The format of ``model.lowc``: named sections behind a head, and the only reader and writer of it.

    8 bytes    MAGIC; its bytes show a transfer in text mode, as PNG's do
    4 bytes    VERSION of the format, little-endian
    4 bytes    length of the head
    32 bytes   SHA-256 of all before and of the head
    head       JSON: {"size": bytes of the file, "sections": [[name, start, bytes, SHA-256 in hex, "zlib" or ""], ...]}
    sections   in order, each at a multiple of ALIGN, zeros between them

Every byte is under a checksum or known to be zero, and nothing of a section is handed out before its checksum is right.  The
sections are data: JSON, machine code, tensors.  Nothing in a file is ever run as Python.
"""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from lowc.errors import LowcError

MAGIC = b"\x89lowc\r\n\x1a"
VERSION = 1
ALIGN = 64
_FIXED = struct.Struct("<8sII32s")
_MOST = 1 << 26  # bytes of a head, or of a section that is packed
_DAMAGED = "copy or compile it again"


class ArtifactError(LowcError):
    """A file that is no artifact, is damaged, or was made by another version of lowc."""


class Section(NamedTuple):
    start: int
    size: int
    digest: str
    packing: str


def write(sections: Mapping[str, bytes], name: str = "", last: Sequence[bytes | memoryview] = ()) -> list[bytes | memoryview]:
    """The parts of a file: ``sections``, packed where that makes them smaller, and, if there is a ``name``, one by that name of
    the parts ``last``, which are neither packed nor copied."""
    packed: list[tuple[str, Sequence[bytes | memoryview], str]] = []
    for title, part in sections.items():
        small, packing = _packed(part)
        packed.append((title, (small,), packing))
    if name:
        packed.append((name, last, ""))
    rows: list[list[Any]] = [[title, 0, *size_and_checksum(parts), packing] for title, parts, packing in packed]
    size, length = 0, 0
    while True:  # places are part of the head, whose length decides about them
        place = _FIXED.size + length
        for row in rows:
            row[1] = place = -(-place // ALIGN) * ALIGN
            place += row[2]
        size = place
        head = json.dumps({"size": size, "sections": rows}).encode()
        if len(head) <= length:
            break
        length = len(head)
    head = head.ljust(length)
    first = _FIXED.pack(MAGIC, VERSION, length, bytes(32))[:16]
    made: list[bytes | memoryview] = [first, sha256(first + head).digest(), head]
    place = _FIXED.size + length
    for row, (_, parts, _) in zip(rows, packed, strict=True):
        made += [bytes(row[1] - place), *parts]
        place = row[1] + row[2]
    return made


def size_and_checksum(parts: Sequence[bytes | memoryview]) -> tuple[int, str]:
    """Bytes and checksum of a section."""
    digest, size = sha256(), 0
    for part in parts:
        digest.update(part)
        size += memoryview(part).nbytes
    return size, digest.hexdigest()


def _packed(part: bytes) -> tuple[bytes, str]:
    small = zlib.compress(part, 6)
    return (small, "zlib") if len(small) < len(part) <= _MOST else (part, "")


class Container:
    """The sections of a file.  ``section(name)`` checks one and gives its bytes.  ``digest``: the head's checksum, and so, as the
    head has those of all sections, one of the whole."""

    def __init__(self, content: bytes | memoryview, path: str) -> None:
        """``content`` must not change; ``path`` is for messages.

        Raises ArtifactError for what is no whole artifact of this version."""
        self.path = path
        self.digest = ""
        self._content = memoryview(content)
        self._sound: set[str] = set()
        self.sections = self._read()

    def _read(self) -> dict[str, Section]:
        content = self._content
        if len(content) < _FIXED.size or bytes(content[:8]) != MAGIC:
            raise self.error("it is no artifact of lowc", "lowc compile makes one")
        _, version, length, digest = _FIXED.unpack_from(content)
        if version != VERSION:
            age = "a newer" if version > VERSION else "an older"
            raise self.error(
                f"it has format {version}, this lowc reads format {VERSION}",
                f"it is damaged, or made by {age} lowc: install that, or compile it again",
            )
        if length > _MOST or _FIXED.size + length > len(content):
            raise self.error("it is cut off", _DAMAGED)
        head = bytes(content[_FIXED.size : _FIXED.size + length])
        if sha256(bytes(content[:16]) + head).digest() != digest:
            raise self.error("the checksum of its head is wrong", _DAMAGED)
        self.digest = digest.hex()
        try:
            read: dict[str, Any] = json.loads(head)
            size = int(read["size"])
            found = {str(n): Section(int(s), int(b), str(d), str(p)) for n, s, b, d, p in read["sections"]}
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise self.error(f"its head cannot be read ({error})", _DAMAGED) from error
        if size != len(content):
            raise self.error(f"it has {len(content)} bytes and should have {size}", _DAMAGED)
        place = _FIXED.size + length
        for name, section in found.items():
            if section.start < place or section.start - place >= ALIGN or section.size < 0 or section.start + section.size > size:
                raise self.error(f"its section {name} is not where it should be", _DAMAGED)
            if any(content[place : section.start]):
                raise self.error("it has bytes that belong to no section", _DAMAGED)
            place = section.start + section.size
        if place != size:
            raise self.error("it has bytes that belong to no section", _DAMAGED)
        return found

    def section(self, name: str) -> memoryview:
        """The bytes of section ``name``.  Raises ArtifactError if it is missing or damaged."""
        if name not in self.sections:
            raise self.error(f"it has no section {name}", _DAMAGED)
        section = self.sections[name]
        part = self._content[section.start : section.start + section.size]
        if name not in self._sound and sha256(part).hexdigest() != section.digest:
            raise self.error(f"the checksum of its section {name} is wrong", _DAMAGED)
        self._sound.add(name)
        if section.packing == "zlib":
            unpacker = zlib.decompressobj()
            try:
                part = memoryview(unpacker.decompress(part, _MOST))
            except zlib.error as error:
                raise self.error(f"its section {name} cannot be unpacked ({error})", _DAMAGED) from error
            if unpacker.unconsumed_tail or not unpacker.eof:
                raise self.error(f"its section {name} is too large", _DAMAGED)
        elif section.packing:
            raise self.error(f"its section {name} is packed by {section.packing}", "a newer lowc may read it")
        return part

    def check(self) -> None:
        """Checks every section.  Raises ArtifactError."""
        for name in self.sections:
            self.section(name)

    def error(self, what: str, hint: str) -> ArtifactError:
        return ArtifactError(f"{self.path} cannot be loaded: {what}", hint=hint)
