"""Reads index expressions and value expressions of the text form: the lower half of ``parser``.

Names are looked up in a ``Scope``.  In an index a name is an axis or a size symbol, else the name of a Let (``Opaque``).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from lowc.ir.index import Axis, Index, Opaque, Symbol, floordiv, ix, lower_bound, maximum, minimum, mod
from lowc.ir.lexer import Cursor, Token
from lowc.ir.nodes import Buffer, Const, Expr, FromIndex, Load, Op, Var
from lowc.ir.ops import OPS, result_dtype
from lowc.ir.printer import PRECEDENCE, UNARY
from lowc.ir.types import DTYPES, DType, bool_, f32, i64

INFIX = {row.infix: row for row in OPS.values() if row.infix}
Named = Axis | Symbol | Var | Buffer


class Scope:
    """The names in scope, innermost block last; ``shared`` holds the ``$n`` of the statement being read."""

    __slots__ = ("blocks", "names", "shared")

    def __init__(self) -> None:
        self.names: dict[str, Named] = {}
        self.blocks: list[list[tuple[str, Named | None]]] = [[]]
        self.shared: dict[str, Expr] = {}

    def add(self, name: str, value: Named) -> None:
        self.blocks[-1].append((name, self.names.get(name)))
        self.names[name] = value

    def enter(self) -> None:
        self.blocks.append([])

    def leave(self) -> None:
        for name, before in reversed(self.blocks.pop()):
            if before is None:
                del self.names[name]
            else:
                self.names[name] = before


# ---------------------------------------------------------------- index expressions


def parse_index(c: Cursor, scope: Scope) -> Index:
    """A sum of products of atoms, as ``index.text`` writes it, made canonical."""
    total = _product(c, scope)
    while c.at("+") or c.at("-"):
        plus = c.take().text == "+"
        term = _product(c, scope)
        total = total + term if plus else total - term
    return total


def _product(c: Cursor, scope: Scope) -> Index:
    value = _factor(c, scope)
    while c.token.text in ("*", "//", "%") and c.token.kind == "sign":
        sign = c.take()
        right = _factor(c, scope)
        if sign.text == "*":
            value = value * right
            continue
        if (low := lower_bound(right)) is not None and low < 1 and not right.terms:
            c.fail("division by zero", sign)
        value = floordiv(value, right) if sign.text == "//" else mod(value, right)
    return value


def _factor(c: Cursor, scope: Scope) -> Index:
    if c.skip("-"):
        return -_factor(c, scope)
    if c.skip("("):
        value = parse_index(c, scope)
        c.expect(")")
        return value
    if c.token.kind == "int":
        return ix(int(c.take().text))
    name = c.of("name", "an index")
    if c.at("(") and name.text in ("min", "max"):
        c.take()
        left = parse_index(c, scope)
        c.expect(",")
        right = parse_index(c, scope)
        c.expect(")")
        return minimum(left, right) if name.text == "min" else maximum(left, right)
    found = scope.names.get(name.text)
    if isinstance(found, Axis | Symbol):
        return ix(found)
    if isinstance(found, Var):
        return ix(Opaque(name.text))
    kind = "is a buffer, not an index" if found is not None else "is no axis, size or value in scope"
    return c.fail(f"{name.text} {kind}", name)


def parse_tensor(c: Cursor, scope: Scope) -> tuple[DType, tuple[Index, ...], tuple[Index, ...] | None]:
    """``f32[4, 5 : 1, 4]``: dtype, shape and strides (None if not given)."""
    dtype = parse_dtype(c)
    c.expect("[")
    shape = _indices(c, scope, (":", "]"))
    strides = _indices(c, scope, ("]",)) if c.skip(":") else None
    c.expect("]")
    return dtype, shape, strides


def parse_dtype(c: Cursor) -> DType:
    name = c.of("name", "a dtype")
    if name.text not in DTYPES:
        c.fail(f"unknown dtype {name.text}", name)
    return DTYPES[name.text]


def _indices(c: Cursor, scope: Scope, ends: tuple[str, ...]) -> tuple[Index, ...]:
    """Indices up to one of ``ends``, which is left there."""
    out: list[Index] = []
    while c.token.text not in ends:
        if out:
            c.expect(",")
        out.append(parse_index(c, scope))
    return tuple(out)


def parse_access(c: Cursor, scope: Scope) -> tuple[Buffer, tuple[Index, ...]]:
    """``x[i, j``: up to the ``]`` or the ``if`` of a mask, which is left there."""
    name = c.of("name", "a buffer")
    buffer = scope.names.get(name.text)
    if not isinstance(buffer, Buffer):
        c.fail(f"{name.text} is no buffer in scope", name)
    c.expect("[")
    return buffer, _indices(c, scope, ("]", "if"))


# ---------------------------------------------------------------- value expressions


@dataclass(slots=True)
class _Frame:
    """An open bracket: ``close`` ends it, ``build`` makes its value of ``args``.  Operators wait for their right side.

    ``close`` is ``)``, ``]``, ``,)`` (a list of arguments), or empty for the expression as a whole.
    """

    close: str
    build: Callable[[list[Expr]], Expr]
    args: list[Expr] = field(default_factory=list[Expr])
    operands: list[Expr] = field(default_factory=list[Expr])
    waiting: list[tuple[int, str, Token]] = field(default_factory=list[tuple[int, str, Token]])


def parse_expr(c: Cursor, scope: Scope) -> Expr:
    """A value expression, to the first token that cannot continue it."""
    frames = [_Frame("", lambda args: args[0])]
    while True:
        value = _operand(c, scope, frames)
        while value is not None:
            frame = frames[-1]
            frame.operands.append(value)
            value = None
            level = PRECEDENCE.get(c.token.text, 0) if c.token.kind == "sign" else 0
            _reduce(c, frame, level)
            if level:
                sign = c.take()
                frame.waiting.append((level, INFIX[sign.text].name, sign))
                continue
            frame.args.append(frame.operands.pop())
            if not frame.close:
                return frame.args[0]
            if frame.close == ",)" and c.skip(","):
                continue
            c.expect(frame.close[-1])
            value = frames.pop().build(frame.args)


def _reduce(c: Cursor, frame: _Frame, level: int) -> None:
    """Applies the waiting operators that bind at least as strongly as ``level``."""
    while frame.waiting and frame.waiting[-1][0] >= level:
        if level == 1 == frame.waiting[-1][0]:
            c.fail("comparisons do not chain; use parentheses")
        _, name, sign = frame.waiting.pop()
        count = OPS[name].arity
        args = frame.operands[-count:]
        del frame.operands[-count:]
        frame.operands.append(_op(c, sign, name, args))


def _operand(c: Cursor, scope: Scope, frames: list[_Frame]) -> Expr | None:
    """A value; or None after opening a bracket or taking a minus sign, when an operand is still to come."""
    token = c.token
    if token.kind in ("int", "float") or token.text in ("true", "false", "inf", "nan"):
        return _constant(c, "")
    if token.kind == "shared":
        if token.text not in scope.shared:
            c.fail(f"{token.text} has no line before this statement")
        return scope.shared[c.take().text]
    if c.at("-"):
        c.take()
        if c.token.kind in ("int", "float") or c.token.text in ("inf", "nan"):
            return _constant(c, "-")
        frames[-1].waiting.append((UNARY, "neg", token))
        return None
    if c.skip("("):
        frames.append(_Frame(")", lambda args: args[0]))
        return None
    if token.kind != "name":
        c.fail(f"expected an expression, got {token.text!r}")
    after = c.ahead().text
    if after == "[":
        buffer, index = parse_access(c, scope)
        if c.skip("if"):
            frames.append(_Frame("]", lambda args: Load(buffer, index, args[0])))
            return None
        c.expect("]")
        return Load(buffer, index)
    if after == "(" or (after == ":" and c.ahead(3).text == "("):
        return _call(c, scope, frames)
    value = scope.names.get(token.text)
    if isinstance(value, Var):
        c.take()
        return value
    hint = "is no value in scope"
    if value is not None:
        hint = (
            "is a buffer; index it" if isinstance(value, Buffer) else f"is an index; write idx({token.text})"
        )
    return c.fail(f"{token.text} {hint}")


def _call(c: Cursor, scope: Scope, frames: list[_Frame]) -> Expr | None:
    """``name(``, ``name:dtype(``: a cast, an op, or an index as a value."""
    token = c.take()
    name = token.text
    given = parse_dtype(c) if c.skip(":") else None
    c.expect("(")
    if name == "idx":
        index = parse_index(c, scope)
        c.expect(")")
        return FromIndex(index, given or i64)
    if name in DTYPES and given is None:
        name, given = "cast", DTYPES[name]
    elif name not in OPS and given is None:
        c.fail(f"unknown op {name}", token)
    elif name in ("cast", "bitcast") and given is None:
        c.fail(f"{name} needs a dtype: {name}:f32(x)", token)
    if c.skip(")"):
        return _op(c, token, name, [], given)
    frames.append(_Frame(",)", lambda args: _op(c, token, name, args, given)))
    return None


def _op(c: Cursor, token: Token, name: str, args: list[Expr], given: DType | None = None) -> Op:
    """The op, of the ``given`` dtype or that which its row gives; an error is shown at ``token``."""
    if given is not None:
        return Op(name, tuple(args), given)
    try:
        return Op(name, tuple(args), result_dtype(OPS[name], tuple(a.dtype for a in args), None))
    except ValueError as error:
        return c.fail(str(error), token)


def _constant(c: Cursor, sign: str) -> Const:
    """``1.5``, ``3:i32``, ``true``; the sign has been read."""
    token = c.take()
    value: bool | int | float
    if token.text in ("true", "false"):
        value, dtype = token.text == "true", bool_
    elif token.kind == "int":
        value, dtype = int(sign + token.text), i64
    else:
        value, dtype = float(sign + token.text), f32
    if c.at(":") and c.ahead().text in DTYPES:
        c.take()
        dtype = parse_dtype(c)
    if dtype.kind == "f" and type(value) is int and float(value) == value:
        value = float(value)
    return Const(value, dtype)
