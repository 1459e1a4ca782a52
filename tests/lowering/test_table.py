"""The table against torch: its names are ops, and its functions take the arguments that the ops take."""

from inspect import signature
from typing import Any

import pytest
import torch
import torch._prims  # registers prims.iota
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from lowc.frontend import flex_attention, random
from lowc.frontend.importer import import_graph
from lowc.ir.nodes import Extern
from lowc.lowering import lower
from lowc.lowering.table import COPYING, TABLE
from tests.lowering.harness import check_module, data


def overload(name: str) -> Any:
    random.register()
    flex_attention.register()
    namespace, packet, which = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), which)


@pytest.mark.parametrize("name", [n for n in TABLE if n != "prims.fma.default"])  # which torch registers late
def test_functions_take_what_the_schema_has(name: str) -> None:
    arguments = overload(name)._schema.arguments
    positional = [a.name for a in arguments if not a.kwarg_only]
    keywords = {a.name: None for a in arguments if a.kwarg_only}
    signature(TABLE[name]).bind(None, None, *positional, **keywords)
    required = [a.name for a in arguments if not a.kwarg_only and not a.has_default_value()]
    signature(TABLE[name]).bind(None, None, *required, **keywords)


def test_copying_forms_do_not_alias() -> None:
    for view, copying in COPYING.items():
        overload(view)
        assert all(r.alias_info is None for r in overload(copying)._schema.returns)


def test_every_aliasing_op_is_a_view_or_has_a_copying_form() -> None:
    """Functional ops of ATen whose results may share memory with an argument."""
    missing: list[str] = []
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for which in packet.overloads() if hasattr(packet, "overloads") else ():
            op = getattr(packet, which)
            schema = op._schema
            views = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
            if views and not schema.is_mutable and name not in SPARSE_AND_NESTED and not _composite(op):
                missing.append(str(op))
    assert not [name for name in missing if name not in COPYING]


def _composite(op: Any) -> bool:
    """Composite ops never reach a graph; TorchScript's own are not known to the dispatcher at all."""
    known = torch._C._dispatch_has_kernel(op.name())
    return not known or torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")


SPARSE_AND_NESTED = {
    "_values", "_indices", "values", "indices", "crow_indices", "ccol_indices", "col_indices", "row_indices",
    "_nested_view_from_buffer", "_nested_view_from_jagged", "_nested_get_values", "lift_fresh", "_fw_primal", "_make_dual",
    "_test_autograd_multiple_dispatch_view",
}  # fmt: skip


X, Y, N, M = (
    data((4, 6), torch.float32),
    data((4, 6), torch.float32, 1),
    data((4, 6), torch.int32),
    data((4, 6), torch.bool),
)
WHOLE: dict[str, tuple[Any, ...]] = {
    "aten.positive.default": (X,),
    "aten.square.default": (X,),
    "aten.fix.default": (X,),
    "aten.isfinite.default": (X,),
    "aten.rsub.Tensor": (X, Y),
    "aten.true_divide.Tensor": (X, Y),
    "aten.remainder.Scalar_Tensor": (7.5, X.round()),
    "aten.bitwise_and.Scalar_Tensor": (5, N),
    "aten.bitwise_or.Scalar_Tensor": (5, N),
    "aten.bitwise_xor.Scalar_Tensor": (5, N),
    "aten.bitwise_left_shift.Tensor_Scalar": (N, 3),
    "aten.bitwise_left_shift.Scalar_Tensor": (3, N),
    "aten.bitwise_right_shift.Tensor_Scalar": (N, 3),
    "aten.bitwise_right_shift.Scalar_Tensor": (-77, N),
    "aten.__lshift__.Tensor": (N, N),
    "aten.__rshift__.Tensor": (N, N),
    "aten.le.Scalar": (X, 1),
    "aten.ge.Scalar": (X, 0.5),
    "aten.where.ScalarSelf": (M, 1.5, X),
    "aten.where.ScalarOther": (M, X, 2),
    "aten.where.Scalar": (M, 1.5, 2.5),
    "aten.clip.default": (X, -1, 1),
    "aten.clip.Tensor": (X, Y),
    "aten.xlogy.Scalar_Other": (X, 2.0),
    "aten.relu6.default": (X,),
    "prims.convert_element_type.default": (X, torch.float64),
    "aten.channel_shuffle.default": (X.view(1, 4, 3, 2), 2),
    "aten.native_channel_shuffle.default": (X.view(1, 4, 3, 2), 2),
    "aten.narrow.default": (X, 1, 2, 3),
    "aten.reshape.default": (X.t(), (3, 8)),
    "aten.flatten.using_ints": (X, 0, -1),
    "aten.unflatten.int": (X, 1, (2, 3)),
    "aten.contiguous.default": (X.t(),),
    "aten._reshape_alias.default": (X, (3, 8), (8, 1)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_ops_that_tracing_takes_apart(name: str) -> None:
    """Each on its own in a graph made by hand."""
    graph = torch.fx.Graph()
    fakes = FakeTensorMode()
    arguments, values = [], []
    for n, value in enumerate(WHOLE[name]):
        fake = fakes.from_tensor(value) if isinstance(value, torch.Tensor) else value
        node = graph.placeholder(f"x{n}") if isinstance(value, torch.Tensor) else value
        if isinstance(node, torch.fx.Node):
            node.meta["val"] = fake
        arguments.append(node)
        values.append(fake)
    call = graph.call_function(overload(name), tuple(arguments))
    with fakes:
        call.meta["val"] = overload(name)(*values)
    graph.output((call,))
    module = lower(import_graph(torch.fx.GraphModule({}, graph), "f")[0])
    assert not [s for s in module.steps if isinstance(s, Extern)]
    tensors = tuple(v for v in WHOLE[name] if isinstance(v, torch.Tensor))

    def function(*given: torch.Tensor) -> Any:
        left = iter(given)
        return overload(name)(*(next(left) if isinstance(v, torch.Tensor) else v for v in WHOLE[name]))

    check_module(module, function, tensors, 4 if "xlogy" in name else None)


def test_unknown_arguments_become_calls() -> None:
    gm = make_fx(lambda x: x + 1, tracing_mode="fake")(torch.ones(3))
    graph, _ = import_graph(gm, "f")
    odd = type(graph.nodes[0])(
        "add", "aten.add.Tensor", graph.nodes[0].args, (("unheard_of", 1),), graph.nodes[0].outputs
    )
    step = lower(type(graph)("f", (), graph.inputs, (odd,), graph.outputs)).steps[0]
    assert "arguments that lowc does not know" in getattr(step, "because", "")
