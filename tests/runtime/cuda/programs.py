"""Modules for the tests of the GPU's host programs."""

from hosts import at, buffer, launch, whole

from lowc.ir.index import Symbol, ix
from lowc.ir.nodes import Kernel, Launch, Module
from lowc.options import Options

S = Symbol("s0", 0, None)
CALLER = Options(stream="caller")


def module(inputs=(), temps=(), outputs=(), steps=(), symbols=(), placed=(), workspace=0) -> Module:
    return Module(
        "MACHINE",
        tuple(symbols),
        tuple(inputs),
        tuple(temps),
        tuple(outputs),
        tuple(steps),
        tuple(placed),
        ix(workspace),
    )


def named(name: str, reads, writes, origin: str = "", sizes=()) -> Launch:
    made = launch(reads, writes, origin, sizes)
    return Launch(
        Kernel(name, made.kernel.params, made.kernel.sizes, made.kernel.body), made.args, made.origin
    )


X, Y = buffer("x", 3, 4), buffer("y", 3, 4)
ADD = module([X], [Y], [whole(Y)], [named("add", [X], [Y])])


def add(params: list[int], blocks: int) -> None:
    at(params[1], Y).copy_(at(params[0], X) + 1)
