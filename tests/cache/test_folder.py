"""The folder: who may write, what is evicted, what a full or read-only disk does."""

import errno
import logging
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from lowc.cache import entry, folder
from lowc.cache.folder import Folder
from tests.cache import graphs

PART = {"x": bytes(1000)}


def files(path: Path) -> set[str]:
    return {p.name for p in path.iterdir()} if path.exists() else set()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    cache = graphs.folder(path)
    assert cache.get("k") is None and not path.exists()
    assert cache.put("k", PART) and cache.get("k") == PART
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    (item,) = cache.items()
    assert stat.S_IMODE(os.stat(item.path).st_mode) == 0o600
    assert files(path) == {entry.name_of("k")}


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_may_write_to_is_refused_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    graphs.folder(tmp_path).put("k", PART)
    tmp_path.chmod(mode)
    cache = graphs.folder(tmp_path)
    assert cache.get("k") is None and cache.get("k") is None and not cache.put("other", PART)
    assert len(warnings(caplog)) == 1 and "others may write" in warnings(caplog)[0]


def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs.folder(tmp_path).put("k", PART)
    owner = os.stat(tmp_path).st_uid
    if owner == 0:
        os.chown(tmp_path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert graphs.folder(tmp_path).get("k") is None
    assert "another user" in warnings(caplog)[0]


@pytest.mark.parametrize("kind", ["writable", "link", "folder", "fifo"])
def test_a_file_that_somebody_else_could_have_made_is_not_used(tmp_path: Path, caplog: Any, kind: str) -> None:
    cache = graphs.folder(tmp_path / "cache")
    cache.put("k", PART)
    (item,) = cache.items()
    path = Path(item.path)
    if kind == "writable":
        path.chmod(0o666)
    else:
        path.rename(tmp_path / "elsewhere")
        if kind == "link":
            path.symlink_to(tmp_path / "elsewhere")
        elif kind == "folder":
            path.mkdir()
        else:
            os.mkfifo(path, 0o600)
    assert cache.get("k") is None and len(warnings(caplog)) == 1
    if kind != "folder":
        assert cache.put("k", PART) and cache.get("k") == PART


def test_damage_is_one_warning_and_the_entry_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, compilations: list[str]
) -> None:
    graphs.check(graphs.folder(tmp_path))
    (item,) = graphs.folder(tmp_path).items()
    Path(item.path).write_bytes(Path(item.path).read_bytes()[:-1])
    graphs.check(graphs.folder(tmp_path))
    assert len(warnings(caplog)) == 1 and "compiled anew" in warnings(caplog)[0] and len(compilations) == 2
    with graphs.silent(caplog):
        graphs.check(graphs.folder(tmp_path))
    assert len(compilations) == 2


def test_an_entry_under_another_ones_name_is_not_used(tmp_path: Path, compilations: list[str]) -> None:
    cache = graphs.folder(tmp_path)
    graphs.check(cache, 1.0)
    (first,) = cache.items()
    graphs.check(cache, 2.0)
    (second,) = [item for item in cache.items() if item.path != first.path]
    os.replace(first.path, second.path)
    graphs.check(cache, 2.0)
    assert len(compilations) == 3


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_a_disk_that_takes_nothing_is_one_warning(
    tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch, compilations: list[str], code: int
) -> None:
    graphs.check(graphs.folder(tmp_path), 1.0)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    cache = graphs.folder(tmp_path)
    for number in (1.0, 2.0, 3.0, 2.0):
        graphs.check(cache, number)
    assert len(compilations) == 4 and len(warnings(caplog)) == 1 and os.strerror(code) in warnings(caplog)[0]
    assert len(files(tmp_path)) == 1  # nothing half written is left


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path: Path, caplog: Any, compilations: list[str]) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "inside", Path("/proc/lowc")):
        caplog.clear()
        cache = graphs.folder(place)
        graphs.check(cache)
        graphs.check(cache)
        assert len(warnings(caplog)) == 1
    assert len(compilations) == 6


def test_what_was_not_used_for_longest_is_evicted(tmp_path: Path) -> None:
    cache = graphs.folder(tmp_path, limit=5200)
    now = time.time()
    for number in range(4):
        cache.put(f"k{number}", PART)
        os.utime(tmp_path / entry.name_of(f"k{number}"), (now - 100 + number,) * 2)
    assert cache.get("k0")  # now the youngest
    cache.put("k4", PART)
    assert cache.get("k1") is None
    assert cache.get("k0") and cache.get("k3") and cache.get("k4")
    assert sum(item.size for item in cache.items()) <= 5200
    assert not cache.put("large", {"x": bytes(6000)}) and len(cache.items()) >= 3


def test_eviction_removes_what_killed_processes_left_and_nothing_young(tmp_path: Path) -> None:
    cache = graphs.folder(tmp_path, limit=1500)
    cache.put("k0", PART)
    for name, age in (("old", folder.STALE + 10), ("young", 0)):
        path = tmp_path / (folder.TEMPORARY + name)
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    path = tmp_path / (folder.TEMPORARY + "of tomorrow")  # the clock has been put back since
    path.write_bytes(b"half")
    os.utime(path, (time.time() + folder.STALE + 10,) * 2)
    graphs.folder(tmp_path, limit=1 << 20).put("k1", PART)  # which is far from its limit
    left = files(tmp_path)
    assert folder.TEMPORARY + "of tomorrow" not in left
    assert folder.TEMPORARY + "young" in left and folder.TEMPORARY + "old" not in left
    assert cache.clear() == 2
    assert not [name for name in files(tmp_path) if name != folder.LOCK]


def test_nothing_is_evicted_while_another_process_does(tmp_path: Path) -> None:
    from filelock import FileLock

    cache = Folder(str(tmp_path), 1500)
    cache.put("k0", PART)
    with FileLock(str(tmp_path / folder.LOCK)):
        cache.put("k1", PART)
        assert len(cache.items()) == 2
    cache.put("k2", PART)
    assert len(cache.items()) == 1
