"""A process that finds all its graphs in the cache: what of its start is lowc's own.

    python -m benchmarks.warm                        # prints the table of results/warm.md
    python -m benchmarks.warm one WORKLOAD           # one process; prints a line of JSON

A new process, each time, imports torch and what torch itself needs for AOTAutograd, then

``start``   imports all of lowc that a warm start needs, digests lowc's sources, and asks what machine this is;
``read``    per graph, from AOTAutograd's FX graph to the ``ir.Graph``: equal nodes merged, random ops replaced, types and the
            user's lines written down; what lowc does to the joint graph before torch's partitioner counts for its two parts;
``bind``    per graph, from the ``ir.Graph`` to a function that can be called: key, reading, checking, linking, binding.

All in milliseconds of the thread's own time, which a busy machine disturbs less than the clock: the least of all
processes, and the median.  Beside them: the first call as a whole, most of which is Dynamo's and AOTAutograd's, and the
same in a process that finds an empty cache.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.run import installed

WORKLOADS = ("softmax", "layer_norm_train", "adam_24", "gpt_infer", "gpt_train", "resnet_train")
PROCESSES = 5


class Watch:
    """Milliseconds of the thread and of the clock since it was made."""

    def __init__(self) -> None:
        self._cpu, self._clock = time.thread_time(), time.perf_counter()

    def read(self) -> tuple[float, float]:
        return (time.thread_time() - self._cpu) * 1e3, (time.perf_counter() - self._clock) * 1e3


def start() -> tuple[float, float]:
    """Imports and digests what every warm process needs once, besides the frontend, which runs before any cache is asked."""
    import torch._dynamo  # noqa: F401
    import torch._functorch.aot_autograd
    import torch._functorch.partitioners  # noqa: F401

    import lowc.frontend.aot  # noqa: F401

    watch = Watch()
    import lowc.cache.codec
    import lowc.cache.place
    import lowc.dynamo
    import lowc.reuse
    import lowc.runtime.linker
    import lowc.runtime.openmp
    import lowc.runtime.program
    from lowc.cache import key
    from lowc.options import parse

    folder = lowc.cache.place.folder_of(parse(None, None))
    lowc.reuse.lowered_ops(folder)
    key.base_key(folder)
    key.cpu()
    lowc.runtime.openmp.functions()
    return watch.read()


def one(name: str) -> dict[str, Any]:
    """Figures of this process."""
    import torch

    from benchmarks import workloads

    fn, args = getattr(workloads, name)()
    began = start()
    from lowc import reuse
    from lowc.frontend import aot

    graphs: list[tuple[int, float, float]] = []
    read = 0.0
    inside = 0  # calls that are added, and whose own calls of others of them are therefore not

    def watched(module: Any, name: str, adds: bool) -> None:
        """Adds what ``name`` of ``module`` takes to ``read``, or takes it away; whoever calls it asks for it by name."""
        real: Callable[..., Any] = getattr(module, name)

        def measured(*args: Any, **kwargs: Any) -> Any:
            nonlocal read, inside
            inside += adds
            watch = Watch()
            result = real(*args, **kwargs)
            took = watch.read()
            inside -= adds
            read += 0.0 if adds and inside else took[0] if adds else -took[0]
            if module is reuse:
                graphs.append((len(args[0].nodes), *took))
            return result

        setattr(module, name, measured)

    for name in ("_prepare", "_partition", "compile_fx_graph"):
        watched(aot, name, True)
    watched(aot, "min_cut_rematerialization_partition", False)
    watched(reuse, "compile_or_reuse", False)
    watch = Watch()
    torch.compile(fn, backend="lowc", dynamic=False)(*args)
    return {
        "start": began,
        "graphs": graphs,
        "read": read / len(graphs),
        "first_call": watch.read()[1],
        "llvm": "llvmlite" in sys.modules,
    }


def processes(name: str, folder: str, count: int) -> list[dict[str, Any]]:
    environment = installed() | {"LOWC_CACHE": "1", "LOWC_CACHE_DIR": folder}
    command = [sys.executable, "-m", "benchmarks.warm", "one", name]
    done = [subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(count)]
    return [json.loads(d.stdout.splitlines()[-1]) for d in done]


def row(name: str, cold: dict[str, Any], warm: Sequence[dict[str, Any]]) -> str:
    """A line of the table; medians over the warm processes."""
    assert not any(w["llvm"] for w in warm), "a warm process has loaded LLVM: something was compiled"
    count = len(warm[0]["graphs"])
    nodes = " + ".join(str(g[0]) for g in warm[0]["graphs"])

    def both(pick: Callable[[dict[str, Any]], float], digits: int) -> str:
        values = [pick(w) for w in warm]
        return f"{min(values):.{digits}f} / {statistics.median(values):.{digits}f}"

    columns = [
        name,
        nodes,
        both(lambda w: w["start"][0], 1),
        both(lambda w: w["read"], 1),
        both(lambda w: sum(g[1] for g in w["graphs"]) / count, 2),
        f"{sum(g[2] for g in cold['graphs']):.0f}",
        f"{cold['first_call'] / 1e3:.2f}",
        f"{statistics.median(w['first_call'] for w in warm) / 1e3:.2f}",
    ]
    return "| " + " | ".join(columns) + " |"


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(one(sys.argv[2])))
        return
    print("| workload | nodes of its graphs | start, ms | read a graph, ms | bind a graph, ms |"
          " compile all, ms | first call cold, s | warm, s |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    for name in sys.argv[1:] or WORKLOADS:
        with tempfile.TemporaryDirectory() as folder:
            (cold,) = processes(name, folder, 1)
            print(row(name, cold, processes(name, folder, PROCESSES)), flush=True)


if __name__ == "__main__":
    main()
