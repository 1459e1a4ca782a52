"""Peak resident memory of a workload's steps, in a process of its own (Linux).

    python -m benchmarks.memory gpt_train lowc

The peak is that of five calls after the compiled function has warmed up, above what was resident before them.
"""

import gc
import json
import sys
from pathlib import Path

from benchmarks.steady import build
from benchmarks.workloads import MODELS, STEADY


def resident(field: str) -> int:
    """``VmRSS`` or ``VmHWM`` (its high-water mark) in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def main() -> None:
    name, side = sys.argv[1], sys.argv[2]
    fn, args = build({**STEADY, **MODELS}[name], side)
    for _ in range(2):
        fn(*args)
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
    for _ in range(5):
        fn(*args)
    peak = resident("VmHWM")
    print(json.dumps({"before_mb": before / 1e6, "peak_mb": peak / 1e6, "steps_mb": (peak - before) / 1e6}))


if __name__ == "__main__":
    main()
