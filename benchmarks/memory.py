"""Peak resident memory of a workload's steps, in a process of its own (Linux).

    python -m benchmarks.memory gpt_train lowc

The peak is that of five calls after the compiled function has warmed up, above what is resident between calls when all that the
calls made is gone. ``benchmarks.run`` sets the allocator to give freed memory back at once: what it would keep from the first
calls would be in both numbers, and their difference would be luck.  For the same reason lowc's workspaces, which it keeps for
the next call, are freed before the count begins, so that they are in the peak; ``kept_mb`` is what is still resident after the
calls.
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
    if side == "lowc":
        from lowc.runtime.program import free_workspaces

        free_workspaces()
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
    for _ in range(5):
        fn(*args)
    peak = resident("VmHWM")
    gc.collect()
    found = {"before": before, "peak": peak, "steps": peak - before, "kept": resident("VmRSS") - before}
    print(json.dumps({f"{name}_mb": size / 1e6 for name, size in found.items()}))


if __name__ == "__main__":
    main()
