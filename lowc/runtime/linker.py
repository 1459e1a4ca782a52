"""An object file in memory to code that can be called, without LLVM: what a process needs that finds all its code in the cache.

    library = Library(code, ("run_0",), openmp.functions())
    library.address("run_0")

The sections that belong in memory are laid out one behind the other in one private mapping, each function that is called from
outside gets a jump of 16 bytes behind them (``jmp [its address]``: other libraries may be further away than a call reaches), the
relocations are applied, and the mapping becomes readable and executable, no longer writable.

Only what LLVM writes for position independent code without data of its own is known: the relocations below, no section that is
written to, no thread-local memory.  Anything else is an error, never a guess.  Layout of the file: System V ABI, chapter 4;
relocations: its AMD64 supplement, 4.4.
"""

import ctypes
import mmap
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from lowc.errors import CodegenError

# Of sections.
_SYMTAB, _RELA, _NOBITS, _GROUP, _REL = 2, 4, 8, 17, 9
_WRITE, _ALLOC, _TLS = 1, 2, 0x400
# Of symbols.
_UNDEFINED = 0
# Of relocations.  S: the symbol (or the jump for it), A: the addend, P: the place, G: the word with the symbol's address.
_64 = 1  # S + A
_PC32, _PLT32, _PC64 = 2, 4, 24  # S + A - P
_GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX = 9, 41, 42  # G + A - P

_JUMP = bytes((0xFF, 0x25, 2, 0, 0, 0, 0xCC, 0xCC))  # jmp [rip + 2]; the address follows
_SLOT = len(_JUMP) + 8


class _Section:
    __slots__ = ("align", "flags", "info", "kind", "link", "size", "start")

    def __init__(self, kind: int, flags: int, start: int, size: int, link: int, info: int, align: int) -> None:
        self.kind, self.flags, self.start, self.size = kind, flags, start, size
        self.link, self.info, self.align = link, info, align


class Library:
    """Loaded code: ``address(name)`` for each of the functions asked for.  The code is unloaded with the object."""

    __slots__ = ("_addresses", "_memory")

    def __init__(self, code: bytes, names: Iterable[str], imports: Mapping[str, int]) -> None:
        """``imports``: addresses of functions that the code calls; those of the C and maths libraries need not be there.

        Raises CodegenError for what cannot be linked.
        """
        try:
            self._memory, found = _link(code, imports)
        except (struct.error, IndexError, UnicodeDecodeError, ValueError, OverflowError) as error:
            raise CodegenError(f"the object file cannot be linked: {error}") from error
        missing = [name for name in names if name not in found]
        if missing:
            raise CodegenError(f"the object file has no {', '.join(missing)}")
        self._addresses = {name: found[name] for name in names}

    def address(self, name: str) -> int:
        return self._addresses[name]


class _Memory:
    """``size`` bytes (a multiple of a page): written first, executable after ``seal``."""

    __slots__ = ("_pages", "_window", "address", "size")

    def __init__(self, size: int) -> None:
        self._pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._window = ctypes.c_char.from_buffer(self._pages)
        self.address = ctypes.addressof(self._window)
        self.size = size

    def fill(self, content: bytes | bytearray) -> None:
        self._pages[: len(content)] = content

    def seal(self) -> None:
        if _mprotect()(self.address, self.size, mmap.PROT_READ | mmap.PROT_EXEC):
            raise CodegenError(f"the system does not let memory become code (errno {ctypes.get_errno()})")


@cache
def _mprotect() -> "ctypes._NamedFuncPointer":
    function = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def _link(code: bytes, imports: Mapping[str, int]) -> tuple[_Memory, dict[str, int]]:
    """The code in memory, and the addresses of its symbols by name."""
    sections = _sections(code)
    places, size = _layout(code, sections)
    symbols = _symbols(code, sections)
    outside = [name for name, _, section in symbols if section == _UNDEFINED and name]
    jumps = -(-size // 16) * 16
    slots = {name: jumps + _SLOT * number for number, name in enumerate(dict.fromkeys(outside))}
    image = bytearray(jumps + _SLOT * len(slots))
    for number, place in places.items():
        section = sections[number]
        image[place : place + section.size] = code[section.start : section.start + section.size]
    for name, address in _resolved(slots, imports).items():
        image[slots[name] : slots[name] + _SLOT] = _JUMP + struct.pack("<Q", address)
    for name, value, section in symbols:
        if section in places and value > sections[section].size:
            raise CodegenError(f"the object file has {name or 'a symbol'} outside of its section")
    memory = _Memory(max(-(-len(image) // mmap.PAGESIZE), 1) * mmap.PAGESIZE)
    found = {
        name: memory.address + places[section] + value
        for name, value, section in symbols
        if name and section in places
    }
    for section in sections:
        if section.kind == _RELA and section.info in places:
            _relocate(code, section, image, places, symbols, slots, memory.address)
    memory.fill(image)
    memory.seal()
    return memory, found


def _sections(code: bytes) -> list[_Section]:
    if code[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", code, 16) != (1, 62):
        raise CodegenError("the code is no object file for x86-64")
    (table,), (size, count) = struct.unpack_from("<Q", code, 0x28), struct.unpack_from("<HH", code, 0x3A)
    found: list[_Section] = []
    for number in range(count):
        _, kind, flags, _, start, length, link, info, align, _ = struct.unpack_from("<IIQQQQIIQQ", code, table + number * size)
        if kind != _NOBITS and start + length > len(code):
            raise CodegenError("the object file is cut off")
        found.append(_Section(kind, flags, start, length, link, info, max(align, 1)))
    return found


def _layout(code: bytes, sections: Sequence[_Section]) -> tuple[dict[int, int], int]:
    """Where each section that belongs in memory begins there, and bytes in all."""
    places: dict[int, int] = {}
    size = 0
    for number, section in enumerate(sections):
        if not section.flags & _ALLOC:
            continue
        own = section.flags & (_WRITE | _TLS) or section.kind == _NOBITS
        if (section.size and own) or section.kind in (_REL, _GROUP) or section.align > mmap.PAGESIZE:
            raise CodegenError(f"the object file has a section that lowc's linker does not know (flags {section.flags:#x})")
        size = -(-size // section.align) * section.align
        places[number] = size
        size += section.size
    return places, size


def _symbols(code: bytes, sections: Sequence[_Section]) -> list[tuple[str, int, int]]:
    """(name, value, number of its section) of each."""
    found: list[tuple[str, int, int]] = []
    for section in sections:
        if section.kind != _SYMTAB:
            continue
        names = sections[section.link].start
        for name, _, _, place, value, _ in struct.iter_unpack("<IBBHQQ", code[section.start : section.start + section.size]):
            text = code[names + name : code.index(b"\0", names + name)].decode() if name else ""
            found.append((text, value, place))
    return found


def _resolved(names: Iterable[str], imports: Mapping[str, int]) -> dict[str, int]:
    """The address of each function that the code calls."""
    found = {name: imports[name] if name in imports else _system(name) for name in names}
    missing = [name for name, address in found.items() if not address]
    if missing:
        raise CodegenError(f"generated code cannot be linked: it calls {', '.join(missing)}")
    return found


@cache
def _system(name: str) -> int:
    """The address of a function of the C or the maths library, which are mapped into every Python process; 0 if there is none."""
    try:
        return ctypes.cast(getattr(ctypes.CDLL("libm.so.6"), name), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


def _relocate(
    code: bytes,
    section: _Section,
    image: bytearray,
    places: Mapping[int, int],
    symbols: Sequence[tuple[str, int, int]],
    slots: Mapping[str, int],
    base: int,
) -> None:
    """Applies one table of relocations to the section that it is for."""
    here, length = places[section.info], 0
    for offset, info, addend in struct.iter_unpack("<QQq", code[section.start : section.start + section.size]):
        kind = info & 0xFFFFFFFF
        name, value, home = symbols[info >> 32]
        place = here + offset
        length = 8 if kind in (_64, _PC64) else 4
        if place + length > len(image):
            raise CodegenError("the object file has a relocation outside of its section")
        if kind in (_GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX):
            if home != _UNDEFINED:
                raise CodegenError(f"the object file asks for a table entry of {name}, which is its own")
            target = _slot(slots, name) + len(_JUMP) + addend - place
        elif kind in (_64, _PC32, _PLT32, _PC64):
            if home != _UNDEFINED and home not in places:
                raise CodegenError(f"the object file refers to {name or 'a symbol'} in section {home}, which is not in memory")
            symbol = _slot(slots, name) if home == _UNDEFINED else places[home] + value
            target = symbol + addend + (base if kind == _64 else -place)
        else:
            raise CodegenError(f"the object file has a relocation of kind {kind}, which lowc's linker does not know")
        struct.pack_into("<Q" if kind == _64 else "<q" if length == 8 else "<i", image, place, target)


def _slot(slots: Mapping[str, int], name: str) -> int:
    if name not in slots:
        raise CodegenError("the object file refers to a symbol without a name that it does not define")
    return slots[name]
