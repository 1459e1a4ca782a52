"""The primitive ``Ahead``: a whole factor of a contraction is copied to memory of its own, in the order of use, before its nest.

    for i in M { for j in N { acc s = add; for k in K { s add= product(x[i*K + k], y[j*K + k]) }; out[…] = f(s) } }
      →  for b_group in … { for b_chunk in … {
           for b_depth in 128 { for b_panel in 4 { for b_lane in 48 { b_ahead[b_panel*48*K + b_depth*48 + b_lane] = y[…] } } }
         } }
         for i in M { for j in N {
           acc s = add; for k in K { s add= product(x[i*K + k], b_ahead[j // 48 * 48*K + k*48 + j % 48]) }; out[…] = f(s)
         } }

Unlike ``Pack``, which copies what one block needs while that is computed, the copy is shared: each element is evaluated once,
however many blocks use it.  The memory is a new param of the kernel.  Where the last panel is not full, the rest of it is 0.
"""

from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir.index import Atom, Axis, Index, ix, lower_bound, minimum, mod
from lowc.ir.nodes import Buffer, Const, Expr, For, FromIndex, Kernel, Load, Op, Stmt, Store, Update
from lowc.ir.ops import identity
from lowc.ir.walk import Substitution, free_atoms, has_check, make_kernel, names, parts, rewrite, stores
from lowc.scheduler.contraction import product_over
from lowc.scheduler.nest import nested
from lowc.scheduler.rename import fresh


@dataclass(frozen=True, slots=True)
class Ahead:
    """The factor number ``factor`` of the products in the loop over ``axis``, which besides changes with ``along``; the new
    names start with ``name``, the memory is ``name_ahead``.

    ``panel``: (along // panel, depth, along % panel) is the order; 0: (along, depth), with room for a multiple of ``unit`` rows.
    A block of the copy has ``group`` panels (or rows), ``chunk`` deep (0: all of the depth).  ``whole``: so much of the depth is
    copied apart from the rest (0: all at once), without the masks that hold for all of it; names of the rest start with
    ``name_rest_``.
    """

    axis: str
    factor: int
    name: str
    along: str
    panel: int
    group: int
    chunk: int
    unit: int = 1
    whole: int = 0


def memory(name: str) -> str:
    """What the new param is called."""
    return f"{name}_ahead"


def ahead(kernel: Kernel, step: Ahead) -> Kernel:
    """``kernel`` with the copy in front; raises ScheduleError."""
    before = kernel.body[:-1]
    loops, acc, depth, rest, value = product_over(kernel, step.axis)
    factor = value.args[step.factor]
    if has_check(factor):
        raise ScheduleError("a factor that is checked is evaluated where it stands")
    written = {id(s.buffer) for s in stores(rest)}
    if any(isinstance(p, Load) and id(p.buffer) in written for p in parts(factor)):
        raise ScheduleError("a factor is read from memory that the kernel writes")
    used = free_atoms(factor)
    own = [f.axis for f in loops if f.axis in used]
    along = next((a for a in own if a.name == step.along), None)
    if along is None:
        raise ScheduleError(f"factor {step.factor} does not change with {step.along}")
    batch = [a for a in own if a is not along]
    taken = names(kernel.body) | {p.name for p in kernel.params}
    copy = _Copy(step, depth.axis, along, batch, taken, factor)
    args = list(value.args)
    args[step.factor] = Load(copy.memory, (copy.place({a: ix(a) for a in batch}, ix(along), ix(depth.axis)),))
    new = Update(acc.vars, acc.reducer, (Op(value.name, tuple(args), value.dtype),))
    body: tuple[Stmt, ...] = (acc, For(depth.axis, (new,), depth.kind), *rest)
    for loop in reversed(loops):
        body = (For(loop.axis, body, loop.kind),)
    return make_kernel(kernel.name, (*before, *copy.nest(), *body), (*kernel.params, copy.memory))


class _Copy:
    """The memory, and the loops that fill it."""

    def __init__(self, step: Ahead, depth: Axis, along: Axis, batch: list[Axis], taken: set[str], factor: Expr) -> None:
        self.step, self.depth, self.along, self.batch, self.taken, self.factor = step, depth, along, batch, taken, factor
        panel = step.panel or 1
        self.panels = (along.extent + (panel - 1)) // panel
        self.room = (self.panels + (step.unit - 1)) // step.unit * step.unit
        size = self.room * panel * depth.extent
        for axis in batch:
            size = size * axis.extent
        if memory(step.name) in taken:
            raise ScheduleError(f"the name {memory(step.name)} is taken")
        self.memory = Buffer(memory(step.name), factor.dtype, (size,), (ix(1),))

    def place(self, batch: dict[Axis, Index], along: Index, depth: Index) -> Index:
        panel = self.step.panel
        if not panel:
            return self.address(batch, along, depth, ix(0))
        return self.address(batch, along // panel, depth, mod(along, ix(panel)))

    def address(self, batch: dict[Axis, Index], panel: Index, depth: Index, lane: Index) -> Index:
        width, at = self.step.panel or 1, ix(0)
        for axis in self.batch:
            at = at * axis.extent + batch[axis]
        return ((at * self.room + panel) * self.depth.extent + depth) * width + lane

    def axis(self, name: str, extent: Index) -> Axis:
        return Axis(fresh(f"{self.step.name}_{name}", self.taken), extent)

    def nest(self) -> tuple[Stmt, ...]:
        even = not mod(self.along.extent, ix(self.step.panel or self.step.unit)).terms
        edge = () if even else self.edge()
        whole = self.step.whole
        if not whole:
            return (*self.part(ix(0), self.depth.extent, self.step.chunk, ""), *edge)
        first = self.part(ix(0), ix(whole), self.step.chunk, "")
        return (*first, *self.part(ix(whole), self.depth.extent - whole, 0, "rest_"), *edge)

    def part(self, start: Index, extent: Index, chunked: int, prefix: str) -> tuple[Stmt, ...]:
        """The loops that copy ``extent`` of the depth from ``start`` on."""
        step, width = self.step, self.step.panel or 1
        batch = {a: self.axis(f"{prefix}{a.name}", a.extent) for a in self.batch}
        numbers = {a: ix(b) for a, b in batch.items()}
        group = self.axis(f"{prefix}group", (self.panels + (step.group - 1)) // step.group)
        size = chunked or extent
        chunk = self.axis(f"{prefix}chunk", (extent + (chunked - 1)) // chunked if chunked else ix(1))
        high = minimum(step.group, self.panels - ix(group) * step.group)
        deep = minimum(size, extent - ix(chunk) * size)
        down, panel = self.axis(f"{prefix}depth", deep), self.axis(f"{prefix}panel", high)
        at_depth, at_panel = start + ix(chunk) * size + down, ix(group) * step.group + panel
        even = not mod(self.along.extent, ix(step.panel or step.unit)).terms
        here = ix(width) if even or not step.panel else minimum(width, self.along.extent - at_panel * width)
        lane = self.axis(f"{prefix}lane", here)
        put: dict[Atom, Index] = {**numbers, self.along: at_panel * width + (lane if step.panel else 0), self.depth: at_depth}
        value = Substitution(put).expr(self.factor)
        if step.whole:
            value = without_masks(value)
        store = Store(self.memory, (self.address(numbers, at_panel, at_depth, ix(lane) if step.panel else ix(0)),), value)
        body: tuple[Stmt, ...] = nested([down, panel, lane] if step.panel else [panel, down], (store,))
        return nested([*batch.values(), group, chunk], body)

    def edge(self) -> tuple[Stmt, ...]:
        """The rest of the last panel, or of the room for rows: set to 0, as what was there could be numbers that are slow to use.

        Apart: in the loops over all panels it would hide from the next passes which is written.
        """
        panel = self.step.panel
        batch = {a: self.axis(f"edge_{a.name}", a.extent) for a in self.batch}
        numbers = {a: ix(b) for a, b in batch.items()}
        depth = self.axis("edge_depth", self.depth.extent)
        missing = self.room * (panel or 1) - self.along.extent
        edge = self.axis("edge", missing)
        if panel:
            rest = mod(self.along.extent, ix(panel))
            place = self.address(numbers, self.along.extent // panel, ix(depth), rest + edge)
            axes = [depth, edge]
        else:
            place = self.address(numbers, self.along.extent + edge, ix(depth), ix(0))
            axes = [edge, depth]
        zero = Const(identity("add", self.factor.dtype), self.factor.dtype)
        return nested([*batch.values(), *axes], (Store(self.memory, (place,), zero),))


def without_masks(factor: Expr) -> Expr:
    """``factor`` with the loads whose masks compare coordinates, and surely hold, under none."""
    known: dict[int, Expr] = {}
    for part in parts(factor):
        mask = part.mask if isinstance(part, Load) else None
        if isinstance(part, Load) and isinstance(mask, Op) and mask.name == "lt":
            low, high = mask.args
            if isinstance(low, FromIndex) and isinstance(high, FromIndex) and (lower_bound(high.index - low.index) or 0) >= 1:
                known[id(part)] = Load(part.buffer, part.index)
    return rewrite(factor, lambda e: e, known) if known else factor
