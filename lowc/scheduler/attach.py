"""attach: LOOPS → LOOPS.  Each launch gets a kernel over the module's own buffers.

A kernel read from text, or shared by several launches, has params of its own; the passes that look across kernels tell buffers by
identity.  Kernels that lowering makes are attached already and stay as they are.
"""

from dataclasses import replace

from lowc.ir.index import Index
from lowc.ir.nodes import Buffer, Kernel, Launch, Module
from lowc.ir.walk import Substitution, make_kernel
from lowc.options import Options
from lowc.scheduler.rename import apart, fresh
from lowc.target import Target


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with every kernel's params replaced by the launch's arguments."""
    taken = {s.kernel.name for s in module.steps if isinstance(s, Launch)}
    made: dict[str, Kernel] = {}
    steps = [_attach(s, taken, made) if isinstance(s, Launch) else s for s in module.steps]
    return replace(module, steps=tuple(steps))


def _attach(step: Launch, taken: set[str], made: dict[str, Kernel]) -> Launch:
    """``made``: what has each name; a kernel of several launches becomes several kernels."""
    if all(p is a for p, a in zip(step.kernel.params, step.args, strict=True)):
        if made.setdefault(step.kernel.name, step.kernel) is step.kernel:
            return step
        name = fresh(step.kernel.name, taken)
        made[name] = replace(step.kernel, name=name)
        return replace(step, kernel=made[name])
    place = {id(p): a for p, a in zip(step.kernel.params, step.args, strict=True)}

    def access(buffer: Buffer, index: tuple[Index, ...]) -> tuple[Buffer, tuple[Index, ...]]:
        return place.get(id(buffer), buffer), index

    body = Substitution(access=access).body(apart(step.kernel.body, {a.name for a in step.args}))
    args = tuple({id(a): a for a in step.args}.values())
    name = fresh(step.kernel.name, taken) if step.kernel.name in made else step.kernel.name
    made[name] = make_kernel(name, body, args)
    return Launch(made[name], args, step.origin)
