"""Values of FX graphs as text: what the keys of the cache have of types, arguments, expressions and the user's lines.

Used by ``traced`` for Dynamo's graphs and by ``unread`` for AOTAutograd's.  Two values have the same text only if they are the
same: numbers are told apart by kind and to the last bit, strings are quoted, and what has no text here has no key.
"""

import struct
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch.types import py_sym_types

from lowc.frontend.source import user_line


class NoTextError(Exception):
    """Something that has no text here; the message may say what."""


_AS_WRITTEN = frozenset({bool, str, torch.dtype, torch.layout, torch.memory_format, type(None)})
ABSENT = object()


class Text:
    """The text of one graph.  What many nodes share (types, the user's lines, expressions) is written once, at the end."""

    def __init__(self) -> None:
        self._shared: dict[str, str] = {}  # what is written → what stands for it
        self._types: dict[Any, str] = {}
        self._traces: dict[str | None, str] = {}
        self._targets: dict[Any, str] = {}
        self._expressions: dict[Any, str] = {}
        self.devices: set[str] = set()
        self._symbols: dict[Any, Any] = {}  # to their ShapeEnv

    def _whole(self, lines: list[str]) -> str:
        """``lines``, and what stands for what in them."""
        lines += [f"{short}: {what}" for what, short in self._shared.items()]
        lines += sorted(self._symbol(symbol, env) for symbol, env in self._symbols.items())
        return "\n".join(lines)

    def _once(self, mark: str, what: str) -> str:
        """What stands for ``what``: ``mark`` and a number.  (Nothing has two marks.)"""
        return self._shared.setdefault(what, f"{mark}{len(self._shared)}")

    def _line(self, node: fx.Node) -> str:
        trace = node.meta.get("stack_trace") or node.stack_trace
        found = self._traces.get(trace)
        if found is None:
            line = user_line(node)
            found = self._traces[trace] = f"  {self._once('#', f'line {line}')}" if line else ""
        return found

    def _arg(self, arg: Any) -> str:
        kind = type(arg)
        if kind is fx.Node:
            return f"%{arg.name}"
        if kind is int:
            return str(arg)
        if kind is float or kind is complex:
            return _number(arg)
        if kind in _AS_WRITTEN:
            return repr(arg)
        return self._expression(arg) if isinstance(arg, py_sym_types) else self._other(arg)

    def _other(self, arg: Any) -> str:
        """Of what only some graphs may have; for others to say."""
        raise NoTextError

    def _tensor(self, value: Tensor) -> str:
        if value.is_conj() or value.is_neg():
            raise NoTextError
        return self._lies(value)

    def _lies(self, value: Tensor) -> str:
        """The type of a tensor, and how it lies."""
        if value.layout is not torch.strided:
            raise NoTextError
        if value._has_symbolic_sizes_strides:
            return self._type(value, *map(self._arg, (value.shape, value.stride(), value.storage_offset())))
        key = (value.dtype, value.shape, value.stride(), value.storage_offset(), value.device)
        found = self._types.get(key)
        if found is None:
            found = self._types[key] = self._type(value, tuple(key[1]), key[2], key[3])
        return found

    def _type(self, value: Tensor, shape: object, strides: object, offset: object) -> str:
        if value.is_quantized:
            raise NoTextError
        device = str(value.device)
        self.devices.add(device)
        return self._once("t", f"{value.dtype} {shape} {strides} {offset} {device}")

    def _expression(self, number: Any) -> str:
        expr = number.node.expr
        key = (type(number), type(expr), expr)
        found = self._expressions.get(key)
        if found is None:
            for symbol in expr.free_symbols:
                self._symbols[symbol] = number.node.shape_env
            # ``str`` would give floats to 15 digits, and some functions the same name.
            found = self._expressions[key] = self._once("s", f"{type(number).__name__} {sympy.srepr(expr)}")
        return found

    def _symbol(self, symbol: Any, env: Any) -> str:
        """What reading asks the ShapeEnv about a symbol: its range, and its value while tracing."""
        from lowc.frontend.symbols import hint_of_symbol  # most graphs have none

        bounds = env.bound_sympy(symbol)
        try:
            hint = hint_of_symbol(symbol, env)
        except (ValueError, OverflowError):
            hint = "none"  # a float that is infinite or NaN
        return f"{sympy.srepr(symbol)}: {sympy.srepr(bounds.lower)} .. {sympy.srepr(bounds.upper)} ~ {hint}"


def _number(value: complex) -> str:
    """A float or complex, exactly, with the sign of zero and of NaN."""
    if value == value:
        return repr(value)
    return f"{type(value).__name__} {struct.pack('>dd', complex(value).real, complex(value).imag).hex()}"
