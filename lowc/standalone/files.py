"""Files that are there whole or not at all."""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from lowc.errors import LowcError

Path = str | os.PathLike[str]


def write_whole(path: Path, parts: Iterable[bytes | memoryview], mode: int = 0o666) -> int:
    """``write_together`` of one file."""
    return write_together((path, parts, mode))[0]


def write_together(*files: tuple[Path, Iterable[bytes | memoryview], int]) -> list[int]:
    """Writes files (path, parts one behind the other, permissions less the umask) that are of no use alone; the bytes of each.

    Under other names first, in the same folders, which are then renamed: whatever happens, each path is what it was or what it
    shall be, and nothing else is left behind.  Raises LowcError where the system refuses one (a full or read-only disk, no
    folder); then all are what they were.
    """
    paths = [os.path.abspath(path) for path, _, _ in files]
    temporaries: list[str] = []
    sizes: list[int] = []
    try:
        for number, (path, (_, parts, mode)) in enumerate(zip(paths, files, strict=True)):
            if os.path.exists(path) and not os.path.isfile(path):
                raise LowcError(f"{path} cannot be written: it is there and is no file")
            if path in paths[:number]:
                raise LowcError(f"{path} cannot be written: two files shall have this name")
            with _refused(path):
                temporary = os.path.join(os.path.dirname(path), f".lowc-{os.getpid()}-{os.urandom(6).hex()}")
                handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
                temporaries.append(temporary)
                with open(handle, "wb") as file:
                    sizes.append(sum(file.write(part) for part in parts))
                    file.flush()
                    os.fsync(file.fileno())  # what is renamed must be on the disk, or a crash leaves an empty file
        for path, temporary in zip(paths, temporaries, strict=True):
            with _refused(path):
                os.replace(temporary, path)
    except BaseException:
        for temporary in temporaries:
            with suppress(OSError):
                os.unlink(temporary)
        raise
    return sizes


@contextmanager
def _refused(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise LowcError(f"{path} cannot be written: {_why(error)}", hint="another folder, or more room there") from error


def _why(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def read_file(path: Path) -> memoryview:
    """The content of a file, in memory of its own whose address is a multiple of ALIGN: what has been checked cannot change.

    Raises LowcError if it is not there or cannot be read.
    """
    try:
        with open(path, "rb", opener=_at_once) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise OSError("it is no file")
            size = about.st_size
            memory = aligned(size)
            whole = memoryview(memory)  # type: ignore[arg-type]
            if file.readinto(whole) != size or file.read(1):
                raise OSError("it changes while it is read")
            return whole
    except (OSError, ValueError) as error:
        raise LowcError(f"{os.fsdecode(path)} cannot be read: {_why(error)}") from error


def _at_once(path: str, flags: int) -> int:
    """Opens ``path`` without waiting for a writer, as one does at a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


ALIGN = 64


def aligned(size: int) -> np.ndarray:
    """``size`` bytes at a multiple of ALIGN.  Raises MemoryError."""
    try:
        memory = np.empty(size + ALIGN, np.uint8)
    except (ValueError, OverflowError) as error:  # more than a process can address
        raise MemoryError(f"there is no room for {size} bytes") from error
    start = -memory.ctypes.data % ALIGN
    return memory[start : start + size]
