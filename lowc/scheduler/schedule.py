"""schedule: SCHEDULED → SCHEDULED.  ``choose`` makes a Schedule for each kernel, ``apply`` carries it out.

A primitive that turns out not to be legal is left out (the kernel then runs with fewer lanes or cores, not wrong).
"""

from lowc.errors import ScheduleError
from lowc.ir.nodes import Kernel, Launch, Module, Step
from lowc.options import Options
from lowc.scheduler.apply import Schedule, apply
from lowc.scheduler.choose import choose
from lowc.target import Target


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with loops bound to cores and lanes."""
    done: dict[int, Kernel] = {}
    steps: list[Step] = []
    for step in module.steps:
        if isinstance(step, Launch):
            kernel = done.get(id(step.kernel))
            if kernel is None:
                kernel = done[id(step.kernel)] = scheduled(step.kernel, choose(step.kernel, target, options.threads))
            steps.append(Launch(kernel, step.args, step.origin))
        else:
            steps.append(step)
    return Module(
        module.level, module.symbols, module.inputs, module.temps, module.outputs, tuple(steps), module.placed, module.workspace
    )


def scheduled(kernel: Kernel, schedule: Schedule) -> Kernel:
    """``kernel`` with each primitive of ``schedule`` that is legal."""
    for primitive in schedule:
        try:
            kernel = apply(kernel, (primitive,))
        except ScheduleError:
            continue
    return kernel
