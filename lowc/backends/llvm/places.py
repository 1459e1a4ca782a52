"""Where each line of generated code comes from: statements as LLVM debug locations, and the lines found again in the text.

For whoever looks at code; what runs is made without.  ``Places`` numbers the statements as the caller likes (lines of a
listing) and writes those numbers into LLVM IR as locations; LLVM carries them to the ``.loc`` lines of assembly and PTX.
``of_llvm`` and ``of_assembly`` take both texts apart again: what is left is what is made without locations (a test compares).
An instruction that LLVM has merged out of several, or moved, has the location that LLVM gives it, or none.
"""

import re
from collections.abc import Mapping

Located = tuple[tuple[str, int], ...]
"""Lines of text, each with the number of the statement that it is for, or 0."""

# Of the records that every module has.
_UNIT, _FILE, _VERSION, _TYPE, _NONE, _FIRST = range(6)


class Places:
    """``numbers``: the line of each statement by its ``id``."""

    def __init__(self, numbers: Mapping[int, int]) -> None:
        self.numbers = numbers
        self.records: list[str] = []
        self.known: dict[tuple[int, int], int] = {}

    def function(self) -> int:
        """The record of a new function."""
        return self._record(
            f'distinct !DISubprogram(name: "f", scope: !{_FILE}, file: !{_FILE}, line: 1, type: !{_TYPE}, '
            f"spFlags: DISPFlagDefinition, unit: !{_UNIT})"
        )

    def location(self, function: int, stmt: object) -> int:
        """The record of ``stmt`` in ``function``; a statement without a number has the line 0."""
        key = function, self.numbers.get(id(stmt), 0)
        if key not in self.known:
            self.known[key] = self._record(f"!DILocation(line: {key[1]}, column: 1, scope: !{function})")
        return self.known[key]

    def text(self) -> str:
        """What stands at the end of the module."""
        head = (
            f"distinct !DICompileUnit(language: DW_LANG_C99, file: !{_FILE}, emissionKind: DebugDirectivesOnly)",
            '!DIFile(filename: "listing", directory: "")',
            '!{i32 2, !"Debug Info Version", i32 3}',
            f"!DISubroutineType(types: !{_NONE})",
            "!{}",
        )
        records = "\n".join(f"!{n} = {record}" for n, record in enumerate((*head, *self.records)))
        return f"!llvm.dbg.cu = !{{!{_UNIT}}}\n!llvm.module.flags = !{{!{_VERSION}}}\n{records}\n"

    def _record(self, text: str) -> int:
        self.records.append(text)
        return _FIRST + len(self.records) - 1


_MARK = re.compile(r",? !dbg !(\d+)")
_LOCATION = re.compile(r"^!(\d+) = !DILocation\(line: (\d+),")
_RECORD = re.compile(r"^!(\d+|llvm\.\S+) = ")


def of_llvm(text: str) -> Located:
    """The lines of LLVM IR ``text`` without its locations."""
    lines = text.splitlines()
    numbers = {found[1]: int(found[2]) for line in lines if (found := _LOCATION.match(line))}
    out: list[tuple[str, int]] = []
    for line in lines:
        if _RECORD.match(line):
            continue
        mark = _MARK.search(line)
        out.append((line[: mark.start()] + line[mark.end() :], numbers.get(mark[1], 0)) if mark else (line, 0))
    return tuple(out)


_LOC = re.compile(r"^\s*\.loc\s+\d+\s+(\d+)")
# Labels and sections that are there for the sake of locations.
_DEBUG = re.compile(r"^(\.Ltmp\d+|\$L__tmp\d+|\.Lfunc_begin\d+|\$L__func_(begin|end)\d+):")
_BEFORE = re.compile(r"^\s*(\.file\s+\d|\.cfi_)")
_SECTION = re.compile(r"^\s*\.section\s+\.debug")


def of_assembly(text: str) -> Located:
    """The lines of assembly or PTX ``text`` without its locations.  An instruction has that of the last ``.loc`` in its
    function; labels and directives have none."""
    out: list[tuple[str, int]] = []
    number, skipped = 0, False
    for line in text.splitlines():
        if found := _LOC.match(line):
            number = int(found[1])
            continue
        if _SECTION.match(line):
            skipped = True
        elif line.lstrip().startswith((".section", ".text")):
            skipped = False
        if skipped or _DEBUG.match(line) or _BEFORE.match(line):
            continue
        shown = line.strip()
        code = bool(shown) and not shown.startswith((".", "//", "#", "{", "}", "(", ")")) and not shown.endswith(":")
        if shown.endswith(":") and not shown.startswith((".L", "$L")) or ".entry" in shown:
            number = 0
        out.append((line, number if code else 0))
    return tuple(out)
