"""lowc's own part, measured without Dynamo and AOTAutograd: compile time and the overhead of a call.

python -m benchmarks.own overhead
python -m benchmarks.own scaling LAYERS
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.workloads import chain
from lowc.compiler import compile_graph
from lowc.frontend.capture import capture
from lowc.options import Options


def compile_alone(
    fn: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Callable[[list[Any]], Any], float, float]:
    """The function that lowc makes of ``fn``'s one inference graph; seconds of lowc alone, and of the whole first call."""
    made: list[Any] = []
    seconds: list[float] = []

    def compile_one(graph: Any, constants: Any) -> Any:
        start = time.perf_counter()
        compiled = compile_graph(graph, constants, Options())
        seconds.append(time.perf_counter() - start)
        made.append(compiled)
        return compiled

    start = time.perf_counter()
    capture(fn, args, compile_one, dynamic=False, backward=False)
    (compiled,) = made
    return compiled, seconds[0], time.perf_counter() - start


def three(
    x: torch.Tensor, y: torch.Tensor, z: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three small kernels that share no loop."""
    return F.layer_norm(x, (256,)), F.gelu(y), z.softmax(-1)


def overhead() -> dict[str, float]:
    """Microseconds of one call of ``three`` on few elements, each way."""
    args = (torch.randn(2, 256), torch.randn(33), torch.randn(5, 7))
    alone, _, _ = compile_alone(three, args)
    whole = torch.compile(three, backend="lowc", dynamic=False)
    with torch.no_grad():
        sides: dict[str, Callable[[], Any]] = {
            "lowc_alone_us": lambda: alone([*args]),
            "compiled_us": lambda: whole(*args),
            "eager_us": lambda: three(*args),
        }
        times: dict[str, list[float]] = {name: [] for name in sides}
        for call in sides.values():
            for _ in range(50):
                call()
        for _ in range(30):
            for name, call in sides.items():
                start = time.perf_counter()
                for _ in range(200):
                    call()
                times[name].append((time.perf_counter() - start) / 200 * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def scaling(layers: int) -> dict[str, float]:
    """Seconds to compile a chain of ``layers`` different layers."""
    sys.setrecursionlimit(10000)
    compile_alone(*chain(4))  # what only the first compilation of a process pays
    _, own, whole = compile_alone(*chain(layers))
    return {"layers": layers, "lowc_s": own, "first_call_s": whole}


def main() -> None:
    print(json.dumps(overhead() if sys.argv[1] == "overhead" else scaling(int(sys.argv[2]))))


if __name__ == "__main__":
    main()
