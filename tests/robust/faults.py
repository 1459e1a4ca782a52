"""What fails around lowc while it works: disks, clocks, memory, other processes.

    python -m tests.robust.faults [NAME ...]

Each scenario runs in a child and prints a line of JSON: what went wrong there, which is nothing, and the warnings of lowc's own.
Results are compared with eager before, during and after the fault.
"""

import errno
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.memory import resident
from lowc.cache import entry, folder
from tests.cache import graphs


def sound(place: Path) -> None:
    """Nothing half written is left, and each entry can be read."""
    names = [path.name for path in place.iterdir()]
    assert not [name for name in names if name.startswith(folder.TEMPORARY)], names
    for item in graphs.folder(place).items():
        entry.read(Path(item.path).read_bytes())


def full_by_limit(place: Path) -> None:
    """No file may grow beyond 500 bytes, as on a disk that is full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))
    for number in range(3):
        graphs.check(graphs.folder(place), float(number))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    sound(place)
    few = len(graphs.folder(place).items())
    graphs.check(graphs.folder(place), 1.0)
    assert len(graphs.folder(place).items()) > few, "it does not recover"


def full_disk(place: Path) -> None:
    """A file system of 64 KiB, where one may be mounted."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        raise Skipped("no right to mount a file system")
    try:
        for number in range(30):
            graphs.check(graphs.folder(place), float(number))
        sound(place)
    finally:
        subprocess.run(["umount", str(place)], check=False)


def read_only(place: Path) -> None:
    """Entries can be read and not be written; then not even read."""
    graphs.check(graphs.folder(place), 1.0)
    shutil.chown(place, 65534)
    kept = {path.name for path in place.iterdir()}
    for path in place.iterdir():
        shutil.chown(path, 65534)
    os.chmod(place, 0o500)
    os.setuid(65534)
    for number in (1.0, 2.0, 1.0):
        graphs.check(graphs.folder(place), number)
    assert {path.name for path in place.iterdir()} == kept
    os.chmod(place, 0)
    graphs.check(graphs.folder(place), 1.0)


def clock(place: Path) -> None:
    """The clock jumps ten years ahead and back to 1970, with entries of all three times; the limit makes it evict."""
    now = time.time()
    graphs.check(graphs.folder(place), 0.0)
    size = max(i.size for i in graphs.folder(place).items())
    for number, there in enumerate((now + 3e8, 0.0, now, now - 1e9, now + 3e9)):
        with patch("time.time", lambda there=there: there):
            cache = folder.Folder(str(place), 3 * size)
            graphs.check(cache, float(number))
            for item in cache.items()[:1]:
                os.utime(item.path, (max(there, 0.0),) * 2)
            graphs.check(cache, float(number))
    assert 1 <= len(graphs.folder(place).items()) <= 3


def killed(place: Path) -> None:
    """A process dies after it has written an entry and before that has its name, and in the middle of writing."""
    for number, where in ((5.0, "replace"), (6.0, "write")):
        pid = os.fork()
        if pid == 0:
            name, at = ("lowc.cache.folder.os.replace", _die) if where == "replace" else ("lowc.cache.folder.open", _half)
            with patch(name, at, create=True):
                graphs.check(graphs.folder(place), number)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        graphs.check(graphs.folder(place), number)
    assert any(path.name.startswith(folder.TEMPORARY) for path in place.iterdir()), "nobody was killed"
    for path in place.iterdir():
        os.utime(path, (1.0, 1.0))
    graphs.folder(place).put("x", {"y": b"z"})
    for path in place.iterdir():
        assert not path.name.startswith(folder.TEMPORARY), "what a dead process left is never removed"


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _half(handle: int, *given: Any, **named: Any) -> Any:
    """A file of which the first piece is written, and then nothing."""
    file = open(handle, *given, **named)
    if "w" in given[0]:
        file.write(b"half")
        file.flush()
        _die()
    return file


def corrupt(place: Path) -> None:
    """Every entry is damaged between any two calls."""
    for number in range(40):
        graphs.check(graphs.folder(place), float(number % 3))
        for item in graphs.folder(place).items():
            content = bytearray(Path(item.path).read_bytes())
            content[(number * 977) % len(content)] ^= 1 << number % 8
            Path(item.path).write_bytes(content[: len(content) - number % 2])
    graphs.check(graphs.folder(place), 1.0)


def interrupted(place: Path) -> None:
    """Reads and writes of the cache fail now and then, each with another error."""
    codes = (errno.EIO, errno.EINTR, errno.ESTALE, errno.EMFILE, errno.ENOSPC, errno.EDQUOT)
    count = 0

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal count
            if str(place) in str(given[0]):
                count += 1
                if count % 3 == 0:
                    raise OSError(codes[count // 3 % len(codes)], "planted")
            return real(*given, **named)

        return call

    with patch.object(os, "open", failing(os.open)), patch.object(os, "replace", failing(os.replace)):
        for number in range(30):
            graphs.check(graphs.folder(place), float(number % 4))
    graphs.check(graphs.folder(place), 1.0)
    assert count > 10


def memory(place: Path) -> None:
    """Address space runs out in a call: an error, the input as it was or wholly written, and the next call is right."""

    def f(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        y = (x[:, None] - x[None, :]).exp().cumsum(1)
        count.add_(1.0)
        return (y @ y).softmax(1)

    fn: Any = torch.compile(f, backend="lowc", dynamic=True, options={"cache": False, "strict_errors": True})
    count, wanted = torch.zeros(5), torch.zeros(5)
    small = torch.linspace(0, 1, 50)
    for x in (small, torch.linspace(0, 1, 60)):
        torch.testing.assert_close(fn(x, count), f(x, wanted), rtol=1e-4, atol=1e-6)
    held = resident("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (held + (300 << 20), resource.RLIM_INFINITY))
    failures = 0
    for side in (9_000, 30_000, 9_000):  # 324 MB and more
        before = count.clone()
        try:
            fn(torch.linspace(0, 1, side), count)
        except (RuntimeError, MemoryError):
            failures += 1
        assert bool((count == before).all()) or bool((count == before + 1).all()), "an input is half updated"
        wanted.copy_(count)
        torch.testing.assert_close(fn(small, count), f(small, wanted), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(count, wanted)
    assert failures == 3, f"{failures} of 3 calls fail"
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    torch.testing.assert_close(fn(torch.linspace(0, 1, 500), count), f(torch.linspace(0, 1, 500), wanted), rtol=1e-3, atol=1e-6)


class Skipped(Exception):
    """A scenario that cannot be made here."""


SCENARIOS: dict[str, Callable[[Path], None]] = {
    f.__name__: f for f in (full_by_limit, full_disk, read_only, clock, killed, corrupt, interrupted, memory)
}


def tried(name: str) -> dict[str, Any]:
    """In a child: (what is wrong, lowc's warnings, peak of memory)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        told: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: told.append(record.getMessage()[:160])  # type: ignore[method-assign]
        logging.getLogger("lowc").addHandler(handler)
        logging.getLogger("lowc").propagate = False
        found: dict[str, Any] = {"name": name, "wrong": ""}
        top = Path(tempfile.mkdtemp())
        os.chmod(top, 0o755)
        try:
            SCENARIOS[name](top / "cache")
        except Skipped as error:
            found["skipped"] = str(error)
        except BaseException as error:
            found["wrong"] = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        found |= {"warnings": len(told), "first": told[:2], "peak_mb": round(resident("VmHWM") / 1e6), "folder": str(top)}
        with os.fdopen(write, "w") as file:
            file.write(json.dumps(found))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    found = json.loads(text) if text else {"name": name, "wrong": f"the process ended with {status}"}
    if "folder" in found:
        shutil.rmtree(found.pop("folder"), ignore_errors=True)
    return found


def main() -> int:
    """1 if anything is wrong."""
    torch.set_num_threads(1)
    bad = False
    for name in sys.argv[1:] or SCENARIOS:
        found = tried(name)
        bad |= bool(found["wrong"])
        print(json.dumps(found), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
