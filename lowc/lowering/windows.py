"""Windows of a storage, by strides and an offset that counts from where the storage begins.

Where an input's storage begins only the call knows: ATen looks there.  A temp has no storage of its own, lies somewhere in a
workspace, and must not be handed to ATen for that; its window is one of the buffer, counted from where the graph says that the
tensor begins.
"""

from lowc.errors import NotLowered, Unsupported
from lowc.ir.graph import TensorMeta
from lowc.ir.index import ONE, ZERO, Index, ix, prove_nonneg
from lowc.lowering.builder import Builder
from lowc.lowering.values import Coords, Value, contiguous_strides, dense_coords, is_one, loop_order
from lowc.lowering.views import Size

BY_STORAGE = frozenset({"aten.as_strided.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default"})


def lying(b: Builder, self: Value, meta: TensorMeta) -> Value:
    """``self`` with the strides and the offset that the graph says, in a temp if it has others (it is computed, or was copied).

    Raises Unsupported for a copy of what begins inside a storage: the rest of that storage is not there.
    """
    if b.is_input(self.buffer) and self.strides is not None:
        return self
    if self.strides == meta.strides and self.offset == meta.offset:
        return self
    if meta.offset != ZERO:
        raise Unsupported("a window of the storage of what was copied")
    try:
        made = b.temp(self.dtype, self.shape, meta.strides)
        b.fill(made, lambda c: b.load(self, c))
    except NotLowered as reason:
        raise Unsupported(f"a window of the storage of a temp ({reason.message})") from reason
    return made


def check_outside(b: Builder, self: Value) -> None:
    """Raises Unsupported if ATen may not be asked for a window of the storage of ``self``, which has none of its own."""
    if not b.is_input(self.buffer):
        raise Unsupported("a window of the storage of a temp")


def as_strided(
    b: Builder, out: TensorMeta, self: Value, size: object, stride: object, storage_offset: Size | None = None
) -> Value:
    offset = _start(b, self, storage_offset)
    if self.strides is None or (self.dtype != self.buffer.dtype and b.is_input(self.buffer)):
        raise NotLowered("as_strided of what is no strided window")
    same = self.dtype == self.buffer.dtype
    mapping = dense_coords(self.buffer, out.strides, offset, out.shape) if same else None
    return Value(self.buffer, self.dtype, out.shape, mapping, out.strides, offset)


def as_strided_scatter(
    b: Builder,
    out: TensorMeta,
    self: Value,
    src: Value,
    size: object,
    stride: tuple[Size, ...],
    storage_offset: Size | None = None,
) -> Value:
    """``self`` with ``src`` in the window: memory as long as ``self`` reaches, filled by it, then by ``src``.

    ATen makes a contiguous copy of what is expanded, and counts the window in that.
    """
    start = _start(b, self, storage_offset)
    if not all(prove_nonneg(extent - 1) for extent in out.shape):
        raise NotLowered("a tensor that may have no elements")
    expanded = any(step == ZERO and not is_one(extent) for extent, step in zip(out.shape, out.strides, strict=True))
    strides = contiguous_strides(out.shape) if expanded else out.strides
    if expanded:
        start = ZERO if storage_offset is None else start
    else:
        start = start - self.offset
    length = _place(tuple(extent - 1 for extent in out.shape), strides, ONE)
    memory = b.temp(out.dtype, (length,))
    if expanded:
        b.restrided.add(memory.buffer.name)
    with b.kernel():
        with b.loops(out.shape, loop_order(out.shape, strides)) as c:
            b.store(memory, (_place(tuple(c), strides, ZERO),), b.load(self, tuple(c)))
        with b.loops(src.shape, range(len(src.shape)), "j") as c:
            where = _place(tuple(c), tuple(map(ix, stride)), start)
            b.store(memory, (where,), b.load(src, tuple(c)), b.inside(where, ZERO, length))
    return Value(memory.buffer, out.dtype, out.shape, lambda c: (_place(c, strides, ZERO),), strides)


def _place(c: Coords, strides: Coords, first: Index) -> Index:
    """Where the element at ``c`` lies, counted from ``first``."""
    return sum((coordinate * step for coordinate, step in zip(c, strides, strict=True)), first)


def _start(b: Builder, self: Value, storage_offset: Size | None) -> Index:
    """Where in the buffer of ``self`` a window begins, in elements of its dtype."""
    if storage_offset is None:
        return self.offset
    if b.is_input(self.buffer):
        raise NotLowered("a window at a fixed place of an input's storage")
    return ix(storage_offset)
