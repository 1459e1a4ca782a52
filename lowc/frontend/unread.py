"""FX graphs that nobody has read yet, as text: the key under which the cache has what became of one.

Reading is what ``cse``, ``collectives`` and ``importer`` do with a graph (``read.py``), some 25 microseconds a node; the text
takes 7, and graphs of equal text are read the same.  So it has whatever reading looks at: ops (with schemas, if they are not
torch's own), arguments, types of all values, symbolic expressions and what the ShapeEnv tells of their symbols, which inputs
share memory, the user's lines, determinism and the precision of products.  What has no text here has no key: it is read and
compiled, and not kept.

    graph inference False ieee
    arg0_1 = placeholder t0
    exp = aten.exp.default(%arg0_1) t0  #1
    output([%exp])
    t0: torch.float32 (4, 5) (5, 1) 0 cpu
    #1: line model.py:3 in f: return x.exp()
"""

import logging
import operator
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch import Tensor, fx

from lowc.frontend.cse import storage_of
from lowc.frontend.outside import is_object
from lowc.frontend.source import user_line
from lowc.frontend.symbols import SYMBOLIC, hint_of_symbol, numbers

if TYPE_CHECKING:
    from lowc.frontend.read import Reading

log = logging.getLogger("lowc.cache")


class Source:
    """A graph called ``name``.  ``constants``: the tensors that it holds; ``text``: see ``text_of``; ``read``: reads it, can
    be asked once, after ``text``, and raises Unsupported.  ``kept``, for whoever compiles it to say: the digest of the key under
    which the cache has what became of it; "" if it has nothing."""

    __slots__ = ("constants", "kept", "name", "read", "text")

    def __init__(
        self,
        name: str,
        constants: list[Tensor],
        text: Callable[[], tuple[str, list[str]]],
        read: "Callable[[], Reading]",
    ) -> None:
        self.name, self.constants, self.text, self.read = name, constants, text, read
        self.kept = ""


def text_of(gm: fx.GraphModule, name: str) -> tuple[str, list[str]]:
    """(the text of ``gm``, "" if it has none; the devices of its tensors)."""
    printer = Printer(gm)
    try:
        return printer.text(name), sorted(printer.devices)
    except NoTextError:
        pass
    except Exception as error:  # a bug, but none that should stop anybody
        log.warning("a graph is not looked up in the cache: %s: %s", type(error).__name__, error)
        log.debug("the reason in full", exc_info=True)
    return "", []


def constants_of(gm: fx.GraphModule) -> list[Tensor]:
    """The tensors that ``gm`` holds, in the order of the nodes that name them."""
    held = [attribute(gm, node) for node in gm.graph.find_nodes(op="get_attr")]
    return [value for value in held if isinstance(value, Tensor)]


def knowledge(gm: fx.GraphModule) -> object:
    """What torch knows of the sizes in ``gm``: equal if it has learnt nothing in between."""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for each in value if isinstance(value, tuple | list) else (value,):
            for number in numbers(each):
                if isinstance(number, SYMBOLIC):
                    env = number.node.shape_env
                    asserts = sum(map(len, env.deferred_runtime_asserts.values()))
                    return len(env.guards), len(env.replacements), dict(env.var_to_range), asserts
    return None


class NoTextError(Exception):
    """Something that has no text here; the message may say what."""


_AS_WRITTEN = frozenset({bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None)})
_TORCHS_OWN = frozenset({"aten", "prims"})
ABSENT = object()


class Printer:
    """What many nodes share, types, the user's lines and expressions, is written once, in lines at the end."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self._gm = gm
        self._shared: dict[str, str] = {}  # what is written → what stands for it
        self._types: dict[Any, str] = {}
        self._traces: dict[str | None, str] = {}
        self._targets: dict[Any, str] = {}
        self._expressions: dict[Any, str] = {}
        self._memory: dict[Any, str] = {}
        self.devices: set[str] = set()
        self._symbols: dict[Any, Any] = {}  # to their ShapeEnv

    def text(self, name: str) -> str:
        precision = torch.backends.cuda.matmul.fp32_precision
        return self._below(f"graph {name} {torch.are_deterministic_algorithms_enabled()} {precision} {torch.get_default_dtype()}")

    def _below(self, head: str) -> str:
        """``head`` and all nodes, and what stands for what in them."""
        lines = [head]
        lines += [self._node(node) for node in self._gm.graph.nodes]
        lines += [f"{short}: {what}" for what, short in self._shared.items()]
        lines += sorted(self._symbol(symbol, env) for symbol, env in self._symbols.items())
        return "\n".join(lines)

    def _once(self, mark: str, what: str) -> str:
        """What stands for ``what``: ``mark`` and a number.  (Nothing has two marks.)"""
        return self._shared.setdefault(what, f"{mark}{len(self._shared)}")

    def _node(self, node: fx.Node) -> str:
        op, meta = node.op, node.meta
        value = meta.get("val", ABSENT)
        if op == "call_function":
            args = ", ".join([self._arg(arg) for arg in node.args])
            if node.kwargs:
                args += "".join([f", {key}={self._arg(arg)}" for key, arg in node.kwargs.items()])
            what = f"{self._target(node.target)}({args})"
        elif op == "placeholder":
            if not node.users and not isinstance(value, (Tensor, int, *SYMBOLIC)):
                value = None  # torch.export has written down what a float or a string was
            what = f"placeholder{self._alias(node, value)}"
        elif op == "get_attr" and isinstance(held := attribute(self._gm, node), Tensor):
            what = f"tensor {self._value(held)}{self._alias(node, held)}"
        elif op == "output":
            return f"output({self._arg(node.args[0])})"
        else:
            raise NoTextError
        # Nodes of different passes are not merged, nor those whose result only data tells.
        apart = f" {meta['partitioner_tag']}" if "partitioner_tag" in meta else ""
        if meta.get("unbacked_bindings"):
            apart += " data"
        return f"{node.name} = {what} {self._value(value)}{apart}{self._line(node)}"

    def _line(self, node: fx.Node) -> str:
        trace = node.meta.get("stack_trace") or node.stack_trace
        found = self._traces.get(trace)
        if found is None:
            line = user_line(node)
            found = self._traces[trace] = f"  {self._once('#', f'line {line}')}" if line else ""
        return found

    def _target(self, target: Any) -> str:
        found = self._targets.get(target)
        if found is None:
            if isinstance(target, torch._ops.OpOverload):
                found = str(target)
                if target.namespace not in _TORCHS_OWN:  # torch's own are those of torch's version
                    found = self._once("op", f"{found} {target._schema} {sorted(map(str, target.tags))}")
            else:
                name = getattr(target, "__qualname__", "") or str(target)
                found = f"{getattr(target, '__module__', '')}.{name}"
            self._targets[target] = found
        return found

    def _arg(self, arg: Any) -> str:
        kind = type(arg)
        if kind is fx.Node:
            return f"%{arg.name}"
        if kind is int:
            return str(arg)
        if isinstance(arg, tuple | list):
            return f"[{', '.join([self._arg(a) for a in arg])}]"
        if kind is float or kind is complex:
            return _number(arg)
        if kind in _AS_WRITTEN:
            return repr(arg)
        if isinstance(arg, SYMBOLIC):
            return self._expression(arg)
        if isinstance(arg, torch._ops.OpOverload):
            return self._target(arg)
        raise NoTextError

    def _value(self, value: Any) -> str:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, tuple | list):
            return f"({', '.join([self._value(v) for v in value])})"
        if value is ABSENT:
            return "absent"
        return f"object {type(value).__name__}" if is_object(value) else self._arg(value)

    def _tensor(self, value: Tensor) -> str:
        if value.layout is not torch.strided or value.is_conj() or value.is_neg():
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

    def _alias(self, node: fx.Node, value: Any) -> str:
        """The first input in whose memory this one is, if it is another."""
        memory = storage_of(value)
        first = node.name if memory is None else self._memory.setdefault(memory, node.name)
        return "" if first == node.name else f" in %{first}"

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


def attribute(gm: fx.GraphModule, node: fx.Node) -> Any:
    """What ``gm`` holds where ``node``, a ``get_attr``, says."""
    return operator.attrgetter(str(node.target))(gm)
