"""A digest of lowc's own sources: part of every key, so that an edited checkout never finds what it made before the edit.

Reading all files takes longer than binding a graph, so the digest is kept in the cache as well, with the names of all files and
folders, and their sizes, times and inodes.  A later process asks the system for these alone, one call for each: a file that is
new, gone or has another name shows in the times of its folder.  A change that none of them shows would have to be made within the
time that a clock tick of the file system takes; so nothing is kept while one of them is younger than ``YOUNG``.

A process runs what it has loaded.  If a file has changed since then, no digest says what that is, and the process has no keys.
"""

import logging
import marshal
import os
import time
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256

from lowc.cache.folder import Folder

log = logging.getLogger("lowc.cache")

YOUNG = 3.0  # seconds
LOADED = time.time_ns()
"""When this process has loaded lowc, in ns since the epoch."""
NAMES, STAMP, DIGEST = "names", "stamp", "digest"

Seen = list[tuple[int, int, int, int]]
"""Of each name: size, times of the last change of its content and of itself in ns, inode."""


@cache
def known(home: str, folder: Folder | None, loaded: int | None = None) -> str:
    """``digest(home)``, from ``folder`` if it is there; "" if there are no sources, or one has changed since ``loaded`` (ns since
    the epoch).  Asked for once in a process."""
    key = f"digest of the sources {home}"
    kept = folder and folder.get(key)
    if kept and kept.keys() == {NAMES, STAMP, DIGEST}:
        names = os.fsdecode(kept[NAMES]).split("\n")
        seen = _seen(home, names)
        if seen and _stamp(seen) == kept[STAMP]:
            return "" if _changed(names, seen, loaded) else kept[DIGEST].decode()
    names = list(_names(home))
    before = _seen(home, names)
    found = digest(home)
    if _changed(names, before, loaded):
        return ""
    if folder and found and before and time.time_ns() - max(max(times[1:3]) for times in before) >= YOUNG * 1e9:
        again = list(_names(home))
        if (again, _seen(home, again)) == (names, before):  # nobody has written meanwhile
            folder.put(key, {NAMES: os.fsencode("\n".join(names)), STAMP: _stamp(before), DIGEST: found.encode()})
    return found


def digest(home: str) -> str:
    """Of the names and contents of all Python files below ``home``; "" if there are none, or they cannot be read."""
    total, count = sha256(), 0
    try:
        for name in _names(home):
            if name.endswith(".py"):
                with open(os.path.join(home, name), "rb", buffering=0) as file:
                    content = file.read()
                total.update(f"{name}\0{len(content)}\0".encode())
                total.update(content)
                count += 1
    except OSError:
        return ""
    return total.hexdigest() if count else ""


def _seen(home: str, names: Sequence[str]) -> Seen:
    """What the file system says of ``names``; nothing if one is not there."""
    try:
        handle = os.open(home, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        found = [os.stat(name, dir_fd=handle) for name in names]  # a whole path would take longer to walk
    except OSError:
        return []
    finally:
        os.close(handle)
    return [(each.st_size, each.st_mtime_ns, each.st_ctime_ns, each.st_ino) for each in found]


def _changed(names: Sequence[str], seen: Seen, loaded: int | None) -> bool:
    """Whether one of the files has changed since ``loaded``.  (Folders do where Python writes its bytecode.)"""
    if loaded is None or all(times[2] <= loaded or not name.endswith(".py") for name, times in zip(names, seen, strict=False)):
        return False
    log.info("lowc's sources have changed since they were loaded: this process uses no cache")
    return True


def _stamp(seen: Seen) -> bytes:
    # Version 2 of the format has no marks for what is one object, and so is the same for equal lists.
    return sha256(marshal.dumps(seen, 2)).digest()


def _names(home: str, inside: str = "") -> Iterator[str]:
    """The folders and the Python files below ``home`` from there, in an order that does not depend on the file system."""
    folders: list[str] = []
    try:
        with os.scandir(os.path.join(home, inside)) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    yield inside or "."
    for entry in entries:
        if entry.name.endswith(".py"):
            yield os.path.join(inside, entry.name)
        elif entry.name != "__pycache__" and entry.is_dir():
            folders.append(os.path.join(inside, entry.name))
    for folder in folders:
        yield from _names(home, folder)
