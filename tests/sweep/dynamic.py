"""Torch's operator samples with sizes that are known only when called: one artifact, three sizes each.

    python -m tests.sweep.dynamic --out dynamic.jsonl                     # every op of op_db in float32
    python -m tests.sweep.dynamic --out dynamic.jsonl --resume            # goes on where it was stopped
    python -m tests.sweep.dynamic --ops cumsum,nn.functional.pad --dtypes float32,int64

``resized`` says what is tried and what the statuses mean; only "wrong", "error", "crash" and "timeout" are failures.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.sweep import report
from tests.sweep.resized import messages
from tests.sweep.samples import entries
from tests.sweep.workers import Record, Task, sweep


def main(argv: Sequence[str] | None = None) -> int:
    """1 if anything is wrong or fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweep.dynamic")
    parser.add_argument("--ops", help="names as in op_db, comma-separated; default: all")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--samples", type=int, help="of each op at most so many; default: all")
    parser.add_argument("--out", type=Path, help="file of results, one line of JSON for each op and dtype")
    parser.add_argument("--resume", action="store_true", help="leave out what --out has already")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--patience", type=float, default=240, help="seconds that one sample may take (default: 240)")
    parser.add_argument("--check", action="store_true", help="verify the IR after every pass")
    chosen = parser.parse_args(argv)
    records = report.read(chosen.out) if chosen.out and chosen.resume else []
    if chosen.out and not chosen.resume:
        chosen.out.unlink(missing_ok=True)
    done = {r.key for r in records}
    tasks = [
        task
        for dtype in chosen.dtypes.split(",")
        for name in (chosen.ops.split(",") if chosen.ops else entries())
        if entries()[name].supports_dtype(getattr(torch, dtype), "cpu")
        and (task := Task(name, dtype, False, chosen.samples, 0, chosen.check)).key not in done
    ]
    for line in report.failures(records):
        print(line, flush=True)
    for number, record in enumerate(sweep(tasks, chosen.jobs, chosen.patience, messages), 1):
        records.append(record)
        if chosen.out:
            report.append(chosen.out, record)
        for line in report.failures([record]):
            print(line, flush=True)
        if number % 50 == 0 or number == len(tasks):
            print(f"{len(records)} ops: {_total(records)}", flush=True)
    print(f"{len(records)} ops: {_total(records)}")
    return 1 if report.failures(records) else 0


def _total(records: Sequence[Record]) -> str:
    total = sum((r.statuses for r in records), Counter[str]())
    return ", ".join(f"{count} {status}" for status, count in total.most_common())


if __name__ == "__main__":
    sys.exit(main())
