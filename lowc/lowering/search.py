"""Places in sorted sequences: bucketize and searchsorted, by the steps of ATen's own binary search.

The steps are the same for the sake of sequences that are not sorted, and one with NaN inside is not: the place is where they end.
"""

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index, constant
from lowc.ir.nodes import Expr
from lowc.ir.types import i64
from lowc.lowering.builder import Builder, Operand
from lowc.lowering.promotion import common_dtype
from lowc.lowering.scalars import cast, const, op, select, widen
from lowc.lowering.values import Value


def bucketize(
    b: Builder, out: TensorMeta, self: Operand, boundaries: Value, *, out_int32: bool = False, right: bool = False
) -> Value:
    return _found(b, out, self, boundaries, right)


def searchsorted(
    b: Builder,
    out: TensorMeta,
    sorted_sequence: Value,
    self: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    return _found(b, out, self, sorted_sequence, right or side == "right", sorter)


def _found(b: Builder, out: TensorMeta, self: Operand, sequence: Value, right: bool, sorter: Value | None = None) -> Value:
    """The first place whose element is not below the one looked for (with ``right`` above it); the end for a NaN."""
    length = constant(sequence.shape[-1])
    if length is None:
        raise NotLowered("a search in a sequence of symbolic length")
    dtype = common_dtype(b.default, (self, sequence))
    rows = len(sequence.shape) > 1

    def at(value: Value, c: tuple[Index, ...], place: Expr, within: Expr) -> Expr:
        where, mask = b.checked(place, value.shape[-1], within)
        return b.load(value, (*c[:-1], where) if rows else (where,), mask)

    def element(c: tuple[Index, ...]) -> Expr:
        wanted = b.let(widen(b.read(self, c, dtype)))
        first, end = const(0, i64), const(length, i64)
        for _ in range(length.bit_length()):
            within = b.let(op("lt", first, end))
            middle = b.let(op("add", first, op("shr", op("sub", end, first), const(1, i64))))
            place = middle if sorter is None else cast(at(sorter, c, middle, within), i64)
            other = widen(cast(at(sequence, c, place, within), dtype))
            beyond = b.let(op("gt" if right else "ge", other, wanted))
            first, end = (
                b.let(select(op("and", within, op("not", beyond)), op("add", middle, const(1, i64)), first)),
                b.let(select(op("and", within, beyond), middle, end)),
            )
        return first

    return b.map(out, element)
