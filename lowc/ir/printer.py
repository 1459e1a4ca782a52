"""The text form of the IR: what dumps show, tests write, and ``parser`` reads back to the same tree.

Grammar: docs/design.md, 1.2.  Printing is linear in the number of distinct nodes, not in the size of the expanded tree, and
does not recurse into expressions, so that depth is no limit: within a statement, a shared subexpression of ``SHARE`` nodes or
more is written once, on a line of its own before the statement (``$1 = exp(x[i] - m)``), and referred to by number.  Such a
line is spelling only, no statement: sharing means nothing.

What is not well formed (an op whose dtype is not the one that its row gives) is printed with its dtype, for verifier messages.
"""

import re

from lowc.ir.graph_printer import number_text, quoted, range_text, scalar_text, tensor_text, tuple_text
from lowc.ir.index import ZERO, Index, Symbol, text
from lowc.ir.nodes import (
    Acc,
    Alloc,
    Arg,
    Barrier,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Kind,
    Launch,
    Let,
    Load,
    Module,
    Op,
    Step,
    Stmt,
    Store,
    Update,
    Var,
    View,
)
from lowc.ir.ops import OPS, OpRow
from lowc.ir.types import bool_, f32, i64

SHARE = 12
"""A shared subexpression gets a ``$`` line from this many nodes (of the expanded tree) on."""

PRECEDENCE: dict[str, int] = {
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), 1),  # not associative
    "|": 2,
    "^": 3,
    "&": 4,
    **dict.fromkeys(("<<", ">>"), 5),
    **dict.fromkeys(("+", "-"), 6),
    **dict.fromkeys(("*", "/"), 7),
}
ARITHMETIC = 6
UNARY = 8
NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")

Line = tuple[str, object]
"""A line of text and the node it shows (None for a closing brace)."""


# ---------------------------------------------------------------- entry points


def print_kernel(kernel: Kernel) -> str:
    """``kernel`` as text, ending in a newline."""
    return _join(print_kernel_lines(kernel))


def print_kernel_lines(kernel: Kernel) -> list[Line]:
    """The lines of ``print_kernel``, each with its statement (the ``$`` lines of a statement have it too), or the kernel."""
    params = [f"{s.name}: size {range_text(s)}" for s in kernel.sizes] + [print_buffer(b) for b in kernel.params]
    lines: list[Line] = [(f"kernel {kernel.name}({', '.join(params)}) {{", kernel)]
    _block(lines, kernel.body, "  ")
    lines.append(("}", None))
    return lines


def print_module(module: Module) -> str:
    """``module`` and the kernels it launches as text, ending in a newline."""
    parts = [_join(print_module_lines(module))]
    kernels = {id(s.kernel): s.kernel for s in module.steps if isinstance(s, Launch)}
    parts.extend(print_kernel(k) for k in kernels.values())
    return "\n".join(parts)


def print_module_lines(module: Module) -> list[Line]:
    """The lines of ``print_module`` without the kernels, each with the buffer, symbol or step that it shows."""
    symbols = ", ".join(f"{s.name}: {range_text(s)}" for s in module.symbols)
    lines: list[Line] = [(f"module @{module.level}({symbols}) {{", module)]
    for item in module.inputs:
        size = f"size {item.name}" if isinstance(item, Symbol) else "none"
        fixed = " constant" if isinstance(item, Buffer) and item.name in module.constants else ""
        lines.append((f"  input {print_buffer(item) if isinstance(item, Buffer) else size}{fixed}", item))
    placed = dict(module.placed)
    for buffer in module.temps:
        at = f" at {text(placed[buffer.name])}" if buffer.name in placed else ""
        lines.append((f"  temp {print_buffer(buffer)}{at}", buffer))
    if module.workspace != ZERO:
        lines.append((f"  workspace {text(module.workspace)}", module))
    for step in module.steps:
        lines.append((f"  {_step(step)}", step))
        lines.extend((f"    from {quoted(origin)}", None) for origin in step.origin)
    lines.extend((f"  schedule {node} {number}", module) for node, number in module.schedules)
    if module.outputs:
        lines.append((f"  return {', '.join(map(print_arg, module.outputs))}", module.outputs))
    lines.append(("}", None))
    return lines


def print_expr(expr: Expr, limit: int = 0) -> str:
    """``expr`` on one line; with ``limit``, cut to that many characters (and never expanded much beyond)."""
    out: list[str] = []
    _write(out, expr, {}, limit)
    shown = "".join(out)
    return shown if not limit or len(shown) <= limit else shown[: limit - 1] + "…"


def print_buffer(buffer: Buffer) -> str:
    """``x: f32[4, 5 : 1, 4] @shared``; contiguous strides and the global space are left out."""
    space = f" @{buffer.space}" if buffer.space != "global" else ""
    return f"{buffer.name}: {tensor_text(buffer.dtype, buffer.shape, buffer.strides)}{space}"


def print_arg(arg: Arg) -> str:
    """An argument of an extern call, or an output of a module."""
    if isinstance(arg, View):
        buffer = arg.buffer
        if (
            arg.dtype == buffer.dtype
            and (arg.shape, arg.strides) == (buffer.shape, buffer.strides)
            and arg.offset == ZERO
        ):
            return buffer.name
        offset = f" + {text(arg.offset)}" if arg.offset != ZERO else ""
        return f"{buffer.name} as {tensor_text(arg.dtype, arg.shape, arg.strides)}{offset}"
    if isinstance(arg, tuple):
        return tuple_text([print_arg(a) for a in arg])
    return scalar_text(arg)


# ---------------------------------------------------------------- statements


def _join(lines: list[Line]) -> str:
    return "\n".join(line for line, _ in lines) + "\n"


def _block(lines: list[Line], body: tuple[Stmt, ...], indent: str) -> None:
    for stmt in body:
        if isinstance(stmt, For):
            kind = print_kind(stmt.kind)
            lines.append(
                (f"{indent}for {stmt.axis.name} in {text(stmt.axis.extent)}{kind and ' ' + kind} {{", stmt)
            )
            _block(lines, stmt.body, indent + "  ")
            lines.append((indent + "}", None))
            continue
        nodes = _shared_nodes(_roots(stmt))
        shared = {id(node): f"${number}" for number, node in enumerate(nodes, 1)}
        for node in nodes:
            lines.append((f"{indent}{shared[id(node)]} = {_shown(node, shared)}", stmt))
        lines.append((indent + _statement(stmt, shared), stmt))
        if isinstance(stmt, If):
            _block(lines, stmt.body, indent + "  ")
            lines.append((indent + "}", None))


def _statement(stmt: Stmt, shared: dict[int, str]) -> str:
    """The line of a statement (of an If: its first)."""
    if isinstance(stmt, Let):
        dtype = f": {stmt.var.dtype}" if stmt.var.dtype != stmt.value.dtype else ""
        return f"{stmt.var.name}{dtype} = {_shown(stmt.value, shared)}"
    if isinstance(stmt, Store):
        target = _access(stmt.buffer, stmt.index, stmt.mask, shared)
        return f"{target} {stmt.reducer}= {_shown(stmt.value, shared)}"
    if isinstance(stmt, Update):
        values = ", ".join(_shown(v, shared) for v in stmt.values)
        mask = f" if {_shown(stmt.mask, shared)}" if stmt.mask is not None else ""
        return f"{', '.join(v.name for v in stmt.vars)} {stmt.reducer}= {values}{mask}"
    if isinstance(stmt, Acc):
        return f"acc {', '.join(f'{v.name}: {v.dtype}' for v in stmt.vars)} = {stmt.reducer}"
    if isinstance(stmt, Alloc):
        return f"alloc {print_buffer(stmt.buffer)}{stmt.reducer and ' = ' + stmt.reducer}"
    if isinstance(stmt, If):
        return f"if {_shown(stmt.cond, shared)} {{"
    return "barrier" if isinstance(stmt, Barrier) else f"for {stmt.axis.name}"


def print_kind(kind: Kind) -> str:
    """``vector(16)``, ``vector(16, 4)`` (width, strips interleaved), ``instr(key)``; empty for a serial loop."""
    extra: list[str] = []
    if kind.interleave != 1:
        extra.append(f"{kind.width}, {kind.interleave}")
    elif kind.width:
        extra.append(str(kind.width))
    if kind.key:
        extra.append(_word(kind.key))
    if kind.name == "serial" and not extra:
        return ""
    return f"{kind.name}({', '.join(extra)})" if extra else kind.name


# ---------------------------------------------------------------- expressions


def _roots(stmt: Stmt) -> list[Expr]:
    """The expressions of a statement, in the order of its line."""
    if isinstance(stmt, Let):
        return [stmt.value]
    if isinstance(stmt, Store):
        return [stmt.value] if stmt.mask is None else [stmt.mask, stmt.value]
    if isinstance(stmt, Update):
        return list(stmt.values) if stmt.mask is None else [*stmt.values, stmt.mask]
    return [stmt.cond] if isinstance(stmt, If) else []


def _children(expr: Expr) -> tuple[Expr, ...]:
    if isinstance(expr, Op):
        return expr.args
    return (expr.mask,) if isinstance(expr, Load) and expr.mask is not None else ()


def _shared_nodes(roots: list[Expr]) -> list[Expr]:
    """The nodes to be given a ``$`` line, each after those in it."""
    uses: dict[int, int] = {}
    order: list[Expr] = []
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    repeated = False
    while stack:
        expr, done = stack.pop()
        if done:
            order.append(expr)
            continue
        key = id(expr)
        if key in uses:
            uses[key] += 1
            repeated = True
            continue
        children = _children(expr)
        if children:
            uses[key] = 1
            stack.append((expr, True))
            stack.extend([(child, False) for child in reversed(children)])
    if not repeated:
        return []
    sizes: dict[int, int] = {}
    for expr in order:
        sizes[id(expr)] = min(SHARE, 1 + sum(sizes.get(id(child), 1) for child in _children(expr)))
    return [expr for expr in order if uses[id(expr)] > 1 and sizes[id(expr)] >= SHARE]


def _shown(expr: Expr, shared: dict[int, str]) -> str:
    out: list[str] = []
    _write(out, expr, shared, 0)
    return "".join(out)


def _access(buffer: Buffer, index: tuple[Index, ...], mask: Expr | None, shared: dict[int, str]) -> str:
    shown = ", ".join(map(text, index))
    if mask is None:
        return f"{buffer.name}[{shown}]"
    return f"{buffer.name}[{shown}{shown and ' '}if {_shown(mask, shared)}]"


def _write(out: list[str], root: Expr, shared: dict[int, str], limit: int) -> None:
    """Appends the text of ``root`` (of a shared node: what its ``$`` line says) to ``out``; a loop, so that depth is no limit."""
    stack: list[str | tuple[Expr, int]] = [(root, 0)]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            out.append(item)
            continue
        expr, least = item
        if shared and expr is not root and id(expr) in shared:
            out.append(shared[id(expr)])
        elif isinstance(expr, Op):
            _push_op(stack, expr, least)
        elif isinstance(expr, Load):
            shown = ", ".join(map(text, expr.index))
            if expr.mask is None:
                out.append(f"{expr.buffer.name}[{shown}]")
            else:
                out.append(f"{expr.buffer.name}[{shown}{shown and ' '}if ")
                stack.append("]")
                stack.append((expr.mask, 0))
        elif isinstance(expr, Var):
            out.append(expr.name)
        elif isinstance(expr, Const):
            out.append(print_const(expr))
        else:
            out.append(
                f"idx({text(expr.index)})" if expr.dtype == i64 else f"idx:{expr.dtype}({text(expr.index)})"
            )
        if limit and len(out) > limit:
            return


def _push_op(stack: list[str | tuple[Expr, int]], op: Op, least: int) -> None:
    """Pushes the pieces of ``op``, last first; in parentheses where it binds weaker than ``least``."""
    row = OPS.get(op.name)
    args = op.args
    natural = row is not None and _natural(row, op)
    pieces: list[str | tuple[Expr, int]]
    if natural and row is not None and row.infix:
        level = PRECEDENCE[row.infix]
        left, right = args
        if level == 1:
            pieces = [(left, ARITHMETIC), f" {row.infix} ", (right, ARITHMETIC)]
        elif (
            level < ARITHMETIC
        ):  # next to bit operators, more parentheses than needed: few know their precedence
            same = isinstance(left, Op) and left.name == op.name
            pieces = [(left, level if same else UNARY), f" {row.infix} ", (right, UNARY)]
        else:
            pieces = [(left, level), f" {row.infix} ", (right, level + 1)]
    elif natural and op.name == "neg" and not isinstance(args[0], Const):
        level = UNARY
        pieces = ["-", (args[0], UNARY)]
    else:
        level = UNARY + 1
        if op.name == "cast" and natural:
            name = op.dtype.name
        else:
            name = op.name if natural and op.name != "bitcast" else f"{op.name}:{op.dtype}"
        pieces = [f"{name}("]
        for number, arg in enumerate(args):
            if number:
                pieces.append(", ")
            pieces.append((arg, 0))
        pieces.append(")")
    if level < least:
        pieces = ["(", *pieces, ")"]
    stack.extend(reversed(pieces))


def _natural(row: OpRow, op: Op) -> bool:
    """Whether the op is as its row would have it, so that the parser finds its dtype by itself."""
    args = op.args
    if len(args) != row.arity:
        return False
    dtype = args[1 if row.rule == "select" else 0].dtype
    if dtype.kind not in row.kinds:
        return False
    if row.takes is not None:
        return {dict(row.takes).get(a.dtype) for a in args} == {op.dtype}
    if row.rule == "same":
        return op.dtype == dtype and all(a.dtype == dtype for a in args[1:])
    if row.rule == "bool":
        return op.dtype == bool_ and args[1].dtype == dtype
    if row.rule == "select":
        return op.dtype == dtype and args[2].dtype == dtype and args[0].dtype == bool_
    return row.rule == "given" or op.dtype == dtype


def print_const(const: Const) -> str:
    """``1.5`` is f32, ``3`` i64, ``true`` bool; other dtypes are appended: ``1.5:f64``, ``-3:i32``, ``-inf:f16``."""
    value, dtype = const.value, const.dtype
    if dtype.kind == "f" and not isinstance(value, float) and float(value) == value:
        value = float(value)
    shown = number_text(value)
    plain = bool_ if isinstance(value, bool) else f32 if isinstance(value, float) else i64
    return shown if dtype == plain else f"{shown}:{dtype}"


# ---------------------------------------------------------------- modules


def _step(step: Step) -> str:
    if isinstance(step, Launch):
        return f"launch {step.kernel.name}({', '.join(b.name for b in step.args)})"
    args = [print_arg(a) for a in step.args] + [f"{name}={print_arg(a)}" for name, a in step.kwargs]
    results = ", ".join("none" if r is None else r.name for r in step.results)
    call = f"{results}{results and ' = '}extern {_word(step.target)}({', '.join(args)})"
    writes = f" writes {', '.join(b.name for b in step.writes)}" if step.writes else ""
    because = f" because {quoted(step.because)}" if step.because else ""
    return call + writes + because


def _word(string: str) -> str:
    """A name as it is, anything else quoted."""
    return string if NAME.fullmatch(string) else quoted(string)
