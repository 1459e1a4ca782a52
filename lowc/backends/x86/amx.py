"""The instruction ``amx``: products of tiles by the matrix unit, see ``ir/matrices.py``.

Of the eight tiles of 16 rows of 64 bytes 0 to 3 are sums, 4 and 5 are of the left factor, 6 and 7 of the right one.  Sums stay in
their tiles for all of the depth.  Each step of it loads four tiles for four products, which take 16 cycles each: as many as the
loads of two tiles, if these are near.  Loops go on to other rows before other columns, so tiles of the left factor are loaded
with the hint that they are not needed again soon: the others stay in the L1 cache then (1.1 times as fast, or the same).

A function that multiplies so configures the tiles as it begins, and releases them as it ends: a thread that left them configured
would have more to save whenever it is interrupted.  Threads of a parallel loop each have their own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lowc.backends.llvm.types import memory
from lowc.backends.x86.region import Region, scalar_index
from lowc.ir.index import Axis, Index, constant, ix, lower_bound, substitute
from lowc.ir.matrices import SIDE, MatrixProduct, begins, is_amx, matrix_product
from lowc.ir.nodes import Alloc, Buffer, For, If, Stmt

if TYPE_CHECKING:
    from lowc.backends.x86.emit import Emitter

BF16, INT8 = "amx-bf16", "amx-int8"  # abilities of a target
LEFT, RIGHT = 4, 6  # the first tile of each factor
BYTES = 64  # of a row of a tile
# palette 1, 14 bytes of 0; bytes of a row (16 bits each) of 8 tiles and 16 bytes of 0; rows of 8 tiles and 8 bytes of 0
CONFIGURATION = bytes([1, *[0] * 15, *[BYTES, 0] * 8, *[0] * 16, *[SIDE] * 8, *[0] * 8])
DOT_BYTES = {(True, True): "tdpbssd", (True, False): "tdpbsud", (False, True): "tdpbusd", (False, False): "tdpbuud"}


def able(r: Region, stmt: Stmt) -> MatrixProduct | None:
    """The product of tiles that ``stmt`` is, if the target has instructions for it."""
    found = matrix_product(stmt)
    return found if found is not None and (BF16 if found.op == "dot2" else INT8) in r.ops else None


def needed(r: Region, body: Sequence[Stmt], threads: bool) -> bool:
    """Whether ``body`` multiplies so itself, which parallel loops with ``threads`` do not: they are other functions."""
    for stmt in body:
        if is_amx(stmt):
            if able(r, stmt) is not None:
                return True
        elif isinstance(stmt, For | If) and not (isinstance(stmt, For) and threads and stmt.kind.name == "parallel"):
            if needed(r, stmt.body, threads):
                return True
    return False


@contextmanager
def configured(e: "Emitter", body: Sequence[Stmt]) -> Iterator[None]:
    """Around the emission of ``body``, all that a function does: with tiles configured if it needs them."""
    e.tiles = needed(e.r, body, e.threads and not e.in_parallel)
    if e.tiles:
        configure(e.r)
    yield
    if e.tiles:
        e.b.module.declare("llvm.x86.tilerelease", "void", "")
        e.b.line("call void @llvm.x86.tilerelease()")


def configure(r: Region) -> None:
    """Configures tiles here; also behind a parallel loop, in which this thread has released them."""
    text = "".join(f"\\{byte:02x}" for byte in CONFIGURATION)
    r.b.module.globals.setdefault("tiles", f'@tiles = internal constant [64 x i8] c"{text}", align 64')
    r.b.module.declare("llvm.x86.ldtilecfg", "void", "ptr")
    r.b.line("call void @llvm.x86.ldtilecfg(ptr @tiles)")


def sets(e: "Emitter", body: Sequence[Stmt]) -> bool:
    """Whether ``body`` starts with memory that the product behind it sets, which is noted."""
    if not e.tiles or not begins(tuple(body)) or able(e.r, body[1]) is None or e.r.lanes is not None:
        return False
    assert isinstance(body[0], Alloc)
    e.fresh.add(body[0].buffer.name)
    return True


def emit(e: "Emitter", stmt: Stmt) -> bool:
    """Emits ``stmt`` if it is such a nest and the target has the unit; False if plain loops must."""
    found = able(e.r, stmt) if is_amx(stmt) and e.r.lanes is None else None
    if found is None or not e.tiles:
        return False
    b = e.b
    high, wide = ((constant(a.extent) or 0) // SIDE for a in (found.rows, found.columns))
    sums = [(r, c, 2 * r + c) for r in range(high) for c in range(wide)]
    fresh = found.store.buffer.name in e.fresh
    e.fresh.discard(found.store.buffer.name)
    step = _bytes(e, found.row_steps[0], found.store.buffer)
    places = [_place(e, found.store.buffer, found.store.index[0], found, r, c) for r, c, _ in sums]
    for (_, _, number), place in zip(sums, places, strict=True):
        if fresh:
            _call(e, "tilezero", [("i8", str(number))])
        else:
            _call(e, "tileloadd64", [("i8", str(number)), ("ptr", place), ("i64", step)])
    left = [_place(e, found.left.buffer, found.left.index[0], found, r, 0) for r in range(high)]
    right = [_place(e, found.right.buffer, found.right.index[0], found, 0, c) for c in range(wide)]
    left_step, right_step = _bytes(e, found.row_steps[1], found.left.buffer), _bytes(e, found.depth_step, found.right.buffer)
    product = "tdpbf16ps" if found.op == "dot2" else DOT_BYTES[found.signs]

    def load(tile: int, base: str, offset: str, step: str) -> None:
        place = b.op(f"getelementptr i8, ptr {base}, i64 {offset}", "g")
        _call(e, "tileloadd64" if tile >= RIGHT else "tileloaddt164", [("i8", str(tile)), ("ptr", place), ("i64", step)])

    def each(index: str, _: list[str]) -> Sequence[str]:
        down = b.op(f"shl i64 {index}, 2")
        across = b.op(f"mul i64 {index}, {right_step}")
        load(RIGHT, right[0], across, right_step)
        for r in range(high):
            load(LEFT + r, left[r], down, left_step)
            _call(e, product, [("i8", str(n)) for n in (2 * r, LEFT + r, RIGHT)])
        if wide > 1:
            load(RIGHT + 1, right[1], across, right_step)
            for r in range(high):
                _call(e, product, [("i8", str(n)) for n in (2 * r + 1, LEFT + r, RIGHT + 1)])
        return ()

    deep = found.depth.extent
    b.loop("0", scalar_index(e.r, deep), SIDE, [], each, (lower_bound(deep) or 0) >= 1)
    for (_, _, number), place in zip(sums, places, strict=True):
        _call(e, "tilestored64", [("i8", str(number)), ("ptr", place), ("i64", step)])
    return True


def _call(e: "Emitter", name: str, args: list[tuple[str, str]]) -> None:
    e.b.module.declare(f"llvm.x86.{name}", "void", ", ".join(t for t, _ in args))
    e.b.line(f"call void @llvm.x86.{name}({', '.join(f'{t} {a}' for t, a in args)})")


def _bytes(e: "Emitter", step: Index, buffer: Buffer) -> str:
    return scalar_index(e.r, step * buffer.dtype.bytes)


def _place(e: "Emitter", buffer: Buffer, index: Index, found: MatrixProduct, row: int, column: int) -> str:
    """A pointer to where the tile in this row and column of tiles starts."""
    at: dict[Axis, int] = {found.rows: row * SIDE, found.columns: column * SIDE, found.depth: 0}
    place = scalar_index(e.r, substitute(index, {axis: ix(n) for axis, n in at.items()}))
    return e.b.pure(f"getelementptr {memory(buffer.dtype)}, ptr {e.r.pointers[buffer.name]}, i64 {place}", "g")
