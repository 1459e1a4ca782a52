"""The instruction ``transpose``: a square tile read along its contiguous axis and written along the other,
in registers; and loops over such tiles.

Its meaning is the nest ``for j in N { for i in N { tile[i*N + j] = source[base + j*S + i] } }`` for N = 4, 8
or 16.  If all that reads the tile are vectors of N lanes in unrolled loops, one row each, then the tile is
never in memory.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lowc.backends.llvm.types import memory
from lowc.backends.x86.region import scalar_index
from lowc.ir.index import Axis, Index, constant, ix, split, substitute
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import Buffer, For, Load, Stmt, Store
from lowc.ir.pairs import neighbours
from lowc.ir.walk import exprs, parts, statements

if TYPE_CHECKING:
    from lowc.backends.x86.emit import Emitter

SIZES = (4, 8, 16)
MANY = 8  # tiles in a row
LANE = 128  # bits of a register within which elements can be interleaved by one cheap instruction


def emit(emitter: "Emitter", outer: Stmt, rest: Sequence[Stmt]) -> bool:
    """Emits ``outer`` if it is such a nest, and one that registers can do; False if plain loops must.

    ``rest``: what follows in the same block.
    """
    copy = _copy(outer) if _is_transpose(outer) else None
    if not isinstance(outer, For) or copy is None:
        return False
    inner, store, load = copy
    size = constant(outer.axis.extent)
    element = store.value.dtype
    if size not in SIZES or constant(inner.axis.extent) != size or element.bits * size > 1024:
        return False
    steps = (
        split(store.index[0], inner.axis)[0],
        split(store.index[0], outer.axis)[0],
        split(load.index[0], inner.axis)[0],
    )
    if tuple(map(constant, steps)) != (size, 1, element.bits // load.dtype.bits):
        return False
    vector = f"<{size} x {memory(element)}>"
    rows: list[str] = []
    emitter.b.at(store)
    for n in range(size):
        place = _place(emitter, load.buffer, load.index[0], {outer.axis: n, inner.axis: 0})
        rows.append(emitter.b.op(f"load {vector}, ptr {place}, align {load.dtype.bytes}"))
    rows = _transposed(emitter, rows, vector, max(8, element.bits))
    if _read_by_rows(emitter, store, size, rest):
        emitter.r.tiles[store.buffer.name] = rows
        return True
    for n, row in enumerate(rows):
        place = _place(emitter, store.buffer, store.index[0], {outer.axis: 0, inner.axis: n})
        emitter.b.line(f"store {vector} {row}, ptr {place}, align {element.bytes}")
    return True


def _is_transpose(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and stmt.kind.name == "instr" and stmt.kind.key == "transpose"


def _copy(outer: Stmt) -> tuple[For, Store, Load] | None:
    """The inner loop, the store and the load (of a pair of neighbours, the first one) of a nest that is a plain copy."""
    inner = outer.body[0] if isinstance(outer, For) and len(outer.body) == 1 else None
    if not isinstance(inner, For) or len(inner.body) != 1 or not isinstance(inner.body[0], Store):
        return None
    store = inner.body[0]
    load = neighbours(store.value) or store.value
    if not isinstance(load, Load) or load.mask is not None or store.mask is not None or store.reducer:
        return None
    return inner, store, load


def _place(emitter: "Emitter", buffer: Buffer, index: Index, at: dict[Axis, int]) -> str:
    """A pointer to the element at ``index`` with axes at the numbers ``at``."""
    position = scalar_index(emitter.r, substitute(index, {axis: ix(n) for axis, n in at.items()}))
    base = emitter.r.pointers[buffer.name]
    return emitter.b.pure(f"getelementptr {memory(buffer.dtype)}, ptr {base}, i64 {position}", "g")


def _read_by_rows(emitter: "Emitter", store: Store, size: int, rest: Sequence[Stmt]) -> bool:
    """Whether every load of the tile stands in ``rest`` and reads a whole row, the number of which is known
    when the code is emitted.
    """
    name = store.buffer.name
    known = {s.axis for s in statements(rest) if isinstance(s, For) and s.kind.name == "unroll"}
    lanes = {s.axis for s in statements(rest) if isinstance(s, For) and s.kind.name == "vector" and s.kind.width == size}
    reads = _loads(rest, name)
    for load in reads:
        column = [a for a in lanes if constant(split(load.index[0], a)[0]) == 1 and constant(a.extent) == size]
        rows, left = (split(load.index[0], column[0])[1], True) if len(column) == 1 else (load.index[0], False)
        if not left or load.mask is not None:
            return False
        for row in known:
            coefficient, rows = split(rows, row)
            if (constant(coefficient) or 0) % size:
                return False
        if constant(rows) != 0:
            return False
    return len(reads) == len(_loads(emitter.kernel.body, name))


def _loads(body: Sequence[Stmt], name: str) -> list[Load]:
    """The loads of a buffer in ``body``, each as often as it occurs in different statements."""
    return [
        p
        for s in statements(body)
        for p in {id(p): p for e in exprs(s) for p in parts(e)}.values()
        if isinstance(p, Load) and p.buffer.name == name
    ]


def _transposed(emitter: "Emitter", rows: list[str], vector: str, bits: int) -> list[str]:
    """The columns of the matrix of ``rows``, elements of so many bits.

    Each step exchanges one bit of the row's number for one of the column's: bits within 128-bit lanes from the
    highest down by interleaving neighbours, the others from the lowest up by taking even and odd lanes.
    """
    size = len(rows)

    def shuffle(a: str, c: str, order: list[int]) -> str:
        mask = ", ".join(f"i32 {n}" for n in order)
        return emitter.b.pure(f"shufflevector {vector} {a}, {vector} {c}, <{size} x i32> <{mask}>")

    width = min(size, LANE // bits)  # elements in a lane
    lanes = [[width * lane + n for n in range(width)] for lane in range(size // width)]
    halves = [[lane[: width // 2] for lane in lanes], [lane[width // 2 :] for lane in lanes]]
    interleaved = [[m for lane in half for n in lane for m in (n, size + n)] for half in halves]
    every_other = [
        [source + n for source in (0, size) for lane in lanes[parity::2] for n in lane] for parity in (0, 1)
    ]
    distance = width // 2
    steps = [(distance >> n, interleaved) for n in range(width.bit_length() - 1)]
    steps += [(width << n, every_other) for n in range((size // width).bit_length() - 1)]
    for step, orders in steps:
        out = list(rows)
        for n in range(size):
            if not n & step:
                out[n], out[n | step] = (shuffle(rows[n], rows[n | step], order) for order in orders)
        rows = out
    return rows


# ---------------------------------------------------------------- loops over tiles


def fetch_next(emitter: "Emitter", loop: For) -> None:
    """At the start of an iteration of ``loop``, if that is a tile: asks for the lines of the tile beside it.

    Tiles read and write a few elements of many lines in as many pages, which no hardware prefetcher foresees;
    above all, stores would wait for their lines one after another.  Other operands lie in rows and need no
    help.  Beside the last tile of a row the reads would be for nothing, so there must be many.
    """
    fills = [s for s in loop.body if isinstance(s, For) and _is_transpose(s)]
    nests = [s for s in loop.body if isinstance(s, For) and s not in fills]
    if not fills or len(nests) != 1:
        return
    rows, columns = nests[0], nests[0].body[0]
    size = constant(fills[0].axis.extent)
    if not isinstance(columns, For) or {constant(rows.axis.extent), constant(columns.axis.extent)} != {size}:
        return
    stores = [s for s in columns.body if isinstance(s, Store) and s.buffer.space != "local"]
    beside = [
        a
        for a in (index_atoms(stores[0].index[0]) if stores else ())
        if isinstance(a, Axis) and a != rows.axis and constant(split(stores[0].index[0], a)[0]) == size
    ]
    if not beside or size not in SIZES:
        return
    for fill in fills:
        copy = _copy(fill)
        if copy is not None and (constant(beside[0].extent) or MANY) >= MANY:
            inner, _, load = copy
            _fetch(emitter, load, beside[0], fill.axis, inner.axis, size)
    for store in stores:
        _fetch(emitter, store, beside[0], rows.axis, columns.axis, size)


def _fetch(emitter: "Emitter", access: Load | Store, beside: Axis, rows: Axis, columns: Axis, size: int) -> None:
    """Asks for the last element of each row of ``access`` in the next iteration of ``beside``: where rows start
    within a line, the tile before it may have had their first ones.
    """
    emitter.b.module.declare("llvm.prefetch.p0", "void", "ptr, i32, i32, i32")
    index = substitute(access.index[0], {beside: ix(beside) + 1})
    for n in range(size):
        place = _place(emitter, access.buffer, index, {rows: n, columns: size - 1})
        write = int(isinstance(access, Store))
        emitter.b.line(f"call void @llvm.prefetch.p0(ptr {place}, i32 {write}, i32 3, i32 1)")
