"""Reads the text form (``printer``, docs/design.md 1.2) back to kernels and modules.

Recursive descent over statements and index expressions; value expressions (``expressions``) are read with an explicit
stack, so that their depth is no limit.  What an op yields follows from its row (``ops.result_dtype``); with its dtype spelled
out (``add:f64(a, b)``) it is taken as it stands, which is how tests write programs that the verifier must refuse.  The parser
checks syntax and that names are known, nothing else.  ``$n`` lines name shared subexpressions of the statement that follows.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from lowc.ir.expressions import Scope, parse_access, parse_dtype, parse_expr, parse_index, parse_tensor
from lowc.ir.graph_printer import contiguous
from lowc.ir.index import ZERO, Axis, Index, Symbol
from lowc.ir.lexer import Cursor, Token
from lowc.ir.nodes import (
    SERIAL,
    Acc,
    Alloc,
    Arg,
    Barrier,
    Buffer,
    Extern,
    For,
    If,
    Kernel,
    Kind,
    Launch,
    Let,
    Module,
    Step,
    Stmt,
    Store,
    Update,
    Var,
    View,
)
from lowc.ir.types import DTYPES

# ---------------------------------------------------------------- entry points


def parse_kernel(text: str) -> Kernel:
    """The one kernel in ``text``; raises ParseError with line, column and the line."""
    c = Cursor(text)
    kernel = _kernel(c)
    if c.token.kind != "end":
        c.fail("expected the end of the text after the kernel")
    return kernel


def parse_module(text: str) -> Module:
    """The module in ``text`` with the kernels that follow it; raises ParseError."""
    c = Cursor(text)
    scope = Scope()
    c.expect("module")
    c.expect("@")
    level = c.of("name", "a level").text
    symbols: list[Symbol] = []
    c.expect("(")
    while _more(c, symbols, ")"):
        symbols.append(_symbol(c, scope))
    body = _ModuleBody()
    c.expect("{")
    while not c.skip("}"):
        _module_line(c, scope, body)
    kernels: dict[str, Kernel] = {}
    while c.token.kind != "end":
        name = c.ahead()
        kernel = _kernel(c)
        if kernel.name in kernels:
            c.fail(f"a second kernel called {kernel.name}", name)
        kernels[kernel.name] = kernel
    for name, _, _ in body.launches.values():
        if name.text not in kernels:
            c.fail(f"no kernel called {name.text}", name)
    steps: list[Step] = []
    for number in range(len(body.launches) + len(body.externs)):
        if number in body.externs:
            steps.append(body.externs[number])
        else:
            name, args, origin = body.launches[number]
            steps.append(Launch(kernels[name.text], args, origin))
    inputs, temps, outputs = tuple(body.inputs), tuple(body.temps), tuple(body.outputs)
    return Module(
        level, tuple(symbols), inputs, temps, outputs, tuple(steps), tuple(body.placed), body.workspace,
        tuple(body.constants), tuple(body.schedules),
    )  # fmt: skip


# ---------------------------------------------------------------- kernels


def _kernel(c: Cursor) -> Kernel:
    c.expect("kernel")
    name = c.of("name", "the kernel's name").text
    scope = Scope()
    sizes: list[Symbol] = []
    params: list[Buffer] = []
    c.expect("(")
    while _more(c, [*sizes, *params], ")"):
        if c.ahead(2).text == "size":
            sizes.append(_symbol(c, scope))
        else:
            params.append(_buffer(c, scope))
    return Kernel(name, tuple(params), tuple(sizes), _block(c, scope))


def _more(c: Cursor, before: Sequence[object], close: str) -> bool:
    """Whether another item of a list follows; takes the comma before it, or the ``close`` that ends the list."""
    if c.skip(close):
        return False
    if before:
        c.expect(",")
    return True


def _symbol(c: Cursor, scope: Scope) -> Symbol:
    """``s0: 2..16``, ``s0: size 2..`` or ``s0: 2.. ~ 512``."""
    name = c.of("name", "a symbol").text
    c.expect(":")
    c.skip("size")
    low = _integer(c)
    c.expect("..")
    high = _integer(c) if c.token.kind == "int" or c.at("-") else None
    symbol = Symbol(name, low, high, _integer(c) if c.skip("~") else None)
    scope.add(name, symbol)
    return symbol


def _integer(c: Cursor) -> int:
    return -_integer(c) if c.skip("-") else int(c.of("int", "a number").text)


def _buffer(c: Cursor, scope: Scope) -> Buffer:
    """``x: f32[4, 5 : 1, 4] @local``."""
    name = c.of("name", "a buffer's name").text
    c.expect(":")
    dtype, shape, strides = parse_tensor(c, scope)
    space = c.of("name", "a space").text if c.skip("@") else "global"
    buffer = Buffer(name, dtype, shape, contiguous(shape) if strides is None else strides, space)
    scope.add(name, buffer)
    return buffer


def _block(c: Cursor, scope: Scope) -> tuple[Stmt, ...]:
    """``{ stmt* }``; what it declares leaves the scope."""
    c.expect("{")
    scope.enter()
    out: list[Stmt] = []
    while not c.skip("}"):
        if c.token.kind == "end":
            c.fail("a block is not closed")
        if c.token.kind == "shared":
            name = c.take().text
            c.expect("=")
            scope.shared[name] = parse_expr(c, scope)
        else:
            out.append(_statement(c, scope))
            scope.shared.clear()
        if not c.token.first and not c.at("}"):
            c.fail(f"expected the end of the statement, got {c.token.text!r}")
    scope.leave()
    return tuple(out)


def _statement(c: Cursor, scope: Scope) -> Stmt:
    word = c.of("name", "a statement").text
    if word == "for":
        return _for(c, scope)
    if word == "if":
        cond = parse_expr(c, scope)
        scope.shared.clear()
        return If(cond, _block(c, scope))
    if word == "acc":
        return _acc(c, scope)
    if word == "alloc":
        buffer = _buffer(c, scope)
        return Alloc(buffer, _reducer(c) if c.skip("=") else "")
    if word == "barrier":
        return Barrier()
    c.back()
    if c.ahead().text == "[":
        buffer, index = parse_access(c, scope)
        mask = parse_expr(c, scope) if c.skip("if") else None
        c.expect("]")
        reducer = "" if c.at("=") else _reducer(c)
        c.expect("=")
        return Store(buffer, index, parse_expr(c, scope), mask, reducer)
    if c.ahead().text in ("=", ":"):
        return _let(c, scope)
    return _update(c, scope)


def _for(c: Cursor, scope: Scope) -> For:
    name = c.of("name", "an axis").text
    c.expect("in")
    axis = Axis(name, parse_index(c, scope))
    kind = SERIAL if c.at("{") else _kind(c)
    scope.enter()
    scope.add(name, axis)
    body = _block(c, scope)
    scope.leave()
    return For(axis, body, kind)


def _kind(c: Cursor) -> Kind:
    """``parallel``, ``vector(16)``, ``vector(16, 4)``, ``instr(key)``."""
    name = c.of("name", "a kind of loop").text
    width, key, interleave = 0, "", 1
    if c.skip("("):
        if c.token.kind == "int":
            width = _integer(c)
            if c.skip(",") and c.token.kind == "int":
                interleave = _integer(c)
                c.skip(",")
        if not c.at(")"):
            key = _word(c)
        c.expect(")")
    return Kind(name, width, key, interleave)


def _word(c: Cursor) -> str:
    """A name, or a string."""
    return _string(c) if c.token.kind == "string" else c.of("name").text


def _string(c: Cursor) -> str:
    return json.loads(c.of("string").text)


def _reducer(c: Cursor) -> str:
    return c.of("name", "a reducer").text


def _acc(c: Cursor, scope: Scope) -> Acc:
    variables: list[Var] = []
    while _more(c, variables, "="):
        name = c.of("name", "an accumulator").text
        c.expect(":")
        variables.append(Var(name, parse_dtype(c)))
        scope.add(name, variables[-1])
    return Acc(tuple(variables), _reducer(c))


def _let(c: Cursor, scope: Scope) -> Let:
    name = c.take().text
    given = parse_dtype(c) if c.skip(":") else None
    c.expect("=")
    value = parse_expr(c, scope)
    var = Var(name, given or value.dtype)
    scope.add(name, var)
    return Let(var, value)


def _update(c: Cursor, scope: Scope) -> Update:
    variables: list[Var] = []
    while True:
        name = c.of("name", "an accumulator")
        found = scope.names.get(name.text)
        if not isinstance(found, Var):
            c.fail(f"{name.text} is no value in scope", name)
        variables.append(found)
        if not c.skip(","):
            break
    reducer = _reducer(c)
    c.expect("=")
    values = [parse_expr(c, scope)]
    while c.skip(","):
        values.append(parse_expr(c, scope))
    mask = None
    if c.at("if") and not c.token.first:
        c.take()
        mask = parse_expr(c, scope)
    return Update(tuple(variables), reducer, tuple(values), mask)


# ---------------------------------------------------------------- modules


@dataclass(slots=True)
class _ModuleBody:
    """What the lines of a module add to; launches wait for their kernels, by the number of the step."""

    inputs: list[Buffer | Symbol | None] = field(default_factory=list[Buffer | Symbol | None])
    temps: list[Buffer] = field(default_factory=list[Buffer])
    placed: list[tuple[str, Index]] = field(default_factory=list[tuple[str, Index]])
    workspace: Index = ZERO
    constants: list[str] = field(default_factory=list[str])
    schedules: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    launches: dict[int, tuple[Token, tuple[Buffer, ...], tuple[str, ...]]] = field(
        default_factory=dict[int, tuple[Token, tuple[Buffer, ...], tuple[str, ...]]]
    )
    externs: dict[int, Extern] = field(default_factory=dict[int, Extern])
    outputs: list[Arg] = field(default_factory=list[Arg])


def _module_line(c: Cursor, scope: Scope, body: _ModuleBody) -> None:
    """One line between the braces; a word followed by ``=`` or ``,`` is a result, whatever the word."""
    word = c.token.text if c.ahead().text not in ("=", ",") else ""
    if word == "return":
        c.take()
        body.outputs.append(_arg(c, scope))
        while c.skip(","):
            body.outputs.append(_arg(c, scope))
    elif word == "workspace":
        c.take()
        body.workspace = parse_index(c, scope)
    elif word == "schedule":
        c.take()
        node = c.of("name", "a node").text
        body.schedules.append((node, int(c.of("int", "a number").text)))
    elif word == "temp":
        c.take()
        body.temps.append(_buffer(c, scope))
        if c.skip("at"):
            body.placed.append((body.temps[-1].name, parse_index(c, scope)))
    elif word == "input":
        c.take()
        entry = _input(c, scope)
        body.inputs.append(entry)
        if isinstance(entry, Buffer) and not c.token.first and c.skip("constant"):
            body.constants.append(entry.name)
    elif word == "launch":
        c.take()
        name = c.of("name", "a kernel")
        args: list[Buffer] = []
        c.expect("(")
        while _more(c, args, ")"):
            args.append(_lookup_buffer(c, scope))
        body.launches[len(body.launches) + len(body.externs)] = (name, tuple(args), _origin(c))
    else:
        body.externs[len(body.launches) + len(body.externs)] = _extern(c, scope)
    if not c.token.first and not c.at("}"):
        c.fail(f"expected the end of the line, got {c.token.text!r}")


def _input(c: Cursor, scope: Scope) -> Buffer | Symbol | None:
    if c.ahead().text == ":":
        return _buffer(c, scope)
    if c.skip("none"):
        return None
    c.expect("size")
    return _lookup_symbol(c, scope)


def _lookup_buffer(c: Cursor, scope: Scope) -> Buffer:
    name = c.of("name", "a buffer")
    found = scope.names.get(name.text)
    return found if isinstance(found, Buffer) else c.fail(f"{name.text} is no buffer of the module", name)


def _lookup_symbol(c: Cursor, scope: Scope) -> Symbol:
    name = c.of("name", "a symbol")
    found = scope.names.get(name.text)
    return found if isinstance(found, Symbol) else c.fail(f"{name.text} is no symbol of the module", name)


def _origin(c: Cursor) -> tuple[str, ...]:
    origin: list[str] = []
    while c.at("from") and c.ahead().kind == "string":
        c.take()
        origin.append(_string(c))
    return tuple(origin)


def _extern(c: Cursor, scope: Scope) -> Extern:
    """``a, none, s1 = extern aten.f.default(x, dim=1) writes y because "…"`` and its ``from`` lines."""
    results: list[Buffer | Symbol | None] = []
    if c.ahead().text in ("=", ","):
        while _more(c, results, "="):
            if c.skip("none"):
                results.append(None)
            elif isinstance(scope.names.get(c.token.text), Symbol):
                results.append(_lookup_symbol(c, scope))
            else:
                results.append(_lookup_buffer(c, scope))
    c.expect("extern")
    target = _word(c)
    args: list[Arg] = []
    kwargs: list[tuple[str, Arg]] = []
    c.expect("(")
    while _more(c, [*args, *kwargs], ")"):
        if c.token.kind == "name" and c.ahead().text == "=":
            name = c.take().text
            c.take()
            kwargs.append((name, _arg(c, scope)))
        elif kwargs:
            c.fail("a positional argument after one with a name")
        else:
            args.append(_arg(c, scope))
    writes: list[Buffer] = []
    if c.skip("writes"):
        writes.append(_lookup_buffer(c, scope))
        while c.skip(","):
            writes.append(_lookup_buffer(c, scope))
    because = _string(c) if c.skip("because") else ""
    return Extern(target, tuple(args), tuple(kwargs), tuple(results), tuple(writes), because, _origin(c))


def _arg(c: Cursor, scope: Scope) -> Arg:
    """A view, number, string, dtype, none or tuple of these."""
    if c.token.kind == "string":
        return _string(c)
    if c.token.kind in ("int", "float") or c.at("-") or c.at("inf") or c.at("nan"):
        return _number(c)
    if c.skip("("):
        items: list[Arg] = []
        while not c.skip(")"):
            items.append(_arg(c, scope))
            if not c.at(")"):
                c.expect(",")
        return tuple(items)
    name = c.of("name", "an argument")
    if name.text in ("true", "false"):
        return name.text == "true"
    if name.text == "none":
        return None
    if c.skip("("):
        if name.text == "idx":
            index = parse_index(c, scope)
            c.expect(")")
            return index
        if name.text != "complex":
            c.fail(f"expected idx(…) or complex(…), got {name.text}", name)
        real = _number(c)
        c.expect(",")
        number = complex(real, _number(c))
        c.expect(")")
        return number
    if name.text in DTYPES:
        return DTYPES[name.text]
    c.back()
    return _view(c, _lookup_buffer(c, scope), scope)


def _number(c: Cursor) -> int | float:
    sign = "-" if c.skip("-") else ""
    if c.token.kind == "int":
        return int(sign + c.take().text)
    if c.token.kind == "float" or c.token.text in ("inf", "nan"):
        return float(sign + c.take().text)
    return c.fail(f"expected a number, got {c.token.text!r}")


def _view(c: Cursor, buffer: Buffer, scope: Scope) -> View:
    """``x``, or ``x as f32[4 : 2] + 1``."""
    if not c.skip("as"):
        return View(buffer, buffer.dtype, buffer.shape, buffer.strides, ZERO)
    dtype, shape, strides = parse_tensor(c, scope)
    offset = parse_index(c, scope) if c.skip("+") else ZERO
    return View(buffer, dtype, shape, contiguous(shape) if strides is None else strides, offset)
