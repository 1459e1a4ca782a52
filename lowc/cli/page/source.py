"""The user's lines that a graph comes from, with what stands around them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lowc.cli.page.links import Line

WHOLE = 200  # lines of a file that is shown whole
AROUND = 6  # lines shown before and after one that is meant

_WHERE = re.compile(r"(?P<file>.+?):(?P<line>\d+) in (?P<scope>[^:]*)(?:: (?P<code>.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """``lines``: (number in the file, line); a number of 0 stands for lines that are left out."""

    name: str
    lines: tuple[tuple[int, Line], ...]


def place(where: str) -> tuple[str, int] | None:
    """(file, line) of "file.py:12 in forward: y = x + 1"; None if it has another form."""
    found = _WHERE.fullmatch(where)
    return (found["file"], int(found["line"])) if found else None


def files(places: Iterable[str]) -> tuple[tuple[SourceFile, ...], dict[tuple[str, int], int]]:
    """The files that ``places`` (the ``where`` of ops) name, and a number for each (file, line), from 1."""
    said: dict[tuple[str, int], str] = {}
    for where in places:
        if (found := place(where)) is not None:
            said.setdefault(found, (_WHERE.fullmatch(where) or {"code": ""})["code"] or "")
    numbers = {key: number for number, key in enumerate(sorted(said), 1)}
    shown: list[SourceFile] = []
    for file in dict.fromkeys(name for name, _ in numbers):
        meant = {line: numbers[file, line] for name, line in numbers if name == file}
        shown.append(SourceFile(_short(file), _lines(_read(file, {n: said[file, n] for n in meant}), meant)))
    return tuple(shown), numbers


def _read(file: str, said: dict[int, str]) -> dict[int, str]:
    """The lines of ``file`` by number; where it cannot be read, those that are known anyway."""
    try:
        lines = dict(enumerate(Path(file).read_text(encoding="utf-8").splitlines(), 1))
    except (OSError, UnicodeDecodeError):
        return said
    return said | lines


def _lines(text: dict[int, str], meant: dict[int, int]) -> tuple[tuple[int, Line], ...]:
    near = {n for line in meant for n in range(line - AROUND, line + AROUND + 1)}
    out: list[tuple[int, Line]] = []
    last = 0
    for number in sorted(text):
        if len(text) > WHOLE and number not in near:
            continue
        if number != last + 1 and out:
            out.append((0, Line("")))
        out.append((number, Line(text[number], source=meant.get(number, 0))))
        last = number
    return tuple(out)


def _short(file: str) -> str:
    """``file`` without folders that mean nothing to others: below the working directory, else its last two parts."""
    path = Path(file)
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return "/".join(path.parts[-2:])
