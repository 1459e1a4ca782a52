"""Cases spread over forked children, any of which may crash or hang at one: that is its outcome, and a new child goes on."""

import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

BAD = ("exception", "wrong", "broken", "text", "crash", "hang")


@dataclass(frozen=True)
class Outcome:
    """``status`` is one of ``BAD`` or a word of the fuzzer's own."""

    status: str
    detail: str = ""

    @property
    def bad(self) -> bool:
        return self.status in BAD


Case = Callable[[int], Outcome]


def explored(case: Case, seeds: range, jobs: int, patience: float) -> Iterator[tuple[int, Outcome]]:
    """What became of each seed, as they are done.  Python that takes longer than ``patience`` seconds is stopped, anything else
    after three times as long."""
    step = max(1, -(-len(seeds) // max(jobs, 1)))
    children = [_Child(case, seeds[a : a + step], patience) for a in range(0, len(seeds), step)]
    while busy := [c for c in children if c.left]:
        ready, _, _ = select.select([c.pipe for c in busy], [], [], 1.0)
        for child in busy:
            yield from child.news() if child.pipe in ready else child.impatient()
    for child in children:
        child.end()


class _Child:
    """A process that goes through ``left``, and writes a line for each as it is done."""

    def __init__(self, case: Case, left: range, patience: float) -> None:
        self.case, self.left, self.patience = case, left, patience
        self.pid = 0
        self.start()

    def start(self) -> None:
        self.pipe, write = os.pipe()
        self.heard, self.rest = time.monotonic(), b""
        self.pid = os.fork()
        if self.pid:
            os.close(write)
            return
        try:
            for seed in self.left:
                outcome = timed(self.case, seed, self.patience)
                detail = " ".join(outcome.detail.split())
                os.write(write, f"{seed}\t{outcome.status}\t{detail}\n".encode())
            os._exit(0)
        except BaseException:  # of the fuzzer itself
            traceback.print_exc()
            os._exit(1)

    def news(self) -> Iterator[tuple[int, Outcome]]:
        content = os.read(self.pipe, 1 << 16)
        self.heard = time.monotonic()
        *lines, self.rest = (self.rest + content).split(b"\n")
        for line in lines:
            seed, status, detail = line.decode(errors="replace").split("\t", 2)
            self.left = range(int(seed) + 1, self.left.stop)
            yield int(seed), Outcome(status, detail)
        if not content and self.left:
            status = self.reaped()
            yield self.lost(Outcome("crash", f"exit status {status}"))

    def reaped(self) -> int:
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.pipe)
        self.pid = 0
        return status

    def lost(self, outcome: Outcome) -> tuple[int, Outcome]:
        seed = self.left.start
        self.left = range(seed + 1, self.left.stop)
        if self.left:
            self.start()
        return seed, outcome

    def impatient(self) -> Iterator[tuple[int, Outcome]]:
        if time.monotonic() - self.heard > 3 * self.patience:
            os.kill(self.pid, signal.SIGKILL)
            self.reaped()
            yield self.lost(Outcome("hang", f"longer than {3 * self.patience:.0f} s outside of Python"))

    def end(self) -> None:
        if self.pid:
            self.reaped()


class Late(BaseException):
    """A case has taken too long.  (No Exception, which cases may catch.)"""


def timed(case: Case, seed: int, patience: float) -> Outcome:
    """``case(seed)``; Python that takes longer than ``patience`` is stopped."""

    def late(*_: object) -> None:
        raise Late

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, patience)
    try:
        return case(seed)
    except Late:
        return Outcome("hang", f"longer than {patience:.0f} s")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def said(error: Exception) -> str:
    """An exception, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:240]}{where}"
