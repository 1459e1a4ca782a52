"""Files that are there whole or not at all."""

import os
from collections.abc import Iterable
from contextlib import suppress

import numpy as np

from lowc.errors import LowcError


def write_whole(path: str | os.PathLike[str], parts: Iterable[bytes | memoryview], mode: int = 0o666) -> int:
    """Writes ``parts`` one behind the other to the file ``path``; how many bytes.  ``mode``: permissions, less the umask.

    Under another name first, in the same folder, which is then renamed: whatever happens, ``path`` is what it was or what it
    shall be, and nothing else is left behind.  Raises LowcError where the system refuses (a full or read-only disk, no folder).
    """
    path = os.path.abspath(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise LowcError(f"{path} cannot be written: it is there and is no file")
    temporary = os.path.join(os.path.dirname(path), f".lowc-{os.getpid()}-{os.urandom(6).hex()}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            size = 0
            with open(handle, "wb") as file:
                for part in parts:
                    size += file.write(part)
                file.flush()
                os.fsync(file.fileno())  # what is renamed must be on the disk, or a crash leaves an empty file
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise LowcError(
            f"{path} cannot be written: {error.strerror or error}", hint="another folder, or more room there"
        ) from error
    return size


def read_file(path: str | os.PathLike[str]) -> memoryview:
    """The content of a file, in memory of its own whose address is a multiple of ALIGN: what has been checked cannot change.

    Raises LowcError if it is not there or cannot be read.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            memory = aligned(size)
            whole = memoryview(memory)  # type: ignore[arg-type]
            if file.readinto(whole) != size or file.read(1):
                raise OSError("it changes while it is read")
            return whole
    except OSError as error:
        raise LowcError(f"{os.fspath(path)} cannot be read: {error.strerror or error}") from error


ALIGN = 64


def aligned(size: int) -> np.ndarray:
    """``size`` bytes at a multiple of ALIGN.  Raises MemoryError."""
    memory = np.empty(size + ALIGN, np.uint8)
    start = -memory.ctypes.data % ALIGN
    return memory[start : start + size]
