"""The primitive ``Pairs``: a sum of products of bf16 takes up two of them at a time, as the processor's instruction does.

    for k in 768 { s add= product(f32(x[i*768 + k]), f32(w[j*768 + k])) }
      →  for k in 384 { s add= dot2(pair(x[i*768 + 2*k], x[i*768 + 2*k + 1]), pair(w[j*768 + 2*k], w[j*768 + 2*k + 1])) }

(``vdpbf16ps`` of AVX512_BF16: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.)  To all other primitives
the factors are of 32 bits from then on: they are packed, transposed and held in registers as those of f32 are.  Of an odd depth
the last pair ends with 0; of a depth that is to be a multiple of ``unit`` pairs all that is missing is 0, in both factors.
"""

from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir.index import Axis, Index, ix, mod
from lowc.ir.nodes import Expr, For, FromIndex, Load, Op, Stmt, Update
from lowc.ir.types import bf16, bool_, f32, i64, u32
from lowc.ir.walk import Substitution, has_check, with_mask, zero_outside
from lowc.scheduler.contraction import folded


@dataclass(frozen=True, slots=True)
class Pairs:
    """The products in the loop over ``axis``; how many pairs there are then is a multiple of ``unit``."""

    axis: str
    unit: int = 1


def narrow(factor: Expr) -> Expr | None:
    """The bf16 that ``factor`` is, widened to f32; None if it is anything else, or is checked where it stands."""
    if isinstance(factor, Op) and factor.name == "cast" and factor.dtype == f32 and factor.args[0].dtype == bf16:
        return None if has_check(factor) else factor.args[0]
    return None


def pairs(loop: For, step: Pairs) -> tuple[Stmt, ...]:
    """``loop`` over pairs; raises ScheduleError."""
    update = loop.body[-1]
    if not isinstance(update, Update) or update.reducer != "add" or update.mask is not None:
        raise ScheduleError(f"the loop over {step.axis} is no sum")
    value = folded(loop.body[:-1], update.values[0])
    if not isinstance(value, Op) or value.name != "product":
        raise ScheduleError(f"the loop over {step.axis} is no sum of products")
    depth = loop.axis
    axis = Axis(depth.name, (depth.extent + (2 * step.unit - 1)) // (2 * step.unit) * step.unit)
    low, high = ix(axis) * 2, ix(axis) * 2 + 1
    short = bool(mod(depth.extent, ix(2 * step.unit)).terms)
    new: list[Expr] = []
    for factor in value.args:
        element = narrow(factor)
        if element is None:
            raise ScheduleError("a factor is no bf16, or is checked where it stands")
        first = _inside(element, depth, low) if short and step.unit > 1 else Substitution({depth: low}).expr(element)
        second = _inside(element, depth, high) if short else Substitution({depth: high}).expr(element)
        new.append(Op("pair", (first, second), u32))
    return (For(axis, (Update(update.vars, "add", (Op("dot2", tuple(new), f32),)),), loop.kind),)


def _inside(element: Expr, depth: Axis, place: Index) -> Expr:
    """``element`` at ``place`` of the depth; 0 where that has ended."""
    inside = Op("lt", (FromIndex(place, i64), FromIndex(depth.extent, i64)), bool_)
    one = with_mask(Substitution({depth: place}).expr(element), inside, {})
    return one if isinstance(one, Load) else zero_outside(one, inside)
