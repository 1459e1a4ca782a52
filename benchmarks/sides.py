"""Functions that do the same timed side by side on a CPU, round by round in turn, each shape in a process of its own.

What ``benchmarks.matmul`` and ``benchmarks.attention`` have in common: both are scripts that call themselves with ``--one NAME``.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import table
from benchmarks.run import MALLOC, ROOT, machine

ROUNDS = 21


def timed(
    sides: Mapping[str, Callable[..., Any]],
    args: Sequence[Any],
    exact: torch.Tensor | Sequence[torch.Tensor],
    threads: int,
    block: float,
) -> dict[str, Any]:
    """Milliseconds of a call, median and least, and the error against ``exact`` (of several results the largest), by side.  By
    the time of the thread if there is one of ``threads``; calls are timed in blocks of at least ``block`` seconds."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    found: dict[str, Any] = {}
    calls: dict[str, int] = {}
    for side, function in sides.items():
        out = function(*args)
        pairs = [(out, exact)] if isinstance(exact, torch.Tensor) else list(zip(out, exact, strict=True))
        found[side] = {"error": max(float((one.double() - right).norm() / right.norm()) for one, right in pairs)}
        start = clock()
        for _ in range(3):
            function(*args)
        calls[side] = max(1, int(block / max((clock() - start) / 3, 1e-7)))
    times: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(ROUNDS):
        for side in list(sides)[:: 1 if turn % 2 else -1]:
            function = sides[side]
            start = clock()
            for _ in range(calls[side]):
                function(*args)
            times[side].append((clock() - start) / calls[side] * 1e3)
    for side, taken in times.items():
        found[side] |= {"median_ms": statistics.median(taken), "least_ms": min(taken)}
    return found


def arguments(about: str | None) -> argparse.ArgumentParser:
    """What each of the scripts can be asked for."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=0, help="0: torch's number")
    parser.add_argument("--only", default="", help="part of the names of shapes")
    parser.add_argument("--out", default="", help="a file to which the table is added")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    return parser


def each(script: str, names: Iterable[str], given: argparse.Namespace, *more: str) -> dict[str, dict[str, Any]]:
    """What ``script --one NAME`` prints, in a process of its own, for the ``names`` that are asked for."""
    results: dict[str, dict[str, Any]] = {}
    for name in names:
        if given.only in name:
            results[name] = _apart([script, "--one", name, "--dtype", given.dtype, "--threads", str(given.threads), *more])
            print(name, json.dumps(results[name]), flush=True)
    return results


def _apart(command: Sequence[str]) -> dict[str, Any]:
    env = {**os.environ, "OMP_PROC_BIND": "close", **MALLOC}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def failed(name: str, row: Mapping[str, Any], columns: int) -> list[str]:
    """The line of a table for a shape that could not be measured."""
    return [name, row["error"].replace("|", "\\|"), *[""] * (columns - 2)]


def rows_of(
    results: Mapping[str, dict[str, Any]], columns: int, cells: Callable[[dict[str, Any]], list[str]]
) -> list[list[str]]:
    """The lines of a table of so many columns: a name and ``cells`` of what was found, or why nothing was."""
    return [failed(name, row, columns) if "error" in row else [name, *cells(row)] for name, row in results.items()]


def by_choice(results: Mapping[str, dict[str, Any]], what: str, sides: Sequence[str], inductor: bool) -> str:
    """The table of ``what`` was done by eager, by each of ``sides`` ("library", "own" and "auto"), and perhaps by Inductor."""
    head = [what, "eager ms", *(f"{side} ms" for side in sides), "eager / auto", "library / auto", "error auto / eager"]
    head += ["Inductor ms", "Inductor / auto"] if inductor else []

    def cells(row: dict[str, Any]) -> list[str]:
        auto = row["auto"]
        found = [f"{row[side]['median_ms']:.3f}" for side in ("eager", *sides)]
        found += [f"{row[side]['median_ms'] / auto['median_ms']:.2f}" for side in ("eager", "library")]
        found.append(f"{auto['error'] / max(row['eager']['error'], 1e-30):.2f}")
        return found + (inductor_cells(row, auto) if inductor else [])

    return table(head, rows_of(results, len(head), cells))


def alone(
    about: str | None,
    script: str,
    names: Iterable[str],
    measure: Callable[[str, int], dict[str, Any]],
    markdown: Callable[[dict[str, dict[str, Any]], argparse.Namespace], str],
    title: str,
    kind: str,
) -> None:
    """The whole of a script whose cases have dtypes of their own, which ``kind`` stands for: ``measure`` of (name, threads) in
    processes of their own, and the table of what they found."""
    given = arguments(about).parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.threads)))
        return
    given.dtype = kind
    shown(markdown(each(script, names, given), given), title, given.out)


def inductor_cells(row: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """Inductor's milliseconds, and in terms of those of ``own``, a side of ``row``."""
    return [f"{row['inductor']['median_ms']:.3f}", f"{row['inductor']['median_ms'] / own['median_ms']:.2f}"]


def beside_inductor(
    about: str | None,
    script: str,
    names: Iterable[str],
    measure: Callable[[str, torch.dtype, int, bool], dict[str, Any]],
    markdown: Callable[[dict[str, dict[str, Any]], argparse.Namespace], str],
    title: str,
) -> None:
    """The whole of a script that can be asked for ``--inductor``: ``measure`` of (name, dtype, threads, whether with Inductor) in
    processes of their own, and the table of what they found."""
    parser = arguments(about)
    parser.add_argument("--inductor", action="store_true")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, getattr(torch, given.dtype), given.threads, given.inductor)))
        return
    results = each(script, names, given, *(["--inductor"] if given.inductor else []))
    shown(markdown(results, given), title, given.out)


def titled(text: str, given: argparse.Namespace) -> str:
    """A table under what it was measured with."""
    threads = f"{given.threads} thread" if given.threads == 1 else f"{given.threads or torch.get_num_threads()} threads"
    clock = "Time of the thread." if given.threads == 1 else "Time on the wall."
    return f"## {given.dtype}, {threads}\n\n{clock}  Above 1: lowc's kernel is faster.\n\n{text}"


def shown(text: str, title: str, out: str) -> None:
    """Prints ``text``, and adds it to the file ``out`` if that is not ""."""
    print(text)
    if out:
        path = Path(out)
        head = "" if path.exists() else f"# {title}\n\n{', '.join(f'{k} {v}' for k, v in machine().items())}\n"
        with path.open("a") as file:
            file.write(f"{head}\n{text}")
