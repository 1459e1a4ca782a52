"""A whole cache as one file, to be taken to another machine: a zip archive of the entries as they are.

Each entry has its checksum and its key in it, and the key says for which processor, toolchain and sources it is; so
entries for other machines do no harm, they are just never asked for.  An archive is as good as code: unpack only those
that you would run.
"""

import zipfile
import zlib
from collections.abc import Iterator

from lowc.cache import entry
from lowc.cache.folder import Folder
from lowc.errors import LowcError


def pack(folder: Folder, path: str) -> int:
    """Writes all sound entries of ``folder`` to ``path``.  How many.  Raises LowcError if that cannot be written."""
    count = 0
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in folder.contents():
                archive.writestr(name, content)
                count += 1
    except OSError as error:
        raise LowcError(f"{path} cannot be written: {error.strerror or error}") from error
    return count


def unpack(folder: Folder, path: str) -> tuple[int, int]:
    """Puts the entries of the archive ``path`` into ``folder``; (how many, how many were left out as they are damaged or none).

    Raises LowcError for a file that is no archive, or a folder that cannot be written to.
    """
    good = bad = 0
    try:
        with zipfile.ZipFile(path) as archive:
            for content in _members(archive, folder.limit):
                try:
                    key, sections = entry.read(content)
                except entry.Damaged:
                    bad += 1
                    continue
                if not folder.put(key, sections):
                    raise LowcError(f"the cache in {folder.path} cannot be written to", hint="the log says why")
                good += 1
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise LowcError(f"{path} is no packed cache: {error}") from error
    except OSError as error:
        raise LowcError(f"{path} cannot be read: {error.strerror or error}") from error
    return good, bad


def _members(archive: zipfile.ZipFile, limit: int) -> Iterator[bytes]:
    """The content of each; b"" (which is no entry) for one that says it is larger than the whole cache, or that is damaged."""
    for info in archive.infolist():
        if info.is_dir():
            continue
        try:
            yield archive.read(info) if info.file_size <= limit else b""
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OverflowError, RuntimeError):
            yield b""
