"""The backend that ``torch.compile(backend="lowc")`` calls."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lowc.options import parse

if TYPE_CHECKING:
    from torch import fx


def lowc_backend(
    gm: "fx.GraphModule",
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph from Dynamo.  Raises OptionError for an unknown mode, option or value."""
    chosen = parse(mode, options)
    from lowc.compiler import compile_graph
    from lowc.frontend.aot import compile_module

    return compile_module(
        gm, example_inputs, lambda graph, constants: compile_graph(graph, constants, chosen), strict=chosen.strict_errors
    )
