"""Ops that only change how memory is seen: they emit nothing, the result is a coordinate map over the same buffer."""

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import (
    ONE,
    ZERO,
    Atom,
    Index,
    Symbol,
    axes_and_symbols,
    constant,
    ix,
    maximum,
    minimum,
    prove_nonneg,
    substitute,
)
from lowc.ir.types import DType, c64, c128, f32, f64
from lowc.lowering.builder import Builder
from lowc.lowering.values import (
    Coords,
    Value,
    is_one,
    remap,
    reshape_coords,
    reshape_strides,
)

Size = int | Index


def wrap(dim: int, rank: int) -> int:
    """A dimension number counted from the front."""
    return dim + max(rank, 1) if dim < 0 else dim


def same(b: Builder, out: TensorMeta, self: Value, *_: object, **__: object) -> Value:
    return self


def permuted(self: Value, dims: list[int]) -> Value:
    def mapping(c: Coords) -> Coords:
        inner = [ZERO] * len(dims)
        for position, dim in enumerate(dims):
            inner[dim] = c[position]
        return tuple(inner)

    strides = None if self.strides is None else tuple(self.strides[d] for d in dims)
    return remap(self, tuple(self.shape[d] for d in dims), mapping, strides)


def permute(b: Builder, out: TensorMeta, self: Value, dims: tuple[int, ...]) -> Value:
    return permuted(self, [wrap(d, len(dims)) for d in dims])


def transpose(b: Builder, out: TensorMeta, self: Value, dim0: int, dim1: int) -> Value:
    rank = len(self.shape)
    if rank == 0:
        return self
    dims = list(range(rank))
    first, second = wrap(dim0, rank), wrap(dim1, rank)
    dims[first], dims[second] = dims[second], dims[first]
    return permuted(self, dims)


def t(b: Builder, out: TensorMeta, self: Value) -> Value:
    return permuted(self, list(reversed(range(len(self.shape)))))


def expanded(self: Value, shape: Coords) -> Value:
    """``self`` broadcast to ``shape``."""
    added = len(shape) - len(self.shape)
    stretched = [is_one(n) and not is_one(m) for n, m in zip(self.shape, shape[added:], strict=True)]

    def mapping(c: Coords) -> Coords:
        return tuple(ZERO if s else x for s, x in zip(stretched, c[added:], strict=True))

    strides = self.strides
    if strides is not None:
        strides = (
            *(ZERO for _ in range(added)),
            *(ZERO if s else x for s, x in zip(stretched, strides, strict=True)),
        )
    return remap(self, shape, mapping, strides)


def expand(
    b: Builder, out: TensorMeta, self: Value, size: tuple[Size, ...], *, implicit: bool = False
) -> Value:
    return expanded(self, out.shape)


def normalised(self: Value, dim: int, start: Size | None, end: Size | None) -> tuple[Index, Index]:
    """(start, end) of a slice, wrapped and clamped to the size as Python does."""
    extent = self.shape[dim]

    def bound(value: Size | None, default: Index) -> Index:
        if value is None:
            return default
        index = ix(value)
        if prove_nonneg(-1 - index):
            return maximum(index + extent, ZERO)
        if not prove_nonneg(index):
            raise NotLowered("a slice bound of unknown sign")
        return minimum(index, extent)

    first = bound(start, ZERO)
    return first, maximum(bound(end, extent), first)


def slice_(
    b: Builder,
    out: TensorMeta,
    self: Value,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> Value:
    dim = wrap(dim, len(self.shape))
    first, _ = normalised(self, dim, start, end)
    return sliced(self, dim, first, out.shape[dim], ix(step))


def sliced(self: Value, dim: int, start: Index, extent: Index, step: Index = ONE) -> Value:
    def mapping(c: Coords) -> Coords:
        return (*c[:dim], c[dim] * step + start, *c[dim + 1 :])

    shape = (*self.shape[:dim], extent, *self.shape[dim + 1 :])
    if self.strides is None:
        return remap(self, shape, mapping, None)
    strides = (*self.strides[:dim], self.strides[dim] * step, *self.strides[dim + 1 :])
    return remap(self, shape, mapping, strides, self.strides[dim] * start)


def narrow(b: Builder, out: TensorMeta, self: Value, dim: int, start: Size, length: Size) -> Value:
    dim = wrap(dim, len(self.shape))
    return sliced(self, dim, _position(self, dim, start), ix(length))


def _position(self: Value, dim: int, index: Size) -> Index:
    """An index into ``dim``, wrapped if negative."""
    where = ix(index)
    if prove_nonneg(where):
        return where
    if prove_nonneg(-1 - where):
        return where + self.shape[dim]
    raise NotLowered("an index of unknown sign")


def selected(self: Value, dim: int, index: Index) -> Value:
    def mapping(c: Coords) -> Coords:
        return (*c[:dim], index, *c[dim:])

    shape = (*self.shape[:dim], *self.shape[dim + 1 :])
    if self.strides is None:
        return remap(self, shape, mapping, None)
    return remap(
        self, shape, mapping, (*self.strides[:dim], *self.strides[dim + 1 :]), self.strides[dim] * index
    )


def select(b: Builder, out: TensorMeta, self: Value, dim: int, index: Size) -> Value:
    dim = wrap(dim, len(self.shape))
    return selected(self, dim, _position(self, dim, index))


def unsqueezed(self: Value, dim: int) -> Value:
    strides = self.strides
    if strides is not None:
        step = self.shape[dim] * strides[dim] if dim < len(strides) else ONE
        strides = (*strides[:dim], step, *strides[dim:])
    return remap(
        self, (*self.shape[:dim], ONE, *self.shape[dim:]), lambda c: (*c[:dim], *c[dim + 1 :]), strides
    )


def unsqueeze(b: Builder, out: TensorMeta, self: Value, dim: int) -> Value:
    return unsqueezed(self, wrap(dim, len(self.shape) + 1))


def squeezed(self: Value, dims: list[int]) -> Value:
    """Without the dimensions of ``dims``, which have size 1."""
    kept = [d for d in range(len(self.shape)) if d not in dims]

    def mapping(c: Coords) -> Coords:
        inner = [ZERO] * len(self.shape)
        for position, dim in enumerate(kept):
            inner[dim] = c[position]
        return tuple(inner)

    strides = None if self.strides is None else tuple(self.strides[d] for d in kept)
    return remap(self, tuple(self.shape[d] for d in kept), mapping, strides)


def squeeze(b: Builder, out: TensorMeta, self: Value, dim: int | tuple[int, ...] | None = None) -> Value:
    rank = len(self.shape)
    wanted = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    return squeezed(self, [d for d in (wrap(x, rank) for x in wanted) if rank and is_one(self.shape[d])])


def view(b: Builder, out: TensorMeta, self: Value, size: tuple[Size, ...] = ()) -> Value:
    """A view of another shape.  Torch has checked that no copy is needed, except where it replays the views of memory that was
    written to: those of what the op gave instead, whose strides may be others.  There only the order of elements counts."""
    strides = None
    if self.strides is not None:
        strides = reshape_strides(self.shape, self.strides, out.shape)
        if strides is None and self.buffer.name not in b.restrided and _was_view(self.shape, self.strides, out.shape):
            strides = out.strides
    return remap(self, out.shape, reshape_coords(self.shape, out.shape), strides)


def _was_view(shape: Coords, strides: Coords, new: Coords) -> bool:
    """Whether ``new`` views the same elements with the sizes of the traced call."""
    symbols = {a for index in (*shape, *strides, *new) for a in axes_and_symbols(index) if isinstance(a, Symbol)}
    traced: dict[Atom, Index] = {s: ix(s.hint) for s in symbols if s.hint is not None}
    before, steps, after = (tuple([substitute(n, traced) for n in each]) for each in (shape, strides, new))
    return reshape_strides(before, steps, after) is not None


def reshape(b: Builder, out: TensorMeta, self: Value, *_: object) -> Value:
    """A view if torch makes one (then strides exist), else a copy."""
    if self.strides is not None and reshape_strides(self.shape, self.strides, out.shape) is None:
        moved = remap(self, out.shape, reshape_coords(self.shape, out.shape), None)
        return b.map(out, lambda c: b.load(moved, c))
    return view(b, out, self)


def contiguous(b: Builder, out: TensorMeta, self: Value, *, memory_format: object = None) -> Value:
    if self.strides is not None and self.strides == out.strides:
        return self
    return b.map(out, lambda c: b.load(self, c))


def split_at(self: Value, dim: int, outs: tuple[TensorMeta | None, ...]) -> tuple[Value, ...]:
    """Consecutive slices along ``dim`` of the sizes that the result types have."""
    start = ZERO
    parts: list[Value] = []
    for out in outs:
        assert isinstance(out, TensorMeta)
        parts.append(sliced(self, dim, start, out.shape[dim]))
        start = start + out.shape[dim]
    return tuple(parts)


def split(
    b: Builder, outs: tuple[TensorMeta | None, ...], self: Value, split_size: object, dim: int = 0
) -> tuple[Value, ...]:
    return split_at(self, wrap(dim, len(self.shape)), outs)


def unbind(b: Builder, outs: tuple[TensorMeta | None, ...], self: Value, dim: int = 0) -> tuple[Value, ...]:
    dim = wrap(dim, len(self.shape))
    return tuple(selected(self, dim, ix(n)) for n in range(len(outs)))


def diagonal(
    b: Builder, out: TensorMeta, self: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    rank = len(self.shape)
    first, second = wrap(dim1, rank), wrap(dim2, rank)
    kept = [d for d in range(rank) if d not in (first, second)]
    down, right = max(-offset, 0), max(offset, 0)

    def mapping(c: Coords) -> Coords:
        inner = [ZERO] * rank
        for position, dim in enumerate(kept):
            inner[dim] = c[position]
        inner[first], inner[second] = c[-1] + down, c[-1] + right
        return tuple(inner)

    if self.strides is None:
        return remap(self, out.shape, mapping, None)
    strides = (*(self.strides[d] for d in kept), self.strides[first] + self.strides[second])
    empty = constant(out.shape[-1]) == 0
    start = ZERO if empty else self.strides[first] * down + self.strides[second] * right
    return remap(self, out.shape, mapping, strides, start)


def unfold(b: Builder, out: TensorMeta, self: Value, dimension: int, size: int, step: int) -> Value:
    """Windows of ``size`` along a dimension, which become a new last dimension."""
    if not self.shape:
        return remap(self, out.shape, lambda c: (), (ONE,))
    dim = wrap(dimension, len(self.shape))

    def mapping(c: Coords) -> Coords:
        return (*c[:dim], c[dim] * step + c[-1], *c[dim + 1 : -1])

    strides = self.strides
    if strides is not None:
        strides = (*strides[:dim], strides[dim] * step, *strides[dim + 1 :], strides[dim])
    return remap(self, out.shape, mapping, strides)


def view_dtype(b: Builder, out: TensorMeta, self: Value, dtype: DType) -> Value:
    """The bits of ``self`` as another dtype; of another width it is a window only ATen can read."""
    if dtype.bits == self.dtype.bits:
        return Value(self.buffer, dtype, self.shape, self.coords, self.strides, self.offset)
    return reinterpreted(self, out)


def reinterpreted(self: Value, out: TensorMeta) -> Value:
    """``self`` seen with another element size, with the shape and strides of ``out``."""
    if self.strides is None:
        raise NotLowered("reinterprets what is no strided window")
    scale, left = divmod(self.dtype.bits, out.dtype.bits)
    if scale:
        offset = self.offset * scale
    else:
        factor = out.dtype.bits // self.dtype.bits
        offset, left = self.offset // factor, constant(self.offset % factor)
    if left != 0:
        raise NotLowered("reinterprets at an odd offset")
    return Value(self.buffer, out.dtype, out.shape, None, out.strides, offset)


def complex_parts(b: Builder, out: TensorMeta, self: Value) -> Value:
    """view_as_real and view_as_complex."""
    if {self.dtype, out.dtype} not in ({c64, f32}, {c128, f64}):
        raise NotLowered(f"{self.dtype} as {out.dtype}")
    return reinterpreted(self, out)
