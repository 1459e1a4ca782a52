"""The table of versions that lowc works with: some tests in each of several environments.

    python tools/versions.py ENV1/bin/python ENV2/bin/python [--tests tests/ir tests/e2e/test_process.py]

Each interpreter must have torch, llvmlite and pytest; lowc is taken from this checkout.  Prints Markdown: what is installed, what
the tests came to, and how long a first compiled call takes.  Exits with 1 if a test fails anywhere.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("tests/ir", "tests/lowering", "tests/frontend", "tests/e2e/test_memory.py", "tests/e2e/test_process.py", "tests/cache")
ASK = """
import importlib.metadata as m, json, platform, sys, sysconfig, time
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return "none"
found = {"python": platform.python_version() + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "")}
found |= {name: version(name) for name in ("torch", "llvmlite", "numpy", "cuda-bindings")}
try:
    import torch
    start = time.perf_counter()
    x = torch.ones(8, 8)
    torch.compile(lambda x: x.softmax(1), backend="lowc", options={"cache": False, "strict_errors": True})(x)
    found["first"] = f"{time.perf_counter() - start:.1f} s"
except Exception as error:
    found["first"] = f"{type(error).__name__}: {error}"[:80]
print(json.dumps(found))
"""


def asked(python: str) -> dict[str, str]:
    done = subprocess.run([python, "-c", ASK], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if done.returncode == 0 and lines else {"python": "none", "first": done.stderr.strip()[-80:]}


ENTRY = "[torch_dynamo_backends]\nlowc = lowc.dynamo:lowc_backend\n"


def environment() -> dict[str, str]:
    """In which torch finds this checkout by the name "lowc", installed or not."""
    return os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{METADATA.name}", "PYTHONWARNINGS": "ignore"}


METADATA = tempfile.TemporaryDirectory()


def tested(python: str, tests: list[str], jobs: int) -> dict[str, int]:
    """The counts of pytest's last line."""
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(["-n", str(jobs)] if jobs > 1 else []), *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr.strip()[-200:]
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", last)}
    if not counts:
        print(f"{python}: {last}", file=sys.stderr)
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            print(f"{python}: {line[:200]}", file=sys.stderr)
    return counts


def main() -> int:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("pythons", nargs="+", metavar="PYTHON")
    p.add_argument("--tests", nargs="+", default=list(TESTS), help="default: " + " ".join(TESTS))
    p.add_argument("--jobs", type=int, default=1, help="processes of pytest, which needs pytest-xdist (default: %(default)s)")
    chosen = p.parse_args()
    print("| Python | torch | llvmlite | numpy | first call | passed | failed | skipped |\n|---|---|---|---|---|---|---|---|")
    info = Path(METADATA.name) / "lowc-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lowc\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(ENTRY)
    good = True
    for python in chosen.pythons:
        found, counts = asked(python), tested(python, chosen.tests, chosen.jobs)
        failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
        good &= failed == 0 and counts.get("passed", 0) > 0
        cells = [found.get(k, "none") for k in ("python", "torch", "llvmlite", "numpy", "first")]
        print(f"| {' | '.join(cells)} | {counts.get('passed', 0)} | {failed} | {counts.get('skipped', 0)} |", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
