"""A process that finds all its graphs in the cache: what of its start is lowc's own.

    python -m benchmarks.warm                        # prints the tables of results/warm.md
    python -m benchmarks.warm WORKLOAD ...           # of these
    python -m benchmarks.warm one WORKLOAD           # one process; prints a line of JSON

A new process, each time, imports torch and what torch itself needs for AOTAutograd, then

``start``   imports all of lowc that a warm start needs, digests lowc's sources, and asks what machine this is;
``key``     per graph of Dynamo's, from that to what was kept for it: its text, settings of the process, the entry;
``entry``   per graph of Dynamo's, makes torch's object of what was kept;
``bind``    per graph of AOTAutograd's (a training step has two), from the name to a function that can be called: reading,
            checking, linking, binding;
``own``     all of these together: whatever runs between the start and the result of the first call and is not torch's.

The second table is of processes in which torch is not to keep what it traces (TORCHINDUCTOR_AUTOGRAD_CACHE=0), as it cannot for
some graphs.  There, per graph of AOTAutograd's,

``pass``    what has to be done before one can be looked up: random ops, layouts, and what else lowc does to the joint
            graph of a training step before and after torch's partitioner;
``key``     from AOTAutograd's FX graph to the key of its entry;
``bind``    as above.  (What lowc's decompositions take while AOTAutograd traces is not told apart.)

All in milliseconds of the thread's own time, which a busy machine disturbs less than the clock: the least of all
processes, and the median.  Beside them: the first call as a whole, most of which is Dynamo's and AOTAutograd's, and the
same in a process that finds an empty cache.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.run import installed

WORKLOADS = ("softmax", "layer_norm_train", "adam_24", "gpt_infer", "gpt_train", "resnet_train")
PROCESSES = 5
START, EACH = 10.0, 1.0
"""The aim, in milliseconds: for the start, and for each graph."""


class Clock:
    """Milliseconds of the thread in functions that are lowc's own, and in some of them by name."""

    def __init__(self) -> None:
        self.total, self.named, self.calls = 0.0, dict[str, float](), Counter[str]()
        self._own, self._last = False, 0.0

    def watched(self, function: Callable[..., Any], own: bool) -> Callable[..., Any]:
        """``function``, whose time is lowc's (``own``) or is not, but for that of functions inside which are watched, too."""

        def measured(*args: Any, **kwargs: Any) -> Any:
            before, begun = self._own, time.thread_time()
            self._switch(own)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch(before)
                self.calls[function.__name__] += 1
                self.named[function.__name__] = self.named.get(function.__name__, 0.0) + (time.thread_time() - begun) * 1e3

        return measured

    def _switch(self, own: bool) -> None:
        now = time.thread_time()
        self.total += (now - self._last) * 1e3 if self._own else 0.0
        self._own, self._last = own, now


def start(traced: bool) -> float:
    """Milliseconds for the imports and digests that every warm process needs once; ``traced``: AOTAutograd traces in it."""
    import torch._dynamo  # noqa: F401
    import torch._functorch.aot_autograd
    import torch._functorch.partitioners  # noqa: F401

    begun = time.thread_time()
    import lowc.cache.codec
    import lowc.cache.folder
    import lowc.dynamo
    import lowc.frontend.aot
    import lowc.reuse
    import lowc.runtime.linker
    import lowc.runtime.openmp
    import lowc.runtime.program
    import lowc.traces  # noqa: F401
    from lowc.cache import key
    from lowc.options import parse

    folder = lowc.cache.folder.folder_of(parse(None, None))
    if traced:
        import lowc.frontend.aten_graphs
        from lowc.frontend.decompositions import decompositions

        decompositions(lowc.reuse.lowered_ops(folder))
    key.base_key(folder)
    key.cpu()
    lowc.runtime.openmp.functions()
    return (time.thread_time() - begun) * 1e3


def one(name: str) -> dict[str, Any]:
    """Figures of this process."""
    import torch

    from benchmarks import workloads

    fn, args = getattr(workloads, name)()
    traced = os.environ.get(TRACED) == "0"
    compiles = traced or not os.listdir(os.environ["LOWC_CACHE_DIR"])
    began = start(traced)
    from lowc import dynamo, reuse, traces
    from lowc.frontend import aot, kept

    clock = Clock()
    nodes: list[int] = []
    if compiles:  # a process that finds all loads nothing of this, here neither
        from lowc.frontend import aten_graphs

        compile_fx_graph = aten_graphs.compile_fx_graph

        def counted(gm: Any, *rest: Any, **options: Any) -> Any:
            nodes.append(sum(node.op == "call_function" for node in gm.graph.nodes))
            return compile_fx_graph(gm, *rest, **options)

        aten_graphs.compile_fx_graph = clock.watched(counted, True)
        aten_graphs.prepare = clock.watched(aten_graphs.prepare, True)
        aten_graphs.partition = clock.watched(aten_graphs.partition, True)
        aten_graphs.min_cut_rematerialization_partition = clock.watched(aten_graphs.min_cut_rematerialization_partition, False)
    for own, home, names in (
        (True, reuse, ("compile_or_reuse", "key_of", "found")),
        (True, kept.Lookup, ("key", "_opened", "put")),
        (True, traces.Traces, ("get", "bind")),
        (False, aot, ("aot_module_simplified",)),
    ):
        for each in names:
            setattr(home, each, clock.watched(getattr(home, each), own))
    begun = time.perf_counter()
    torch.compile(fn, backend=clock.watched(dynamo.lowc_backend, True), dynamic=False)(*args)
    assert compiles or "lowc.frontend.aten_graphs" not in sys.modules, "something was traced"
    named = defaultdict(float, clock.named)
    known = clock.calls["bind"]
    return {
        "start": began,
        "nodes": nodes,
        "known": known,
        "own": began + clock.total,
        "pass": (clock.total - named["compile_or_reuse"]) / max(len(nodes), 1),
        "text": named["key_of"] / max(len(nodes), 1),
        "key": (named["key"] + named["get"]) / max(clock.calls["get"], 1),
        "entry": (named["_opened"] - named["bind"]) / max(clock.calls["get"], 1),
        "bind": named["bind"] / known if known else (named["compile_or_reuse"] - named["key_of"]) / len(nodes),
        "first_call": time.perf_counter() - begun,
        "llvm": "llvmlite" in sys.modules,
    }


TRACED = "TORCHINDUCTOR_AUTOGRAD_CACHE"
"""torch's variable, "0" to keep nothing that AOTAutograd traces."""


def processes(name: str, folder: str, count: int, traced: bool) -> list[dict[str, Any]]:
    environment = installed() | {"LOWC_CACHE": "1", "LOWC_CACHE_DIR": folder, TRACED: "0" if traced else "1"}
    command = [sys.executable, "-m", "benchmarks.warm", "one", name]
    done = [subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(count)]
    return [json.loads(d.stdout.splitlines()[-1]) for d in done]


def row(name: str, cold: dict[str, Any], warm: Sequence[dict[str, Any]], traced: bool) -> str:
    """A line of a table; medians over the warm processes."""
    assert not any(w["llvm"] for w in warm), "a warm process has loaded LLVM: something was compiled"
    count = len(cold["nodes"])
    expected = (count, 0) if traced else (0, count)
    assert all((len(w["nodes"]), w["known"]) == expected for w in warm), "AOTAutograd has traced, or has not"

    def both(what: str, digits: int) -> str:
        values = [w[what] for w in warm]
        return f"{min(values):.{digits}f} / {statistics.median(values):.{digits}f}"

    columns = [
        name,
        " + ".join(map(str, cold["nodes"])),
        both("start", 1),
        *(both(what, 2) for what in (("pass", "text", "bind") if traced else ("key", "entry", "bind"))),
        f"{both('own', 1)} ({START + count * EACH:.0f})",
        f"{cold['bind'] * count:.0f}",
        f"{cold['first_call']:.2f}",
        f"{statistics.median(w['first_call'] for w in warm):.2f}",
    ]
    return "| " + " | ".join(columns) + " |"


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(one(sys.argv[2])))
        return
    names = sys.argv[1:] or WORKLOADS
    for traced, parts in ((False, "key, ms | entry, ms | a graph: bind, ms"), (True, "a graph: pass, ms | key, ms | bind, ms")):
        print(f"| workload | ops of its graphs | start, ms | {parts} | lowc's own, ms (aim) |"
              " read and compile all, ms | first call cold, s | warm, s |")  # fmt: skip
        print("|---|---|---|---|---|---|---|---|---|---|")
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                (cold,) = processes(name, folder, 1, traced)
                print(row(name, cold, processes(name, folder, PROCESSES, traced), traced), flush=True)
        print()


if __name__ == "__main__":
    main()
