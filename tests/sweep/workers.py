"""The work spread over processes, any of which may crash or hang without harm to the others.

A worker takes a task (an op, a dtype, forward or with gradients), announces each sample before it tries it, and sends what
became of it.  When it dies, the sample that it had announced is a "crash"; when it is silent for too long it is ended, a
"timeout"; a new worker goes on behind that sample.
"""

import logging
import multiprocessing
import os
import resource
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.sweep.known import why_known

Messages = Callable[["Task", int], Iterator[tuple[Any, ...]]]
"""What a worker says about a task of which so many samples are left out: ("try", number, variant) before each sample, then
("result", status, detail, calls of ATen, targets) once or more; or ("failed", why); or ("broken",): another has to go on."""

MOST_MEMORY = 3 << 20  # KiB: a worker that has grown this far gives way to a new one
MOST_FAILURES = 12  # of one kind are kept in full for a task
GOOD = ("lowered", "extern", "skipped", "right", "static", "guarded")  # nothing to say about
BAD = ("wrong", "error", "crash", "timeout")


@dataclass(frozen=True)
class Task:
    """``limit``: samples at most (None: all); ``layouts``: of how many samples variants are tried."""

    op: str
    dtype: str
    grad: bool
    limit: int | None = None
    layouts: int = 2
    check: bool = False
    device: str = "cpu"

    @property
    def key(self) -> str:
        return f"{self.op}/{self.dtype}/{'backward' if self.grad else 'forward'}"


@dataclass
class Record:
    """What became of a task: how many samples had each status, how often each call of ATen was made, and failures as (number of
    the sample, variant, status, detail)."""

    key: str
    statuses: Counter[str] = field(default_factory=Counter)
    externs: Counter[str] = field(default_factory=Counter)
    lowered: list[str] = field(default_factory=list)
    failures: list[tuple[int, str, str, str]] = field(default_factory=list)
    seconds: float = 0.0
    device: str = "cpu"

    def add(self, number: int, variant: str, status: str, detail: str, externs: Sequence[str], targets: Sequence[str]) -> None:
        if status in BAD and why_known(self.key.split("/")[0], variant, detail, self.device) is not None:
            status = "known"
        self.statuses[status] += 1
        self.externs.update(externs)
        self.lowered = sorted({*self.lowered, *targets})
        if status not in GOOD and sum(s == status for _, _, s, _ in self.failures) < MOST_FAILURES:
            self.failures.append((number, variant, status, detail))

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def sweep(tasks: Sequence[Task], jobs: int, patience: float, messages: Messages | None = None) -> Iterator[Record]:
    """A record for each task, as they are done.  ``patience``: seconds that one sample may take."""
    waiting = list(reversed(tasks))
    workers = [_Worker(messages or static_messages) for _ in range(min(jobs, len(tasks)))]
    try:
        for worker in workers:
            worker.start(waiting.pop())
        while busy := [w for w in workers if w.record is not None]:
            ready = wait([w.pipe for w in busy], timeout=1.0)
            for worker in busy:
                done = worker.listen() if worker.pipe in ready else worker.lose_patience(patience)
                if done is not None:
                    yield done
                    if waiting:
                        worker.start(waiting.pop())
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A process, and what it is at: ``record`` of the task in hand, ``sample`` announced last, ``tried`` samples so far."""

    def __init__(self, messages: Messages) -> None:
        self.messages = messages
        self.record: Record | None = None
        self._open()

    def _open(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=work, args=(other, self.messages), daemon=True)
        self.process.start()
        other.close()

    def start(self, task: Task) -> None:
        self.task, self.record, self.tried, self.sample = task, Record(task.key, device=task.device), 0, (0, "")
        self.began = self.heard = time.monotonic()
        self.pipe.send((task, 0))

    def listen(self) -> Record | None:
        """Takes one message; the record if that was the last."""
        assert self.record is not None
        self.heard = time.monotonic()
        try:
            kind, *rest = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            return self._lost("crash", f"exit status {self.process.exitcode}")
        if kind == "try":
            self.sample = tuple(rest)
            self.tried += 1
        elif kind == "result":
            self.record.add(*self.sample, *rest)
        elif kind == "broken":
            return self._resume()
        elif kind == "failed":
            self.record.add(-1, "", "refused", *rest, (), ())
        else:
            return self._finished(int(rest[0]))
        return None

    def _finished(self, memory: int) -> Record:
        done, self.record = self.record, None
        assert done is not None
        done.seconds = time.monotonic() - self.began
        if memory > MOST_MEMORY:
            self.end()
            self._open()
        return done

    def lose_patience(self, patience: float) -> Record | None:
        if time.monotonic() - self.heard < patience:
            return None
        return self._lost("timeout", f"longer than {patience:.0f} s")

    def _lost(self, status: str, detail: str) -> Record | None:
        """Counts the sample in hand and has a new process go on behind it."""
        assert self.record is not None
        self.record.add(*self.sample, status, detail, (), ())
        return self._resume()

    def _resume(self) -> Record | None:
        """Has a new process go on behind the sample in hand."""
        self.end()
        self._open()
        self.heard = time.monotonic()
        if self.tried == 0:  # before any sample: this task kills every worker
            return self._finished(0)
        self.pipe.send((self.task, self.tried))
        return None

    def end(self) -> None:
        self.pipe.close()
        if self.record is not None:  # busy
            self.process.kill()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


# ---------------------------------------------------------------- in the worker


def work(pipe: Connection, messages: Messages) -> None:
    """Takes (task, samples to leave out) until the pipe closes."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            task, skip = pipe.recv()
        except EOFError:
            return
        for message in messages(task, skip):
            pipe.send(message)
        pipe.send(("done", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


def static_messages(task: Task, skip: int) -> Iterator[tuple[Any, ...]]:
    """Each sample compiled for its own sizes."""
    import torch

    from tests.sweep.samples import cases, entries
    from tests.sweep.trial import attempt

    op = entries()[task.op]
    samples = cases(op, getattr(torch, task.dtype), task.grad, task.limit, task.layouts, task.device)
    number = 0
    while True:
        try:
            case = next(samples, None)
        except Exception as error:  # the OpInfo cannot make its samples
            yield "failed", f"{type(error).__name__}: {str(error)[:200]}"
            return
        if case is None:
            return
        number += 1
        if number <= skip:
            continue
        yield "try", case.number, case.variant
        out = attempt(op, case, task.grad, task.check)
        yield "result", out.status, out.detail, [f"{t}: {why}" for t, why in out.externs], out.targets
        if task.device != "cpu" and "CUDA error" in out.detail:  # nothing runs in a process after a fault on a GPU
            yield ("broken",)
            os._exit(1)
