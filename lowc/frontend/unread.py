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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from lowc.frontend.cse import storage_of
from lowc.frontend.outside import is_object
from lowc.frontend.symbols import SYMBOLIC, numbers
from lowc.frontend.text import ABSENT, NoTextError, Text

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
    printer = _Unread(gm)
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


_TORCHS_OWN = frozenset({"aten", "prims"})


class _Unread(Text):
    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__()
        self._gm = gm
        self._memory: dict[Any, str] = {}

    def text(self, name: str) -> str:
        precision = torch.backends.cuda.matmul.fp32_precision
        head = f"graph {name} {torch.are_deterministic_algorithms_enabled()} {precision} {torch.get_default_dtype()}"
        return self._whole([head, *[self._node(node) for node in self._gm.graph.nodes]])

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

    def _other(self, arg: Any) -> str:
        if isinstance(arg, tuple | list):
            return f"[{', '.join([self._arg(a) for a in arg])}]"
        if isinstance(arg, torch.device):
            return repr(arg)
        return self._target(arg) if isinstance(arg, torch._ops.OpOverload) else super()._other(arg)

    def _value(self, value: Any) -> str:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, tuple | list):
            return f"({', '.join([self._value(v) for v in value])})"
        if value is ABSENT:
            return "absent"
        return f"object {type(value).__name__}" if is_object(value) else self._arg(value)

    def _alias(self, node: fx.Node, value: Any) -> str:
        """The first input in whose memory this one is, if it is another."""
        memory = storage_of(value)
        first = node.name if memory is None else self._memory.setdefault(memory, node.name)
        return "" if first == node.name else f" in %{first}"


def attribute(gm: fx.GraphModule, node: fx.Node) -> Any:
    """What ``gm`` holds where ``node``, a ``get_attr``, says."""
    return operator.attrgetter(str(node.target))(gm)
