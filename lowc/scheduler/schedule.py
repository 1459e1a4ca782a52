"""schedule: SCHEDULED → SCHEDULED.  ``choose`` makes a Schedule for each kernel, ``apply`` carries it out.

A primitive that turns out not to be legal is left out (the kernel then runs with fewer lanes or cores, not wrong).
"""

from lowc.errors import ScheduleError
from lowc.ir.nodes import Kernel, Module
from lowc.options import Options
from lowc.scheduler.apply import Schedule, apply
from lowc.scheduler.choose import choose
from lowc.scheduler.nest import map_kernels
from lowc.target import Target


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with loops bound to cores and lanes."""
    return map_kernels(module, lambda kernel: scheduled(kernel, choose(kernel, target, options.threads)))


def scheduled(kernel: Kernel, schedule: Schedule) -> Kernel:
    """``kernel`` with each primitive of ``schedule`` that is legal."""
    for primitive in schedule:
        try:
            kernel = apply(kernel, (primitive,))
        except ScheduleError:
            continue
    return kernel
