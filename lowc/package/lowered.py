"""What both kinds of code for an artifact begin with: loop nests for every op, and memory for what is in between."""

from dataclasses import replace
from typing import TYPE_CHECKING

from lowc.errors import LowcError
from lowc.ir.graph import Graph
from lowc.ir.nodes import Buffer, Extern, Launch, Module, View
from lowc.ir.walk import exprs, has_check, statements, storage_size
from lowc.options import Options

if TYPE_CHECKING:
    from lowc.target import Target

_ALIGN = 64


def lowered(graph: Graph, options: Options, target: "Target | None" = None) -> Module:
    """The loop nests of ``graph``, which is on the device that they are for.  ``target``: of a GPU.  Raises LowcError, with the
    user's line, for an op that has none."""
    from lowc.lowering.lower import lower

    convolution = None
    if target is not None:
        from lowc.scheduler import choose_convolution

        convolution = choose_convolution.library(target, options._replace(convolution="own"))
    module = lower(graph, options, alone=True, convolution=convolution, target=target)
    for step in module.steps:
        if isinstance(step, Extern):
            line = step.origin[0].partition("  # ")[2] if step.origin else ""
            where = "" if target is None else f" for {target.cpu}"
            raise LowcError(
                f"{step.target} exists only in ATen{where}, and an artifact runs without it: "
                f"{step.because or 'sizes through floats'}",
                where=line,
                hint="write it by other ops, or leave it outside of the model",
            )
    return module


def with_constants(module: Module, given: int) -> Module:
    """``module`` whose inputs, but for the first ``given``, are constants."""
    return replace(module, constants=tuple([b.name for b in module.inputs[given:] if isinstance(b, Buffer)]))


def placed(module: Module) -> Module:
    """``module`` with every temp that is not returned in the workspace: an artifact has no other memory."""
    returned = {view.buffer.name for view in module.outputs if isinstance(view, View)}
    placed, end = dict(module.placed), module.workspace
    for temp in module.temps:
        if temp.name not in placed and temp.name not in returned:
            end = -(-end // _ALIGN) * _ALIGN
            placed[temp.name] = end
            end = end + storage_size(temp) * temp.dtype.bytes
    return replace(module, placed=tuple(placed.items()), workspace=end)


def checks(module: Module) -> dict[str, str]:
    """The ops of each step that may fail, by its number."""
    return {str(n): "; ".join(s.origin) for n, s in enumerate(module.steps) if isinstance(s, Launch) and _checks(s)}


def _checks(launch: Launch) -> bool:
    return any(has_check(e) for s in statements(launch.kernel.body) for e in exprs(s))


def kernel_count(module: Module) -> int:
    """How many kernels ``module`` has."""
    return len({id(step.kernel) for step in module.steps if isinstance(step, Launch)})
