"""The first call in a fresh process: from the start of Python to the first result.

    python -m benchmarks.cold gelu|gpt|gpt_train SIDE START

``START`` is ``time.time()`` just before the process was started.  Prints one line of JSON: seconds since then at the end of each
phase.  ``lowc_ms``: lowc's own part, what it does after AOTAutograd.
"""

import json
import sys
import time
from typing import Any


def main() -> None:
    what, side, start = sys.argv[1], sys.argv[2], float(sys.argv[3])
    phases = {"python": time.time() - start}
    import torch

    phases["torch"] = time.time() - start
    from benchmarks import workloads

    if what == "gelu":
        fn: Any = lambda x: torch.nn.functional.gelu(x * 1.5 + 0.5) * x  # noqa: E731
        args: tuple[Any, ...] = (torch.randn(256, 1024),)
    else:
        fn, args = {"gpt": workloads.gpt_infer, "gpt_train": workloads.gpt_train}[what]()
    compiled = fn if side == "eager" else torch.compile(fn, backend=side)
    phases["built"] = time.time() - start
    compiled(*args)
    phases["first_call"] = time.time() - start
    begin = time.perf_counter()
    compiled(*args)
    print(
        json.dumps(
            {
                "phases": phases,
                "total": phases["first_call"],
                "second_call_ms": (time.perf_counter() - begin) * 1e3,
            }
        )
    )


if __name__ == "__main__":
    main()
