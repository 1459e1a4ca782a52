"""Random programs whose sizes are known only when they are called: one artifact for each, called with several sizes.

    python -m tests.property.dynamic --graphs 5000 --sizes 4

Each program goes through all passes once, with hints that may be far from the sizes of the calls, and its kernels become machine
code (for a GPU, and where a program calls ATen, the interpreter runs the final module).  Each call is compared with the
interpreter on the program as it was made.
"""

import argparse
import os
import random
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from multiprocessing import get_context
from unittest.mock import patch

from lowc.ir.index import constant, evaluate
from lowc.ir.nodes import Extern
from lowc.options import Options
from lowc.scheduler import pipeline
from lowc.trace import Trace
from tests.backends.harness import ISAS, compiled
from tests.backends.harness import target as x86_target
from tests.backends.test_random import native, unsigned_zeros
from tests.property.programs import Program, differences, random_module, run
from tests.property.test_passes import EAGER, TARGETS

LARGEST = 60_000  # elements of all temps together: the interpreter is slow


def sizes_of(program: Program, count: int) -> list[dict[str, int]]:
    """Sizes for ``count`` calls: the least that is allowed, one more, then odd ones, primes and multiples of a vector."""
    rng = random.Random(program.seed)
    found: list[dict[str, int]] = []
    for number in range(count):
        choice = [(0,), (1,), (3, 5, 7, 11, 13), (16, 17, 31, 32, 33, 64, 67, 128)][min(number, 3)]
        sizes = {s.name: max(s.lo, rng.choice(choice) + s.lo * (number < 2)) for s in program.module.symbols}
        while _elements(program, sizes) > LARGEST and max(sizes.values()) > 5:
            sizes = {name: max(2, size // 2) for name, size in sizes.items()}
        found.append(sizes)
    return found


def _elements(program: Program, sizes: dict[str, int]) -> int:
    total = 0
    for temp in program.module.temps:
        elements = 1
        for size in temp.shape:
            elements *= evaluate(size, sizes) if constant(size) is None else (constant(size) or 0)
        total += elements
    return total


def check(seed: int, count: int = 4, kind: str = "") -> str:
    """Compiles program ``seed`` for ``kind`` (x86, nvptx or, by the seed, either) and calls it with ``count`` sizes; says what is
    wrong, or nothing."""
    rng = random.Random(f"dynamic {seed}")
    eager = [knob for knob in EAGER if rng.random() < 0.6] if rng.random() < 0.5 else []
    program = random_module(seed, symbolic=True)
    kind = kind or rng.choice(["x86", "x86", "nvptx"])
    isa = ISAS[seed % len(ISAS)]
    target = x86_target(isa) if kind == "x86" else TARGETS["nvptx"]
    threads = rng.random() < 0.7
    with ExitStack() as stack:
        for module, name, value in eager:
            # a sum of 4096 in blocks of two, of two, ... would be deeper than any that real knobs make
            stack.enter_context(patch.object(module, name, 16 if name == "CHAIN" else value))
        module = pipeline.run(program.module, target, Options(threads=threads, check=True), Trace())
        code = None
        if kind == "x86" and not any(isinstance(step, Extern) for step in module.steps):
            code = compiled(module, isa, threads)
    for number, sizes in enumerate(sizes_of(program, count)):
        expected = run(program, program.module, number, given=sizes)
        if code is None:
            found = run(program, module, number, given=sizes)
        else:
            found = unsigned_zeros(program, native(program, module, code, number, sizes))
            expected = unsigned_zeros(program, expected)
        if different := differences(program, expected, found):
            return f"{kind} {isa}, sizes {sizes}, eager {[name for _, name, _ in eager]}: {different[0]}"
    return ""


def report(seed: int, count: int, kind: str) -> tuple[int, str]:
    """``check``, with an exception as what is wrong."""
    try:
        return seed, check(seed, count, kind)
    except Exception as error:
        return seed, f"{type(error).__name__}: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.property.dynamic")
    parser.add_argument("--graphs", type=int, default=5000)
    parser.add_argument("--sizes", type=int, default=4, help="calls of each artifact (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kind", default="", choices=("", "x86", "nvptx"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    # Workers that each had a thread for every core would wait for one another at every barrier.
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    wrong = 0
    # a fork would have torch's threads in any state
    with ProcessPoolExecutor(chosen.jobs, get_context("spawn")) as pool:
        seeds = range(chosen.first, chosen.first + chosen.graphs)
        asked = [pool.submit(report, seed, chosen.sizes, chosen.kind) for seed in seeds]
        for done, finished in enumerate(as_completed(asked), 1):
            seed, what = finished.result()
            if what:
                wrong += 1
                print(f"seed {seed}: {what}", flush=True)
            if done % 250 == 0 or done == len(asked):
                print(f"{done} graphs, {done * chosen.sizes} calls, {wrong} wrong", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
