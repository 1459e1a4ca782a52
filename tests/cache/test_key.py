"""What a key depends on: whatever changes the code or the call, and nothing else."""

import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import lowc
from lowc import machine
from lowc.cache import key as keys
from lowc.cache import sources
from lowc.options import ROWS, Options
from lowc.reuse import key_of
from tests.cache import graphs

SOURCE = graphs.source(graphs.chain(), [graphs.C])


OTHER: dict[str, Any] = {
    "isa": "sse2", "stream": "own", "ptxas": "auto", "dump": "x", "off": "fuse", "only": "x", "cache_dir": "x",
    "cache_limit_mb": 7,
}  # fmt: skip


def test_options_are_in_the_key_if_their_row_says_so() -> None:
    base = key_of(SOURCE, Options())
    for row in ROWS:
        value = OTHER.get(row.name, not row.default)
        other = key_of(SOURCE, Options()._replace(**{row.name: value}))
        assert (other != base) == row.code, row.name


def test_torch_and_the_processor_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(torch: str = "2.13 abc", device: str = "x86\nflags", base: str = "base", graph: str = "graph") -> str:
        return keys.graph_key(base, graph, Options(), [device], torch)

    assert len({key(), key(torch="2.14 abc"), key(device="x86\nother flags"), key(base="other"), key(graph="other")}) == 5
    assert key(device="") == "" and key(base="") == "" and key(graph="") == ""
    flags = re.search(r"^flags: .*$", keys.cpu(), re.M)
    assert flags and "sse2" in flags[0].split()
    monkeypatch.setattr(machine, "_facts", dict)
    machine.processor.cache_clear()
    assert keys.cpu() == ""  # a system that does not say: nothing is kept
    monkeypatch.undo()
    machine.processor.cache_clear()
    assert keys.cpu()


def test_a_gpu_is_in_the_key_with_its_driver_and_ptxas() -> None:
    assert keys.gpu("facts", Options()) != keys.gpu("other facts", Options())
    if shutil.which("ptxas"):
        assert keys.gpu("facts", Options()) != keys.gpu("facts", Options(ptxas="auto"))


def test_edited_sources_have_another_digest(tmp_path: Path) -> None:
    home = tmp_path / "lowc"
    shutil.copytree(Path(lowc.__file__).parent, home, ignore=shutil.ignore_patterns("__pycache__"))
    before = sources.digest(str(home))
    assert before == sources.digest(str(Path(lowc.__file__).parent))
    place = home / "scheduler" / "fuse.py"
    text = place.read_text()
    place.write_text(text + "\n")
    assert sources.digest(str(home)) != before
    place.write_text(text)
    assert sources.digest(str(home)) == before
    place.rename(home / "scheduler" / "fuse2.py")
    assert sources.digest(str(home)) != before
    assert sources.digest(str(tmp_path / "nowhere")) == ""


def test_a_program_is_told_by_its_size_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "tool"
    seen = {machine.fingerprint(str(path))}
    for content in (b"a" * 200_000, b"a" * 200_001, b"b" + b"a" * 199_999, b"a" * 199_999 + b"b"):
        path.write_bytes(content)
        seen.add(machine.fingerprint(str(path)))
    assert len(seen) == 5 and "" in seen
    assert machine.toolchain() and machine.toolchain().count("\n")


def test_the_digest_is_kept_under_what_the_file_system_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, folder = tmp_path / "lowc", graphs.folder(tmp_path / "cache")
    home.mkdir()
    (home / "a.py").write_text("x = 1\n")
    known = sources.known.__wrapped__
    first = known(str(home), folder)
    assert first == sources.digest(str(home)) and not folder.items()  # too young
    monkeypatch.setattr(sources, "YOUNG", -1e9)
    assert known(str(home), folder) == first and len(folder.items()) == 1
    with monkeypatch.context() as patch:
        patch.setattr(sources, "digest", lambda home: "not asked for")
        assert known(str(home), folder) == first
    (home / "a.py").write_text("x = 2\n")  # as long as before
    os.utime(home / "a.py", ns=(0, 0))
    second = known(str(home), folder)
    assert second == sources.digest(str(home)) != first
    os.utime(home / "a.py", ns=(0, 0))  # times can be set, but not the one of the change itself
    (home / "a.py").write_text("x = 3\n")
    os.utime(home / "a.py", ns=(0, 0))
    assert (third := known(str(home), folder)) not in (first, second)
    seen = {third}
    (home / "inner").mkdir()
    for change in (
        lambda: (home / "inner" / "b.py").write_text("y = 1\n"),
        lambda: (home / "inner" / "b.py").rename(home / "inner" / "c.py"),
        lambda: (home / "inner" / "c.py").write_text("y = 2\n"),
        lambda: (home / "inner").rename(home / "other"),
        lambda: (home / "d.py").symlink_to(home / "other" / "c.py"),
        lambda: (home / "other" / "c.py").write_text("y = 3\n"),
        lambda: (home / "a.py").unlink(),
    ):
        known(str(home), folder)
        time.sleep(0.02)  # more than a tick of the file system's clock
        change()
        found = known(str(home), folder)
        assert found == sources.digest(str(home)) == known(str(home), folder) and found not in seen
        seen.add(found)
    assert known(str(tmp_path / "nowhere"), folder) == ""


def test_what_was_changed_after_it_was_loaded_has_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, folder = tmp_path / "lowc", graphs.folder(tmp_path / "cache")
    home.mkdir()
    (home / "a.py").write_text("x = 1\n")
    loaded = (home / "a.py").stat().st_ctime_ns
    monkeypatch.setattr(sources, "YOUNG", -1e9)
    known = sources.known.__wrapped__
    first = known(str(home), folder, loaded)
    time.sleep(0.02)  # more than a tick of the file system's clock
    (home / "__pycache__").mkdir()
    assert known(str(home), folder, loaded) == known(str(home), None, loaded) == first == sources.digest(str(home))
    (home / "a.py").write_text("x = 2\n")
    os.utime(home / "a.py", ns=(0, 0))
    assert known(str(home), folder, loaded) == known(str(home), None, loaded) == ""
    later = known(str(home), folder, time.time_ns() + 10**9)  # another process, which keeps it
    assert later == sources.digest(str(home)) != first
    assert known(str(home), folder, loaded) == ""


def test_a_process_whose_sources_have_changed_has_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real ``known``
    assert keys.base_key()
    monkeypatch.setattr(sources, "LOADED", 0)
    assert keys.base_key() == ""
