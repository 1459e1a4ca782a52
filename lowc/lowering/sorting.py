"""Short rows sorted in registers: sort, topk, median and mode along a dimension of at most ``SHORT`` elements.

Every exchange is between neighbours and only where they are out of order, so that equal elements stay in theirs.  ATen's sort
that is not asked to be stable is so, too, up to 16 elements (``std::sort`` inserts these); longer rows are ATen's.  NaNs are the
greatest.  On a GPU only what is stable by request has a defined order.
"""

from collections.abc import Callable, Sequence

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index, constant, ix
from lowc.ir.nodes import Expr
from lowc.ir.types import DType, i32, i64
from lowc.lowering.builder import Builder, Operand
from lowc.lowering.indexing import rows
from lowc.lowering.reduce import extremum_dim
from lowc.lowering.scalars import const, is_nan, like, op, select, widen
from lowc.lowering.values import Value, contiguous_strides, loop_order
from lowc.lowering.views import wrap

SHORT = 16  # elements up to which eager's order of equal ones is known, and registers suffice
INSERTED = 3  # elements up to which std::nth_element inserts
HEAPED = 64  # elements from which on ATen's topk keeps a heap, of one element for k = 1

Pair = tuple[Expr, Expr]  # an element and its place in the row
Picked = Callable[[list[Pair]], Sequence[Pair]]


def sort(
    b: Builder, outs: Sequence[TensorMeta | None], self: Value, dim: int = -1, descending: bool = False
) -> tuple[Value, ...]:
    return _rows(b, outs, self, dim, lambda found: ordered(b, found, descending))


def sort_stable(
    b: Builder,
    outs: Sequence[TensorMeta | None],
    self: Value,
    *,
    stable: bool | None,
    dim: int = -1,
    descending: bool = False,
) -> tuple[Value, ...]:
    return _rows(b, outs, self, dim, lambda found: ordered(b, found, descending), stable=bool(stable))


def topk(
    b: Builder,
    outs: Sequence[TensorMeta | None],
    self: Value,
    k: Operand,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[Value, ...]:
    """Which of equal elements are among the k is known for very short rows, and for the largest one of long rows: the first."""
    source = rows(self)
    length = constant(source.shape[wrap(dim, len(source.shape))])
    count = constant(k) if isinstance(k, Index) else k
    if count == 1 and largest and length is not None and length >= HEAPED and self.shape and not b.atomic:
        return extremum_dim("argmax")(b, outs, self, dim, True)
    if not isinstance(count, int) or length is None or length > INSERTED:
        raise NotLowered("which of equal elements are the first k is eager's own choice")
    return _rows(b, outs, self, dim, lambda found: ordered(b, found, largest)[:count])


def median(
    b: Builder, outs: Sequence[TensorMeta | None], self: Value, dim: int, keepdim: bool = False
) -> tuple[Value, ...]:
    """The lower of two in the middle, the first of equal ones; or the first NaN."""

    def middle(found: list[Pair]) -> list[Pair]:
        value, place = ordered(b, found, False)[(len(found) - 1) // 2]
        for x, at in reversed(found) if value.dtype.kind == "f" else ():
            broken = b.let(is_nan(x))
            value, place = b.let(select(broken, x, value)), b.let(select(broken, at, place))
        return [(value, place)]

    return _rows(b, outs, self, dim, middle, keepdim)


def mode(
    b: Builder, outs: Sequence[TensorMeta | None], self: Value, dim: int = -1, keepdim: bool = False
) -> tuple[Value, ...]:
    """The smallest of the most frequent integers, the last of equal ones.  (Floats: ATen sorts by ``<``, which a NaN upsets.)"""
    if self.dtype.kind == "f":
        raise NotLowered("the mode of floats")

    def most_frequent(found: list[Pair]) -> list[Pair]:
        found = ordered(b, found, False)
        (value, place), before = found[0], found[0][0]
        run = most = const(1, i32)
        for x, at in found[1:]:
            run = b.let(select(op("eq", x, before), op("add", run, like(1, run)), like(1, run)))
            more = b.let(op("gt", run, most))
            value, place = b.let(select(more, x, value)), b.let(select(more, at, place))
            most, before = b.let(select(more, run, most)), x
        return [(value, place)]

    return _rows(b, outs, self, dim, most_frequent, keepdim)


def ordered(b: Builder, found: list[Pair], descending: bool) -> list[Pair]:
    """``found`` sorted, equal elements as they came: each in turn moves forward past those that it precedes."""
    row = list(found)
    for end in range(1, len(row)):
        for at in range(end, 0, -1):
            (x, place), (y, other) = row[at - 1], row[at]
            swap = b.let(_precedes(y, x, descending))
            row[at - 1] = b.let(select(swap, y, x)), b.let(select(swap, other, place))
            row[at] = b.let(select(swap, x, y)), b.let(select(swap, place, other))
    return row


def _precedes(x: Expr, y: Expr, descending: bool) -> Expr:
    if x.dtype.kind != "f":
        return op("gt" if descending else "lt", x, y)
    if descending:
        return op("and", op("not", op("le", x, y)), op("eq", y, y))
    return op("and", op("not", op("ge", x, y)), op("eq", x, x))


def _rows(
    b: Builder,
    outs: Sequence[TensorMeta | None],
    self: Value,
    dim: int,
    picked: Picked,
    keepdim: bool = True,
    *,
    stable: bool = False,
) -> tuple[Value, ...]:
    """One kernel: for each row all its elements with their places, of which ``picked`` makes those of the results."""
    source = rows(self)
    along = wrap(dim, len(source.shape))
    length = constant(source.shape[along])
    if b.atomic and not stable:
        raise NotLowered("the order of equal elements is open on a GPU")
    if not length or length > SHORT:
        raise NotLowered(f"sorting of rows of other than 1 to {SHORT} elements")
    known = next((o for o in outs if o is not None), None)
    if known is None:
        raise NotLowered("no result is used")
    targets = [None if o is None else b.result(o, f"{b.stem}_{n}") for n, o in enumerate(outs)]
    kept = [d for d in range(len(source.shape)) if d != along]
    shape = tuple(source.shape[d] for d in kept)
    strides = contiguous_strides(source.shape) if source.strides is None else source.strides
    with b.kernel(), b.loops(shape, loop_order(shape, tuple(strides[d] for d in kept))) as outer:
        before, after = outer[:along], outer[along:]
        found: list[Pair] = []
        for n in range(length):
            element = b.let(widen(b.load(source, (*before, ix(n), *after))))
            found.append((element, const(n, _place_dtype(element.dtype))))
        for n, pair in enumerate(picked(found)):
            place = (*before, ix(n), *after) if keepdim else (*before, *after)
            for target, value in zip(targets, pair, strict=True):
                if target is not None:
                    b.store(target, place[: len(target.shape)], value)
    return tuple(t for t in targets if t is not None)


def _place_dtype(dtype: DType) -> DType:
    """Places are kept in integers as wide as the elements, so that as many lanes hold them."""
    return i64 if dtype.bits == 64 else i32
