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

from lowc.frontend.symbols import SYMBOLIC
from lowc.frontend.unread import ABSENT, NoTextError, Printer

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
    printer = _Traced(gm, args)
    text = printer.text(config)
    return text, sorted(printer.devices)


class _Traced(Printer):
    def __init__(self, gm: fx.GraphModule, args: Sequence[Any]) -> None:
        super().__init__(gm)
        self._given: Iterator[Any] = iter(args)
        self._number = 0

    def text(self, name: Any) -> str:
        """``name``: the AOTConfig."""
        sources = [_name(source) for source in name.aot_autograd_arg_pos_to_source or ()]
        text = self._below(f"traced {[getattr(name, field, None) for field in _CONFIG]} {sources}")
        if next(self._given, None) is not None:
            raise NoTextError("there are more inputs than the graph has")
        return text

    def _node(self, node: fx.Node) -> str:
        op = node.op
        if node.meta.get("custom"):
            raise NoTextError("a node is annotated")
        if op == "output":
            return f"output({self._arg(node.args[0])})"
        if op == "placeholder":
            given = next(self._given, ABSENT)
            return f"{node.name} = placeholder {self._input(given)}{self._alone(node, given)}{self._line(node)}"
        if op == "call_function":
            name = self._target(node.target)
        elif op == "call_method":
            name = self._method(str(node.target))
        else:
            raise NoTextError(f"{op} of {node.target}")
        args = [self._arg(arg) for arg in node.args] + [f"{key}={self._arg(arg)}" for key, arg in node.kwargs.items()]
        return f"{node.name} = {name}({', '.join(args)}) {self._made(node.meta.get('example_value'))}{self._line(node)}"

    def _input(self, given: Any) -> str:
        if isinstance(given, Tensor):
            memory = self._arg(given.untyped_storage().nbytes())
            return f"{self._tensor(given)} {given.requires_grad} {given.is_leaf} {given.is_inference()} {memory}"
        if type(given) is int or isinstance(given, torch.SymInt):
            return self._arg(given)
        raise NoTextError(f"an input is a {type(given).__name__}")

    def _alone(self, node: fx.Node, given: Any) -> str:
        if isinstance(given, Tensor) and self._alias(node, given):
            raise NoTextError("inputs share memory")
        return ""

    def _tensor(self, value: Tensor) -> str:
        if type(value) not in _PLAIN:
            raise NoTextError(f"a tensor is a {type(value).__name__}")
        return super()._tensor(value)

    def _made(self, value: Any) -> str:
        """What Dynamo says of a result.  It follows from all above it, and is here only to be sure."""
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, tuple | list):
            return f"({', '.join([self._made(v) for v in value])})"
        return self._arg(value) if type(value) is int or isinstance(value, SYMBOLIC) else ""

    def _arg(self, arg: Any) -> str:
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
        return super()._arg(arg)

    def _target(self, target: Any) -> str:
        found = self._targets.get(target)
        if found is None:
            found = self._targets[target] = _torchs_own(target)
        return found

    def _method(self, name: str) -> str:
        """A tensor's (or a number's, which has no others), unless a user has put one of his own there."""
        method = f".{name}"
        if method not in self._targets:
            held = getattr(Tensor, name, None)
            if not isinstance(held, _METHODS) and not (isinstance(held, FunctionType) and _home(held) == "torch"):
                raise NoTextError(f"{name} is no method of torch's own")
            self._targets[method] = method
        return method

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
