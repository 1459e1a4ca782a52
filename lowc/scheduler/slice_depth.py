"""Division of a product's depth among blocks (split-K): a product of few tiles becomes sums of slices, and what adds them up.

    for i in 256 { for j in 256 {                       →  for c in 8 { for i in 256 { for j in 256 {
      acc s = add                                            acc p = add
      for k in 16384 { s add= product(x[i, k], y[j, k]) }    for k in 2048 { p add= product(x[i, c*2048 + k], y[j, c*2048 + k]) }
      out[i, j] = f(s)                                       parts[c, i, j] = p
    } }                                                    } } }
                                                           for i in 256 { for j in 256 {
                                                             s = ((parts[0, i, j] + parts[1, i, j]) + …); out[i, j] = f(s)
                                                           } }

Both are launches of their own.  The first is a contraction again, with one more loop in front; the second is a map, which reads
all slices of an element at once.  Slices are added in their order, so that results are a function of sizes and target.  Each is
whole spans of the depth; what the last one has beyond the depth is 0.

``choose_tensor_cores.slices`` says how many pay.  What this does not do: divide products of sizes that only the call
tells.
"""

from lowc.errors import ScheduleError
from lowc.ir import tiles
from lowc.ir.index import Axis, Index, constant, ix
from lowc.ir.nodes import Acc, Buffer, Expr, For, Launch, Let, Load, Op, Stmt, Store, Update, Var
from lowc.ir.types import f32
from lowc.ir.walk import Substitution, buffers, make_kernel, names, with_mask, zero_outside
from lowc.scheduler.contraction import find, innermost, is_masked_along
from lowc.scheduler.nest import nested, numel
from lowc.scheduler.rename import fresh
from lowc.scheduler.tensor_cores import narrow, widened
from lowc.scheduler.tile_epilogue import less

LINE = 4  # sums in 16 bytes: rows of them begin where the copying engine can store


def slice_of(depth: int, slices: int, span: int = tiles.SPAN) -> int:
    """How deep each of ``slices`` is: whole spans."""
    spans = -(-depth // span)
    return -(-spans // slices) * span


def slice_depth(step: Launch, slices: int, name: str) -> tuple[Buffer, tuple[Launch, Launch]]:
    """``step``, a launch of one contraction, as two, and the memory ``name`` between them; raises ScheduleError where that cannot
    be."""
    kernel = step.kernel
    found = find(kernel.body[0]) if len(kernel.body) == 1 and isinstance(kernel.body[0], For) else None
    block = innermost(found.outer[-1].body) if found is not None else None
    if found is None or found.rows is None or block is None:
        raise ScheduleError(f"{kernel.name} is no product of two matrices")
    depth = constant(found.depth.axis.extent)
    if depth is None or any(constant(f.axis.extent) is None for f in found.outer):
        raise ScheduleError("sizes that only the call tells")
    each = slice_of(depth, slices, tiles.span(narrow(found.left).dtype))
    if slices < 2 or (slices - 1) * each >= depth:
        raise ScheduleError(f"no {slices} slices of whole spans in {depth}")
    if slices * each != depth and is_masked_along(found.left, found.depth.axis):
        raise ScheduleError(f"{slices} slices of {depth} are not of one length")
    batch = [f for f in found.outer if f is not found.rows and f is not found.columns]
    axes = [f.axis for f in (*batch, found.rows, found.columns)]
    width = -(-(constant(axes[-1].extent) or 0) // LINE) * LINE
    size = numel([ix(slices), *(a.extent for a in axes[:-1]), ix(width)])
    parts = Buffer(name, f32, (size,), (ix(1),))

    def place(number: Index, at: list[Axis]) -> Index:
        """Where the sum of slice ``number`` is."""
        for axis in at[:-1]:
            number = number * axis.extent + axis
        return number * width + at[-1]

    taken = names(kernel.body)
    new = [Axis(fresh(a.name, taken), a.extent) for a in axes]
    chunk, inner = Axis(fresh("c", taken), ix(slices)), Axis(fresh(found.depth.axis.name, taken), ix(each))
    total = Var(fresh("p", taken), f32)
    position = ix(chunk) * each + inner
    put = Substitution({**{a: ix(b) for a, b in zip(axes, new, strict=True)}, found.depth.axis: position})
    beyond = None if slices * each == depth else less(position, ix(depth))
    factors = [_factor(put.expr(f), beyond) for f in (found.left, found.right)]
    product = Op("product", tuple(reversed(factors) if found.swapped else factors), f32)
    add = For(inner, (Update((total,), "add", (product,)),))
    first = nested([chunk, *new], (Acc((total,), "add"), add, Store(parts, (place(ix(chunk), new),), total)))

    value: Expr = Load(parts, (place(ix(0), axes),))
    for number in range(1, slices):
        value = Op("add", (value, Load(parts, (place(ix(number), axes),))), f32)
    acc, _, rest = block
    second = nested([f.axis for f in found.outer], (Let(acc.vars[0], value), *rest))
    return parts, (_launch(step, "slices", first, parts), _launch(step, "sum", second, parts))


def _factor(factor: Expr, inside: Expr | None) -> Expr:
    """``factor``, 0 where ``inside`` does not hold."""
    if inside is None:
        return factor
    value = with_mask(narrow(factor), inside, {})
    return widened(value if isinstance(value, Load) else zero_outside(value, inside))


def _launch(step: Launch, name: str, body: tuple[Stmt, ...], parts: Buffer) -> Launch:
    """A launch of ``body`` with what it needs of the arguments of ``step``."""
    touched = {id(b) for b in buffers(body)}
    pairs = [(p, a) for p, a in zip(step.kernel.params, step.args, strict=True) if id(p) in touched]
    kernel = make_kernel(f"{step.kernel.name}_{name}", body, [*(p for p, _ in pairs), parts])
    return Launch(kernel, (*(a for _, a in pairs), parts), step.origin)
