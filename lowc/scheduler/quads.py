"""The primitive ``Quads``: a sum of products of bytes takes up four of them at a time, as the processor's instructions do.

    for k in 768 { s add= product(i32(x[i*768 + k]), i32(w[j*768 + k])) }
      →  for k in 192 { s add= dot4(quad(x[i*768 + 4*k], …), quad(w[j*768 + 4*k], …)) }

To all other primitives factors are of 32 bits then, as with ``Pairs``.  The instruction (``vpdpbusd``) takes one factor without
sign.  Where both have one, 128 is added to all bytes of one, which is flipping their upper bits, and 128 times the sums of the
other's taken away again; these sums are a nest in front, into memory of their own, a new param:

    for q_i in 512 { acc c = add; for q_k in 192 { c add= dot4(0x80808080, quad(x[q_i*768 + 4*q_k], …)) }; quads_sums[q_i] = c }
    for i … { acc s = add; for k in 192 { s add= dot4(quad(x…), u32(quad(w…)) ^ 0x80808080) }; s_whole = s - quads_sums[i]; … }

All that is exact: sums of 32 bits wrap.  Products that were summed in f32 are summed in integers, which round once at the end, if
no sum can leave 32 bits.  Of a depth that four does not divide the last quad ends with zeros.
"""

from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir.index import Atom, Axis, Index, ix, mod, upper_bound
from lowc.ir.nodes import (
    Acc,
    Buffer,
    Const,
    Expr,
    For,
    FromIndex,
    Kernel,
    Let,
    Load,
    Op,
    Stmt,
    Store,
    Update,
    Var,
)
from lowc.ir.types import DType, bool_, f32, i8, i32, i64, u8, u32
from lowc.ir.walk import Substitution, free_atoms, has_check, make_kernel, names, with_mask, zero_outside
from lowc.scheduler.contraction import product_over
from lowc.scheduler.nest import nested
from lowc.scheduler.rename import fresh

SIZE = 4
SIGNS = 0x80808080
MEMORY = "quads_sums"
BEFORE = "q_"  # what names of axes of the nest in front start with


@dataclass(frozen=True, slots=True)
class Quads:
    """The products in the loop over ``axis``; ``flipped``: the factor that loses its sign, -1 if none does.

    How many quads there are then is a multiple of ``unit``."""

    axis: str
    flipped: int = -1
    unit: int = 1


def narrow(factor: Expr) -> Expr | None:
    """The integer of 8 bits that ``factor`` is, widened; None if it is anything else, or is checked where it stands."""
    if isinstance(factor, Op) and factor.name == "cast" and factor.dtype in (i32, f32) and factor.args[0].dtype in (i8, u8):
        return None if has_check(factor) else factor.args[0]
    return None


def fits(left: Expr, right: Expr, depth: Index) -> bool:
    """Whether no sum of so many products of bytes can leave 32 bits, as one of f32 must not."""
    bound = 1
    for factor in (left, right):
        element = narrow(factor)
        assert element is not None
        bound *= 128 if element.dtype == i8 else 255
    longest = upper_bound(depth)
    return left.dtype == i32 or longest is not None and longest * bound < 1 << 31


def quads(kernel: Kernel, step: Quads) -> Kernel:
    """``kernel`` with sums of quads; raises ScheduleError."""
    before = kernel.body[:-1]
    loops, acc, depth, rest, value = product_over(kernel, step.axis)
    if value.name != "product" or None in map(narrow, value.args) or acc.reducer != "add":
        raise ScheduleError(f"the loop over {step.axis} is no sum of products of bytes")
    if not fits(value.args[0], value.args[1], depth.axis.extent):
        raise ScheduleError(f"sums over {step.axis} may leave 32 bits")
    axis = Axis(depth.axis.name, (depth.axis.extent + (SIZE * step.unit - 1)) // (SIZE * step.unit) * step.unit)
    factors = [_packed(f, depth.axis, axis, step.unit) for f in value.args]
    taken = names(kernel.body) | {p.name for p in kernel.params}
    sum_ = Var(acc.vars[0].name, i32)
    whole: Expr = sum_
    params: tuple[Buffer, ...] = ()
    if step.flipped >= 0:
        if {f.dtype for f in factors} != {i32}:
            raise ScheduleError("a factor has no sign")
        other = factors[1 - step.flipped]
        flipped = Op("bitcast", (factors[step.flipped],), u32)
        factors[step.flipped] = Op("xor", (flipped, Const(SIGNS, u32)), u32)
        memory, place, nest = _sums(other, axis, [f.axis for f in loops], taken)
        before, params = (*before, *nest), (memory,)
        whole = Op("sub", (whole, Load(memory, (place,))), i32)
    dot = Op("dot4", tuple(factors), i32)
    inner: tuple[Stmt, ...] = (Acc((sum_,), "add"), For(axis, (Update((sum_,), "add", (dot,)),), depth.kind))
    if step.flipped >= 0 or value.dtype == f32:
        made = Var(fresh(f"{sum_.name}_whole", taken), value.dtype)
        inner = (*inner, Let(made, whole if value.dtype == i32 else Op("cast", (whole,), f32)))
        rename = Substitution(None, {sum_.name: made})
        rest = rename.body(rest)
    body: tuple[Stmt, ...] = (*inner, *rest)
    for loop in reversed(loops):
        body = (For(loop.axis, body, loop.kind),)
    return make_kernel(kernel.name, (*before, *body), (*kernel.params, *params))


def _packed(factor: Expr, depth: Axis, axis: Axis, unit: int) -> Op:
    """Four of ``factor`` at a time."""
    element = narrow(factor)
    assert element is not None
    even = not mod(depth.extent, ix(SIZE * unit)).terms
    new: list[Expr] = []
    for n in range(SIZE):
        place = ix(axis) * SIZE + n
        one = Substitution({depth: place}).expr(element)
        if (n or unit > 1) and not even:
            inside = Op("lt", (FromIndex(place, i64), FromIndex(depth.extent, i64)), bool_)
            one = with_mask(one, inside, {})
            one = one if isinstance(one, Load) else zero_outside(one, inside)
        new.append(one)
    return Op("quad", tuple(new), _wide(element.dtype))


def _wide(dtype: DType) -> DType:
    return i32 if dtype == i8 else u32


def _sums(factor: Expr, depth: Axis, axes: list[Axis], taken: set[str]) -> tuple[Buffer, Index, tuple[Stmt, ...]]:
    """Memory for 128 times the sums of ``factor`` over ``depth``, where the sum at hand is, and the nest that fills it."""
    used = free_atoms(factor)
    own = [a for a in axes if a in used]
    new = {a: Axis(f"{BEFORE}{a.name}", a.extent) for a in (*own, depth)}
    if MEMORY in taken or not taken.isdisjoint(a.name for a in new.values()):
        raise ScheduleError(f"a name that starts with {BEFORE}, or {MEMORY}, is taken")
    taken |= {MEMORY, *(a.name for a in new.values())}
    size, place, there = ix(1), ix(0), ix(0)
    for a in own:
        size, place, there = size * a.extent, place * a.extent + a, there * a.extent + new[a]
    memory = Buffer(MEMORY, i32, (size,), (ix(1),))
    put: dict[Atom, Index] = {a: ix(b) for a, b in new.items()}
    sum_ = Var(fresh("q_sum", taken), i32)
    body: tuple[Stmt, ...] = (
        Acc((sum_,), "add"),
        For(new[depth], (Update((sum_,), "add", (Op("dot4", (Const(SIGNS, u32), Substitution(put).expr(factor)), i32),)),)),
        Store(memory, (there,), sum_),
    )
    return memory, place, nested([new[a] for a in own], body)
