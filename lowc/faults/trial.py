"""One graph compiled and called, and what became of it."""

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lowc import compiler
from lowc.errors import LowcError
from lowc.faults.cut import Case
from lowc.faults.isolated import isolated
from lowc.faults.judge import Expected, wrong
from lowc.ir.graph import device_of
from lowc.options import Options

CALLS = 2
"""How often a graph is called: what a call leaves behind may harm the next."""


@dataclass(frozen=True)
class Verdict:
    """``status``: right, wrong, error, crash or timeout.  ``kind``: the type of an error, the signal of a crash.  ``origin``: of
    an error that names the kernel, see LowcError."""

    status: str
    kind: str = ""
    detail: str = ""
    origin: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        return self.status != "right"

    def like(self, other: "Verdict") -> bool:
        """Whether the two failed in the same way."""
        return (self.status, self.kind) == (other.status, other.kind)

    def __str__(self) -> str:
        return self.status + (f" ({self.kind})" if self.kind else "") + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True)
class How:
    """``options`` to compile with; ``threads``: torch's in a trial; ``seconds`` that it may take."""

    options: Options
    threads: int = 1
    seconds: float = 120.0


def single_threaded() -> int:
    """Keeps torch to one thread in this process, so that children may have more (``isolated``); returns how many there were."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return threads


def strict(options: Options) -> Options:
    """``options`` for a trial: what fails raises, the IR is verified, nothing is kept or written."""
    return options._replace(strict_errors=True, check=True, cache=False, dump="", time=False)


def tried(case: Case, how: How) -> Verdict:
    """``case`` compiled and called in a process of its own; on a GPU, which no child can use, in this one."""
    try:
        wanted = case.expected()
    except Exception as error:  # torch does not run it: nothing can be said of lowc
        return Verdict("right", "", f"not judged, eager raises {type(error).__name__}: {error}")
    return watched(lambda: _called(case, wanted, how.options), device_of(case.graph), how)


def watched(work: Callable[[], Verdict], device: str, how: How) -> Verdict:
    """``work()`` in a process of its own, if ``device`` is the CPU."""
    if not device.startswith("cpu"):
        return work()

    def threaded() -> Verdict:
        torch.set_num_threads(how.threads)
        return work()

    ended = isolated(threaded, how.seconds)
    if ended.value is not None:
        return ended.value
    if ended.died == "timeout":
        return Verdict("timeout", "", f"longer than {how.seconds:.0f} s")
    return Verdict("crash", ended.died, ended.said)


def _called(case: Case, wanted: list[Expected], options: Options) -> Verdict:
    logging.getLogger("lowc").setLevel(logging.ERROR)
    try:
        call = compiler.compile_graph(case.graph, (), strict(options))
    except Exception as error:
        return failed(error)
    return outcome(case, wanted, call)


def outcome(case: Case, wanted: list[Expected], call: Callable[[list[Any]], Any]) -> Verdict:
    """What calls of a compiled graph give."""
    for number in range(CALLS):
        inputs = case.copies()
        try:
            outputs = call(list(inputs))
        except Exception as error:
            return failed(error)
        if detail := wrong(wanted, case.found(outputs, inputs)):
            again = " (in the second call)" if number else ""
            return Verdict("wrong", "", detail + again)
    return Verdict("right")


def failed(error: Exception) -> Verdict:
    """The verdict on a graph that raises ``error``."""
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    message = " ".join(str(getattr(error, "message", error)).split())
    if not isinstance(cause, LowcError) and (frames := traceback.extract_tb(cause.__traceback__)):
        message += f" ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})"
    origin = error.origin if isinstance(error, LowcError) else ()
    return Verdict("error", type(cause).__name__, message[:600], tuple(origin))
