"""All benchmarks, each measurement in a fresh process; results as JSON and as a Markdown table in ``benchmarks/results``.

    python -m benchmarks.run                              lowc, eager and Inductor (which needs g++ on the PATH)
    python -m benchmarks.run --sides lowc,eager           without Inductor
    python -m benchmarks.run steady --only softmax,rope   one part, some workloads

Every side gets the same environment: allocator settings that keep freed memory in the process (a fresh output would cost page
faults on each call, and which side pays would be luck), threads bound to cores, empty caches, and lowc as bytecode, which is how
pip installs it.
"""

import argparse
import compileall
import json
import os
import platform
import subprocess
import sys
import time
from datetime import date
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.report import markdown

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PARTS = ("steady", "models", "cold", "overhead", "memory", "scaling")
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "100000000",
}
# Freed memory goes back to the system at once, so that what is resident is what is alive.
MALLOC_RETURNS = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_TOP_PAD_": "0",
}


@cache
def installed() -> dict[str, str]:
    """The environment of a process that finds lowc's bytecode, as torch's and Inductor's is found where they are installed."""
    compileall.compile_dir(ROOT / "lowc", quiet=2)
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def child(*arguments: str, malloc: dict[str, str] = MALLOC, workers: int | None = 1) -> dict[str, Any]:
    """The JSON that ``python -m benchmarks.ARGUMENTS`` prints, or ``{"error": …}``.

    ``workers``: processes in which Inductor compiles; in the steady state they would only disturb (None: its default).
    """
    with TemporaryDirectory() as caches:
        env = {
            **installed(),
            "OMP_PROC_BIND": "close",
            "TORCHINDUCTOR_CACHE_DIR": caches,
            "LOWC_CACHE_DIR": caches,
        }
        env |= malloc
        env |= {"TORCHINDUCTOR_COMPILE_THREADS": str(workers)} if workers else {}
        command = [sys.executable, "-m", f"benchmarks.{arguments[0]}", *arguments[1:]]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False
            )
        except subprocess.TimeoutExpired:
            return {"error": "took more than 900 s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def steady(sides: list[str], names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        found[name] = child("steady", name, ",".join(sides))
        say(name, found[name])
    return found


def cold(sides: list[str], repeats: int = 3) -> dict[str, Any]:
    """Every process started ``repeats`` times, sides in turn; the median process of each is kept."""
    found: dict[str, Any] = {}
    for what in ("gelu", "gpt", "gpt_train"):
        runs: dict[str, list[Any]] = {side: [] for side in ["aot_eager", *sides]}
        for _ in range(repeats):
            for side, each in runs.items():
                each.append(child("cold", what, side, repr(time.time()), workers=None))
        found[what] = {side: _median(each) for side, each in runs.items()}
        say(what, found[what])
    return found


def memory(sides: list[str]) -> dict[str, Any]:
    names = ("gpt_train", "resnet_train", "gpt_infer", "gelu_chain", "layer_norm_train")
    found = {
        name: {side: child("memory", name, side, malloc=MALLOC_RETURNS) for side in sides} for name in names
    }
    for name in names:
        say(name, found[name])
    return found


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    if failed := [run for run in runs if "error" in run]:
        return failed[0]
    return sorted(runs, key=lambda run: run["total"])[len(runs) // 2]


def say(name: str, result: Any) -> None:
    print(name, json.dumps(result), flush=True)


def machine() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    cpu = platform.processor()
    if Path("/proc/cpuinfo").exists():
        models = [
            line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
        ]
        cpu = models[0].partition(":")[2].strip() if models else cpu
    found = {
        "date": date.today().isoformat(),
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
    }
    for name in ("torch", "llvmlite", "numpy", "lowc"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "from the source tree"
    return found


def main() -> None:
    from benchmarks.workloads import MODELS, STEADY

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description="lowc against eager and Inductor."
    )
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)} (default: all)")
    parser.add_argument(
        "--sides", default="lowc,eager,inductor", help="backends to compare (default: %(default)s)"
    )
    parser.add_argument("--only", default="", help="workloads of the parts steady and models, by name")
    parser.add_argument(
        "--name", default="cpu", help="stem of the files in benchmarks/results (default: %(default)s)"
    )
    chosen = parser.parse_args()
    parts = chosen.parts or list(PARTS)
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}")
    sides = chosen.sides.split(",")
    only = [name for name in chosen.only.split(",") if name]
    if unknown := set(only) - {*STEADY, *MODELS}:
        parser.error(f"unknown workload {', '.join(sorted(unknown))}")
    path = RESULTS / f"{chosen.name}.json"
    # Parts that are not run now keep what they had.
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    results["machine"] = machine()
    for part in parts:
        print(f"-- {part}", flush=True)
        if part in ("steady", "models"):
            table = STEADY if part == "steady" else MODELS
            results[part] = results.get(part, {}) | steady(sides, [n for n in table if not only or n in only])
        elif part == "cold":
            results[part] = cold(sides)
        elif part == "overhead":
            results[part] = child("own", "overhead")
            say(part, results[part])
        elif part == "memory":
            results[part] = memory(sides)
        else:
            results[part] = {str(n): child("own", "scaling", str(n)) for n in (200, 400)}
            say(part, results[part])
        RESULTS.mkdir(exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n")
        path.with_suffix(".md").write_text(markdown(results))
    print(f"written to {path.relative_to(ROOT)} and {path.with_suffix('.md').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
