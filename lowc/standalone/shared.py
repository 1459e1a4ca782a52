"""Object files and a block of data to a shared library (ELF, x86-64), without a linker.

    R    headers, tables of symbols and relocations, constants
    RX   code, and a jump for each function of the C library that it calls
    RW   addresses that the loader fills in, the dynamic section, variables
    R    the block: the weights of an artifact

Each part begins on a page of its own.  Layout: System V ABI, chapters 4 and 5, and its AMD64 supplement.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lowc.errors import CodegenError
from lowc.standalone.objects import EXECUTE, WRITE, Object, Relocation, read

_PAGE = 4096
_64, _PC32, _PLT32, _PC64 = 1, 2, 4, 24
_GOT = (9, 41, 42)
_GLOB_DAT, _RELATIVE = 6, 8
_JUMP = 16
NEEDED = ("libm.so.6", "libpthread.so.0", "libc.so.6")


@dataclass(frozen=True, slots=True)
class Input:
    """An object file.  ``renamed``: other names for its symbols, so that several objects may have the same."""

    code: bytes
    renamed: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is: ``number`` of an object and of its section (or -1, 0: the block), and bytes from there."""

    number: int
    section: int
    value: int


def link(
    inputs: Sequence[Input], exports: Iterable[str], name: str, block: Sequence[bytes | memoryview] = (), block_name: str = ""
) -> list[bytes | memoryview]:
    """The parts of the library's file.  ``exports``: the symbols that others see.  ``block_name``: by which code knows ``block``.

    What is defined nowhere is expected of NEEDED.  Raises CodegenError for what cannot be linked.
    """
    linker = _Linker([read(each.code) for each in inputs], [each.renamed for each in inputs], block_name)
    image, end = linker.image(tuple(exports), name, sum(memoryview(part).nbytes for part in block))
    return [bytes(image), bytes(end - len(image)), *block]


class _Linker:
    def __init__(self, objects: Sequence[Object], renamed: Sequence[Mapping[str, str]], block_name: str) -> None:
        self.objects, self.renamed = objects, renamed
        self.globals: dict[str, Place] = {block_name: Place(-1, 0, 0)} if block_name else {}
        for number, each in enumerate(objects):
            for symbol in each.symbols:
                if symbol.shared and symbol.section is not None and symbol.name:
                    name = renamed[number].get(symbol.name, symbol.name)
                    if name in self.globals:
                        raise CodegenError(f"{name} is defined twice")
                    self.globals[name] = Place(number, symbol.section, symbol.value)
        self.addresses: dict[tuple[int, int], int] = {}
        self.table: dict[Place | str, int] = {}
        self.jumps: dict[str, int] = {}
        self._collect()

    def target(self, number: int, relocation: Relocation) -> Place | str:
        """What a relocation refers to: a place, or the name of something outside."""
        symbol = self.objects[number].symbols[relocation.symbol]
        if symbol.section is not None:
            if symbol.section not in self.objects[number].sections:
                raise CodegenError(f"the code refers to {symbol.name or 'a section'} that is not in memory")
            return Place(number, symbol.section, symbol.value)
        name = self.renamed[number].get(symbol.name, symbol.name)
        return self.globals.get(name, name)

    def _relocations(self) -> Iterable[tuple[int, int, Relocation, Place | str]]:
        for number, each in enumerate(self.objects):
            for section, content in each.sections.items():
                for relocation in content.relocations:
                    yield number, section, relocation, self.target(number, relocation)

    def _collect(self) -> None:
        """What needs an entry of the table of addresses, and what a jump."""
        for _, _, relocation, target in self._relocations():
            if relocation.kind in _GOT or (isinstance(target, str) and relocation.kind in (_PC32, _PLT32)):
                self.table.setdefault(target, len(self.table))
            if isinstance(target, str) and relocation.kind in (_PC32, _PLT32):
                self.jumps.setdefault(target, len(self.jumps))

    def address(self, place: Place) -> int:
        return self.addresses[place.number, place.section] + place.value

    def _place(self, start: int, flags: int) -> int:
        """Puts the sections with these flags behind ``start``; where they end."""
        for number, each in enumerate(self.objects):
            # zeros last: they need not be in the file
            for section, content in sorted(each.sections.items(), key=lambda item: not item[1].content):
                if content.flags & (WRITE | EXECUTE) == flags:
                    start = _up(start, content.align)
                    self.addresses[number, section] = start
                    start += content.size
        return start

    def image(self, exports: Sequence[str], name: str, block: int) -> tuple[bytearray, int]:
        """All but the block, and where that begins in file and memory."""
        if missing := [export for export in exports if export not in self.globals]:
            raise CodegenError(f"there is no {', '.join(missing)}")
        outside = [target for target in self.table if isinstance(target, str)]
        symbols = [*outside, *exports]
        number = {symbol: n for n, symbol in enumerate(symbols, 1)}
        strings, offsets = _strings((*symbols, *NEEDED, name))
        heads = 5 + bool(block)
        at_symbols = _up(64 + 56 * heads, 8)
        at_hash = at_symbols + 24 * (len(symbols) + 1)
        at_strings = at_hash + 4 * (3 + 1 + len(symbols))
        at_relocations = _up(at_strings + len(strings), 8)
        entries = len(self.table) + sum(r.kind == _64 for _, _, r, _ in self._relocations())
        end_constants = self._place(at_relocations + 24 * entries, 0)
        code = _up(end_constants, _PAGE)
        jumps = _up(self._place(code, EXECUTE), 16)
        end_code = jumps + _JUMP * len(self.jumps)
        data = table = _up(end_code, _PAGE)
        dynamic = _up(table + 8 * len(self.table), 16)
        end = self._place(dynamic + 16 * (len(NEEDED) + 11), WRITE)
        tables, table_names, title_offset = _tables(
            (".text", 1, 6, code, end_code, 0, 16), (".dynsym", 11, 2, at_symbols, at_hash, 3, 8),
            (".dynstr", 3, 2, at_strings, at_strings + len(strings), 0, 1), (".dynamic", 6, 3, dynamic, end, 3, 16),
            start=_up(end, 8),
        )  # fmt: skip
        after = _up(_up(end, 8) + len(tables), _PAGE)
        self.addresses[-1, 0] = after
        image = bytearray(_up(end, 8)) + tables
        self._fill(image)
        for symbol, n in self.jumps.items():
            here = jumps + _JUMP * n
            image[here : here + 6] = b"\xff\x25" + struct.pack("<i", table + 8 * self.table[symbol] - (here + 6))
        relocations = self._apply(image, table, jumps, number)
        image[at_relocations : at_relocations + len(relocations)] = relocations
        rows = [bytes(24)]
        for symbol in symbols:
            place = self.globals.get(symbol)
            home, value = (0, 0) if place is None or symbol in outside else (1, self.address(place))
            rows.append(struct.pack("<IBBHQQ", offsets[symbol], 0x12, 0, home, value, 0))
        image[at_symbols:at_hash] = b"".join(rows)
        chain = [0, *(n + 1 if n < len(symbols) else 0 for n in range(1, len(symbols) + 1))]
        buckets = struct.pack("<III", 1, len(symbols) + 1, 1 if symbols else 0)
        image[at_hash:at_strings] = buckets + struct.pack(f"<{len(chain)}I", *chain)
        image[at_strings : at_strings + len(strings)] = strings
        tags = [(1, offsets[library]) for library in NEEDED]
        tags += [(14, offsets[name]), (4, at_hash), (5, at_strings), (6, at_symbols), (10, len(strings)), (11, 24)]
        tags += [(7, at_relocations), (8, len(relocations)), (9, 24)]
        tags += [(0x6FFFFFFB, 8)]  # is never unloaded: its threads would run on in code that is gone
        image[dynamic : dynamic + 16 * len(tags)] = b"".join(struct.pack("<QQ", *tag) for tag in tags)
        segments = [
            (1, 4, 0, end_constants),
            (1, 5, code, end_code),
            (1, 6, data, end),
            (2, 6, dynamic, dynamic + 16 * (len(tags) + 1)),
            (0x6474E551, 6, 0, 0),  # the stack is not to be executable
        ] + ([(1, 4, after, after + block)] if block else [])
        image[:64] = _head(len(segments), title_offset, table_names)
        for n, (kind, flags, start, stop) in enumerate(segments):
            align = _PAGE if kind == 1 else 8
            size = stop - start
            struct.pack_into("<IIQQQQQQ", image, 64 + 56 * n, kind, flags, start, start, start, size, size, align)
        return image, after if block else len(image)

    def _fill(self, image: bytearray) -> None:
        for number, each in enumerate(self.objects):
            for section, content in each.sections.items():
                start = self.addresses[number, section]
                image[start : start + len(content.content)] = content.content

    def _apply(self, image: bytearray, table: int, jumps: int, numbers: Mapping[str, int]) -> bytes:
        """Applies what is known now; the relocations that are left for the loader."""
        left: list[bytes] = []
        for target, n in self.table.items():
            place = table + 8 * n
            if isinstance(target, str):
                left.append(struct.pack("<QQq", place, numbers[target] << 32 | _GLOB_DAT, 0))
            else:
                left.append(struct.pack("<QQq", place, _RELATIVE, self.address(target)))
        for number, section, relocation, target in self._relocations():
            here = self.addresses[number, section] + relocation.place
            kind, addend = relocation.kind, relocation.addend
            if kind in _GOT:
                struct.pack_into("<i", image, here, table + 8 * self.table[target] + addend - here)
            elif kind in (_PC32, _PLT32):
                goal = jumps + _JUMP * self.jumps[target] if isinstance(target, str) else self.address(target)
                struct.pack_into("<i", image, here, goal + addend - here)
            elif kind == _PC64 and not isinstance(target, str):
                struct.pack_into("<q", image, here, self.address(target) + addend - here)
            elif kind == _64 and not isinstance(target, str) and self.objects[number].sections[section].flags & WRITE:
                left.append(struct.pack("<QQq", here, _RELATIVE, self.address(target) + addend))
            else:
                raise CodegenError(f"the code has a relocation of kind {kind}, which lowc's linker does not know")
        return b"".join(left)


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def _strings(names: Sequence[str]) -> tuple[bytes, dict[str, int]]:
    """A table of strings, and where each begins in it."""
    table, offsets = b"\0", dict[str, int]()
    for name in names:
        if name not in offsets:
            offsets[name] = len(table)
            table += name.encode() + b"\0"
    return table, offsets


def _tables(*rows: tuple[str, int, int, int, int, int, int], start: int) -> tuple[bytes, int, int]:
    """The table of sections for whoever looks (nm, gdb), of (name, kind, flags, begin, end, link, align), which lies at
    ``start``; how many there are; where their heads begin."""
    names, offsets = _strings([row[0] for row in rows] + [".shstrtab"])
    heads = [bytes(64)]
    for name, kind, flags, begin, end, link_, align in (*rows, (".shstrtab", 3, 0, start, start + len(names), 0, 1)):
        size = {11: 24, 6: 16}.get(kind, 0)
        where = begin if flags else 0
        row = (offsets[name], kind, flags, where, begin, end - begin, link_, kind == 11, align, size)
        heads.append(struct.pack("<IIQQQQIIQQ", *row))
    names = names.ljust(_up(len(names), 8), b"\0")
    return names + b"".join(heads), len(heads), start + len(names)


def _head(segments: int, sections: int, count: int) -> bytes:
    """``sections``: where their heads are; the last of them has their names."""
    return b"\x7fELF\2\1\1" + bytes(9) + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, sections, 0, 64, 56, segments, 64, count, count - 1
    )  # fmt: skip
