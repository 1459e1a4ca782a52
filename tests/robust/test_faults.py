"""Disks that are full or read-only, clocks that jump, processes that are killed, damage, memory that runs out.

    python -m tests.robust.faults
"""

import json
import os
import subprocess
import sys

import pytest

from tests.paths import PYTHONPATH, ROOT
from tests.robust.faults import SCENARIOS


@pytest.fixture(scope="module")
def seen() -> dict[str, dict[str, object]]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("LOWC_")} | {"PYTHONPATH": PYTHONPATH}
    command = [sys.executable, "-m", "tests.robust.faults"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False)
    return {found["name"]: found for found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_goes_wrong(name: str, seen: dict[str, dict[str, object]]) -> None:
    found = seen[name]
    if "skipped" in found or (name == "read_only" and os.geteuid() != 0):
        pytest.skip(str(found.get("skipped", "only root can become another user")))
    assert found["wrong"] == "", found
    if name in ("full_by_limit", "read_only", "corrupt"):
        assert found["warnings"], found
