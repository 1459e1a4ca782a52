"""Ops that place or move elements: cat, pad, flip, roll, repeat, and the scatters of whole slices."""

from collections.abc import Callable, Sequence

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import ONE, ZERO, Index, ix, maximum, prove_nonneg
from lowc.ir.nodes import Expr
from lowc.lowering.builder import Builder, Operand
from lowc.lowering.pad import before
from lowc.lowering.scalars import both, cast, op, select
from lowc.lowering.values import Coords, Value, channels_last, loop_order
from lowc.lowering.views import Size, normalised, unsqueezed, wrap

Lowering = Callable[..., Value]


def cat(b: Builder, out: TensorMeta, tensors: tuple[Value, ...], dim: int = 0) -> Value:
    """One kernel: the loops outside ``dim`` are shared, under them one nest for each part stores its slice; or a map."""
    dim = wrap(dim, len(out.shape))
    parts = [t for t in tensors if len(t.shape) == len(out.shape)]
    if b.choose_parts and 1 < len(parts) <= FEW:
        return b.map(out, lambda c: _chosen(b, out, parts, dim, c))
    target = b.result(out)
    order = loop_order(out.shape, out.strides)
    outer = order[: order.index(dim)]
    inner = order[order.index(dim) :]
    with b.kernel(), b.loops(out.shape, outer) as shared:
        start = ZERO
        for part in parts:
            with b.loops(part.shape, inner, "j") as own:
                place = [shared[d] if d in outer else own[d] for d in range(len(out.shape))]
                value = cast(b.load(part, tuple(place)), out.dtype)
                place[dim] = place[dim] + start
                b.store(target, tuple(place), value)
            start = start + part.shape[dim]
    return target


FEW = 4  # parts among which an element may be chosen


def _chosen(b: Builder, out: TensorMeta, parts: Sequence[Value], dim: int, c: Coords) -> Expr:
    """The element at ``c`` of ``parts`` behind one another along ``dim``: each is loaded under a mask."""
    start = ZERO
    value: Expr | None = None
    for part in parts:
        place = (*c[:dim], c[dim] - start, *c[dim + 1 :])
        mask = b.inside(place[dim], ZERO, part.shape[dim])
        mask = None if mask is None else b.let(mask)
        loaded = cast(b.load(part, place, mask), out.dtype)
        value = loaded if value is None or mask is None else select(mask, loaded, value)
        start = start + part.shape[dim]
    assert value is not None
    return value


def stack(b: Builder, out: TensorMeta, tensors: tuple[Value, ...], dim: int = 0) -> Value:
    dim = wrap(dim, len(out.shape))
    return cat(b, out, tuple(unsqueezed(t, dim) for t in tensors), dim)


def copying(view: Callable[..., Value]) -> Lowering:
    """The ``*_copy`` form of a view op."""

    def lower(b: Builder, out: TensorMeta, *args: object, **kwargs: object) -> Value:
        source = view(b, out, *args, **kwargs)
        return b.map(out, lambda c: b.load(source, c))

    return lower


def constant_pad(
    b: Builder, out: TensorMeta, self: Value, pad: Sequence[Size], value: Operand = 0.0
) -> Value:
    """``pad`` holds (before, after) from the last dimension to the first; negative amounts crop."""
    starts = before(self.shape, pad)

    def element(c: Coords) -> Expr:
        mask: Expr | None = None
        inner = tuple(x - start for x, start in zip(c, starts, strict=True))
        for x, extent in zip(inner, self.shape, strict=True):
            mask = both(mask, b.inside(x, ZERO, extent))
        if mask is None:
            return b.load(self, inner)
        mask = b.let(mask)
        return select(mask, b.load(self, inner, mask), b.number(value, self.dtype))

    return b.map(out, element)


def flip(b: Builder, out: TensorMeta, self: Value, dims: Sequence[int]) -> Value:
    flipped = {wrap(d, len(self.shape)) for d in dims}

    def element(c: Coords) -> Expr:
        return b.load(self, tuple(self.shape[d] - 1 - x if d in flipped else x for d, x in enumerate(c)))

    return b.map(out, element)


def roll(
    b: Builder, out: TensorMeta, self: Value, shifts: Size | Sequence[Size], dims: int | Sequence[int] = ()
) -> Value:
    moved = [dims] if isinstance(dims, int) else list(dims)
    amounts = [shifts] if isinstance(shifts, int | Index) else list(shifts)
    if not moved:
        raise NotLowered("roll of the flattened tensor")
    by: dict[int, Index] = {}
    for dim, amount in zip(moved, amounts, strict=True):
        dim = wrap(dim, len(self.shape))
        by[dim] = by.get(dim, ZERO) + amount

    def element(c: Coords) -> Expr:
        return b.load(self, tuple((x - by[d]) % some(self.shape[d]) if d in by else x for d, x in enumerate(c)))

    if len(moved) == 1:
        return filled_as(b, out, self, element)
    return b.map(out, element)


def filled_as(b: Builder, out: TensorMeta, self: Value, element: Callable[[Coords], Expr]) -> Value:
    """A map whose result is channels_last if ``self`` is, as eager has it (the graph says contiguous)."""
    if len(out.shape) not in (4, 5) or self.strides != channels_last(self.shape):
        return b.map(out, element)
    target = b.restride(out, channels_last(out.shape))
    b.fill(target, element)
    return target


def some(extent: Index) -> Index:
    """``extent``, which divides a coordinate: nothing has coordinates where it is 0, but nothing may be divided by 0 either."""
    return extent if prove_nonneg(extent - 1) else maximum(extent, ONE)


def channel_shuffle(b: Builder, out: TensorMeta, self: Value, groups: int) -> Value:
    """Channel c of the result is channel (c % groups) * (channels / groups) + c // groups."""
    each = self.shape[1] // groups

    def element(c: Coords) -> Expr:
        return b.load(self, (c[0], c[1] % groups * each + c[1] // groups, *c[2:]))

    return filled_as(b, out, self, element)


def repeat(b: Builder, out: TensorMeta, self: Value, repeats: Sequence[Size]) -> Value:
    added = len(out.shape) - len(self.shape)

    def element(c: Coords) -> Expr:
        return b.load(
            self,
            tuple(
                x if n == m else x % some(n)
                for x, n, m in zip(c[added:], self.shape, out.shape[added:], strict=True)
            ),
        )

    return b.map(out, element)


def slice_scatter(
    b: Builder,
    out: TensorMeta,
    self: Value,
    src: Value,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: int = 1,
) -> Value:
    """``self`` with ``src`` in place of a slice."""
    dim = wrap(dim, len(self.shape))
    first, last = normalised(self, dim, start, end)

    def element(c: Coords) -> Expr:
        mask = b.inside(c[dim], first, last)
        position = c[dim] - first
        if step != 1:
            mask = both(mask, op("eq", b.index(position % step), b.index(ZERO)))
        inner = (*c[:dim], position if step == 1 else position // step, *c[dim + 1 :])
        if mask is None:
            return cast(b.load(src, inner), self.dtype)
        mask = b.let(mask)
        return select(mask, cast(b.load(src, inner, mask), self.dtype), b.load(self, c))

    return b.map(out, element)


def diagonal_scatter(
    b: Builder, out: TensorMeta, self: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    rank = len(self.shape)
    first, second = wrap(dim1, rank), wrap(dim2, rank)
    rest = [d for d in range(rank) if d not in (first, second)]
    length = src.shape[-1]

    def element(c: Coords) -> Expr:
        along = c[first] if offset >= 0 else c[first] + offset
        hit = op("eq", b.index(c[second] - c[first]), b.index(ix(offset)))
        mask = b.let(both(b.inside(along, ZERO, length), hit) or hit)
        return select(mask, cast(b.load(src, (*(c[d] for d in rest), along), mask), self.dtype), b.load(self, c))

    return b.map(out, element)


def select_scatter(b: Builder, out: TensorMeta, self: Value, src: Value, dim: int, index: Size) -> Value:
    dim = wrap(dim, len(self.shape))
    where = ix(index)
    if prove_nonneg(-1 - where):
        where = where + self.shape[dim]
    elif not prove_nonneg(where):
        raise NotLowered("an index of unknown sign")

    def element(c: Coords) -> Expr:
        mask = b.let(op("eq", b.index(c[dim]), b.index(where)))
        return select(mask, cast(b.load(src, (*c[:dim], *c[dim + 1 :]), mask), self.dtype), b.load(self, c))

    return b.map(out, element)
