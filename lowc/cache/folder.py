"""A folder of cache entries that many processes use at once.

Reading takes no lock: a file is complete whenever it has its name, since it is written under another one, in the same
folder, and then renamed.  Two that write the same entry both succeed, the last one stays.  Eviction alone takes a lock,
so that two processes do not both count and both delete.

The entries are machine code that will be loaded, so nobody else may be able to write them: a folder is made with mode
0700, and one that belongs to somebody else, or that others may write to, is refused; so is such a file.  Whatever goes
wrong (no folder, a full or read-only disk, damage) is logged as a warning, once, and the cache does without.
"""

import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from lowc.cache import entry

if TYPE_CHECKING:
    from lowc.options import Options

log = logging.getLogger("lowc.cache")

TEMPORARY = ".new-"
STALE = 3600  # seconds after which a temporary file is one that a killed process has left
ROOM = 0.9  # eviction makes so much of the limit free of what is old, so as not to run again at once
LOCK = ".lock"

Got = TypeVar("Got")


class Item:
    """An entry's file: ``size`` in bytes, ``used``: seconds since the epoch when it was last read or written."""

    __slots__ = ("path", "size", "used")

    def __init__(self, path: str, size: int, used: float) -> None:
        self.path, self.size, self.used = path, size, used


class Folder:
    """Entries in ``path`` of at most ``limit`` bytes in all.  ``usable``: whether it can be read from; decided at the
    first use."""

    def __init__(self, path: str, limit: int) -> None:
        self.path = path
        self.limit = limit
        self._lock = Lock()
        self._usable: bool | None = None
        self._writable = True

    # ------------------------------------------------------------ entries

    def get(self, key: str) -> dict[str, bytes] | None:
        """The sections of the entry for ``key``, or None.  What is damaged is removed, with a warning."""
        return self._got(entry.name_of(key), lambda content: entry.expect(content, key))

    def get_by_digest(self, digest: str) -> tuple[str, dict[str, bytes]] | None:
        """The key that has this digest and the sections of its entry, or None."""
        return self._got(entry.name_of_digest(digest), lambda content: entry.expect_digest(content, digest))

    def _got(self, name: str, read: Callable[[bytes], Got]) -> Got | None:
        if not self.usable():
            return None
        path = os.path.join(self.path, name)
        try:
            content = _content(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("the cache entry %s cannot be read and is compiled anew: %s", path, error)
            return None
        try:
            found = read(content)
        except entry.Damaged as error:
            self._discard(path, str(error))
            return None
        with suppress(OSError):  # a read-only folder has no order of use
            os.utime(path)
        return found

    def discard(self, key: str, why: str) -> None:
        """Removes an entry that cannot be used, with a warning."""
        self._discard(os.path.join(self.path, entry.name_of(key)), why)

    def _discard(self, path: str, why: str) -> None:
        log.warning("the cache entry %s is compiled anew: %s", path, why)
        with suppress(OSError):
            os.unlink(path)

    def put(self, key: str, sections: Mapping[str, bytes]) -> bool:
        """Writes or replaces an entry, and evicts what has not been used for longest if the folder has grown too large.
        Whether it has been written."""
        content = entry.write(key, sections)
        if not self._writable or len(content) > self.limit or not self.usable(make=True):
            return False
        try:
            self._write(os.path.join(self.path, entry.name_of(key)), content)
        except OSError as error:
            self._writable = False
            log.warning("nothing more is written to the cache in %s: %s", self.path, error)
            return False
        self.evict()
        return True

    def _write(self, path: str, content: bytes) -> None:
        """The file, all at once.  Raises OSError, and leaves nothing behind then."""
        temporary = os.path.join(self.path, f"{TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}")
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    # ------------------------------------------------------------ the folder

    def usable(self, *, make: bool = False) -> bool:
        """Whether the folder is there and safe; with ``make``, it is made if it is not there.  Warns once if it cannot
        be used."""
        with self._lock:
            if self._usable is None or (make and not os.path.isdir(self.path)):
                self._usable = self._examine(make)
            return bool(self._usable)

    def _examine(self, make: bool) -> bool | None:
        """None: not there (yet)."""
        try:
            if make:
                os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
                with suppress(FileExistsError):
                    os.mkdir(self.path, 0o700)
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            if not make:
                return None
            return self._refused(str(error))
        except OSError as error:
            return self._refused(str(error))
        if not stat.S_ISDIR(found.st_mode):
            return self._refused("it is no folder")
        if why := _unsafe(found):
            return self._refused(f"{why}, and what is in it will be run (chmod go-w, or LOWC_CACHE_DIR for another one)")
        return True

    def _refused(self, why: str) -> bool:
        log.warning("the cache in %s is not used: %s", self.path, why)
        self._writable = False
        return False

    def items(self) -> list[Item]:
        """The entries, those first that have not been used for longest."""
        return sorted(self._scan(), key=lambda item: item.used)

    def _scan(self, *, temporary: bool = False) -> Iterator[Item]:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.path) as files:
            for file in files:
                if file.name.startswith(TEMPORARY) if temporary else file.name.endswith(entry.SUFFIX):
                    with suppress(FileNotFoundError):  # somebody else has just removed it
                        found = file.stat(follow_symlinks=False)
                        yield Item(file.path, found.st_size, found.st_mtime)

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """The name and the content of each sound entry."""
        for item in self.items():
            with suppress(OSError, entry.Damaged):
                yield os.path.basename(item.path), _sound(item.path)

    def damaged(self, items: Iterable[Item]) -> int:
        """How many of ``items`` are there and cannot be used.  Those that another process has removed meanwhile do not count."""
        count = 0
        for item in items:
            try:
                _sound(item.path)
            except FileNotFoundError:
                continue
            except (OSError, entry.Damaged):
                count += 1
        return count

    def evict(self) -> int:
        """Removes the entries that have not been used for longest, if all together are above the limit, and what killed processes
        have left behind.  How many entries were removed; 0 where another process is at it already."""
        if sum(item.size for item in self._scan()) <= self.limit and not any(self._abandoned()):
            return 0
        from filelock import FileLock, Timeout

        try:
            with FileLock(os.path.join(self.path, LOCK), timeout=0, mode=0o600):
                return self._evict()
        except Timeout:
            return 0
        except OSError as error:
            log.warning("the cache in %s cannot be kept below its limit: %s", self.path, error)
            return 0

    def _abandoned(self) -> Iterator[Item]:
        """What killed processes have left behind: nobody writes for so long.  (Or the clock has been put back by as much.)"""
        now = time.time()
        return (item for item in self._scan(temporary=True) if abs(now - item.used) > STALE)

    def _evict(self) -> int:
        for item in self._abandoned():
            with suppress(OSError):
                os.unlink(item.path)
        items = self.items()
        total, removed = sum(item.size for item in items), 0
        for item in items:
            if total <= self.limit * ROOM:
                break
            with suppress(FileNotFoundError):
                os.unlink(item.path)
                removed += 1
            total -= item.size
        return removed

    def clear(self) -> int:
        """Removes all entries, and what killed processes have left behind.  How many entries there were.  Raises OSError."""
        items = self.items()
        for item in [*items, *self._scan(temporary=True)]:
            with suppress(FileNotFoundError):
                os.unlink(item.path)
        return len(items)


def _unsafe(found: os.stat_result) -> str:
    """Why a file or folder is not this user's alone to write; "" if it is."""
    if os.name != "posix":
        return ""
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to another user ({found.st_uid})"
    return "others may write to it" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def _sound(path: str) -> bytes:
    """The content of an entry's file that has the name which its key gives it.  Raises OSError and Damaged."""
    content = _content(path)
    key, _ = entry.read(content)
    if entry.name_of(key) != os.path.basename(path):
        raise entry.Damaged("it is the entry of something else")
    return content


def _content(path: str) -> bytes:
    """The content of a file that only this user can have written.  Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with open(handle, "rb", buffering=0) as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is no file")
        if why := _unsafe(found):
            raise PermissionError(why)
        return file.readall()


# ------------------------------------------------------------ which folder

MIB = 1 << 20


def folder_of(options: "Options") -> Folder | None:
    """The folder that ``options`` mean; None if they switch the cache off.  One object a folder, which warns once."""
    if not options.cache or options.cache_limit_mb <= 0:
        return None
    return _folder(os.path.abspath(options.cache_dir or default()), options.cache_limit_mb * MIB)


@cache
def _folder(path: str, limit: int) -> Folder:
    return Folder(path, limit)


def default() -> str:
    """The folder "lowc" where this system keeps a user's caches."""
    if sys.platform == "linux":  # what platformdirs says there, without the time that its import takes
        home = os.environ.get("XDG_CACHE_HOME", "").strip()
        return os.path.join(home if os.path.isabs(home) else os.path.expanduser("~/.cache"), "lowc")
    from platformdirs import user_cache_dir

    return user_cache_dir("lowc", appauthor=False)
