"""The instruction ``transpose``: a square tile read along its contiguous axis and written along the other,
in registers.

Its meaning is the nest ``for j in N { for i in N { tile[i*N + j] = source[base + j*S + i] } }`` for N = 16
and 32-bit elements (4x4 blocks by unpack and shuffle, then 128-bit lanes exchanged: the usual four-stage
transpose of an AVX-512 register file).
"""

from typing import TYPE_CHECKING

from lowc.backends.llvm.types import memory
from lowc.backends.x86.region import scalar_index
from lowc.ir.index import constant, ix, split, substitute
from lowc.ir.nodes import For, Load, Store

if TYPE_CHECKING:
    from lowc.backends.x86.emit import Emitter

SIZE = 16


def emit(emitter: "Emitter", outer: For) -> bool:
    """Emits the nest if it is one that registers can do; False if plain loops must."""
    inner = outer.body[0] if len(outer.body) == 1 else None
    if not isinstance(inner, For) or len(inner.body) != 1 or not isinstance(inner.body[0], Store):
        return False
    store = inner.body[0]
    load = store.value
    if not isinstance(load, Load) or load.mask is not None or store.mask is not None or store.reducer:
        return False
    if load.dtype.bits != 32 or constant(outer.axis.extent) != SIZE or constant(inner.axis.extent) != SIZE:
        return False
    if "scalef" not in emitter.r.ops:
        return False  # no 512-bit registers
    steps = (
        split(store.index[0], inner.axis)[0],
        split(store.index[0], outer.axis)[0],
        split(load.index[0], inner.axis)[0],
    )
    if tuple(map(constant, steps)) != (SIZE, 1, 1):
        return False
    r, b = emitter.r, emitter.b
    element = memory(load.dtype)
    vector = f"<{SIZE} x {element}>"
    rows: list[str] = []
    for n in range(SIZE):
        index = substitute(load.index[0], {outer.axis: ix(n), inner.axis: ix(0)})
        place = b.pure(
            f"getelementptr {element}, ptr {r.pointers[load.buffer.name]}, i64 {scalar_index(r, index)}"
        )
        rows.append(b.op(f"load {vector}, ptr {place}, align 4"))
    for n, row in enumerate(_transposed(emitter, rows, vector)):
        index = substitute(store.index[0], {outer.axis: ix(0), inner.axis: ix(n)})
        place = b.pure(
            f"getelementptr {element}, ptr {r.pointers[store.buffer.name]}, i64 {scalar_index(r, index)}"
        )
        b.line(f"store {vector} {row}, ptr {place}, align 4")
    return True


def _transposed(emitter: "Emitter", rows: list[str], vector: str) -> list[str]:
    def shuffle(a: str, c: str, order: list[int]) -> str:
        mask = ", ".join(f"i32 {n}" for n in order)
        return emitter.b.pure(f"shufflevector {vector} {a}, {vector} {c}, <{SIZE} x i32> <{mask}>")

    quads = range(4)
    low = [n for q in quads for n in (4 * q, SIZE + 4 * q, 4 * q + 1, SIZE + 4 * q + 1)]
    high = [n for q in quads for n in (4 * q + 2, SIZE + 4 * q + 2, 4 * q + 3, SIZE + 4 * q + 3)]
    first = [n for q in quads for n in (4 * q, 4 * q + 1, SIZE + 4 * q, SIZE + 4 * q + 1)]
    second = [n for q in quads for n in (4 * q + 2, 4 * q + 3, SIZE + 4 * q + 2, SIZE + 4 * q + 3)]
    blocks: list[list[str]] = []
    for group in quads:
        a, c, d, e = rows[4 * group : 4 * group + 4]
        t0, t1, t2, t3 = shuffle(a, c, low), shuffle(a, c, high), shuffle(d, e, low), shuffle(d, e, high)
        blocks.append(
            [shuffle(t0, t2, first), shuffle(t0, t2, second), shuffle(t1, t3, first), shuffle(t1, t3, second)]
        )

    def exchange(a: str, c: str, which: tuple[int, ...]) -> str:
        return shuffle(a, c, [4 * q + n for q in which for n in range(4)])

    out = [""] * SIZE
    for column in quads:
        a, c, d, e = (blocks[group][column] for group in quads)
        x0, x1 = exchange(a, c, (0, 1, 4, 5)), exchange(d, e, (0, 1, 4, 5))
        y0, y1 = exchange(a, c, (2, 3, 6, 7)), exchange(d, e, (2, 3, 6, 7))
        out[column] = exchange(x0, x1, (0, 2, 4, 6))
        out[4 + column] = exchange(x0, x1, (1, 3, 5, 7))
        out[8 + column] = exchange(y0, y1, (0, 2, 4, 6))
        out[12 + column] = exchange(y0, y1, (1, 3, 5, 7))
    return out
