"""A value combined into memory that other threads combine into at the same time.

Instructions exist for sums of f32, f64 and integers of 32 and 64 bits, and for extremes and bits of those integers; the rest is
read, combined and exchanged if nobody came between, narrow types by way of the aligned 32-bit word around them.
"""

from collections.abc import Callable, Sequence

from lowc.backends.llvm.types import scalar
from lowc.backends.llvm.values import Val, bits
from lowc.backends.nvptx.operations import apply, cast
from lowc.backends.nvptx.thread import Thread
from lowc.ir.ops import REDUCERS
from lowc.ir.types import DType, bool_, f32, i32, i64

SCOPE = 'syncscope("device")'
INTEGER = {"add": "add", "and": "and", "or": "or"}


def atomic(t: Thread, pointer: str, kind: str, value: Val, reducer: str) -> None:
    """Combines ``value`` into memory at ``pointer``, of LLVM type ``kind``."""
    word = _instruction(value.dtype, reducer)
    if word:
        t.b.op(f"atomicrmw {word} {kind} {pointer}, {value.type} {value.text} {SCOPE} monotonic")
    elif value.dtype.bits < 32 or value.dtype.kind == "b":
        _narrow(t, pointer, kind, value, reducer)
    else:
        _whole(t, pointer, kind, value, reducer)


def add_four(t: Thread, pointer: str, values: Sequence[Val]) -> None:
    """Adds four f32 to global memory at ``pointer``, a multiple of 16 bytes, by one instruction; each sum is atomic.  PTX ISA
    8.1, compute capability 9.0."""
    text = "red.relaxed.gpu.global.add.v4.f32 [$0], {$1, $2, $3, $4};"
    given = ", ".join(f"float {v.text}" for v in values)
    t.b.line(f'call void asm sideeffect "{text}", "l,f,f,f,f,~{{memory}}"(ptr addrspace(1) {pointer}, {given})')


def _instruction(dtype: DType, reducer: str) -> str:
    if dtype.kind == "b" or dtype.bits < 32:
        return ""
    if dtype.kind == "f":
        return "fadd" if reducer == "add" else ""
    if reducer in ("min", "max"):
        return reducer if dtype.kind == "i" else f"u{reducer}"
    return INTEGER.get(reducer, "")


def combine(t: Thread, old: Val, value: Val, reducer: str) -> Val:
    """old ⊕ value; narrow floats are combined in f32 and rounded."""
    op, dtype = REDUCERS[reducer].op, value.dtype
    if dtype == bool_ and op in ("min", "max"):
        op = "and" if op == "min" else "or"
    if dtype.kind != "f" or dtype.bits != 16:
        return apply(t.b, op, [old, value], dtype, t.ops)
    wide = apply(t.b, op, [cast(t.b, v, f32, t.ops) for v in (old, value)], f32, t.ops)
    return cast(t.b, wide, dtype, t.ops)


def _exchange(t: Thread, pointer: str, kind: str, type_: str, first: str, new: Callable[[str], str]) -> None:
    """A loop: ``new`` gives the word to put in place of an old one; until nobody came between."""
    b = t.b
    head, done = b.name("loop"), b.name("done")
    before = b.block
    b.line(f"br label {head}")
    b.label(head)
    old, position = b.name("p"), len(b.lines)
    b.scopes.append({})
    word = new(old)
    pair = b.op(f"cmpxchg {kind} {pointer}, {type_} {old}, {type_} {word} {SCOPE} monotonic monotonic")
    found = b.op(f"extractvalue {{ {type_}, i1 }} {pair}, 0")
    stored = b.op(f"extractvalue {{ {type_}, i1 }} {pair}, 1")
    b.scopes.pop()
    b.line(f"br i1 {stored}, label {done}, label {head}")
    b.lines.insert(position, f"  {old} = phi {type_} [ {first}, %{before} ], [ {found}, %{b.block} ]")
    b.label(done)


def _whole(t: Thread, pointer: str, kind: str, value: Val, reducer: str) -> None:
    integer = i32 if value.dtype.bits == 32 else i64
    type_ = scalar(integer)
    first = t.b.op(f"load {type_}, {kind} {pointer}, align {integer.bytes}")

    def new(old: str) -> str:
        return bits(t.b, combine(t, bits(t.b, Val(old, integer), value.dtype), value, reducer), integer).text

    _exchange(t, pointer, kind, type_, first, new)


def _narrow(t: Thread, pointer: str, kind: str, value: Val, reducer: str) -> None:
    b = t.b
    whole = b.op(f"ptrtoint {kind} {pointer} to i64")
    around = b.op(f"inttoptr i64 {b.pure(f'and i64 {whole}, -4')} to {kind}")
    byte = b.pure(f"trunc i64 {b.pure(f'and i64 {whole}, 3')} to i32")
    place = b.pure(f"shl i32 {byte}, 3")
    dtype = value.dtype
    width = dtype.bits
    ones = b.pure(f"shl i32 {(1 << width) - 1}, {place}")
    others = b.pure(f"xor i32 {ones}, -1")
    first = b.op(f"load i32, {kind} {around}, align 4")

    def new(old: str) -> str:
        low = b.pure(f"lshr i32 {old}, {place}")
        part = b.pure(f"trunc i32 {low} to i{width}")
        held = Val(b.pure(f"icmp ne i8 {part}, 0"), bool_) if dtype == bool_ else Val(part, dtype)
        out = combine(t, held, value, reducer)
        text = b.pure(f"zext {out.type} {out.text} to i32")
        moved = b.pure(f"shl i32 {text}, {place}")
        return b.pure(f"or i32 {b.pure(f'and i32 {old}, {others}')}, {moved}")

    _exchange(t, around, kind, "i32", first, new)
