"""Files stay short enough to be read: 400 lines is the aim, 800 the limit."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("lowc", "tests", "benchmarks", "examples", "tools")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")) + [ROOT / "make.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_at_most_800_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 800


def test_nodes_fit_on_a_screen() -> None:
    assert len((ROOT / "lowc" / "ir" / "nodes.py").read_text().splitlines()) <= 300


def test_no_kitchen_sinks() -> None:
    assert not [p for p in FILES if p.stem in ("utils", "util", "helpers", "helper", "common", "misc")]
