"""scatter_reduce and index_reduce: what goes to one place combined, with or without what is there."""


from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.nodes import Expr
from lowc.ir.ops import identity
from lowc.ir.types import bool_
from lowc.lowering.builder import Builder
from lowc.lowering.indexing import integers, rows
from lowc.lowering.scalars import const, like, op
from lowc.lowering.scatter import Element, combine, gathering, scatter_combine, scattered
from lowc.lowering.values import Coords, Value, loop_order
from lowc.lowering.views import wrap

_REDUCERS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "mean": "add"}


def scatter_reduce(
    b: Builder,
    out: TensorMeta,
    self: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    if include_self and reduce != "mean":
        return scatter_combine(b, out, self, dim, index, src, _REDUCERS[reduce])
    element, shape = scattered(b, self, dim, index, src)
    return _reduced(b, out, self, shape, element, reduce, include_self)


def index_reduce(
    b: Builder,
    out: TensorMeta,
    self: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    integers(index)
    dim = wrap(dim, max(len(self.shape), 1))
    numbers, values, size = rows(index), rows(source), rows(self).shape[dim]

    def element(c: Coords) -> tuple[Coords, Expr, Expr | None]:
        where, mask = b.checked(b.load(numbers, (c[dim],)), size)
        return (*c[:dim], where, *c[dim + 1 :]), b.load(values, c), mask

    if include_self and reduce != "mean":
        return combine(b, out, self, values.shape, element, _REDUCERS[reduce])
    return _reduced(b, out, self, values.shape, element, reduce, include_self)


def _reduced(
    b: Builder, out: TensorMeta, self: Value, shape: Coords, element: Element, reduce: str, include_self: bool
) -> Value:
    """What goes to a place combined, with what is there only if ``include_self`` or if nothing goes there."""
    reducer = _REDUCERS[reduce]
    if out.dtype == bool_:
        raise NotLowered("sums into bool")
    if b.choose_parts:
        raise NotLowered(f"scatter_reduce {reduce}" + ("" if include_self else " without self"))
    target = gathering(b, out, reducer)
    wide = target.dtype
    counts = b.temp(wide, out.shape, out.strides, f"{b.stem}_count") if reduce == "mean" else None
    rank = len(out.shape)
    order = loop_order(out.shape, out.strides)
    with b.kernel():
        with b.loops(out.shape, order) as c:
            b.store(target, tuple(c), b.load(self, tuple(c)))
            if counts is not None:
                b.store(counts, tuple(c), const(int(include_self), wide))
        if not include_self:
            with b.loops(shape, range(len(shape)), "j") as c:
                place, _, mask = element(tuple(c))
                b.store(target, place[:rank], const(identity(reducer, wide), wide), mask)
        with b.loops(shape, range(len(shape)), "j") as c:
            place, value, mask = element(tuple(c))
            b.store(target, place[:rank], value, mask, reducer)
            if counts is not None:
                b.store(counts, place[:rank], const(1, wide), mask, "add")
    if counts is not None:
        return _quotient(b, out, target, counts)
    return target if wide == out.dtype else b.map(out, lambda c: b.load(target, c))


def _quotient(b: Builder, out: TensorMeta, total: Value, counts: Value) -> Value:
    def element(c: Coords) -> Expr:
        summed, count = b.load(total, c), b.let(b.load(counts, c))
        divisor = b.let(op("max", count, like(1, count)))
        if out.dtype.kind == "f":
            return op("div", summed, divisor)
        return op("floordiv", summed, divisor)

    return b.map(out, element)


