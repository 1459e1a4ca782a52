"""A program compiled: by lowc through AOTAutograd alone, or through Dynamo; by AOTAutograd without lowc."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_function, aot_module_simplified

from lowc.compiler import compile_graph
from lowc.frontend.aot import compile_module
from lowc.lowering.table import TABLE
from lowc.options import parse
from tests.property.graphs.program import Program, make_inputs
from tests.property.graphs.ran import Ran, made_on, run_on


def through_aot(program: Program, call: Callable[..., Any], chosen: dict[str, Any], device: str) -> Callable[..., Any]:
    options = parse(None, chosen)
    module, inputs = _module(program, call), make_inputs(program.inputs, device=device)
    with torch.set_grad_enabled(program.grad), made_on(device):
        return compile_module(
            module, inputs, lambda g, constants: compile_graph(g, constants, options), keep=TABLE.keys(), strict=True
        )


def _module(program: Program, call: Callable[..., Any]) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.call_function(call, tuple(graph.placeholder(i.name) for i in program.inputs)))
    return fx.GraphModule({}, graph)


def through_dynamo(call: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(call, backend="lowc", options=options, dynamic=False)


def refused(program: Program, call: Callable[..., Any], device: str) -> Exception | None:
    """What AOTAutograd, or what it makes of the program, raises without lowc as well; None if it does not."""
    torch._dynamo.reset()
    makers = (
        lambda: aot_function(call, fw_compiler=_as_it_is),
        lambda: aot_module_simplified(
            _module(program, call),
            make_inputs(program.inputs, device=device),
            fw_compiler=_as_it_is,
            keep_inference_input_mutations=True,
        ),
        lambda: torch.compile(call, backend="aot_eager", dynamic=False),
    )
    for make in makers:
        try:
            with torch.set_grad_enabled(program.grad), made_on(device):
                compiled = make()
            run_on(device, program, compiled)
        except Exception as error:
            return error
    return None


def without_lowc(program: Program, call: Callable[..., Any], dynamo: bool, device: str) -> Ran | None:
    torch._dynamo.reset()
    aot_eager = torch.compile(call, backend="aot_eager", dynamic=False) if dynamo else None
    try:
        return run_on(device, program, aot_eager or aot_function(call, fw_compiler=_as_it_is))
    except Exception:
        return None


def _as_it_is(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> fx.GraphModule:
    return gm
