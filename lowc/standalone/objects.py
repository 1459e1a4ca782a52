"""Object files of x86-64 (ELF, relocatable), read: sections, symbols, relocations.

Layout: System V ABI, chapter 4; relocations: its AMD64 supplement, 4.4.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

from lowc.errors import CodegenError

_SYMTAB, _RELA, NOBITS = 2, 4, 8
WRITE, ALLOC, EXECUTE, TLS = 1, 2, 4, 0x400
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2
_KINDS = (1, NOBITS, 14, 15)  # data, zeros, and addresses of constructors and destructors


class Relocation(NamedTuple):
    place: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True, slots=True)
class Section:
    """``content``: empty where memory is zeros.  ``relocations``: of this section."""

    name: str
    flags: int
    align: int
    size: int
    content: bytes
    relocations: tuple[Relocation, ...]


class Symbol(NamedTuple):
    """``section``: a key of ``Object.sections``, None if the symbol is defined elsewhere.  ``shared``: other objects see it."""

    name: str
    section: int | None
    value: int
    shared: bool


@dataclass(frozen=True, slots=True)
class Object:
    """``sections``: those that belong in memory, by number."""

    sections: dict[int, Section]
    symbols: tuple[Symbol, ...]


def read(code: bytes) -> Object:
    """Raises CodegenError for what is no object file, or has what lowc's code never has (thread-local memory, say)."""
    try:
        return _read(code)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise CodegenError(f"the object file cannot be read: {error}") from error


def _read(code: bytes) -> Object:
    if code[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", code, 16) != (1, 62):
        raise CodegenError("the code is no object file for x86-64")
    (table,), (count, names) = struct.unpack_from("<Q", code, 0x28), struct.unpack_from("<HH", code, 0x3C)
    heads = [struct.unpack_from("<IIQQQQIIQQ", code, table + 64 * n) for n in range(count)]

    def text(section: int, place: int) -> str:
        start = heads[section][4] + place
        return code[start : code.index(b"\0", start)].decode()

    def content(number: int) -> bytes:
        _, kind, _, _, start, size, *_ = heads[number]
        if kind != NOBITS and start + size > len(code):
            raise CodegenError("the object file is cut off")
        return b"" if kind == NOBITS else code[start : start + size]

    relocations: dict[int, list[Relocation]] = {}
    symbols: list[Symbol] = []
    for number, (_, kind, _, _, _, _, link, info, _, _) in enumerate(heads):
        if kind == _RELA:
            for place, both, addend in struct.iter_unpack("<QQq", content(number)):
                relocations.setdefault(info, []).append(Relocation(place, both & 0xFFFFFFFF, both >> 32, addend))
        elif kind == _SYMTAB:
            for name, about, _, home, value, _ in struct.iter_unpack("<IBBHQQ", content(number)):
                if home == _COMMON:
                    raise CodegenError("the object file has a common symbol")
                section = None if home in (_UNDEFINED, _ABSOLUTE) else home
                symbols.append(Symbol(text(link, name) if name else "", section, value, about >> 4 != 0))
    sections: dict[int, Section] = {}
    for number, (name, kind, flags, _, _, size, _, _, align, _) in enumerate(heads):
        title = text(names, name)
        if not flags & ALLOC or title == ".eh_frame" or kind not in _KINDS:  # nothing unwinds through native code
            continue
        if flags & TLS or kind in (14, 15):
            raise CodegenError(f"the object file has a section that lowc's linker does not know ({title})")
        sections[number] = Section(title, flags, max(align, 1), size, content(number), tuple(relocations.get(number, ())))
    return Object(sections, tuple(symbols))
