"""``lowc cache info|clear|pack|unpack``."""

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lowc.cache.folder import Folder, folder_of
from lowc.cli import main
from lowc.options import parse
from tests.cache import graphs


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the environment names; it holds two graphs."""
    monkeypatch.setenv("LOWC_CACHE_DIR", str(tmp_path / "cache"))
    for number in (1.0, 2.0):
        graphs.check(graphs.folder(tmp_path / "cache"), number)
    return tmp_path / "cache"


def test_info_and_clear(place: Path, capsys: Any) -> None:
    assert main(["cache", "info"]) == 0
    shown = capsys.readouterr().out
    assert str(place) in shown and "2 entries" in shown and "of 1024 MiB" in shown and "damaged" not in shown
    next(iter(place.iterdir())).write_bytes(b"nothing")
    assert main(["cache", "info", "-o", "cache_limit_mb=5"]) == 0
    shown = capsys.readouterr().out
    assert "1 of them are damaged" in shown and "of 5 MiB" in shown
    assert main(["cache", "clear"]) == 0 and "2 entries removed" in capsys.readouterr().out
    assert main(["cache", "info"]) == 0 and "0 entries" in capsys.readouterr().out


def test_a_packed_cache_is_one_elsewhere(
    place: Path, tmp_path: Path, capsys: Any, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = str(tmp_path / "graphs.zip")
    assert main(["cache", "pack", archive]) == 0 and "2 entries" in capsys.readouterr().out
    monkeypatch.setenv("LOWC_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert main(["cache", "unpack", archive]) == 0
    assert "2 entries unpacked" in (shown := capsys.readouterr().out) and "damaged" not in shown
    folder = folder_of(parse(None, {"cache": True}))
    for number in (1.0, 2.0):
        graphs.check(folder, number)
    assert not compilations


def test_an_archive_with_damage_gives_what_is_sound(place: Path, tmp_path: Path, capsys: Any) -> None:
    names = sorted(p.name for p in place.iterdir())
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.writestr(names[0], (place / names[0]).read_bytes())
        archive.writestr(names[1], (place / names[1]).read_bytes()[:-1])
        archive.writestr("../../outside.entry", b"no entry")
    assert main(["cache", "unpack", str(tmp_path / "some.zip"), "-o", f"cache_dir={tmp_path / 'new'}"]) == 0
    assert "1 entries unpacked" in (shown := capsys.readouterr().out) and "2 left out" in shown
    assert [p.name for p in (tmp_path / "new").iterdir()] == [names[0]]


@pytest.mark.parametrize(
    "arguments", [["pack"], ["unpack"], ["info", "x"], ["clear", "x"], ["unpack", "/nowhere.zip"], ["pack", "/nowhere/x.zip"]]
)
def test_what_cannot_be_is_an_error_of_one_line(place: Path, arguments: list[str], capsys: Any) -> None:
    assert main(["cache", *arguments]) == 2
    assert capsys.readouterr().err.startswith("lowc: ")


def test_a_file_that_is_no_archive(place: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK nothing")
    assert main(["cache", "unpack", str(tmp_path / "x.zip")]) == 2 and "no packed cache" in capsys.readouterr().err
    assert main(["cache", "info", "-o", "cache_limit_mb=0"]) == 2 and "off" in capsys.readouterr().err


def test_entries_that_come_and_go_while_they_are_counted_are_not_damaged(
    place: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Folder.items

    def items(folder: Folder) -> list[Any]:
        """What another process does just after this one has looked."""
        found = real(folder)
        os.unlink(found[0].path)
        for number in (3.0, 4.0):
            graphs.check(graphs.folder(place), number)
        return found

    monkeypatch.setattr(Folder, "items", items)
    assert main(["cache", "info"]) == 0
    shown = capsys.readouterr().out
    assert "2 entries" in shown and "damaged" not in shown
    monkeypatch.undo()
    assert len(list(place.glob("*.entry"))) == 3
