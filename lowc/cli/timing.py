"""How long each step of a graph takes on the CPU: kernels one by one, and calls of ATen.

The graph is compiled a second time with each launch as a native call of its own, and that program is called again and again on
copies of the first call's inputs.  What Python does between the steps (a few us a call) is counted nowhere.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from time import perf_counter
from typing import Any

from lowc.artifact import Artifact, Native
from lowc.options import Options

ROUNDS = 15
LEAST = 3
BUDGET = 0.5  # seconds of a graph, after ``LEAST`` rounds


def timed(
    call: Callable[[list[Any]], Any],
    artifact: Artifact,
    constants: Sequence[Any],
    options: Options,
    seconds: dict[int, float],
) -> Callable[[list[Any]], Any]:
    """``call``, which with its first call fills ``seconds`` (by the number of a step in ``artifact.module``).

    They are the least of ``ROUNDS`` calls, or fewer of a slow graph, after one that is not counted: other work on the
    machine only adds.
    """

    def first(args: list[Any]) -> Any:
        if seconds:
            return call(args)
        # A graph may write to its inputs: the user's are written once.  (A deep copy of a tensor has its strides and gaps.)
        copies = [deepcopy(arg.detach()) if hasattr(arg, "detach") else arg for arg in args]
        result = call(args)
        seconds.update(measured(artifact, constants, options, copies))
        return result

    return first


def measured(
    artifact: Artifact, constants: Sequence[Any], options: Options, args: Sequence[Any]
) -> dict[int, float]:
    """Least seconds of each step of ``artifact.module``, an x86 module, called on ``args`` (which it may write to)."""
    from lowc.backends import x86
    from lowc.compiler import linked
    from lowc.runtime.program import bind

    apart = x86.compile_module(artifact.module, x86.detect(options), options, apart=True)
    natives = linked(apart) if any(isinstance(step, Native) for step in apart.program) else {}
    spent: list[float] = []

    def around(step: Callable[..., Any]) -> Callable[..., Any]:
        def clocked(*given: Any, **named: Any) -> Any:
            start = perf_counter()
            result = step(*given, **named)
            spent.append(perf_counter() - start)
            return result

        return clocked

    run = bind(apart, natives, constants, around=around).call
    rounds: list[list[float]] = []
    until = perf_counter() + BUDGET
    while len(rounds) <= LEAST or (len(rounds) <= ROUNDS and perf_counter() < until):
        spent.clear()
        run(list(args))
        rounds.append(list(spent))
    numbers = {id(step): number for number, step in enumerate(artifact.module.steps)}
    order = [step.launches[0] if isinstance(step, Native) else numbers[id(step)] for step in apart.program]
    return {number: min(each) for number, each in zip(order, zip(*rounds[1:]), strict=True)}
