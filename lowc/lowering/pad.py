"""Reflection and replication padding and their gradients, which add up what each element was copied to."""

from collections.abc import Callable, Sequence

from lowc.ir.graph import TensorMeta
from lowc.ir.index import ZERO, Index, constant, ix, maximum, minimum
from lowc.ir.nodes import Expr
from lowc.lowering.builder import Builder
from lowc.lowering.scatter import combine
from lowc.lowering.values import Coords, Value
from lowc.lowering.views import Size

Place = Callable[[Index, Index], Index]


def before(shape: Coords, pad: Sequence[Size]) -> list[Index]:
    """How much is added in front of each dimension; ``pad`` has pairs, the last dimension first."""
    found = [ZERO] * len(shape)
    for n in range(len(pad) // 2):
        found[len(found) - 1 - n] = ix(pad[2 * n])
    return found


def reflected(x: Index, extent: Index) -> Index:
    """Folded back at both ends, the edge elements not repeated."""
    last = extent - 1
    away = maximum(x, -x)
    return last - maximum(last - away, away - last)


def nearest(x: Index, extent: Index) -> Index:
    """The edge element for what lies outside."""
    return maximum(minimum(x, extent - 1), ZERO)


def pad(place: Place) -> Callable[..., Value]:
    def lower(b: Builder, out: TensorMeta, self: Value, padding: Sequence[Size]) -> Value:
        source = _source(place, self.shape, out.shape, padding)
        return b.map(out, lambda c: b.load(self, source(c)))

    return lower


def pad_backward(place: Place) -> Callable[..., Value]:
    def lower(
        b: Builder, out: TensorMeta, grad_output: Value, self: Value, padding: Sequence[Size]
    ) -> Value:
        source = _source(place, out.shape, grad_output.shape, padding)

        def element(c: Coords) -> tuple[Coords, Expr, Expr | None]:
            return source(c), b.load(grad_output, c), None

        return combine(b, out, None, grad_output.shape, element)

    return lower


def _source(
    place: Place, shape: Coords, padded: Coords, padding: Sequence[Size]
) -> Callable[[Coords], Coords]:
    """From coordinates in what is padded to those that its elements are copied from."""
    starts = before(shape, padding)

    def source(c: Coords) -> Coords:
        return tuple(
            x if constant(s) == 0 and n == m else place(x - s, n)
            for x, s, n, m in zip(c, starts, shape, padded, strict=True)
        )

    return source
