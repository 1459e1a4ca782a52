"""What it costs that an artifact serves every size: the steady-state workloads and models, static and with all sizes symbolic.

    python -m benchmarks.dynamic                              lowc and Inductor (which needs g++ on the PATH)
    python -m benchmarks.dynamic --sides lowc --only rope     one backend, some workloads

Both artifacts are called with the sizes that they were traced with, in one process, in turns.  Writes
``benchmarks/results/dynamic.md`` and ``.json``.
"""

import argparse
import json
import math
import os
from typing import Any

from benchmarks.report import table
from benchmarks.run import RESULTS, child, machine, say
from benchmarks.workloads import MODELS, STEADY


def ratio(row: dict[str, Any], side: str) -> float:
    """Static time over dynamic time: above 1, the dynamic artifact is faster."""
    try:
        return row[side]["median_ms"] / row[f"{side}-dynamic"]["median_ms"]
    except KeyError:
        return math.nan


def mean(values: list[float]) -> float:
    kept = [v for v in values if not math.isnan(v)]
    return math.exp(sum(map(math.log, kept)) / len(kept)) if kept else math.nan


def number(value: float, form: str) -> str:
    """``value`` as text; nothing where it was not measured."""
    return "" if math.isnan(value) else format(value, form)


def markdown(results: dict[str, Any], sides: list[str]) -> str:
    rows: list[list[str]] = []
    for name, row in results["workloads"].items():
        cells = [name]
        for side in sides:
            times = [row.get(s, {}).get("median_ms", math.nan) for s in (side, f"{side}-dynamic")]
            cells += [number(t, ".3g") for t in times] + [number(ratio(row, side), ".2f")]
        rows.append(cells)
    # Sides are compared over the same workloads.
    common = [row for row in results["workloads"].values() if not any(math.isnan(ratio(row, side)) for side in sides)]
    total = [f"geometric mean of {len(common)}"]
    for side in sides:
        total += ["", "", number(mean([ratio(row, side) for row in common]), ".2f")]
    head = ["workload"]
    for side in sides:
        head += [f"{side} static, ms", f"{side} dynamic, ms", f"{side} static / dynamic"]
    about = ", ".join(f"{k} {v}" for k, v in results["machine"].items())
    return (
        f"# Dynamic shapes\n\n{about}\n\nMedian time of a call; a ratio of 1 means that symbolic sizes cost nothing.\n\n"
        + table(head, [*rows, total])
    )


def main() -> None:
    every = {**STEADY, **MODELS}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dynamic", description="Static against dynamic artifacts.")
    parser.add_argument("--sides", default="lowc,inductor", help="backends (default: %(default)s)")
    parser.add_argument("--only", default="", help="some workloads, by name")
    chosen = parser.parse_args()
    sides = chosen.sides.split(",")
    only = [name for name in chosen.only.split(",") if name]
    if unknown := set(only) - every.keys():
        parser.error(f"unknown workload {', '.join(sorted(unknown))}")
    path = RESULTS / "dynamic.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    found: dict[str, Any] = results.setdefault("workloads", {})
    results["machine"] = machine()
    results["machine"]["threads"] = os.environ.get("OMP_NUM_THREADS") or results["machine"]["cores"]
    for name in only or every:
        measured = child("steady", name, ",".join(s for side in sides for s in (side, f"{side}-dynamic")))
        found[name] = found.get(name, {}) | measured
        say(name, {side: round(ratio(found[name], side), 3) for side in sides} if "error" not in measured else measured)
        path.write_text(json.dumps(results, indent=1) + "\n")
    shown = [s for s in ("lowc", "inductor") if any(s in row for row in found.values())]
    path.with_suffix(".md").write_text(markdown(results, shown))
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
