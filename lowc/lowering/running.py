"""Running extrema with their places: cummax and cummin.

Of equal elements the last one so far counts, and of NaNs the last (``ATen/native/ReduceOps.cpp``: ``isnan(x) || x >= out``).
"""

from collections.abc import Callable, Sequence

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.types import bool_, i64
from lowc.lowering.builder import Builder
from lowc.lowering.scalars import const, is_nan, op, select
from lowc.lowering.values import Value, loop_order
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
