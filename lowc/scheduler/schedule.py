"""schedule: SCHEDULED → SCHEDULED.  ``choose`` makes a Schedule for each kernel, ``apply`` carries it out; ``cascade`` then puts
long sums in blocks.

On a CPU a primitive that turns out not to be legal is left out (the kernel then runs with fewer lanes or cores, not wrong).  On
a GPU primitives build on one another: if one is not legal, the kernel gets a simpler schedule; what depends on how sizes divide
is left to the call (``versions``).
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice

from lowc.errors import ScheduleError
from lowc.ir.nodes import Kernel, Launch, Module, Step
from lowc.ir.walk import buffers, make_kernel
from lowc.options import Options
from lowc.scheduler import (
    apply_simt,
    cascade,
    choose_attention,
    choose_contraction,
    choose_convolution,
    choose_gradient,
    choose_mma,
    choose_online,
    choose_simt,
    choose_tensor_cores,
    contract,
)
from lowc.scheduler.apply import Schedule, apply
from lowc.scheduler.choose import choose
from lowc.scheduler.choose_tensor_cores import COPIES
from lowc.scheduler.distribute import distribute
from lowc.scheduler.equal import share_kernels
from lowc.scheduler.nest import expand_kernels, map_kernels, prune
from lowc.scheduler.rename import fresh
from lowc.scheduler.versions import versions
from lowc.target import Target


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with loops bound to cores and lanes, or to blocks and threads."""
    if target.kind == "nvptx":
        asked = _Asked(module)
        return asked.met(without_params(
            expand_kernels(
                module,
                lambda kernel: asked.of(kernel, _tensor_cores(kernel, target)) or versions(kernel, lambda k: _simt(k, target)),
            )
        ))  # fmt: skip

    def each(kernel: Kernel) -> Kernel:
        (tiled,) = asked.of(kernel, _contraction(kernel, target, options.threads, fixed.get(id(kernel), frozenset()))) or (None,)
        if tiled is None and options.threads:
            kernel = distribute(kernel, target)
        kernel = tiled or scheduled(kernel, choose(kernel, target, options.threads))
        return scheduled(kernel, cascade.choose(kernel))

    module = choose_gradient.together(module, target, options.threads)
    module = replace(module, steps=share_kernels(module))
    fixed, asked = {} if "once" in options.off.split(",") else _constants(module), _Asked(module)
    return asked.met(with_params(without_params(map_kernels(module, each))))


class _Asked:
    """Which of its schedules a kernel shall have: the highest number that ``Module.schedules`` has for any node it is made of."""

    def __init__(self, module: Module) -> None:
        self.numbers = dict(module.schedules)
        self.left = {node for node, number in module.schedules if number}
        self.nodes: dict[int, set[str]] = {}
        for step in module.steps if self.left else ():
            if isinstance(step, Launch):
                self.nodes.setdefault(id(step.kernel), set()).update(o.split(" = ")[0] for o in step.origin)

    def of(self, kernel: Kernel, legal: Iterator[Kernel]) -> tuple[Kernel, ...]:
        """The one of ``legal`` schedules, best first, that is asked for; the first where there are not so many; () for none."""
        nodes = self.nodes.get(id(kernel), set()) & self.numbers.keys()
        number = max((self.numbers[n] for n in nodes), default=0)
        first = list(islice(legal, number + 1))
        if len(first) > number:
            self.left -= nodes
            return (first[number],)
        return tuple(first[:1])

    def met(self, module: Module) -> Module:
        """``module``; raises ScheduleError where a node's kernels have no schedule of its number."""
        if self.left:
            raise ScheduleError(f"no schedule number {self.numbers[min(self.left)]} for {min(self.left)}")
        return module


def _constants(module: Module) -> dict[int, frozenset[str]]:
    """By ``id`` of a kernel, its params that are constants in all launches of it."""
    found: dict[int, frozenset[str]] = {}
    for step in module.steps if module.constants else ():
        if isinstance(step, Launch):
            args = zip(step.kernel.params, step.args, strict=True)
            names = frozenset(p.name for p, a in args if a.name in module.constants)
            found[id(step.kernel)] = names & found.get(id(step.kernel), names)
    return found


def with_params(module: Module) -> Module:
    """``module`` with a temp for each param that the kernel of a launch has got beyond its arguments."""
    temps = list(module.temps)
    taken = {b.name for b in (*temps, *module.inputs) if b is not None}
    steps: list[Step] = []
    for step in module.steps:
        if isinstance(step, Launch) and len(step.args) < len(step.kernel.params):
            new = [replace(p, name=fresh(p.name, taken)) for p in step.kernel.params[len(step.args) :]]
            temps += new
            step = replace(step, args=(*step.args, *new))
        steps.append(step)
    return replace(module, temps=tuple(temps), steps=tuple(steps))


def without_params(module: Module) -> Module:
    """``module`` with no param of a kernel, and no temp, that attention by blocks has no more use for."""
    done: dict[int, Kernel] = {}
    steps: list[Step] = []
    for step in module.steps:
        if isinstance(step, Launch):
            used = {id(b) for b in buffers(step.kernel.body)}
            kept = [n for n, p in enumerate(step.kernel.params) if id(p) in used or n >= len(step.args)]
            if len(kept) == len(step.kernel.params):
                steps.append(step)
                continue
            if id(step.kernel) not in done:
                params = [step.kernel.params[n] for n in kept]
                done[id(step.kernel)] = make_kernel(step.kernel.name, step.kernel.body, params)
            step = replace(step, kernel=done[id(step.kernel)], args=tuple([step.args[n] for n in kept if n < len(step.args)]))
        steps.append(step)
    return prune(module, steps)


def scheduled(kernel: Kernel, schedule: Schedule) -> Kernel:
    """``kernel`` with each primitive of ``schedule`` that is legal."""
    for primitive in schedule:
        try:
            kernel = apply(kernel, (primitive,))
        except ScheduleError:
            continue
    return kernel


def _contraction(kernel: Kernel, target: Target, threads: bool, fixed: frozenset[str]) -> Iterator[Kernel]:
    """``kernel`` by each of its possible schedules as a contraction that is legal throughout, best first.  ``fixed``: params that
    are constants."""
    choosing = (choose_online, choose_gradient, choose_convolution)
    plans = [s for each in choosing for s in each.choices(kernel, target, threads)]
    for steps in (*plans, *choose_contraction.choices(kernel, target, threads, fixed)):
        new = kernel
        try:
            for step in steps:
                new = contract.apply(new, step)
        except ScheduleError:
            continue
        yield new


def _tensor_cores(kernel: Kernel, target: Target) -> Iterator[Kernel]:
    """``kernel`` by each way of doing it on tensor cores that is legal, best first."""
    # factors that the engine does not take as they lie: warps by themselves were faster than where threads copy for ``wgmma``, at
    # all that was measured (benchmarks/results/h200_mma.md); values that are computed were not
    by_engine, by_threads = (choose_tensor_cores.choices(kernel, target, each) for each in (COPIES[:1], COPIES[1:]))
    by_warps = tuple(choose_mma.choices(kernel, target))
    first = by_warps if choose_mma.as_they_lie(kernel, target) else ()
    ways = by_engine, first, by_threads, by_warps, choose_attention.ways(kernel, target)
    for step in chain(*ways):
        try:
            new = contract.apply(kernel, step)
        except ScheduleError:
            continue
        yield new


def _simt(kernel: Kernel, target: Target) -> Kernel:
    """``kernel`` by the first of its possible schedules that is legal throughout."""
    for schedule in choose_simt.choices(kernel, target):
        new = kernel
        try:
            for primitive in schedule:
                new = apply_simt.apply(new, primitive)
        except ScheduleError:
            continue
        return new
    raise ScheduleError(f"no schedule for {kernel.name}")
