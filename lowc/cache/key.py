"""What a compilation depends on, as text: the key of its cache entry.

    lowc: version, digest of its own sources        an edited checkout never finds what it made before
    Python, torch                                    the host program is Python's bytecode and calls of torch
    the toolchain                                    llvmlite and LLVM; ptxas, where it is used
    the processor, or the GPU and its driver
    every option that changes code                   ``options.Row.code``
    the graph as text                                all that is looked at when it is read: ``frontend/unread.py``

The whole text is in the entry and is compared; its digest only names the file.
"""

import sys
from collections.abc import Sequence
from importlib.util import MAGIC_NUMBER
from pathlib import Path

from lowc import machine
from lowc.cache import sources
from lowc.cache.folder import Folder
from lowc.options import ROWS, Options, is_tuned


def graph_key(base: str, graph: str, options: Options, devices: Sequence[str], torch: str) -> str:
    """The key of a graph whose text is ``graph``; "" if one of these is: then it is not kept.

    ``base``: of ``base_key``.  ``devices``: what code for its devices depends on beyond this, as ``cpu`` says. ``torch``: its
    version.
    """
    if not base or not graph or not all(devices):
        return ""
    return "\n".join([base, f"torch {torch}", *devices, chosen(options), graph])


def chosen(options: Options) -> str:
    """The options that change generated code, and for how long it was measured what does."""
    # What is left undecided for want of time is measured by whoever gives more.
    tuned = f"tuned for {options.autotune_budget_s} s\n" if is_tuned(options) else ""
    return tuned + "\n".join(f"{row.name} = {getattr(options, row.name)!r}" for row in ROWS if row.code)


def cpu() -> str:
    """What code for this processor depends on; "" if that cannot be told."""
    known = machine.processor()
    return known and f"x86\n{known}"


def gpu(facts: str, options: Options) -> str:
    """What code for a GPU depends on.  ``facts``: what the driver tells of it, and the driver's version."""
    from shutil import which

    # Where else a ptxas may be is the assembler's secret; those places have the toolkit's version in them, and seldom change.
    ptxas = options.ptxas == "auto" and machine.fingerprint(which("ptxas") or "")
    return f"nvptx\n{facts}\nptxas {ptxas}"


def base_key(folder: Folder | None = None) -> str:
    """What everything that is kept depends on; "" if that cannot be told (sources or toolchain that are not files,
    sources that have changed since this process loaded them).  ``folder``: where the digest of the sources may be."""
    own, tools = sources.known(str(Path(__file__).parent.parent), folder, sources.LOADED), machine.toolchain()
    if not own or not tools:
        return ""
    python = f"Python {sys.version} {sys.implementation.cache_tag} {MAGIC_NUMBER.hex()}"
    return f"lowc sources {own}\n{python}\ntoolchain {tools}"
