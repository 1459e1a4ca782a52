"""The state of one kernel in the making: what one thread sees, and how index expressions become integers in it.

An index expression is computed in 32 bits where its value is proven to fit, else in 64.  Axes of unrolled loops and lanes are
numbers, not operands, so that their share of an address is known.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from lowc.backends.llvm.builder import Builder
from lowc.backends.llvm.values import Val
from lowc.errors import CodegenError
from lowc.ir.index import (
    ZERO,
    Atom,
    Axis,
    FloorDiv,
    Index,
    Max,
    Min,
    Mod,
    Opaque,
    Symbol,
    atoms,
    constant,
    ix,
    lower_bound,
    upper_bound,
)
from lowc.ir.interval import interval
from lowc.ir.types import i64

Vals = tuple[Val, ...]
"""A value: one for all lanes of the vector loop at hand, or one a lane."""
Number = tuple[str, int]
"""A sum: an operand ("" for none) and a constant."""
WORD = 1 << 31


@dataclass(slots=True)
class Lanes:
    """The vector loop around what is emitted now: its axis is ``base`` (an operand of ``bits``, or a number) + 0 .. count-1."""

    axis: Axis
    count: int
    base: str | int
    bits: int = 32


@dataclass(slots=True)
class Group:
    """Accumulators: for each lane that has its own, the memory of each of ``vars``.

    ``size``: elements of each (an array of accumulators), 0 for a single one.  ``over``: the dimensions across whose threads they
    are combined when the last update is done.
    """

    vars: tuple[tuple[str, Val], ...]
    reducer: str
    size: int
    over: frozenset[str]
    places: list[list[str]]


@dataclass(slots=True)
class Memory:
    """Where a buffer is: a pointer (one for each lane that has its own) in an address space, and which of its leading indices
    are threads.  ``swizzled``: 16-byte pieces of its lines of 128 bytes lie where the copying engine wants them."""

    pointers: tuple[str, ...]
    space: int
    distributed: int = 0
    swizzled: bool = False


@dataclass(slots=True)
class Thread:
    """``axes``: an operand with its bits, or a number.  ``tid``: thread numbers by dimension, ``threads`` how many there are.

    ``open``: the dimensions whose thread loops are around.  ``active``: a condition under which the thread takes part ("":
    always): it walks along, but writes nothing.  ``aligned``: params that are accessed 16 bytes at a time.  ``blocks``: axes that
    number blocks.  ``beside``: threads of the block that are none of the kernel's.  ``team``: number of the thread's ("": all
    threads are one).
    """

    b: Builder
    ops: frozenset[str]
    threads: dict[str, int]
    tid: dict[str, str]
    variables: dict[str, Vals] = field(default_factory=dict[str, Vals])
    axes: dict[str, tuple[str, int] | int] = field(default_factory=dict[str, "tuple[str, int] | int"])
    memory: dict[str, Memory] = field(default_factory=dict[str, Memory])
    sizes: dict[str, str] = field(default_factory=dict[str, str])
    groups: dict[str, Group] = field(default_factory=dict[str, Group])
    written: frozenset[str] = frozenset()
    aligned: set[str] = field(default_factory=set[str])
    blocks: frozenset[str] = frozenset()
    beside: int = 0
    team: str = ""
    lanes: Lanes | None = None
    open: frozenset[str] = frozenset()
    active: str = ""
    bounds: dict[Index, tuple[int | None, int | None]] = field(
        default_factory=dict[Index, tuple[int | None, int | None]]
    )
    halves: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])

    def variable(self, name: str) -> Vals:
        """The value of a let or of an accumulator."""
        found = self.variables.get(name)
        if found is not None:
            return found
        group = self.groups[name]
        position = next(n for n, (var, _) in enumerate(group.vars) if var == name)
        kind = group.vars[position][1]
        return tuple(Val(self.b.op(f"load {kind.type}, ptr {p[position]}"), kind.dtype) for p in group.places)

    def range(self, index: Index) -> tuple[int | None, int | None]:
        """Bounds of ``index``, None where unknown."""
        found = self.bounds.get(index)
        if found is None:
            low, high = lower_bound(index), upper_bound(index)
            if low is None or high is None:
                least, most = interval(index)
                low, high = (least if low is None else low), (most if high is None else high)
            found = self.bounds[index] = (low, high)
        return found

    def fits(self, index: Index) -> bool:
        """Whether the value of ``index`` has 32 bits."""
        low, high = self.range(index)
        return low is not None and high is not None and low >= -WORD and high < WORD

    def fits_in_parts(self, index: Index) -> bool:
        """Whether that holds for any part of ``index`` that is left when numbers are taken out."""
        low, high = self.range(index)
        if low is None or high is None:
            return False
        margin = sum(abs(c) for m, c in index.terms if not m) + high - low
        return low - margin >= -WORD and high + margin < WORD


def varies(t: Thread, index: Index) -> bool:
    """Whether ``index`` differs from lane to lane."""
    if t.lanes is None:
        return False
    for atom in atoms(index):
        if atom == t.lanes.axis or (isinstance(atom, Opaque) and len(t.variable(atom.name)) > 1):
            return True
    return False


def lanes_of(t: Thread, indices: Iterable[Index]) -> int:
    """How many values one that depends on ``indices`` has."""
    return t.lanes.count if t.lanes is not None and any(varies(t, i) for i in indices) else 1


def operand(t: Thread, index: Index, lane: int = 0, bits: int = 0) -> tuple[str, int]:
    """``index`` in ``lane`` as an operand (a number is one too) of ``bits``, 32 or 64; by default of 32 if it fits."""
    bits = bits or (32 if t.fits(index) else 64)
    text, number = total(t, index, lane, bits)
    if not text:
        return str(_wrapped(number, bits)), bits
    return plus(t.b, text, str(_wrapped(number, bits)), bits), bits


def always(t: Thread) -> str:
    """A condition that holds, which ptxas does not know: a thread is among those up to itself.

    It mixes no code of two blocks, so that what a block under this condition has in registers ends with it."""
    name = "llvm.nvvm.read.ptx.sreg.lanemask.le"
    t.b.module.declare(name, "i32", "")
    return t.b.pure(f"icmp ne i32 {t.b.pure(f'call i32 @{name}()')}, 0")


def unknown(t: Thread, extent: Index) -> tuple[str, int]:
    """``extent`` as an operand that ptxas does not know, not even the greatest it may be: of several loops one that runs once or
    twice becomes part of what is before and behind it otherwise.  No thread has 32 others before it."""
    text, bits = operand(t, extent)
    if constant(extent) is None:
        return text, bits
    name = "llvm.nvvm.read.ptx.sreg.lanemask.lt"
    t.b.module.declare(name, "i32", "")
    beyond = t.b.pure(f"and i32 {t.b.pure(f'call i32 @{name}()')}, {-1 << 31}")
    return plus(t.b, sized(t.b, t.b.pure(f"lshr i32 {beyond}, 8"), 32, bits), text, bits), bits


def total(t: Thread, index: Index, lane: int, bits: int) -> Number:
    """``index`` as an operand of ``bits`` plus a number, the part that differs from lane to lane where possible in the number."""
    text, number = "", 0
    for monomial, coefficient in index.terms:
        factor, scale, shift = "", coefficient, 0
        for atom in monomial:
            if t.lanes is not None and atom == t.lanes.axis and not shift:
                base = t.lanes.base
                if isinstance(base, int):
                    scale *= base + lane
                    continue
                value, shift = sized(t.b, base, t.lanes.bits, bits), lane
                factor = times(t.b, factor, value, bits)
                if shift:
                    # what is left of the monomial, times the lane's number
                    rest = tuple(a for a in monomial if a is not atom)
                    more = total(t, Index(((rest, coefficient * lane),)), lane, bits)
                    text = plus(t.b, text, more[0], bits)
                    number += more[1]
                continue
            found = _atom(t, atom, lane, bits)
            if isinstance(found, int):
                scale *= found
            else:
                factor = times(t.b, factor, found, bits)
        if not factor:
            number += scale
        elif scale:
            text = plus(t.b, text, times(t.b, factor, str(_wrapped(scale, bits)), bits), bits)
    return text, number


def times(b: Builder, x: str, y: str, bits: int) -> str:
    """x * y of operands ("" is 1)."""
    if x in ("", "1"):
        return y
    return x if y in ("", "1") else b.pure(f"mul i{bits} {x}, {y}")


def plus(b: Builder, x: str, y: str, bits: int) -> str:
    """x + y of operands ("" is 0)."""
    if x in ("", "0"):
        return y
    return x if y in ("", "0") else b.pure(f"add i{bits} {x}, {y}")


def sized(b: Builder, text: str, have: int, want: int) -> str:
    """A signed operand of ``have`` bits in ``want`` bits."""
    if have == want or text[0] != "%":
        return text
    return b.pure(f"{'sext' if want > have else 'trunc'} i{have} {text} to i{want}")


def _wrapped(number: int, bits: int) -> int:
    half = 1 << bits - 1
    return (number + half) % (2 * half) - half


def _atom(t: Thread, atom: Atom, lane: int, bits: int) -> str | int:
    if isinstance(atom, Axis):
        found = t.axes[atom.name]
        return found if isinstance(found, int) else sized(t.b, found[0], found[1], bits)
    if isinstance(atom, Symbol):
        return sized(t.b, t.sizes[atom.name], 64, bits)
    if isinstance(atom, Opaque):
        values = t.variable(atom.name)
        return sized(t.b, values[lane if len(values) > 1 else 0].text, 64, bits)
    a, c = (atom.num, atom.den) if isinstance(atom, FloorDiv | Mod) else (atom.a, atom.b)
    inner = 32 if t.fits(a) and t.fits(c) else 64
    if inner == 64 and isinstance(atom, FloorDiv | Mod) and _is_block(t, a):
        return _block_divided(t, atom, lane, bits)
    x, y = operand(t, a, lane, inner)[0], operand(t, c, lane, inner)[0]
    if x[0] != "%" and y[0] != "%":
        return _known(atom, int(x), int(y))
    if isinstance(atom, Min | Max):
        word = "smin" if isinstance(atom, Min) else "smax"
        text = t.b.call(f"llvm.{word}.i{inner}", f"i{inner}", [(f"i{inner}", x), (f"i{inner}", y)])
    else:
        text = _divided(t, atom, x, y, inner)
    return sized(t.b, text, inner, bits)


def _known(atom: FloorDiv | Mod | Min | Max, x: int, y: int) -> int:
    if isinstance(atom, Min | Max):
        return min(x, y) if isinstance(atom, Min) else max(x, y)
    return x // max(1, y) if isinstance(atom, FloorDiv) else x % max(1, y)


def _is_block(t: Thread, index: Index) -> bool:
    """Whether ``index`` is the number of a block, of which there are fewer than 2^31, whatever the sizes are."""
    return any(isinstance(a, Axis) and a.name in t.blocks and index == ix(a) for m, _ in index.terms for a in m)


def _block_divided(t: Thread, atom: FloorDiv | Mod, lane: int, bits: int) -> str:
    """The number of a block, which has 31 bits, over any size: one of more bits gives what the largest of 31 gives."""
    x, y = operand(t, atom.num, lane, 32)[0], operand(t, atom.den, lane, 64)[0]
    if (t.range(atom.den)[0] or 0) < 1:
        y = t.b.call("llvm.smax.i64", "i64", [("i64", y), ("i64", "1")])
    if not t.fits(atom.den):
        y = t.b.call("llvm.smin.i64", "i64", [("i64", y), ("i64", str(WORD - 1))])
    word = "udiv" if isinstance(atom, FloorDiv) else "urem"
    return sized(t.b, t.b.pure(f"{word} i32 {x}, {sized(t.b, y, 64, 32)}"), 32, bits)


def _divided(t: Thread, atom: FloorDiv | Mod, x: str, y: str, bits: int) -> str:
    """num // den or num % den rounding down, by 1 where den is below; unsigned where num cannot be negative."""
    b, type_ = t.b, f"i{bits}"
    if (t.range(atom.den)[0] or 0) < 1:
        y = b.call(f"llvm.smax.{type_}", type_, [(type_, y), (type_, "1")])
    low = t.range(atom.num)[0]
    quotient = isinstance(atom, FloorDiv)
    if low is not None and low >= 0:
        return b.pure(f"{'udiv' if quotient else 'urem'} {type_} {x}, {y}")
    rest = b.pure(f"srem {type_} {x}, {y}")
    negative = b.pure(f"icmp slt {type_} {rest}, 0")
    if not quotient:
        return b.pure(f"select i1 {negative}, {type_} {b.pure(f'add {type_} {rest}, {y}')}, {type_} {rest}")
    whole = b.pure(f"sdiv {type_} {x}, {y}")
    return b.pure(f"select i1 {negative}, {type_} {b.pure(f'sub {type_} {whole}, 1')}, {type_} {whole}")


def value(t: Thread, index: Index, lane: int) -> Val:
    """``index`` in ``lane`` as a value of i64."""
    text, bits = operand(t, index, lane)
    return Val(sized(t.b, text, bits, 64), i64)


def flat(memory: Memory, index: tuple[Index, ...], strides: tuple[Index, ...]) -> Index:
    """The address of an element in elements; indices that are threads have no share in it."""
    place = ZERO
    for number, (i, stride) in enumerate(zip(index, strides, strict=True)):
        if number >= memory.distributed:
            place = place + i * stride
    return place


def uniform(t: Thread, index: Index, varying: set[str]) -> bool:
    """Whether all threads have the same ``index``; ``varying``: axes and lets that differ from thread to thread."""
    return not any(isinstance(a, Axis | Opaque) and a.name in varying for a in atoms(index))


def known(index: Index, what: str) -> int:
    """The number that ``index`` is; CodegenError if it is none."""
    number = constant(index)
    if number is None:
        raise CodegenError(f"{what} is {index}, which is no number")
    return number
