"""One process, many threads: each compiles graphs of its own and calls what all share; the same graphs from one cache; and
through torch.compile, with gradients.

    python -m tests.robust.threads --threads 32 --rounds 20

Prints what was done, what was wrong, memory and threads.  A graph compiled in a thread is compared with eager there.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.memory import resident
from lowc import reuse
from lowc.cache.folder import folder_of
from lowc.compiler import compile_graph
from lowc.options import Options, parse
from tests.cache import graphs

QUIET = Options(cache=False)


def shared() -> Callable[[list[Any]], list[Any]]:
    """One function that every thread calls: two native calls around one of ATen, with a workspace."""
    return compile_graph(graphs.product(), (), QUIET)


def by_graph(number: int, rounds: int, call: Callable[[list[Any]], list[Any]]) -> list[str]:
    """What is wrong in ``rounds`` of: compile a graph of one's own, call it and the shared one."""
    wrong: list[str] = []
    for turn in range(rounds):
        constant = float(1000 * number + turn)
        own = compile_graph(graphs.chain(constant), (), QUIET)
        for _ in range(3):
            (found,) = own([graphs.X.clone(), graphs.C])
            if not torch.allclose(found, graphs.chain_of(graphs.X, constant), rtol=1e-5):
                wrong.append(f"graph {constant}")
            side = 5 + (number + turn) % 40
            x = torch.linspace(-1, 1, side * side).view(side, side)
            if not torch.allclose(call([x])[0], graphs.product_of(x), rtol=1e-4):
                wrong.append(f"shared, {side}")
    return wrong


def by_torch(number: int, rounds: int, call: Any) -> list[str]:
    """The same with ``torch.compile``, forward and backward."""
    wrong: list[str] = []
    for turn in range(rounds):

        def f(x: torch.Tensor, bias: float = float(number % 5), times: int = turn % 3) -> torch.Tensor:
            return ((x + bias).sigmoid() * (times + 1)).sum(1)

        fn: Callable[..., Any] = torch.compile(f, backend="lowc", dynamic=False, options={"cache": False})
        x = torch.randn(7, 3 + number % 4, requires_grad=True)
        found, right = fn(x), f(x)
        if not torch.allclose(found, right, rtol=1e-5):
            wrong.append(f"function {number} {turn}")
        gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (found, right)]
        if not torch.allclose(*gradients, rtol=1e-5, atol=1e-7):
            wrong.append(f"gradient {number} {turn}")
    return wrong


def by_cache(number: int, rounds: int, call: Any) -> list[str]:
    """Graphs that all threads want, of one folder (the environment's), each compiled by some and found by the others."""
    wrong: list[str] = []
    for turn in range(rounds):
        constant = float(turn)
        own = reuse.compile_or_reuse(graphs.source(graphs.chain(constant)), Options(), folder_of(parse(None, None)))
        if not torch.allclose(own([graphs.X.clone(), graphs.C])[0], graphs.chain_of(graphs.X, constant), rtol=1e-5):
            wrong.append(f"cached {constant}")
    return wrong


WORKS: dict[str, Callable[[int, int, Any], list[str]]] = {"graph": by_graph, "cache": by_cache, "torch": by_torch}


def prepared() -> None:
    """torch looks a backend's name up in tables that two threads may fill at once, which it then refuses; and it gives up a
    function of which it has compiled eight versions."""
    torch._dynamo.lookup_backend("lowc")
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1 << 20


def at_once(work: Callable[[int, int, Any], list[str]], threads: int, rounds: int, call: Any) -> tuple[list[str], float]:
    """``work`` in each of ``threads``, begun together: (what was wrong or raised, seconds)."""
    wrong: list[str] = []
    gate = threading.Barrier(threads)

    def body(number: int) -> None:
        gate.wait()
        try:
            wrong.extend(work(number, rounds, call))
        except BaseException as error:
            wrong.append(f"thread {number}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")

    began = time.monotonic()
    each = [threading.Thread(target=body, args=(n,)) for n in range(threads)]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    return wrong, time.monotonic() - began


def main() -> int:
    """1 if anything is wrong."""
    p = argparse.ArgumentParser(prog="python -m tests.robust.threads", description=(__doc__ or "").splitlines()[0])
    p.add_argument("--threads", type=int, default=32)
    p.add_argument("--rounds", type=int, default=20, help="graphs that each thread compiles (default: %(default)s)")
    p.add_argument("--through", choices=WORKS, action="append", help="(default: all)")
    chosen = p.parse_args()
    prepared()
    bad = False
    for name in chosen.through or WORKS:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["LOWC_CACHE_DIR"] = folder
            wrong, seconds = at_once(WORKS[name], chosen.threads, chosen.rounds, shared())
        gc.collect()
        bad |= bool(wrong)
        print(json.dumps({
            "through": name, "threads": chosen.threads, "compiled": chosen.threads * chosen.rounds, "wrong": len(wrong),
            "first": wrong[:3], "seconds": round(seconds, 1), "rss_mb": round(resident("VmRSS") / 1e6),
            "peak_mb": round(resident("VmHWM") / 1e6), "os_threads": len(os.listdir("/proc/self/task")),
        }))  # fmt: skip
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
