"""The command line; see ``python -m tests.sweep --help``."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.sweep import report
from tests.sweep.workers import Record, Task, sweep


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m tests.sweep", description="Compares lowc with eager over torch's own operator samples."
    )
    p.add_argument("--ops", help="names as in op_db, comma-separated (add, div.floor_rounding); default: all")
    p.add_argument("--dtypes", help="names as float32, comma-separated; default: all that an op declares")
    p.add_argument("--device", default="cpu", help="cpu or cuda: where tensors are, in eager and compiled (default: cpu)")
    p.add_argument("--out", type=Path, help="file of results, one line of JSON for each op, dtype and direction")
    p.add_argument("--resume", action="store_true", help="leave out what --out has already")
    p.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    p.add_argument("--samples", type=int, help="of each op, dtype and direction at most so many; default: all")
    p.add_argument("--layouts", type=int, default=2, help="of so many samples other layouts and values, too (default: 2)")
    p.add_argument("--direction", choices=["forward", "backward"], help="default: both")
    p.add_argument("--patience", type=float, default=120, help="seconds that one sample may take (default: 120)")
    p.add_argument("--check", action="store_true", help="verify the IR after every pass")
    p.add_argument("--all-rows", action="store_true", help="the table also shows ops without failures")
    p.add_argument("--coverage", type=Path, help="write the page of calls of ATen here, from --out; runs nothing")
    p.add_argument("--against-inductor", action="store_true", help="list what Inductor lowers and lowc does not")
    return p


def tasks(arguments: argparse.Namespace) -> list[Task]:
    """All of them, one dtype after the other.  Raises SystemExit for an op that op_db does not have."""
    import torch

    from tests.sweep.samples import DTYPES, entries

    named = arguments.ops.split(",") if arguments.ops else list(entries())
    unknown = [n for n in named if n not in entries()]
    if unknown:
        sys.exit(f"no such op in op_db: {', '.join(unknown)}")
    found, device = [], arguments.device
    for dtype in arguments.dtypes.split(",") if arguments.dtypes else DTYPES:
        for name in named:
            op = entries()[name]
            kind = getattr(torch, dtype)
            if not op.supports_dtype(kind, device):
                continue
            differentiable = op.supports_autograd and kind in op.supported_backward_dtypes(device)
            for grad in (False, True) if differentiable else (False,):
                if arguments.direction in (None, "backward" if grad else "forward"):
                    found.append(
                        Task(name, dtype, grad, arguments.samples, arguments.layouts, arguments.check, device)
                    )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """1 if anything is wrong or fails."""
    arguments = parser().parse_args(argv)
    console = Console()
    if arguments.against_inductor:
        from tests.sweep.inductor import show

        return show(console, arguments.ops.split(",") if arguments.ops else None)
    known = report.read(arguments.out) if arguments.out else []
    if arguments.coverage:
        arguments.coverage.write_text(report.coverage(known))
        return 0
    if not arguments.resume:
        known = []
        if arguments.out:
            arguments.out.unlink(missing_ok=True)
    done = {r.key for r in known}
    records = known + run([t for t in tasks(arguments) if t.key not in done], arguments, console)
    console.print(report.table(records, only_bad=not arguments.all_rows))
    for line in report.failures(records):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 1 if report.failures(records) else 0


def run(todo: list[Task], arguments: argparse.Namespace, console: Console) -> list[Record]:
    records = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    began = time.monotonic()
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("tasks", total=len(todo))
        for record in sweep(todo, arguments.jobs, arguments.patience):
            records.append(record)
            if arguments.out:
                report.append(arguments.out, record)
            bad = sum(len([f for f in r.failures if f[2] in report.BAD]) for r in records)
            progress.update(bar, advance=1, description=f"{record.key}, {bad} bad")
    tried = sum(sum(r.statuses.values()) for r in records)
    console.print(f"{tried} samples in {time.monotonic() - began:.0f} s")
    return records


if __name__ == "__main__":
    sys.exit(main())
