"""A digest of lowc's own sources: part of every key, so that an edited checkout never finds what it made before the edit.

Reading all files takes longer than binding a graph, so the digest is kept in the cache as well, under the names, sizes, times and
inodes of the files.  A change that none of those shows would have to be made within the time that a clock tick of the file system
takes; so nothing is kept while a file is younger than ``YOUNG``.
"""

import os
import time
from collections.abc import Iterator
from functools import cache
from hashlib import sha256

from lowc.cache.folder import Folder

YOUNG = 3.0  # seconds
DIGEST = "digest"


@cache
def known(home: str, folder: Folder | None) -> str:
    """``digest(home)``, from ``folder`` if it is there; "" if there are no sources.  Asked for once in a process."""
    stamp, young = stamped(home)
    if folder is None or young or not stamp:
        return digest(home)
    key = f"digest of the sources {home}\n{stamp}"
    if (sections := folder.get(key)) is not None:
        return sections.get(DIGEST, b"").decode()
    found = digest(home)
    if stamped(home) == (stamp, False):  # nobody has written meanwhile
        folder.put(key, {DIGEST: found.encode()})
    return found


def digest(home: str) -> str:
    """Of the names and contents of all Python files below ``home``; "" if there are none, or they cannot be read."""
    total, count = sha256(), 0
    try:
        for path, _ in _files(home):
            with open(path, "rb", buffering=0) as file:
                content = file.read()
            total.update(f"{os.path.relpath(path, home)}\0{len(content)}\0".encode())
            total.update(content)
            count += 1
    except OSError:
        return ""
    return total.hexdigest() if count else ""


def stamped(home: str) -> tuple[str, bool]:
    """What the file system says of these files, "" if there are none; whether one has been written just now."""
    lines: list[str] = []
    newest = 0
    try:
        for path, found in _files(home):
            lines.append(f"{path} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}")
            newest = max(newest, found.st_mtime_ns, found.st_ctime_ns)
    except OSError:
        return "", True
    return "\n".join(lines) and sha256("\n".join(lines).encode()).hexdigest(), time.time_ns() - newest < YOUNG * 1e9


def _files(home: str) -> Iterator[tuple[str, os.stat_result]]:
    """The Python files below ``home``, in an order that does not depend on the file system.  Raises OSError for one
    that is gone."""
    folders: list[str] = []
    if not os.path.isdir(home):
        return
    with os.scandir(home) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.endswith(".py"):
            yield entry.path, entry.stat()
        elif entry.name != "__pycache__" and entry.is_dir():
            folders.append(entry.path)
    for folder in folders:
        yield from _files(folder)
