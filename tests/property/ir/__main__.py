"""The command line; see ``python -m tests.property.ir --help``."""

import argparse
import resource
import sys
import time
from collections import Counter
from pathlib import Path

from tests.property.children import BAD, Outcome, explored
from tests.property.ir.judge import judge
from tests.property.ir.mutate import text_of


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m tests.property.ir", description="Random and mutated IR text: an error of lowc's, or right."
    )
    p.add_argument("--cases", type=int, default=2000, help="how many (default: %(default)s)")
    p.add_argument("--start", type=int, default=0, help="the first seed (default: %(default)s)")
    p.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    p.add_argument("--patience", type=float, default=20, help="seconds that one case may take (default: %(default)s)")
    p.add_argument("--out", type=Path, default=Path("ir_found"), help="folder for texts that fail (default: %(default)s)")
    p.add_argument("--no-emit", action="store_true", help="leave the backends out")
    return p


def main() -> int:
    """1 if anything fails."""
    chosen = parser().parse_args()

    def case(seed: int) -> Outcome:
        return judge(text_of(seed)[1], seed, not chosen.no_emit)

    counts = Counter[str]()
    began = time.monotonic()
    for seed, outcome in explored(case, range(chosen.start, chosen.start + chosen.cases), chosen.jobs, chosen.patience):
        counts[outcome.status] += 1
        if outcome.bad:
            chosen.out.mkdir(exist_ok=True)
            (chosen.out / f"{seed}.lowc").write_text(text_of(seed)[1])
            print(f"seed {seed}: {outcome.status}: {outcome.detail}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    shown = ", ".join(f"{n} {status}" for status, n in counts.most_common())
    print(f"{sum(counts.values())} texts in {time.monotonic() - began:.0f} s, largest process {peak:.0f} MiB: {shown}")
    return 1 if any(status in BAD for status in counts) else 0


if __name__ == "__main__":
    sys.exit(main())
