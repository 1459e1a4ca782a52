"""What a compilation tells while it runs: a tree of times, numbered dump files, counters.

A ``Trace`` is made for each compilation and handed down; there is no global one.

    with trace.phase("scheduler"):
        with trace.phase("fuse"):
            ...
    trace.dump("fuse", lambda: print_module(module))
    trace.count("extern aten.mm.default")
    print(trace.report())

    lowering        1.9 ms
    scheduler      12.4 ms
      fuse          3.1 ms
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path


class Phase:
    """``seconds`` spent in ``calls`` runs of a named part of the compilation, those of ``inner`` phases
    included.
    """

    __slots__ = ("calls", "inner", "name", "seconds")

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds = 0.0
        self.calls = 0
        self.inner: dict[str, Phase] = {}


class Trace:
    """``dump_dir``: where files go ("" for nowhere).  ``root``: the times.  ``counters``: how often what
    happened.
    """

    __slots__ = ("_number", "_stack", "counters", "dump_dir", "root")

    def __init__(self, dump_dir: str = "") -> None:
        self.dump_dir = dump_dir
        self.root = Phase("total")
        self.counters: dict[str, int] = {}
        self._stack = [self.root]
        self._number = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures what runs inside, as a part of the phase around it."""
        phase = self._stack[-1].inner.setdefault(name, Phase(name))
        self._stack.append(phase)
        start = time.perf_counter()
        try:
            yield
        finally:
            phase.seconds += time.perf_counter() - start
            phase.calls += 1
            self._stack.pop()

    def add(self, name: str, seconds: float) -> None:
        """A phase that somebody else has measured."""
        phase = self._stack[-1].inner.setdefault(name, Phase(name))
        phase.seconds += seconds
        phase.calls += 1

    def count(self, what: str, by: int = 1) -> None:
        self.counters[what] = self.counters.get(what, 0) + by

    @property
    def dumping(self) -> bool:
        return bool(self.dump_dir)

    def dump(self, name: str, text: Callable[[], str | bytes], extension: str = "lowc") -> None:
        """Writes ``text()`` to the next numbered file, e.g. ``03_fuse.lowc``; calls nothing if there is no
        directory for it.
        """
        if not self.dump_dir:
            return
        content = text()
        Path(self.dump_dir).mkdir(parents=True, exist_ok=True)
        path = Path(self.dump_dir) / f"{self._number:02}_{name}.{extension}"
        self._number += 1
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def report(self) -> str:
        """The times as an indented table, one line for each phase, in milliseconds."""
        rows = list(_rows(self.root, 0))
        width = max((len(label) for label, _ in rows), default=0)
        return "\n".join(
            f"{label:<{width}} {phase.seconds * 1e3:9.2f} ms{_times(phase)}" for label, phase in rows
        )


def _rows(phase: Phase, level: int) -> Iterator[tuple[str, Phase]]:
    for inner in phase.inner.values():
        yield "  " * level + inner.name, inner
        yield from _rows(inner, level + 1)


def _times(phase: Phase) -> str:
    return f"  x{phase.calls}" if phase.calls > 1 else ""


def fresh_directory(parent: str, name: str) -> str:
    """A new directory ``parent/name.N`` for one graph's dumps; N counts up, also across processes.  "" if
    ``parent`` is "".
    """
    if not parent:
        return ""
    number = 0
    while True:
        path = os.path.join(parent, f"{name}.{number}")
        try:
            os.makedirs(path)
            return path
        except FileExistsError:
            number += 1


def keep(content: bytes, folder: str, name: str) -> str:
    """Writes ``content`` to a new file called ``name``, or nearly so, in ``folder`` ("": a temporary one).  The path; where the
    file cannot be written, words that say so, since this is for the message of an error.
    """
    try:
        folder = folder or tempfile.mkdtemp(prefix="lowc-")
        os.makedirs(folder, exist_ok=True)
        stem, dot = os.path.splitext(name)
        for number in count():
            path = os.path.join(folder, f"{stem}.{number}{dot}" if number else name)
            try:
                with open(path, "xb") as file:
                    file.write(content)
                return path
            except FileExistsError:
                continue
    except OSError as error:
        return f"no file ({error})"
    raise AssertionError("numbers do not end")
