"""attach: LOOPS → LOOPS.  Each launch gets a kernel over the module's own buffers.

A kernel read from text, or shared by several launches, has params of its own; the passes that look across kernels tell buffers by
identity.  Kernels that lowering makes are attached already and stay as they are.
"""

from dataclasses import replace

from lowc.ir.index import Index
from lowc.ir.nodes import Buffer, Launch, Module
from lowc.ir.walk import Substitution, make_kernel
from lowc.options import Options
from lowc.scheduler.rename import apart
from lowc.target import Target


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with every kernel's params replaced by the launch's arguments."""
    steps = [_attach(s) if isinstance(s, Launch) else s for s in module.steps]
    return replace(module, steps=tuple(steps))


def _attach(step: Launch) -> Launch:
    if all(p is a for p, a in zip(step.kernel.params, step.args, strict=True)):
        return step
    place = {id(p): a for p, a in zip(step.kernel.params, step.args, strict=True)}

    def access(buffer: Buffer, index: tuple[Index, ...]) -> tuple[Buffer, tuple[Index, ...]]:
        return place.get(id(buffer), buffer), index

    body = Substitution(access=access).body(apart(step.kernel.body, {a.name for a in step.args}))
    args = tuple({id(a): a for a in step.args}.values())
    return Launch(make_kernel(step.kernel.name, body, args), args, step.origin)
