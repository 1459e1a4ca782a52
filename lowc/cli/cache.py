"""``lowc cache``: what is kept of compiled graphs, and where."""

import argparse
from typing import TYPE_CHECKING

from lowc.cli import arguments
from lowc.errors import LowcError

if TYPE_CHECKING:
    from lowc.cache.folder import Folder


ACTIONS = ("info", "clear", "pack", "unpack")


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("cache", help="the compiled graphs that are kept: how many, clear, take elsewhere")
    parser.add_argument("action", choices=ACTIONS, help="pack, unpack: to and from FILE, a zip archive")
    parser.add_argument("file", metavar="FILE", nargs="?", default="")
    arguments.add_options(parser)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Raises LowcError for a missing or superfluous FILE, and for what cannot be read or written."""
    if (chosen.action in ("pack", "unpack")) != bool(chosen.file):
        raise LowcError(f"lowc cache {chosen.action} takes {'no' if chosen.file else 'a'} FILE")
    folder = _folder(chosen)
    if chosen.action == "info":
        _info(folder)
    elif chosen.action == "clear":
        try:
            print(f"{folder.clear()} entries removed from {folder.path}")
        except OSError as error:
            raise LowcError(f"the cache in {folder.path} cannot be cleared: {error.strerror or error}") from error
    elif chosen.action == "pack":
        from lowc.cache.archive import pack

        print(f"{pack(folder, chosen.file)} entries of {folder.path} packed into {chosen.file}")
    else:
        from lowc.cache.archive import unpack

        good, bad = unpack(folder, chosen.file)
        print(f"{good} entries unpacked into {folder.path}" + (f", {bad} left out: damaged" if bad else ""))
    return 0


def _folder(chosen: argparse.Namespace) -> "Folder":
    """The folder that would be used; with ``LOWC_CACHE=0`` as well, so that one can look and clear."""
    from lowc.cache.folder import folder_of

    options = arguments.options(chosen)._replace(cache=True)
    folder = folder_of(options)
    if folder is None:
        raise LowcError("the cache is off: its limit is 0 MiB", hint="LOWC_CACHE_LIMIT, option cache_limit_mb")
    return folder


def _info(folder: "Folder") -> None:
    from datetime import datetime

    items = folder.items()
    total = sum(item.size for item in items)
    print(f"{folder.path}: {len(items)} entries, {total / 2**20:.1f} of {folder.limit / 2**20:.0f} MiB")
    if items:
        times = [datetime.fromtimestamp(item.used).strftime("%Y-%m-%d %H:%M") for item in (items[0], items[-1])]
        print(f"last used between {times[0]} and {times[1]}")
    if damaged := folder.damaged(items):
        print(f"{damaged} of them are damaged, or cannot be read")
