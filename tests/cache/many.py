"""Sixteen processes on one cache folder; run as a program by ``test_many.py``.

    python -m tests.cache.many FOLDER

Each child is forked before anything is compiled, compiles or reuses a few graphs again and again for two instruction sets, and
compares each result with eager.  Some are killed in between, one has a folder that it cannot write to, and one writes damage.
Prints one line of JSON: exit statuses by kind.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from lowc import compiler  # noqa: F401  (so that no child spends its life importing)
from lowc.backends import x86  # noqa: F401
from lowc.cache.codec import encode  # noqa: F401
from lowc.runtime import linker, program  # noqa: F401
from lowc.scheduler import pipeline  # noqa: F401
from tests.cache import graphs

PROCESSES, VICTIMS, ROUNDS, NUMBERS = 16, 4, 3, 4


def work(folder: str, number: int, rounds: int = ROUNDS) -> None:
    """Exits with an exception if any result is wrong."""
    torch.set_num_threads(1)
    rng = random.Random(number)
    for _ in range(rounds):
        cache = graphs.folder(Path(folder))  # as a new process would see it
        for _ in range(NUMBERS):
            graphs.check(cache, float(rng.randrange(NUMBERS)), isa="sse2" if rng.random() < 0.5 else "auto", threads=False)
        call = graphs.compiled(graphs.product(), cache, isa="sse2" if number % 2 else "auto", threads=False)
        x = torch.linspace(-1, 1, 81).view(9, 9)
        torch.testing.assert_close(call([x])[0], graphs.product_of(x))


def spoil(folder: str, number: int) -> None:
    """Damages entries while others use them."""
    rng = random.Random(number)
    for _ in range(60):
        items = graphs.folder(Path(folder)).items()
        if items:
            path = rng.choice(items).path
            try:
                size = max(os.path.getsize(path), 1)
                with open(path, "r+b") as file:
                    file.seek(rng.randrange(size))
                    file.write(b"\xff\x00\xff")
                    if rng.random() < 0.3:
                        file.truncate(rng.randrange(size))
            except FileNotFoundError:
                pass
        time.sleep(0.02)


def forever(folder: str, number: int) -> None:
    while True:
        work(folder, number, 1)
        for item in graphs.folder(Path(folder)).items()[:2]:  # so that it goes on writing
            Path(item.path).unlink(missing_ok=True)


def child(do: Callable[[str, int], None], folder: str, number: int) -> int:
    """The process number; it exits with 0 if ``do`` returns."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        do(folder, number)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
    raise AssertionError


def main() -> None:
    folder = sys.argv[1]
    kinds: dict[int, str] = {}
    for number in range(PROCESSES - VICTIMS - 2):
        kinds[child(work, folder, number)] = "worker"
    kinds[child(work, "/proc/lowc", 99)] = "read-only"
    kinds[child(spoil, folder, 100)] = "spoiler"
    victims = [child(forever, folder, 200 + n) for n in range(VICTIMS)]
    rng = random.Random(5)
    for pid in victims:
        time.sleep(rng.uniform(0.3, 1.0))
        os.kill(pid, signal.SIGKILL)
    seen: dict[str, list[int]] = {"worker": [], "read-only": [], "spoiler": [], "killed": []}
    for pid, kind in kinds.items():
        seen[kind].append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    for pid in victims:
        seen["killed"].append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    work(folder, 300, 4)  # after all of them
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
