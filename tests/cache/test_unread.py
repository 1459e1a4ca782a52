"""The text of an FX graph differs wherever reading would look at a difference, and is the same in every process."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._sympy.functions import FloorDiv, ToFloat, TruncToInt

from lowc.frontend import unread
from lowc.frontend.importer import import_graph
from lowc.ir.graph_printer import print_graph

aten = torch.ops.aten
TRACE = '  File "model.py", line 3, in f\n    return g(x)\n'
NAN = struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf8\x7f")[0]


class Made:
    """A small graph whose parts tests change: ``nodes`` by name; ``size``: of one dimension of x, a symbol."""

    def __init__(self) -> None:
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)
        self.gm = fx.GraphModule({}, fx.Graph())
        self.gm.register_buffer("held", torch.ones(5))
        graph = self.gm.graph
        context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
        symbolic = self.mode.from_tensor(torch.ones(8, 5), symbolic_context=context, source=ConstantSource("x"))
        self.nodes: dict[str, fx.Node] = {}
        self.size: Any = symbolic.shape[0]
        n = self.add("n", graph.placeholder("n"), self.size)
        x = self.add("x", graph.placeholder("x"), symbolic)
        y = self.add("y", graph.placeholder("y"), self.fake(4, 5))
        z = self.add("z", graph.placeholder("z"), self.fake(4, 5))
        held = self.add("held", graph.get_attr("held"), self.fake(5))
        exp = self.add("exp", graph.call_function(aten.exp.default, (y,)), self.fake(4, 5))
        add = self.add("add", graph.call_function(aten.add.Tensor, (exp, 1.0), {"alpha": 2}), self.fake(4, 5))
        mul = self.add("mul", graph.call_function(aten.mul.Tensor, (add, held)), self.fake(4, 5))
        var = self.add("var", graph.call_function(aten.var_mean.correction, (z, [1])), (self.fake(4), self.fake(4)))
        view = self.add("view", graph.call_function(aten.view.default, (x, [n, 5])), symbolic)
        full = graph.call_function(aten.full.default, ([4], 0.0), {"dtype": torch.float32, "device": torch.device("cpu")})
        self.add("full", full, self.fake(4))
        pick = self.add("pick", graph.call_function(__import__("operator").getitem, (var, 0)), self.fake(4))
        self.nodes["output"] = graph.output((mul, pick, view, full))

    def fake(self, *shape: int, **options: Any) -> torch.Tensor:
        with self.mode:
            return torch.empty(shape, **options)

    def add(self, name: str, node: fx.Node, value: Any) -> fx.Node:
        node.name = name
        node.meta["val"] = value
        self.nodes[name] = node
        return node

    def placeholder(self) -> fx.Node:
        with self.gm.graph.inserting_after(self.nodes["z"]):
            return self.gm.graph.placeholder("w")

    def text(self) -> str:
        return unread.text_of(self.gm, "inference")[0]

    def arg(self, name: str, number: int, value: Any) -> None:
        self.nodes[name].update_arg(number, value)

    def kwarg(self, name: str, key: str, value: Any) -> None:
        self.nodes[name].update_kwarg(key, value)

    def val(self, name: str, value: Any) -> None:
        self.nodes[name].meta["val"] = value

    def number(self, make: Callable[[Any], Any]) -> Any:
        """A size that is ``make`` of the symbol."""
        return self.env.create_symintnode(make(self.size.node.expr), hint=None)


def op(schema: str, tags: tuple[torch.Tag, ...] = ()) -> tuple[Any, Any]:
    library = torch.library.Library("lowc_test_unread", "FRAGMENT")
    library.define(schema, tags=tags)
    return torch.ops.lowc_test_unread.twice.default, library


def other_op(made: Made, schema: str, tags: tuple[torch.Tag, ...] = ()) -> str:
    overload, library = op(schema, tags)
    made.nodes["exp"].target = overload
    text = made.text()
    library._destroy()  # so that the next one may define it again
    return text


def trace(made: Made, number: str) -> None:
    made.nodes["exp"].meta["stack_trace"] = TRACE.replace("3", number)


def ranged(made: Made) -> None:
    made.env.constrain_symbol_range(made.size.node.expr, 2, 100)


def reordered(made: Made) -> None:
    made.nodes["x"].prepend(made.nodes["y"])


def shared(made: Made) -> None:
    with made.mode:
        made.val("z", made.nodes["y"].meta["val"].view(4, 5))


def strided(made: Made) -> None:
    with made.mode:
        made.val("exp", torch.empty(5, 4).t())


def offset(made: Made) -> None:
    with made.mode:
        made.val("exp", torch.empty(21).as_strided((4, 5), (5, 1), 1))


CHANGES: dict[str, Callable[[Made], Any]] = {
    "nothing": lambda m: None,
    "name": lambda m: setattr(m.nodes["exp"], "name", "exp_1"),
    "op": lambda m: setattr(m.nodes["exp"], "target", aten.sin.default),
    "function": lambda m: setattr(m.nodes["pick"], "target", torch.sym_max),
    "number": lambda m: m.arg("add", 1, 2.0),
    "next float": lambda m: m.arg("add", 1, 1.0000000000000002),
    "int": lambda m: m.arg("add", 1, 1),
    "bool": lambda m: m.arg("add", 1, True),
    "complex": lambda m: m.arg("add", 1, 1 + 0j),
    "complex with another zero": lambda m: m.arg("add", 1, complex(1, -0.0)),
    "zero": lambda m: m.arg("add", 1, 0.0),
    "minus zero": lambda m: m.arg("add", 1, -0.0),
    "infinity": lambda m: m.arg("add", 1, float("inf")),
    "text that looks like it": lambda m: m.arg("add", 1, "inf"),
    "nan": lambda m: m.arg("add", 1, float("nan")),
    "minus nan": lambda m: m.arg("add", 1, -float("nan")),
    "another nan": lambda m: m.arg("add", 1, NAN),
    "none": lambda m: m.arg("add", 1, None),
    "text of none": lambda m: m.arg("add", 1, "None"),
    "text with a line end": lambda m: m.arg("add", 1, "None\n"),
    "operand": lambda m: m.arg("mul", 0, m.nodes["exp"]),
    "text of an operand": lambda m: m.arg("mul", 0, "%add"),
    "symbol as an argument": lambda m: m.arg("view", 1, [m.size, 5]),
    "its number": lambda m: m.arg("view", 1, [8, 5]),
    "nested": lambda m: m.arg("view", 1, [[m.nodes["n"]], 5]),
    "dtype as an argument": lambda m: m.kwarg("full", "dtype", torch.float64),
    "device as an argument": lambda m: m.kwarg("full", "device", torch.device("cuda:0")),
    "layout": lambda m: m.kwarg("full", "layout", torch.strided),
    "memory format": lambda m: m.kwarg("full", "layout", torch.contiguous_format),
    "op as an argument": lambda m: m.kwarg("full", "layout", aten.exp.default),
    "keyword": lambda m: m.kwarg("add", "alpha", 3),
    "no keyword": lambda m: setattr(m.nodes["add"], "kwargs", {}),
    "dtype": lambda m: m.val("exp", m.fake(4, 5, dtype=torch.float64)),
    "shape": lambda m: m.val("exp", m.fake(4, 6)),
    "strides": strided,
    "offset": offset,
    "device": lambda m: m.val("exp", m.fake(4, 5, device="cuda:0")),
    "no type": lambda m: m.nodes["exp"].meta.pop("val"),
    "none as a type": lambda m: m.val("exp", None),
    "one of several": lambda m: m.val("exp", (m.fake(4, 5),)),
    "number as a type": lambda m: m.val("exp", 4),
    "type of the second": lambda m: m.val("var", (m.fake(4), m.fake(5))),
    "an input that nobody uses": lambda m: m.add("w", m.placeholder(), None),
    "an int that nobody uses": lambda m: m.add("w", m.placeholder(), 3),
    "another": lambda m: m.add("w", m.placeholder(), 4),
    "type of an input": lambda m: m.val("y", m.fake(4, 5, dtype=torch.bfloat16)),
    "order of inputs": reordered,
    "shared memory": shared,
    "held tensor": lambda m: setattr(m.gm, "held", torch.ones(10)[::2]),
    "held tensor's dtype": lambda m: setattr(m.gm, "held", torch.ones(5).double()),
    "line": lambda m: trace(m, "3"),
    "another line": lambda m: trace(m, "4"),
    "pass": lambda m: m.nodes["exp"].meta.update(partitioner_tag="is_backward"),
    "size from data": lambda m: m.nodes["exp"].meta.update(unbacked_bindings={"u0": ()}),
    "order of outputs": lambda m: m.arg("output", 0, (m.nodes["pick"], m.nodes["mul"], m.nodes["view"], m.nodes["full"])),
    "fewer outputs": lambda m: m.arg("output", 0, (m.nodes["mul"],)),
    "range of a size": ranged,
    "hint": lambda m: m.env.backed_var_to_val.update({m.size.node.expr: sympy.Integer(16)}),
    "another expression": lambda m: m.val("n", m.number(lambda s: s + 1)),
    "division": lambda m: m.val("n", m.number(lambda s: FloorDiv(s, 2))),
    "float in an expression": lambda m: m.val("n", m.number(lambda s: TruncToInt(ToFloat(s) * sympy.Float(0.1)))),
    "next float in it": lambda m: m.val("n", m.number(lambda s: TruncToInt(ToFloat(s) * sympy.Float(0.1 + 2**-56)))),
    "op of the user's": lambda m: other_op(m, "twice(Tensor x) -> Tensor"),
    "its schema": lambda m: other_op(m, "twice(Tensor(a!) x) -> Tensor"),
    "its defaults": lambda m: other_op(m, "twice(Tensor x, int n=3) -> Tensor"),
    "its tags": lambda m: other_op(m, "twice(Tensor x) -> Tensor", (torch.Tag.nondeterministic_seeded,)),
}  # fmt: skip


def texts() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, change in CHANGES.items():
        made = Made()
        early = change(made)
        found[name] = early if isinstance(early, str) and "graph" in early else made.text()
    return found


def test_whatever_changes_a_graph_changes_its_text() -> None:
    found = texts()
    assert all(found.values())
    same = [(a, b) for a in found for b in found if a < b and found[a] == found[b]]
    assert same == []
    assert found == texts()
    assert unread.text_of(Made().gm, "forward")[0] not in found.values()


def test_the_precision_of_products_is_in_the_text() -> None:
    before, precision = Made().text(), torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if precision != "tf32" else "ieee"
    try:
        assert Made().text() != before
    finally:
        torch.backends.cuda.matmul.fp32_precision = precision
    assert Made().text() == before


def test_determinism_is_in_the_text() -> None:
    before = Made().text()
    torch.use_deterministic_algorithms(True)
    try:
        assert Made().text() != before
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_devices_of_all_values() -> None:
    made = Made()
    assert unread.text_of(made.gm, "inference")[1] == ["cpu"]
    made.val("pick", made.fake(4, device="cuda:1"))
    assert unread.text_of(made.gm, "inference")[1] == ["cpu", "cuda:1"]


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.arg("add", 1, slice(0, 2)),
        lambda m: m.arg("add", 1, object()),
        lambda m: m.val("exp", object()),
        lambda m: m.val("exp", torch.ones(2, 2).to_sparse()),
        lambda m: m.val("exp", torch.ones(2, dtype=torch.complex64).conj()),
        lambda m: m.val("exp", torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)),
        lambda m: (delattr(m.gm, "held"), setattr(m.gm, "held", fx.GraphModule({}, fx.Graph()))),
    ],
)
def test_what_reading_may_see_otherwise_has_no_text(change: Callable[[Made], Any]) -> None:
    made = Made()
    change(made)
    assert made.text() == ""


def test_equal_texts_are_read_the_same() -> None:
    """Over all changes that can be read at all; and what reads otherwise has another text (by the test above)."""
    read = 0
    for change in CHANGES.values():
        graphs: list[str] = []
        for _ in range(2):
            made = Made()
            if isinstance(change(made), str):
                continue
            try:
                graphs.append(print_graph(import_graph(made.gm, "inference")[0]))
            except Exception:
                continue
        assert len(set(graphs)) <= 1
        read += len(graphs)
    assert read > 60


def test_printing_tells_torch_nothing_of_sizes() -> None:
    made = Made()
    before = unread.knowledge(made.gm)
    assert before is not None and made.text() and unread.knowledge(made.gm) == before
    assert bool(made.size > 5)
    assert unread.knowledge(made.gm) != before
