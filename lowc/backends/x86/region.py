"""The state of one LLVM function in the making, and how index expressions become integers in it."""

from dataclasses import dataclass, field

from lowc.backends.llvm.builder import Builder
from lowc.backends.llvm.types import scalar
from lowc.backends.x86 import accumulators
from lowc.backends.x86.operations import Val, binary, cast, const, select, splat
from lowc.errors import CodegenError
from lowc.ir.index import (
    Atom,
    Axis,
    FloorDiv,
    Index,
    Max,
    Min,
    Mod,
    Opaque,
    Symbol,
    constant,
    lower_bound,
    upper_bound,
)
from lowc.ir.index import atoms as index_atoms
from lowc.ir.types import DType, i32, i64


@dataclass(slots=True)
class Lanes:
    """The vector loop that encloses what is emitted now: its axis, lanes, the value of lane 0, the mask of
    a last, partial strip.
    """

    axis: Axis
    count: int
    base: str
    mask: Val | None


@dataclass(slots=True)
class Region:
    """Names in scope as operands: variables, accumulators, axes, pointers by buffer name, sizes.

    ``laned``: local buffers of which each lane has its own, as arrays of so many lanes.  ``tiles``: local
    buffers that are vectors instead of memory, one for each row; ``arrays``: those that are registers.  ``error``: where a
    failed check is noted. ``scratch``: memory that masked-off stores go to.
    """

    b: Builder
    ops: frozenset[str]
    error: str
    variables: dict[str, Val] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    pointers: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)
    groups: dict[str, accumulators.Group] = field(default_factory=dict)
    arrays: dict[str, accumulators.Group] = field(default_factory=dict)
    laned: dict[str, int] = field(default_factory=dict)
    tiles: dict[str, list[str]] = field(default_factory=dict)
    lanes: Lanes | None = None
    scratch: str = ""

    def variable(self, name: str) -> Val:
        """The value of a Let or an accumulator."""
        group = self.groups.get(name)
        if group is None:
            return self.variables[name]
        values = accumulators.value(self.b, group, self.ops)
        return next(v for v, var in zip(values, group.vars, strict=True) if var.name == name)


def quoted(name: str) -> str:
    """A name as LLVM takes it after % or @."""
    return f'"k.{name}"'


def varies(r: Region, index: Index) -> bool:
    """Whether ``index`` differs from lane to lane."""
    if r.lanes is None:
        return False
    for atom in index_atoms(index):
        if atom == r.lanes.axis or (isinstance(atom, Opaque) and r.variable(atom.name).lanes):
            return True
    return False


def scalar_index(r: Region, index: Index) -> str:
    """``index`` as an i64 operand; the vector axis stands at lane 0."""
    total = "0"
    for monomial, coefficient in index.terms:
        term = str(coefficient)
        for atom in monomial:
            term = _times(r, _scalar_atom(r, atom), term)
        total = _plus(r, total, term)
    return total


def _times(r: Region, a: str, b: str) -> str:
    if _is_number(a) and _is_number(b):
        return str(int(a) * int(b))
    return a if b == "1" else b if a == "1" else r.b.pure(f"mul i64 {a}, {b}")


def _plus(r: Region, a: str, b: str) -> str:
    if _is_number(a) and _is_number(b):
        return str(int(a) + int(b))
    return a if b == "0" else b if a == "0" else r.b.pure(f"add i64 {a}, {b}")


def _is_number(text: str) -> bool:
    return text[0] != "%"


def _scalar_atom(r: Region, atom: Atom) -> str:
    if isinstance(atom, Axis):
        return r.lanes.base if r.lanes is not None and atom == r.lanes.axis else r.axes[atom.name]
    if isinstance(atom, Symbol):
        return r.sizes[atom.name]
    if isinstance(atom, Opaque):
        value = r.variable(atom.name)
        if value.lanes:
            raise CodegenError(f"{atom.name} differs from lane to lane and has no scalar value")
        return value.text
    if isinstance(atom, Min | Max):
        a, b = Val(scalar_index(r, atom.a), i64), Val(scalar_index(r, atom.b), i64)
        return select(r.b, binary(r.b, "lt" if isinstance(atom, Min) else "gt", a, b), a, b).text
    num, den = Val(scalar_index(r, atom.num), i64), _divisor(r, atom.den, 0)
    return _divide(r, atom, num, den).text


def vector_index(r: Region, index: Index, dtype: DType = i64) -> Val:
    """``index`` in each lane; in i32 if it is known to fit (then only the low halves of its parts matter)."""
    assert r.lanes is not None
    total: Val | None = None
    for monomial, coefficient in index.terms:
        term: Val | None = None
        for atom in monomial:
            value = _vector_atom(r, atom, dtype)
            term = value if term is None else _on_lanes(r, "mul", term, value)
        if term is None:
            term = const(coefficient, dtype)
        elif coefficient != 1:
            term = _on_lanes(r, "mul", term, const(coefficient, dtype))
        total = term if total is None else _on_lanes(r, "add", total, term)
    return splat(r.b, total or const(0, dtype), r.lanes.count)


def fits(low: int | None, high: int | None) -> bool:
    """Whether what lies between the bounds (None: unknown) is 0 or more and fits an i32."""
    return low is not None and low >= 0 and high is not None and high < 2**31


def lane_numbers(count: int, dtype: DType = i64) -> Val:
    """0, 1, 2, …"""
    return Val(f"<{', '.join(f'{scalar(dtype)} {n}' for n in range(count))}>", dtype, count)


def _on_lanes(r: Region, name: str, a: Val, b: Val) -> Val:
    lanes = max(a.lanes, b.lanes)
    return binary(r.b, name, splat(r.b, a, lanes), splat(r.b, b, lanes))


def _vector_atom(r: Region, atom: Atom, dtype: DType) -> Val:
    assert r.lanes is not None
    if atom == r.lanes.axis:
        count = r.lanes.count
        base = cast(r.b, Val(r.lanes.base, i64), dtype, r.ops)
        return binary(r.b, "add", splat(r.b, base, count), lane_numbers(count, dtype))
    if isinstance(atom, Opaque):
        return cast(r.b, r.variable(atom.name), dtype, r.ops)
    if isinstance(atom, Axis | Symbol):
        return cast(r.b, Val(_scalar_atom(r, atom), i64), dtype, r.ops)
    inner = (atom.num, atom.den) if isinstance(atom, FloorDiv | Mod) else (atom.a, atom.b)
    if not any(varies(r, i) for i in inner):
        return cast(r.b, Val(_scalar_atom(r, atom), i64), dtype, r.ops)
    if isinstance(atom, Min | Max):
        a, b = vector_index(r, atom.a), vector_index(r, atom.b)
        least = select(r.b, binary(r.b, "lt" if isinstance(atom, Min) else "gt", a, b), a, b)
        return cast(r.b, least, dtype, r.ops)
    divisor = constant(atom.den)
    if divisor is not None and 0 < divisor < 2**31 and fits(lower_bound(atom.num), upper_bound(atom.num)):
        # 32-bit lanes divide by a constant with one multiplication; 64-bit ones would go through scalar code
        small = vector_index(r, atom.num, i32)
        return cast(r.b, _divide(r, atom, small, const(divisor, i32, small.lanes)), dtype, r.ops)
    num = vector_index(r, atom.num)
    return cast(r.b, _divide(r, atom, num, _divisor(r, atom.den, num.lanes)), dtype, r.ops)


def _divisor(r: Region, den: Index, lanes: int) -> Val:
    """``den`` made at least 1, so that a size of 0 cannot trap."""
    value = (
        vector_index(r, den)
        if lanes and varies(r, den)
        else splat(r.b, Val(scalar_index(r, den), i64), lanes)
    )
    if (lower_bound(den) or 0) >= 1:
        return value
    one = const(1, i64, value.lanes)
    return select(r.b, binary(r.b, "lt", value, one), one, value)


def _divide(r: Region, atom: FloorDiv | Mod, num: Val, den: Val) -> Val:
    """num // den or num % den rounding down; unsigned where num cannot be negative."""
    quotient = isinstance(atom, FloorDiv)
    low = lower_bound(atom.num)
    if low is not None and low >= 0:
        word = "udiv" if quotient else "urem"
        return Val(r.b.pure(f"{word} {num.type} {num.text}, {den.text}"), num.dtype, num.lanes)
    rest = Val(r.b.pure(f"srem {num.type} {num.text}, {den.text}"), num.dtype, num.lanes)
    zero = const(0, num.dtype, num.lanes)
    negative = binary(r.b, "lt", rest, zero)
    if not quotient:
        return select(r.b, negative, binary(r.b, "add", rest, den), rest)
    whole = Val(r.b.pure(f"sdiv {num.type} {num.text}, {den.text}"), num.dtype, num.lanes)
    return select(r.b, negative, binary(r.b, "sub", whole, const(1, num.dtype, num.lanes)), whole)
