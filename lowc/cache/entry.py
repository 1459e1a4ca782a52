"""The format of a cache entry, and the only reader and writer of it.

    8 bytes    MAGIC, which has the number of the format
    32 bytes   SHA-256 of all that follows
    8 bytes    length of the head
    head       JSON: {"key": bytes, "sections": [[name, bytes], ...]}
    key        text, in UTF-8 (as a string of JSON it would take as long to read as all the rest)
    sections   one behind the other

Nothing of a file is looked at before its checksum is right, and nothing is handed out before the key in it is the one
that was asked for, so that neither damage nor a file under another entry's name can become code.
"""

import json
import struct
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

MAGIC = b"lowc\x00\x00\x00\x02"
_SUM = 32
_BODY = len(MAGIC) + _SUM


class Damaged(Exception):
    """Bytes that are no entry, or not the one that was asked for; the text says why."""


def write(key: str, sections: Mapping[str, bytes]) -> bytes:
    """The file's content."""
    text = key.encode()
    head = json.dumps({"key": len(text), "sections": [[name, len(part)] for name, part in sections.items()]}).encode()
    body = b"".join((struct.pack("<Q", len(head)), head, text, *sections.values()))
    return MAGIC + sha256(body).digest() + body


def read(content: bytes) -> tuple[str, dict[str, bytes]]:
    """The key and the sections; raises Damaged."""
    if not content.startswith(MAGIC):
        raise Damaged("it is no cache entry of this version of lowc")
    body = memoryview(content)[_BODY:]
    if sha256(body).digest() != content[len(MAGIC) : _BODY]:
        raise Damaged("its checksum is wrong")
    # From here on only a mistake of the writer's could be in the way, or malice: neither may end in another exception.
    try:
        (length,) = struct.unpack_from("<Q", body)
        head: dict[str, Any] = json.loads(bytes(body[8 : 8 + length]))
        parts = [("key", int(head["key"])), *((str(name), int(size)) for name, size in head["sections"])]
    except (struct.error, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise Damaged(f"its head cannot be read: {error}") from error
    found: list[tuple[str, bytes]] = []
    place = 8 + length
    for name, size in parts:
        if size < 0 or place + size > len(body):
            raise Damaged(f"its section {name} is cut off")
        found.append((name, bytes(body[place : place + size])))
        place += size
    if place != len(body):
        raise Damaged("it has bytes that belong to no section")
    try:
        return found[0][1].decode(), dict(found[1:])
    except UnicodeDecodeError as error:
        raise Damaged(f"its key cannot be read: {error}") from error


def expect(content: bytes, key: str) -> dict[str, bytes]:
    """The sections of the entry for ``key``; raises Damaged if this is not that entry."""
    found, sections = read(content)
    if found != key:
        raise Damaged("it is the entry of something else")
    return sections


def expect_digest(content: bytes, digest: str) -> tuple[str, dict[str, bytes]]:
    """The key that has this digest, and the sections; raises Damaged if this is not that entry."""
    key, sections = read(content)
    if digest_of(key) != digest:
        raise Damaged("it is the entry of something else")
    return key, sections


def digest_of(key: str) -> str:
    """What stands for ``key`` where its text would be too long."""
    return sha256(key.encode()).hexdigest()


def name_of(key: str) -> str:
    """The name of the file of ``key``."""
    return name_of_digest(digest_of(key))


def name_of_digest(digest: str) -> str:
    return digest[:40] + SUFFIX


SUFFIX = ".entry"
