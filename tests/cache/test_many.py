"""Many processes on one folder: no crash, no wrong result, whatever happens to some of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lowc.cache import entry
from tests.cache import graphs

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.slow
def test_sixteen_processes_some_killed_one_read_only_one_spoiling(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-m", "tests.cache.many", str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen == {"worker": [0] * 10, "read-only": [0], "spoiler": [0], "killed": [-9] * 4}, done.stderr
    # Whatever is under an entry's name now is sound, or refused; and nobody has seen it as anything else.
    for item in graphs.folder(folder).items():
        try:
            key, _ = entry.read(Path(item.path).read_bytes())
        except entry.Damaged:
            continue
        assert entry.name_of(key) == Path(item.path).name
