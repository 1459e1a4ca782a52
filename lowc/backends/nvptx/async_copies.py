"""Copies of a tile into shared memory by the threads that multiply it, in pieces that are neighbours in memory.

Neighbouring threads have neighbouring pieces of a line of 128 bytes, so that a warp reads whole lines whatever their size is.
Pieces (``ir/pieces.py``) of 4 bytes and more are ``cp.async``: of one that is cut off, the instruction is told how many bytes
come from memory, and sets the others to 0.  Where rows begin at odd elements of 16 bits, a thread loads two of them, and stores
the word later.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod

from lowc.backends.nvptx import access
from lowc.backends.nvptx.thread import Thread, operand, plus, sized, total
from lowc.ir.index import Atom, Axis, Index, constant, ix
from lowc.ir.pieces import Pieces
from lowc.ir.tiles import LINE, Fill
from lowc.ir.walk import Substitution

PIECE = 16  # bytes that change places in a line
WORD = 4
FAR = 1 << 30  # further than any coordinate is within its size
ROWS = 8  # lines after which the pattern of the swizzle is the same again
Later = Callable[[], None]


@dataclass(slots=True)
class Copies:
    """Of ``fill``, whose pieces are ``found``, by ``threads``, of which ``thread`` (i32) is one.  ``offset``: of the first piece
    that a thread copies, in bytes of the tile."""

    t: Thread
    fill: Fill
    found: Pieces
    threads: int
    thread: str
    line: Axis = field(init=False)
    place: Axis = field(init=False)
    offset: str = field(init=False)

    def __post_init__(self) -> None:
        b, each = self.t.b, self.lanes
        self.line, self.place = Axis(f"copies.line{each}", ix(self.lines)), Axis(f"copies.place{each}", ix(each))
        line = b.pure(f"lshr i32 {self.thread}, {each.bit_length() - 1}")
        place = b.pure(f"and i32 {self.thread}, {each - 1}")
        self.t.axes[self.line.name], self.t.axes[self.place.name] = (line, 32), (place, 32)
        turned = b.pure(f"shl i32 {b.pure(f'and i32 {line}, {ROWS - 1}')}, {PIECE.bit_length() - 1}")
        within = b.pure(f"xor i32 {b.pure(f'mul i32 {place}, {self.width}')}, {turned}")
        self.offset = plus(b, b.pure(f"mul i32 {line}, {LINE}"), within, 32)
        self.t.aligned.add(self.found.buffer.name)

    @property
    def width(self) -> int:
        """Bytes that a thread copies at a time."""
        return max(self.found.size, WORD)

    @property
    def lanes(self) -> int:
        """Threads that have a line together."""
        return LINE // self.width

    @property
    def lines(self) -> int:
        """That all threads have at a time."""
        return self.threads // self.lanes

    def each(self, tile: str, more: str = "") -> Iterator[Callable[[], Later | None]]:
        """The copies of a thread to the tile at ``tile`` (an i32 address in shared memory), one by one, only where ``more`` (an
        i1, "" for always) holds.  Some give what is to be done later, when what they have loaded may be there."""
        axes = [f.axis for f in self.fill.loops]
        high = constant(axes[-2].extent) or 0
        at = self.t.b.op(f"add i32 {tile}, {self.offset}")
        for first in range(0, prod(constant(a.extent) or 0 for a in axes[:-1]), self.lines):
            inner = ix(self.place) * (self.width // self.found.buffer.dtype.bytes)
            where: dict[Atom, Index] = {axes[-2]: ix(self.line) + first % high, axes[-1]: inner}
            if len(axes) == 3:
                where[axes[0]] = ix(first // high)
            yield lambda first=first, where=where, inner=inner: self.one(Substitution(where), inner, at, first, more)

    def one(self, put: Substitution, inner: Index, at: str, first: int, more: str) -> Later | None:
        """The copy of a piece of the line that is number ``first`` after the thread's own."""
        b, t, found = self.t.b, self.t, self.found
        held = self.held(put, more)
        flipped = b.pure(f"xor i32 {at}, {first % ROWS * PIECE}") if first % ROWS else at
        to = b.pure(f"inttoptr i32 {flipped} to ptr addrspace(3)")
        if first:
            to = b.pure(f"getelementptr i8, ptr addrspace(3) {to}, i32 {first * LINE}")
        ends = [put.index(end) - inner for end in found.ends]
        if found.size < WORD:
            return self.by_halves(to, put.index(found.place), ends, held)
        source = access.address(t, found.buffer, put.index(found.place), 0)
        size = str(self.width)
        for end in ends:
            size = self.least(end, size)
        if held:
            size = b.pure(f"select i1 {held}, i32 {size}, i32 0")
        self.start(to, source, size)
        return None

    def held(self, put: Substitution, more: str) -> str:
        """Whether a line is copied: there is more, and coordinates are within their sizes.  How far they are is computed in each
        turn, once for all lines: comparisons that LLVM could take out of the loop would be held in registers."""
        b, held = self.t.b, ""
        for coordinate, limit in self.found.within:
            left = put.index(limit - coordinate)
            bits = 32 if self.t.fits_in_parts(left) else 64
            text, number = total(self.t, left, 0, bits)
            if not text:
                one = "true" if number > 0 else "false"
            else:
                text = b.pure(f"select i1 {more}, i{bits} {text}, i{bits} {-FAR}") if more else text
                one = b.pure(f"icmp sgt i{bits} {text}, {-number}")
            held = b.pure(f"and i1 {held}, {one}") if held else one
        return held or more

    def least(self, left: Index, size: str) -> str:
        """``size`` (bytes, i32) or, if less, those of ``left`` elements, which may be negative."""
        b, width, element = self.t.b, self.width, self.found.buffer.dtype.bytes
        if (self.t.range(left)[0] or 0) * element >= width:
            return size
        text, bits = operand(self.t, left)
        kind = f"i{bits}"
        some = b.call(f"llvm.smax.{kind}", kind, [(kind, text), (kind, "0")])
        few = b.call(f"llvm.smin.{kind}", kind, [(kind, some), (kind, str(width // element))])
        bytes_ = b.pure(f"mul i32 {sized(b, few, bits, 32)}, {element}")
        return bytes_ if size == str(width) else b.call("llvm.smin.i32", "i32", [("i32", bytes_), ("i32", size)])

    def start(self, to: str, source: str, size: str) -> None:
        """Starts the copy of a piece, of which ``size`` bytes come from memory; those of 16 pass by the L1 cache."""
        width = self.width
        whole = size == str(width)
        name = f"llvm.nvvm.cp.async.{'cg' if width == PIECE else 'ca'}.shared.global.{width}{'' if whole else '.s'}"
        self.t.b.module.declare(name, "void", f"ptr addrspace(3), ptr addrspace(1){'' if whole else ', i32'}")
        args = f"ptr addrspace(3) {to}, ptr addrspace(1) {source}{'' if whole else f', i32 {size}'}"
        self.t.b.line(f"call void @{name}({args})")

    def by_halves(self, to: str, place: Index, ends: list[Index], held: str) -> Later:
        """Loads two elements of 16 bits; what is to be done later stores them."""
        b = self.t.b
        pointer, number = access.apart(self.t, self.found.buffer, place)
        halves: list[str] = []
        for element in range(2):
            inside = held
            for end in ends:
                if (self.t.range(end)[0] or 0) <= element:
                    text, bits = operand(self.t, end)
                    one = b.pure(f"icmp sgt i{bits} {text}, {element}")
                    inside = b.pure(f"and i1 {inside}, {one}") if inside else one
            # a load under a predicate, where LLVM would make a branch
            load = f"{{ mov.b16 $0, 0; @$2 ld.global.b16 $0, [$1+{2 * (number + element)}]; }}"
            asm = f'asm sideeffect "{load}", "=h,l,b"'
            halves.append(b.op(f"call i16 {asm}(ptr addrspace(1) {pointer}, i1 {inside or 'true'})"))

        def store() -> None:
            low, high = (b.op(f"zext i16 {half} to i32") for half in halves)
            word = b.op(f"or i32 {low}, {b.op(f'shl i32 {high}, 16')}")
            b.line(f"store i32 {word}, ptr addrspace(3) {to}, align {WORD}")

        return store
