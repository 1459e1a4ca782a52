"""Kernels side by side: which, and that events keep every order that memory asks for."""

import random
from typing import Any

import fakes
import pytest
import torch
from fakes import of, ordered
from hosts import buffer, whole
from programs import CALLER, module

from lowc.artifact import Native
from lowc.ir.index import Axis, ix
from lowc.ir.nodes import Buffer, For, Kernel, Kind, Launch, Load, Module, Store
from lowc.runtime.cuda.branches import SIDES, Await, Signal, Start, branch

N = 1 << 20


def kernel(name: str, reads: list[Buffer], writes: list[Buffer], iterations: int = N) -> Launch:
    """A kernel of one block of 32 threads."""
    t, i = Axis("t", ix(32)), Axis("i", ix(iterations))
    zero = (ix(0),)
    body = tuple(Store(w, zero, Load(r, zero)) for w in writes for r in (reads or writes))
    loop = For(t, (For(i, body),), Kind("thread", 32))
    params = tuple(dict.fromkeys((*reads, *writes)))
    return Launch(Kernel(name, params, (), (loop,)), params)


def buffers(names: str) -> list[Buffer]:
    return [buffer(name, 64) for name in names]


def diamond(iterations: int = N) -> Module:
    x, a, b, y = buffers("xaby")
    steps = [
        kernel("left", [x], [a], iterations),
        kernel("right", [x], [b], iterations),
        kernel("both", [a, b], [y], iterations),
    ]
    return module([x], [a, b, y], [whole(y)], steps)


def order(mod: Module, processors: int = 132) -> Any:
    made = fakes.artifact(mod)
    return branch(made, next(s for s in made.program if isinstance(s, Native)), processors)


def test_two_long_kernels_run_side_by_side() -> None:
    found = order(diamond())
    assert found.sides == 1
    assert found.order == (
        Signal(0, 0),
        Start(0, 0),
        Await(1, 1, 0),
        Start(1, 1),
        Signal(1, 1),
        Await(2, 0, 1),
        Start(2, 0),
    )


def test_the_start_is_what_a_side_waits_for_not_the_kernel_beside_it() -> None:
    on = fakes.device()
    program = fakes.load(diamond(), on)
    assert program.gpu.sides == 1
    program.call([torch.randn(64)])
    log = on[1].log
    left, right, both = of(log, "launch")
    assert not ordered(log, left, right)
    assert ordered(log, left, both) and ordered(log, right, both)
    log.append(("user", 0))
    assert ordered(log, right, len(log) - 1)


@pytest.mark.parametrize("mod", [diamond(8), diamond(500)])
def test_short_kernels_stay_on_one_stream(mod) -> None:
    assert order(mod).sides == 0


def test_large_grids_stay_on_one_stream() -> None:
    mod = diamond()
    made = fakes.artifact(mod, {n: fakes.entry(n, 100) for n in ("left", "right", "both")})
    assert branch(made, made.program[0], 132).sides == 0  # type: ignore[arg-type]


def test_on_the_callers_stream_too() -> None:
    on = fakes.device()
    program = fakes.load(diamond(), on, options=CALLER)
    on[2].current = 0x77
    program.call([torch.randn(64)])
    log = on[1].log
    left, right, both = of(log, "launch")
    assert log[left][5] == log[both][5] == 0x77 != log[right][5]
    assert ordered(log, right, both)


def test_places_that_overlap_in_the_workspace_keep_their_order() -> None:
    x, a, b, y, z = buffers("xabyz")
    steps = [
        kernel("one", [x], [a]),
        kernel("two", [a], [y]),
        kernel("three", [x], [b]),
        kernel("four", [b], [z]),
    ]
    apart = module(
        [x], [a, b, y, z], [whole(y), whole(z)], steps, placed=[("a", ix(0)), ("b", ix(256))], workspace=512
    )
    shared = module(
        [x], [a, b, y, z], [whole(y), whole(z)], steps, placed=[("a", ix(0)), ("b", ix(128))], workspace=384
    )
    assert order(apart).sides == 1
    assert order(shared).sides == 0


def test_a_failed_launch_joins_the_sides() -> None:
    on = fakes.device()
    program = fakes.load(diamond(), on)
    on[1].fail["cuLaunchKernel"] = (2, 700)
    with pytest.raises(Exception, match="kernel both"):
        program.call([torch.randn(64)])
    log = on[1].log
    log.append(("user", 0))
    for place in of(log, "launch")[:2]:
        assert ordered(log, place, len(log) - 1)
    assert len(on[1].streams) == 2
    on[1].fail.clear()
    program.call([torch.randn(64)])
    assert len(on[1].streams) == 2


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_keep_every_order_that_memory_asks_for(seed: int) -> None:
    rng = random.Random(seed)
    temps = [buffer(f"t{n}", 64) for n in range(6)]
    x, y = buffers("xy")
    steps, touched = [], []
    for number in range(rng.randint(2, 12)):
        reads = rng.sample([x, *temps], rng.randint(0, 2))
        writes = rng.sample([t for t in temps if t not in reads], 1)
        steps.append(kernel(f"k{number}", reads, writes, rng.choice([1, N])))
        touched.append(({b.name for b in reads}, {b.name for b in writes}))
    steps.append(kernel("last", temps[:2], [y]))
    touched.append(({b.name for b in temps[:2]}, {"y"}))
    offsets = [("t0", ix(0)), ("t1", ix(128)), ("t2", ix(1024))]
    on = fakes.device()
    mod = module([x], [*temps, y], [whole(y)], steps, placed=offsets, workspace=2048)
    program = fakes.load(mod, on)
    log = on[1].log
    log.append(("user", 0))
    program.call([torch.randn(64)])
    log.append(("user", 0))
    places = of(log, "launch")
    clash = {"t0": {"t1"}, "t1": {"t0"}}
    for b, second in enumerate(places):
        assert ordered(log, 0, second) and ordered(log, second, len(log) - 1)
        reads, writes = touched[b]
        for a, first in enumerate(places[:b]):
            more = touched[a][1] | {c for n in touched[a][1] for c in clash.get(n, ())}
            wide = touched[a][0] | {c for n in touched[a][0] for c in clash.get(n, ())}
            if more & (reads | writes) or wide & writes:
                assert ordered(log, first, second), (seed, a, b)
    assert program.gpu.sides <= SIDES
