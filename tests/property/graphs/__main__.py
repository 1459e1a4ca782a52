"""The command line; see ``python -m tests.property.graphs --help``."""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from tests.property.graphs.workers import Found, judged


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m tests.property.graphs",
        description="Compares random programs of torch calls with eager; each failure is made smaller and written to a file.",
    )
    p.add_argument("--graphs", type=int, default=1000, help="how many (default: %(default)s)")
    p.add_argument("--start", type=int, default=0, help="the first seed (default: %(default)s)")
    p.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    p.add_argument("--threads", type=int, default=1, help="of each process (default: %(default)s)")
    p.add_argument("--device", default="cpu", help="where they run; cuda: eager's answers on the CPU and there both count")
    p.add_argument("--dynamo", type=int, default=50, help="one graph in so many through torch.compile (default: %(default)s)")
    p.add_argument("--out", type=Path, default=Path("graphs"), help="folder for the files (default: %(default)s)")
    p.add_argument("--patience", type=float, default=120, help="seconds that one graph may take (default: %(default)s)")
    p.add_argument("--check", action="store_true", help="verify the IR after every pass")
    p.add_argument("--no-shrink", action="store_true", help="say what fails, no more")
    return p


def main() -> int:
    """1 if a graph is wrong or fails."""
    chosen = parser().parse_args()
    counts, reasons = Counter[str](), Counter[str]()
    began = time.monotonic()
    seeds = range(chosen.start, chosen.start + chosen.graphs)
    how = chosen.dynamo, chosen.check, not chosen.no_shrink, chosen.threads, chosen.device
    for found in judged(seeds, chosen.jobs, chosen.patience, *how):
        counts[found.status] += 1
        if found.status in ("torch", "refused", "inherited", "eager", "unjudged"):
            reasons[f"{found.status}: {found.detail[:110]}"] += 1
        if found.bad:
            _show(found, chosen.out)
        done = sum(counts.values())
        if done % 250 == 0 or done == chosen.graphs:
            said = ", ".join(f"{n} {status}" for status, n in counts.most_common())
            print(f"{done} graphs in {time.monotonic() - began:.0f} s: {said}", flush=True)
    for reason, count in reasons.most_common(12):
        print(f"  {count} {reason}")
    return 1 if any(counts[s] for s in ("wrong", "error", "crash", "timeout")) else 0


def _show(found: Found, folder: Path) -> None:
    print(f"seed {found.seed}: {found.status}: {found.detail}", flush=True)
    if found.repro:
        folder.mkdir(exist_ok=True)
        file = folder / f"graph_{found.seed}.py"
        file.write_text(found.repro)
        print(f"  {file}\n" + "\n".join(f"  {line}" for line in found.source.splitlines()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
