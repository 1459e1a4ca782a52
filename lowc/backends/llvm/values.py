"""Operands of LLVM instructions with their dtypes, and the ops that are one instruction, the same for scalars and lanes."""

from dataclasses import dataclass

from lowc.backends.llvm import literals
from lowc.backends.llvm.builder import Builder
from lowc.backends.llvm.types import constant, scalar, suffix, vector
from lowc.ir.types import DType, bool_


@dataclass(frozen=True, slots=True)
class Val:
    """An operand: its LLVM text, its dtype, and its lanes (0: one value, the same in all lanes)."""

    text: str
    dtype: DType
    lanes: int = 0

    @property
    def type(self) -> str:
        return vector(scalar(self.dtype), self.lanes)


def splat(b: Builder, value: Val, lanes: int) -> Val:
    """``value`` in every lane."""
    if value.lanes or not lanes:
        return value
    type_ = vector(value.type, lanes)
    if not value.text.startswith("%"):
        return Val(f"splat ({value.type} {value.text})", value.dtype, lanes)
    one = b.pure(f"insertelement {type_} poison, {value.type} {value.text}, i64 0")
    text = b.pure(f"shufflevector {type_} {one}, {type_} poison, <{lanes} x i32> zeroinitializer")
    return Val(text, value.dtype, lanes)


def const(value: bool | int | float, dtype: DType, lanes: int = 0) -> Val:
    return Val(constant(value, dtype, lanes), dtype, lanes)


TEMPLATES: dict[tuple[str, str], str] = {
    ("add", "f"): "fadd {t} {a}, {b}",
    ("sub", "f"): "fsub {t} {a}, {b}",
    ("mul", "f"): "fmul {t} {a}, {b}",
    ("product", "f"): "fmul {t} {a}, {b}",
    ("product", "i"): "mul {t} {a}, {b}",
    ("div", "f"): "fdiv {t} {a}, {b}",
    ("neg", "f"): "fneg {t} {a}",
    ("eq", "f"): "fcmp oeq {t} {a}, {b}",
    ("ne", "f"): "fcmp une {t} {a}, {b}",
    ("lt", "f"): "fcmp olt {t} {a}, {b}",
    ("le", "f"): "fcmp ole {t} {a}, {b}",
    ("gt", "f"): "fcmp ogt {t} {a}, {b}",
    ("ge", "f"): "fcmp oge {t} {a}, {b}",
    **{
        (name, kind): f"{instruction} {{t}} {{a}}, {{b}}"
        for kind in "iu"
        for name, instruction in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("product", "mul"))
    },
    **{
        (name, kind): f"{instruction} {{t}} {{a}}, {{b}}"
        for kind in "biu"
        for name, instruction in (
            ("and", "and"),
            ("or", "or"),
            ("xor", "xor"),
            ("eq", "icmp eq"),
            ("ne", "icmp ne"),
        )
    },
    **{(f"{c}", "i"): f"icmp s{c} {{t}} {{a}}, {{b}}" for c in ("lt", "le", "gt", "ge")},
    **{(f"{c}", kind): f"icmp u{c} {{t}} {{a}}, {{b}}" for c in ("lt", "le", "gt", "ge") for kind in "ub"},
}


def simple(b: Builder, name: str, args: list[Val], dtype: DType) -> Val | None:
    """An op on arguments of equal lanes that are all known, or that is one instruction; None if it is neither."""
    lanes = args[0].lanes
    folded = literals.fold(name, args[0].dtype, [a.text for a in args], dtype, lanes)
    if folded is not None:
        return Val(folded, dtype, lanes)
    row = TEMPLATES.get((name, args[-1].dtype.kind if name == "select" else args[0].dtype.kind))
    if row is None:
        return None
    texts = {"abc"[n]: a.text for n, a in enumerate(args)}
    return Val(b.pure(row.format(t=args[0].type, **texts)), dtype, lanes)


def binary(b: Builder, name: str, x: Val, y: Val) -> Val:
    """An op of two arguments of one dtype that has a template."""
    lanes = max(x.lanes, y.lanes)
    dtype = bool_ if name in ("eq", "ne", "lt", "le", "gt", "ge") else x.dtype
    value = simple(b, name, [splat(b, x, lanes), splat(b, y, lanes)], dtype)
    assert value is not None, name
    return value


def select(b: Builder, cond: Val, x: Val, y: Val) -> Val:
    lanes = max(cond.lanes, x.lanes, y.lanes)
    x, y = splat(b, x, lanes), splat(b, y, lanes)
    text = b.pure(f"select {cond.type} {cond.text}, {x.type} {x.text}, {y.type} {y.text}")
    return Val(text, x.dtype, lanes)


def intrinsic(b: Builder, name: str, args: list[Val], lanes: int) -> Val:
    """``llvm.NAME`` on arguments of one float or integer type."""
    type_ = args[0].type
    function = f"llvm.{name}.{suffix(scalar(args[0].dtype), lanes)}"
    return Val(b.call(function, type_, [(type_, a.text) for a in args]), args[0].dtype, lanes)


def bits(b: Builder, x: Val, dtype: DType) -> Val:
    """``x`` reinterpreted as ``dtype`` of equal size."""
    new = Val("", dtype, x.lanes)
    if new.type == x.type:
        return Val(x.text, dtype, x.lanes)
    return Val(b.pure(f"bitcast {x.type} {x.text} to {new.type}"), dtype, x.lanes)
