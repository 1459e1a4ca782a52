"""Graphs spread over processes, any of which may crash or hang: the graph it had announced is a failure, a new one goes on."""

import logging
import multiprocessing
import random
import resource
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

MOST_MEMORY = 3 << 20  # KiB: a worker that has grown this far gives way to a new one


@dataclass(frozen=True)
class Found:
    """``status`` as a Verdict's, or crash, or timeout; of a failure made smaller ``source`` and the text of a file, ``repro``."""

    seed: int
    status: str
    detail: str = ""
    source: str = ""
    repro: str = ""

    @property
    def bad(self) -> bool:
        return self.status in ("wrong", "error", "crash", "timeout")


@dataclass(frozen=True)
class Settings:
    """``dynamo``: one graph in so many goes through torch.compile (0: none); ``threads``: torch's and lowc's in a process."""

    dynamo: int
    check: bool
    shrink: bool
    threads: int = 1
    device: str = "cpu"


def judged(
    seeds: Sequence[int],
    jobs: int,
    patience: float,
    dynamo: int = 0,
    check: bool = False,
    shrink: bool = True,
    threads: int = 1,
    device: str = "cpu",
) -> Iterator[Found]:
    """What became of each seed, as they are done."""
    waiting = list(reversed(seeds))
    settings = Settings(dynamo, check, shrink, threads, device)
    workers = [_Worker(settings) for _ in range(min(jobs, len(seeds)))]
    try:
        for worker in workers:
            worker.give(waiting)
        while busy := [w for w in workers if w.seed is not None]:
            ready = wait([w.pipe for w in busy], timeout=1.0)
            for worker in busy:
                found = worker.listen() if worker.pipe in ready else worker.lose_patience(patience)
                if found is not None:
                    yield found
                    worker.give(waiting)
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.seed: int | None = None
        self.heard = 0.0
        self._open()

    def _open(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=work, args=(other, self.settings), daemon=True)
        self.process.start()
        other.close()

    def give(self, waiting: list[int]) -> None:
        self.seed = waiting.pop() if waiting else None
        self.heard = time.monotonic()
        if self.seed is not None:
            self.pipe.send(self.seed)

    def listen(self) -> Found | None:
        assert self.seed is not None
        self.heard = time.monotonic()
        try:
            message: Any = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            return self._lost("crash", f"exit status {self.process.exitcode}")
        if message == "shrinking":  # that takes longer, and may take as long as it likes
            self.heard = time.monotonic() + 600
            return None
        found, memory = message
        if memory > MOST_MEMORY:
            self.end()
            self._open()
        return found

    def lose_patience(self, patience: float) -> Found | None:
        if time.monotonic() - self.heard < patience:
            return None
        return self._lost("timeout", f"longer than {patience:.0f} s")

    def _lost(self, status: str, detail: str) -> Found:
        from tests.property.graphs.generate import random_program
        from tests.property.graphs.repro import repro

        assert self.seed is not None
        self.end()
        self._open()
        program = random_program(self.seed)
        return Found(self.seed, status, detail, program.source(), repro(program, detail, self.settings.device))

    def end(self) -> None:
        self.pipe.close()
        if self.seed is not None:
            self.process.kill()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


# ---------------------------------------------------------------- in the worker


def work(pipe: Connection, settings: Settings) -> None:
    """Takes seeds until the pipe closes."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    import torch

    torch.set_num_threads(settings.threads)
    while True:
        try:
            seed = pipe.recv()
        except EOFError:
            return
        found = attempt(seed, settings, pipe)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        broken = settings.device != "cpu" and "CUDA" in found.detail  # nothing runs in a process after a fault on a GPU
        pipe.send((found, MOST_MEMORY + 1 if broken else memory))


def attempt(seed: int, settings: Settings, pipe: Connection | None = None) -> Found:
    """One graph: in four of ten some of the scheduler's thresholds are such that its passes do more than they would.  On a GPU
    every second one is compiled with strict numerics."""
    from tests.property.graphs.generate import random_program
    from tests.property.graphs.judge import Verdict, judge
    from tests.property.graphs.program import Program
    from tests.property.graphs.repro import repro
    from tests.property.graphs.shrink import shrink
    from tests.property.test_passes import EAGER

    rng = random.Random(f"knobs {seed}")
    knobs = [k for k in EAGER if rng.random() < 0.5] if rng.random() < 0.4 else []
    dynamo = settings.dynamo > 0 and seed % settings.dynamo == 0
    numerics = "strict" if settings.device != "cpu" and seed % 2 else "fast"

    def judged(candidate: Program, chosen: Sequence[tuple[Any, str, Any]]) -> Verdict:
        return judge(candidate, dynamo, chosen, settings.check, settings.device, numerics)

    program = random_program(seed)
    verdict = judged(program, knobs)
    if not verdict.bad:
        return Found(seed, verdict.status, verdict.detail)
    if pipe is not None:
        pipe.send("shrinking")
    if settings.shrink:
        if knobs and judged(program, []).status == verdict.status:
            knobs = []  # they have no part in it
        program = shrink(program, lambda candidate: judged(candidate, knobs).status == verdict.status)
        verdict = judged(program, knobs)
    detail = verdict.detail + (f"; with {[name for _, name, _ in knobs]} (of tests.property.test_passes.EAGER)" if knobs else "")
    detail += "; with strict numerics" if numerics == "strict" else ""
    return Found(seed, verdict.status, detail, program.source(), repro(program, detail, settings.device, numerics))
