"""Places in short sorted sequences: bucketize and searchsorted, which count the elements in front."""

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import constant
from lowc.ir.nodes import Expr
from lowc.ir.types import i64
from lowc.lowering.builder import Builder, Operand
from lowc.lowering.promotion import common_dtype
from lowc.lowering.scalars import cast, op, widen
from lowc.lowering.values import Coords, Value, loop_order

LONG = 64  # elements from which ATen's binary search is better


def bucketize(
    b: Builder, out: TensorMeta, self: Operand, boundaries: Value, *, out_int32: bool = False, right: bool = False
) -> Value:
    return _counted(b, out, self, boundaries, right)


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
    if sorter is not None:
        raise NotLowered("a search in what a permutation sorts")
    return _counted(b, out, self, sorted_sequence, right or side == "right")


def _counted(b: Builder, out: TensorMeta, self: Operand, sequence: Value, right: bool) -> Value:
    """How many elements of a row are not above (or with ``right`` not greater than) the one looked for; all for a NaN."""
    length = constant(sequence.shape[-1])
    if length is None or length > LONG:
        raise NotLowered("a search in a long sequence")
    dtype = common_dtype((self, sequence))
    rows = len(sequence.shape) > 1
    target = b.result(out)
    with b.kernel(), b.loops(out.shape, loop_order(out.shape, out.strides)) as found:
        c: Coords = tuple(found)
        wanted = b.let(widen(b.read(self, c, dtype)))
        acc = b.acc("add", i64)
        with b.loop(length, "k") as k:
            other: Expr = widen(cast(b.load(sequence, (*c[:-1], k) if rows else (k,)), dtype))
            beyond = op("gt" if right else "ge", other, wanted)
            b.update(acc, "add", cast(op("not", beyond), i64))
        b.store(target, c, acc[0])
    return target
