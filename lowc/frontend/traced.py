"""What Dynamo hands on, as text: the key under which the cache has what AOTAutograd and lowc made of it.

    traced
    l_x_ = placeholder t0 True True False 80  #0
    sin = .sin(%l_x_) t0  #0
    mul = _operator.mul(%sin, 2) t0  #0
    output([%mul])
    t0: torch.float32 (4, 5) (5, 1) 0 cpu
    #0: line model.py:3 in f: return x.sin() * 2

AOTAutograd traces these functions anew in each process, which takes seconds.  It may be left out only where the same would come
out: so nothing has a text here but functions and methods that are torch's own, plain tensors that share no memory, and sizes with
a value.  Ops of users, functions that take functions (``cond``, checkpoints, ``autograd.Function``, ``flex_attention``), modules,
tensors that the graph holds, subclasses of tensors, floats that are symbols, and annotations have none.  What else tracing looks
at, settings of the process, is ``ambient``'s.
"""

import sys
from collections.abc import Iterator, Sequence
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.types import py_sym_types

from lowc.frontend.text import ABSENT, NoTextError, Text

_PLAIN = frozenset({FakeTensor, Tensor, torch.nn.Parameter})
_HARMLESS = frozenset({"dynamo_flat_name_to_original_fqn", "dynamo_compile_id", "backend_id"})
"""What torch writes on a graph and AOTAutograd does not look at."""
_METHODS = (MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType)
_PYTHONS = frozenset({"_operator", "math", "builtins"})
_FUNCTIONS = (
    "torch._C", "torch.functional", "torch.nn.functional", "torch._functorch.", "torch.amp.", "torch.autograd", "torch._tensor",
    "torch.fx.experimental.",
)  # fmt: skip
"""Modules with functions that do the same wherever they are called with the same.  Those of others may look into tables of the
process (Dynamo's have numbers for objects)."""

_CONFIG = (
    "keep_inference_input_mutations", "is_export", "no_tangents", "dynamic_shapes", "static_input_indices", "enable_log",
    "pre_dispatch", "ignore_shape_env", "disable_functionalization", "selective_decompose", "req_subclass_dispatch",
)  # fmt: skip


def text_of_traced(gm: Any, args: Sequence[Any], config: Any) -> tuple[str, list[str]]:
    """(the text of ``gm``, a graph of torch's functions, on ``args`` under ``config``, torch's AOTConfig; the devices in it).

    Raises NoTextError.
    """
    if not isinstance(gm, fx.GraphModule) or config.num_params_buffers:
        raise NoTextError("it is no graph alone")
    if unknown := set(gm.meta) - _HARMLESS:
        raise NoTextError(f"it is marked: {', '.join(map(str, unknown))}")
    written = _Traced(args)
    text = written.text(gm.graph, config)
    return text, sorted(written.devices)


class _Traced(Text):
    def __init__(self, args: Sequence[Any]) -> None:
        super().__init__()
        self._given: Iterator[Any] = iter(args)
        self._storages: set[int] = set()  # each is there as long as its tensor is given
        self._methods: dict[Any, str] = {}

    def text(self, graph: fx.Graph, config: Any) -> str:
        sources = [_name(source) for source in config.aot_autograd_arg_pos_to_source or ()]
        head = f"traced {[getattr(config, field, None) for field in _CONFIG]} {sources}"
        text = self._whole([head, *[self._node(node) for node in graph.nodes]])
        if next(self._given, None) is not None:
            raise NoTextError("there are more inputs than the graph has")
        return text

    def _node(self, node: fx.Node) -> str:
        op, target, meta = node.op, node.target, node.meta
        if meta.get("custom"):
            raise NoTextError("a node is annotated")
        if op == "call_function":
            name = self._targets.get(target) or self._target(target)
        elif op == "call_method":
            name = self._methods.get(target) or self._method(target)
        elif op == "placeholder":
            return f"{node.name} = placeholder {self._input(next(self._given, ABSENT))}{self._line(node)}"
        elif op == "output":
            return f"output({self._arg(node.args[0])})"
        else:
            raise NoTextError(f"{op} of {target}")
        # What most are is written here, as a call takes as long as all else of a node.
        args = [f"%{arg.name}" if type(arg) is fx.Node else self._arg(arg) for arg in node.args]
        if node.kwargs:
            args += [f"{key}={self._arg(arg)}" for key, arg in node.kwargs.items()]
        line = self._traces.get(meta.get("stack_trace"))
        return (
            f"{node.name} = {name}({', '.join(args)}) {self._made(meta.get('example_value'))}"
            f"{self._line(node) if line is None else line}"
        )

    def _input(self, given: Any) -> str:
        if isinstance(given, Tensor):
            kind = self._tensor(given)
            storage = given.untyped_storage()
            if storage._cdata in self._storages:
                raise NoTextError("inputs share memory")
            self._storages.add(storage._cdata)
            return f"{kind} {given.requires_grad} {given.is_leaf} {given.is_inference()} {self._arg(storage.nbytes())}"
        if type(given) is int or isinstance(given, torch.SymInt):
            return self._arg(given)
        raise NoTextError(f"an input is a {type(given).__name__}")

    def _tensor(self, value: Tensor) -> str:
        if type(value) not in _PLAIN:
            raise NoTextError(f"a tensor is a {type(value).__name__}")
        return super()._tensor(value)

    def _made(self, value: Any) -> str:
        """What Dynamo says of a result.  It follows from all above it, and is here only to be sure."""
        if type(value) in _PLAIN:
            return self._lies(value)
        if isinstance(value, tuple | list):
            return f"({', '.join([self._made(v) for v in value])})"
        if isinstance(value, Tensor):
            return self._tensor(value)
        return self._arg(value) if type(value) is int or isinstance(value, py_sym_types) else ""

    def _other(self, arg: Any) -> str:
        if isinstance(arg, list):
            return f"[{', '.join([self._arg(a) for a in arg])}]"
        if isinstance(arg, tuple):  # an index that is a list is another one
            return f"{type(arg).__name__}({''.join([f'{self._arg(a)}, ' for a in arg])})"
        if isinstance(arg, slice):
            return f"slice({self._arg(arg.start)}, {self._arg(arg.stop)}, {self._arg(arg.step)})"
        if arg is Ellipsis:
            return "..."
        if isinstance(arg, torch.device):
            if arg.type == "cuda" and arg.index is None:
                raise NoTextError("which GPU is meant hangs on the process")
            self.devices.add(str(arg))
            return repr(arg)
        return super()._other(arg)

    def _target(self, target: Any) -> str:
        found = self._targets[target] = _torchs_own(target)
        return found

    def _method(self, name: Any) -> str:
        """A tensor's (or a number's, which has no others), unless a user has put one of his own there."""
        held = getattr(Tensor, name, None)
        if not isinstance(held, _METHODS) and not (isinstance(held, FunctionType) and _home(held) == "torch"):
            raise NoTextError(f"{name} is no method of torch's own")
        found = self._methods[name] = f".{name}"
        return found

    def _symbol(self, symbol: Any, env: Any) -> str:
        if not symbol.is_integer or symbol not in env.backed_var_to_val:
            raise NoTextError(f"{symbol} is a float, or hangs on data")
        return f"{super()._symbol(symbol, env)} {env.settings}"


def _torchs_own(target: Any) -> str:
    """What tells a function of torch or Python; another one, or one that has been put in its place, has none."""
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        if isinstance(target, torch._ops.OpOverload):
            space = target.namespace
        else:
            space = target._qualified_op_name.partition("::")[0]
        if space in ("aten", "prims"):
            return f"torch.ops.{target}"
    elif isinstance(target, BuiltinFunctionType | FunctionType):
        home, name = target.__module__ or "", target.__name__
        if isinstance(target, FunctionType):
            name = target.__qualname__
        known = home == "torch" or home in _PYTHONS or home.startswith(_FUNCTIONS)
        for place in (home, "torch.nn.functional"):  # where those are that choose between two
            if known and _at(place, name) is target:
                return f"{place}.{name}"
            name = target.__name__
    raise NoTextError(f"{getattr(target, '__name__', target)} is not torch's own")


def _home(function: FunctionType) -> str:
    return (function.__module__ or "").partition(".")[0]


def _at(home: str, name: str) -> Any:
    first, *rest = home.split(".")
    found: Any = sys.modules.get(first)
    for part in [*rest, *name.split(".")]:
        found = getattr(found, part, None)
    return found


def _name(source: Any) -> str:
    """How the user's program spells an input."""
    if source is None:
        return ""
    name = source.name
    return str(name() if callable(name) else name)
