"""Several processes with a process group of gloo on the CPU: ``run(jobs)`` does those of ``jobs.JOBS`` in each.

A job that hangs, or that breaks off on one rank, ends with an AssertionError that has what the ranks printed.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]


def needed() -> pytest.MarkDecorator:
    """Skips where torch has no process groups, or none of gloo."""
    there = dist.is_available() and dist.is_gloo_available()
    return pytest.mark.skipif(not there, reason="this torch has no torch.distributed with gloo")


def run(jobs: str, ranks: int = 2, timeout: float = 400) -> list[dict[str, Any]]:
    """What each of ``jobs`` ("collectives,ddp:50") returned, for each rank.  ``timeout``: seconds for all, of a busy machine."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        children: list[subprocess.Popen[bytes]] = []
        environment = {
            **os.environ,
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
            "LOWC_CACHE": "1",
            "LOWC_CACHE_DIR": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        try:
            for rank in range(ranks):
                command = [sys.executable, "-W", "ignore", "-m", "tests.distributed.jobs", jobs, str(rank), str(ranks), scratch]
                with open(folder / f"log{rank}", "wb") as log:
                    children.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT))
            wrong = _wait(children, time.monotonic() + timeout)
        finally:
            for child in children:
                child.kill()
                child.wait()
        said = "\n".join(f"--- rank {n}\n{(folder / f'log{n}').read_text()[-4000:]}" for n in range(ranks))
        assert not wrong, f"{wrong}\n{said}"
        return [json.loads((folder / f"result{n}").read_text()) for n in range(ranks)]


def _wait(children: list[subprocess.Popen[bytes]], deadline: float) -> str:
    """Why the processes must be ended, or "" when all have done their job."""
    while True:
        codes = [child.poll() for child in children]
        if any(codes):
            return f"exit codes {codes}"
        if all(code == 0 for code in codes):
            return ""
        if time.monotonic() > deadline:
            return "the ranks did not finish in time"
        time.sleep(0.05)
