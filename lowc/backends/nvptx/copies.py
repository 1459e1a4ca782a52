"""Filling tiles in shared memory as tensor cores want them: by the engine that copies boxes, or by threads.

Tensor cores read tiles whose 16-byte pieces are swizzled: piece ``p`` of row ``r`` (of 128 bytes) lies where ``p ^ r % 8`` would.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from types import MappingProxyType

from lowc.backends.llvm.types import memory as memory_type
from lowc.backends.nvptx import access
from lowc.backends.nvptx.thread import Lanes, Thread, Vals, operand, plus
from lowc.ir import tiles
from lowc.ir.index import Index, constant, depends_on
from lowc.ir.nodes import Expr, For
from lowc.ir.tiles import GROUP, SPAN, Fill

SHARED = "@lowc_shared"
PIECE = 8  # elements of 16 bytes
AT_ONCE = 4  # pieces that a thread loads before it stores the first


def before(t: Thread, fill: Fill, loop: For) -> dict[Index, str]:
    """Where the places of ``fill`` begin along those dimensions in which all turns of ``loop`` begin at one: computed here,
    before the loop, as ptxas would do these divisions in each turn."""
    found = tiles.box(fill)
    if found is None or found.window is None:
        return {}
    return {i: operand(t, i, bits=32)[0] for i in found.starts if not depends_on(i, loop.axis)}


def by_engine(
    t: Thread, fill: Fill, map_: str, offset: str, barrier: str, known: Mapping[Index, str] = MappingProxyType({})
) -> None:
    """Starts the copies of ``fill`` to ``offset`` bytes into shared memory by the tensor map ``map_``; the bytes are counted at
    ``barrier``.  ``known``: what is in registers of where it begins."""
    b = t.b
    found = tiles.box(fill)
    assert found is not None
    rank, taps = len(found.starts), () if found.window is None else found.window.taps
    name = f"llvm.nvvm.cp.async.bulk.tensor.g2s.{'im2col' if taps else 'tile'}.{rank}d"
    places = ", i32" * rank + ", i16" * len(taps)
    b.module.declare(name, "void", f"ptr addrspace(7), ptr addrspace(3), ptr{places}, i16, i64, i1, i1, i32")

    def short(tap: Index) -> str:
        number = constant(tap)
        return str(number) if number is not None else b.op(f"trunc i32 {operand(t, tap, bits=32)[0]} to i16")

    outer, strides = fill.loops[:-2], fill.tile.strides
    counts = [range(constant(f.axis.extent) or 0) for f in outer]
    for numbers in product(*counts):
        further = 0
        for loop, number, stride in zip(outer, numbers, strides, strict=False):
            t.axes[loop.axis.name] = number
            further += number * (constant(stride) or 0) * fill.tile.dtype.bytes
        starts = [known.get(start) or operand(t, start, bits=32)[0] for start in found.starts]
        at = b.op(f"getelementptr i8, ptr addrspace(3) {SHARED}, i32 {plus(b, offset, str(further), 32)}")
        far = b.op(f"addrspacecast ptr addrspace(3) {at} to ptr addrspace(7)")
        where = "".join(f", i32 {s}" for s in starts) + "".join(f", i16 {short(tap)}" for tap in taps)
        b.line(
            f"call void @{name}(ptr addrspace(7) {far}, ptr addrspace(3) {barrier}, ptr {map_}{where}, "
            "i16 0, i64 0, i1 false, i1 false, i32 0)"
        )


def by_threads(t: Thread, fill: Fill, thread: str, offset: str, evaluate: Callable[[Expr], Vals], threads: int = GROUP) -> None:
    """Copies ``fill`` to ``offset`` bytes into shared memory, number ``thread`` of ``threads`` its share of pieces."""
    b = t.b
    sizes = [constant(f.axis.extent) or 0 for f in fill.loops]
    inner = fill.loops[-1].axis
    rounds = prod(sizes) // PIECE // threads
    row = SPAN // PIECE

    def load(number: str) -> tuple[str, Vals]:
        """What piece ``number`` of the tile is."""
        rest = b.op(f"lshr i32 {number}, {row.bit_length() - 1}")
        for loop, size in reversed(list(zip(fill.loops[:-1], sizes[:-1], strict=True))):
            last = loop is fill.loops[0]
            t.axes[loop.axis.name] = (rest if last else b.op(f"urem i32 {rest}, {size}"), 32)
            rest = rest if last else b.op(f"udiv i32 {rest}, {size}")
        first = b.op(f"shl i32 {b.op(f'and i32 {number}, {row - 1}')}, {PIECE.bit_length() - 1}")
        t.lanes = Lanes(inner, PIECE, first)
        values = evaluate(fill.store.value)
        t.lanes = None
        return number, tuple([access.lane(values, n) for n in range(PIECE)])

    def store(number: str, values: Vals) -> None:
        turned = b.op(f"and i32 {b.op(f'lshr i32 {number}, {row.bit_length() - 1}')}, {row - 1}")
        piece = b.op(f"shl i32 {b.op(f'xor i32 {number}, {turned}')}, 4")
        at = b.op(f"getelementptr i8, ptr addrspace(3) {SHARED}, i32 {b.op(f'add i32 {offset}, {piece}')}")
        access.store_together(t, f"ptr addrspace(3) {at}", list(values))

    def several(index: str, _: list[str]) -> Sequence[str]:
        pieces = [b.op(f"add i32 {index}, {n}") for n in range(at_once)]
        loaded = [load(b.op(f"add i32 {b.op(f'mul i32 {p}, {threads}')}, {thread}")) for p in pieces]
        for number, values in loaded:
            store(number, values)
        return ()

    at_once = AT_ONCE if rounds % AT_ONCE == 0 else 1
    assert rounds % at_once == 0
    assert memory_type(fill.tile.dtype) == "i16"
    b.loop("0", str(rounds), at_once, [], several, True, "i32")
