"""Running extrema with their places (cummax and cummin), and running sums of exponentials (logcumsumexp).

Of equal elements the last one so far counts, and of NaNs the last (``ATen/native/ReduceOps.cpp``: ``isnan(x) || x >= out``).
"""

from collections.abc import Callable, Sequence

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index
from lowc.ir.nodes import Expr
from lowc.ir.types import bool_, f64, i64
from lowc.lowering.builder import Builder
from lowc.lowering.reduce import only_floats
from lowc.lowering.scalars import cast, const, is_nan, like, op, select
from lowc.lowering.values import Coords, Value, is_one, loop_order
from lowc.lowering.views import unsqueezed, wrap


def extremum(reducer: str) -> Callable[..., tuple[Value, ...]]:
    """cummax ("max") and cummin ("min")."""

    def lower(
        b: Builder, outs: Sequence[TensorMeta | None], self: Value, dim: int
    ) -> tuple[Value, ...]:
        if self.dtype == bool_ or b.choose_parts:
            raise NotLowered("a running extremum of bool" if self.dtype == bool_ else "a running extremum on a GPU")
        known = next((o for o in outs if o is not None), None)
        if known is None:
            raise NotLowered("no result is used")
        targets = [None if o is None else b.result(o, f"{b.stem}_{n}") for n, o in enumerate(outs)]
        rank = len(self.shape)
        source = self if rank else unsqueezed(self, 0)
        along = wrap(dim, max(rank, 1))
        outer = [d for d in loop_order(known.shape, known.strides) if d != along]
        with b.kernel(), b.loops(source.shape, outer) as coords:
            best, place = b.acc(reducer, self.dtype), b.acc("max", i64)
            with b.loop(source.shape[along], "k") as k:
                here = tuple(k if d == along else c for d, c in enumerate(coords))
                x = b.let(b.load(source, here))
                b.update(best, reducer, x)
                hit = op("eq", x, best[0])
                if self.dtype.kind == "f":
                    hit = op("or", hit, is_nan(x))
                b.update(place, "max", select(hit, b.index(k), const(0, i64)))
                for target, value in zip(targets, (best[0], place[0]), strict=True):
                    if target is not None:
                        b.store(target, here[:rank], value)
        return tuple(t for t in targets if t is not None)

    return lower


def logcumsumexp(b: Builder, out: TensorMeta, self: Value, dim: int) -> Value:
    """log(exp(x[0]) + ... + exp(x[k])), one element after the other in f64 as in ATen: no reducer does it, so that what there is
    of a row is kept in memory."""
    only_floats(self, "logcumsumexp")
    if b.choose_parts:
        raise NotLowered("logcumsumexp on a GPU")
    target = b.result(out)
    rank = len(self.shape)
    if not rank:
        b.fill(target, lambda c: b.load(self, c))
        return target
    along = wrap(dim, rank)
    order = loop_order(out.shape, out.strides)
    outer, inner = order[: order.index(along)], order[order.index(along) + 1 :]
    if all(is_one(self.shape[d]) for d in inner):
        raise NotLowered("logcumsumexp along the innermost dimension: each element waits for the one before, on one lane")
    kept = b.temp(f64, tuple(n for d, n in enumerate(self.shape) if d != along), name=f"{b.stem}_kept")
    with b.kernel(), b.loops(self.shape, outer) as around:

        def row(within: Sequence[Index]) -> Coords:
            return tuple(around[d] if d in outer else within[d] for d in range(rank) if d != along)

        with b.loops(self.shape, inner) as within:
            b.store(kept, row(within), const(float("-inf"), f64))
        with b.loop(self.shape[along], "k") as k, b.loops(self.shape, inner) as within:
            here = tuple(k if d == along else around[d] if d in outer else within[d] for d in range(rank))
            total = b.let(_sum_of_exponentials(cast(b.load(self, here), f64), b.load(kept, row(within))))
            b.store(kept, row(within), total)
            b.store(target, here, cast(total, out.dtype))
    return target


def _sum_of_exponentials(x: Expr, y: Expr) -> Expr:
    """log(exp(x) + exp(y)); of two equal infinities that infinity."""
    low, high = op("min", x, y), op("max", x, y)
    same = op("and", op("eq", low, high), op("eq", op("abs", low), like(float("inf"), low)))
    return select(same, x, op("add", op("log1p", op("exp", op("sub", low, high))), high))
