"""Scratch memory of a block of attention and what is done in it: names, vectors, copies, products by tiles of registers."""

from collections.abc import Callable, Sequence

from lowc.errors import ScheduleError
from lowc.ir.index import ONE, Axis, Index, constant, ix, split
from lowc.ir.nodes import Buffer, Expr, For, Kind, Let, Load, Stmt, Store, Var
from lowc.ir.types import DType
from lowc.ir.walk import Substitution, map_statements, parts
from lowc.scheduler.apply import Tile, tiled
from lowc.scheduler.conflict import bind
from lowc.scheduler.nest import nested
from lowc.scheduler.registers import Registers, registers
from lowc.scheduler.rename import coordinate, fresh, let

End = Callable[[Store], Store]


class Scratch:
    """``dtype``: of sums; ``lanes``: of a vector; ``taken``: names of the kernel."""

    def __init__(self, dtype: DType, lanes: int, taken: set[str]) -> None:
        self.dtype, self.lanes, self.taken = dtype, lanes, taken

    def axis(self, name: str, extent: int | Index) -> Axis:
        return Axis(fresh(name, self.taken), ix(extent))

    def array(self, name: str, count: int, dtype: DType | None = None) -> Buffer:
        return Buffer(fresh(name, self.taken), dtype or self.dtype, (ix(count),), (ONE,), "local")

    def named(self, name: str, index: Index, lets: list[Stmt]) -> Index:
        return coordinate(name, index, self.taken, lets)

    def let(self, name: str, value: Expr, body: list[Stmt]) -> Var:
        return let(name, value, self.taken, body)

    def bound(self, loop: For) -> For:
        """``loop`` on lanes, if it can be; one iteration needs none, and what it stores may lie still."""
        if constant(loop.axis.extent) == 1:
            return loop
        try:
            return bind(loop, Kind("vector", self.lanes))
        except ScheduleError:
            return loop

    def vectors(self, wide: int, body: Callable[[Index], Sequence[Stmt]]) -> For:
        """``body`` for each of ``wide`` places, of which it is told the number: vectors, one after the other."""
        vector, lane = self.axis("v", wide // self.lanes), self.axis("r", self.lanes)
        inner = For(lane, tuple(body(ix(vector) * self.lanes + lane)), Kind("vector", self.lanes))
        if constant(vector.extent) == 1:
            return Substitution({vector: ix(0)}).body((inner,))[0]  # type: ignore[return-value]
        return For(vector, (inner,), Kind("unroll", wide // self.lanes))

    def copy(self, outer: Axis, inner: Axis, *body: Stmt) -> tuple[Stmt, ...]:
        """``body`` for all of ``outer`` and ``inner``, along which what is stored is contiguous."""
        reads = [p for s in body if isinstance(s, Let | Store) for p in parts(s.value) if isinstance(p, Load)]
        if all(constant(split(p.index[0], inner)[0]) in (0, 1) for p in reads):
            return (For(outer, (self.bound(For(inner, tuple(body))),)),)
        loop = For(outer, (For(inner, tuple(body)),))
        try:
            return tiled(loop, Tile(outer.name, inner.name, self.lanes, self.lanes, 1, True), self.taken)
        except ScheduleError:
            return (loop,)

    def product(
        self, axes: tuple[Axis, Axis, Axis], add: Store, tile: tuple[int, int], roomy: tuple[str, ...], end: End
    ) -> tuple[Stmt, ...]:
        """The sums of products, over depth, rows and columns, by tiles of registers, each of which goes to memory as ``end``
        makes it of an addition; tiles stay within memory called ``roomy``."""
        (loop,) = nested(axes, (add,))
        assert isinstance(loop, For)
        body = registers(loop, Registers(axes[0].name, *tile, self.lanes, roomy), self.taken)
        return map_statements(body, lambda s: (end(s),) if isinstance(s, Store) and s.buffer is add.buffer else (s,))
