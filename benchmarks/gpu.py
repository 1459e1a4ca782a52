"""Memory-bound workloads on a GPU: lowc, eager and Inductor in turn in one process.

    python -m benchmarks.gpu [--only softmax_4096,copy] [--sides lowc,eager,inductor] [--dtypes bf16,f32] [--name h200]

Time of the device alone, between events.  Under continuous load the card throttles, so each measurement is a burst of about 10 ms
after a pause, sides in turn, and the median of the rounds counts.  Results: ``benchmarks/results/NAME.json`` and ``.md``.
"""

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from benchmarks.gpu_workloads import GPU
from benchmarks.report import table

ROUNDS = 7
PAUSE = 0.06  # seconds for the card to cool
BURST = 10.0  # milliseconds
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "f16": torch.float16}
RESULTS = Path(__file__).parent / "results"


def burst(call: Callable[[], Any], count: int) -> float:
    """Milliseconds of device time for one call."""
    torch.cuda.synchronize()
    time.sleep(PAUSE)
    for _ in range(2):
        call()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


def difference(ours: Any, eager: Any) -> float:
    """The largest error relative to the largest value."""
    worst = 0.0
    for a, b in zip(tree_leaves(ours), tree_leaves(eager), strict=True):
        if isinstance(b, torch.Tensor) and b.is_floating_point() and b.numel():
            scale = float(b.abs().max()) or 1.0
            worst = max(worst, float((a - b).abs().max()) / scale)
    return worst


def measure(name: str, dtype: torch.dtype, sides: list[str]) -> dict[str, Any]:
    torch._dynamo.reset()
    calls: dict[str, Callable[[], Any]] = {}
    found: dict[str, Any] = {}
    expected: Any = None
    for side in ["eager", *(s for s in sides if s != "eager")]:
        fn, args, moved = GPU[name](dtype)
        found["bytes"] = moved
        compiled = fn if side == "eager" else torch.compile(fn, backend=side, dynamic=False)
        start = time.perf_counter()
        out = compiled(*args)
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        result = args if out is None else out
        if side == "eager":
            expected = [t.detach().clone() for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        if side in sides:
            mine = [t.detach() for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
            found[side] = {"first_s": first, "difference": difference(mine, expected)}
            calls[side] = lambda compiled=compiled, args=args: compiled(*args)
        del out, result
    del expected
    counts = {side: max(1, math.ceil(BURST / max(burst(call, 3), 1e-3))) for side, call in calls.items()}
    times: dict[str, list[float]] = {side: [] for side in calls}
    for turn in range(ROUNDS):
        order = list(calls)
        for side in order[turn % len(order) :] + order[: turn % len(order)]:
            times[side].append(burst(calls[side], counts[side]))
    for side in calls:
        found[side]["ms"] = statistics.median(times[side])
        found[side]["tb_s"] = found["bytes"] / found[side]["ms"] / 1e9
    return found


def machine() -> dict[str, str]:
    import llvmlite
    from cuda.bindings import driver

    _, version = driver.cuDriverGetVersion()  # 13000 is 13.0
    return {
        "GPU": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "llvmlite": llvmlite.__version__,
        "Python": platform.python_version(),
        "driver CUDA": f"{version // 1000}.{version % 1000 // 10}",
    }


def markdown(results: dict[str, Any], sides: list[str]) -> str:
    others = [s for s in sides if s != "lowc"]
    head = ["workload", *(f"{s} ms" for s in sides), "lowc TB/s", "of copy", *(f"x {s}" for s in others), "first call s"]
    parts = [f"# GPU benchmarks\n\n{', '.join(f'{k} {v}' for k, v in results['machine'].items())}\n"]
    for dtype, rows in results["dtypes"].items():
        ceiling = max((r[s]["tb_s"] for n, r in rows.items() if n == "copy" for s in sides if s in r), default=math.nan)
        lines: list[list[str]] = []
        ratios: dict[str, list[float]] = {s: [] for s in others}
        for name, row in rows.items():
            if "error" in row:
                lines.append([name, row["error"][:80].replace("|", "/"), *[""] * (len(head) - 2)])
                continue
            mine = row["lowc"]
            compared = {s: row[s]["ms"] / mine["ms"] for s in others if s in row}
            for s, ratio in compared.items():
                if name != "copy":
                    ratios[s].append(ratio)
            first = " / ".join(f"{row[s]['first_s']:.2f}" for s in sides if s != "eager")
            lines.append(
                [
                    name,
                    *(f"{row[s]['ms']:.3f}" for s in sides),
                    f"{mine['tb_s']:.2f}",
                    f"{mine['tb_s'] / ceiling:.2f}",
                    *(f"{compared[s]:.2f}" for s in others),
                    first,
                ]
            )
        means = [f"{math.exp(statistics.fmean(map(math.log, r))):.2f}" if r else "" for r in ratios.values()]
        lines.append(["geometric mean", *[""] * (len(sides) + 2), *means, ""])
        parts.append(f"## {dtype}\n\nThe copy rate is {ceiling:.2f} TB/s.\n\n{table(head, lines)}")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--sides", default="lowc,eager,inductor")
    parser.add_argument("--dtypes", default="bf16,f32")
    parser.add_argument("--name", default="gpu")
    parser.add_argument("--out", default=str(RESULTS))
    given = parser.parse_args()
    sides = given.sides.split(",")
    names = [n for n in GPU if not given.only or n in given.only.split(",")]
    results: dict[str, Any] = {"machine": machine(), "dtypes": {}}
    for dtype in given.dtypes.split(","):
        rows = results["dtypes"].setdefault(dtype, {})
        for name in names:
            try:
                rows[name] = measure(name, DTYPES[dtype], sides)
                shown = ", ".join(f"{s} {rows[name][s]['ms']:.3f} ms" for s in sides)
                print(f"{dtype} {name}: {shown}; lowc {rows[name]['lowc']['tb_s']:.2f} TB/s", flush=True)
            except Exception as error:
                rows[name] = {"error": f"{type(error).__name__}: {error}"}
                print(f"{dtype} {name}: {rows[name]['error'][:300]}", flush=True)
            torch.cuda.empty_cache()
        out = Path(given.out)
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{given.name}.json").write_text(json.dumps(results, indent=1))
        (out / f"{given.name}.md").write_text(markdown(results, sides))
    print(markdown(results, sides))


if __name__ == "__main__":
    main()
