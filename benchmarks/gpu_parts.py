"""Microseconds of each kernel that gradients of attention take on a GPU: lowc's own, by torch's profiler.

    python -m benchmarks.gpu_parts [--only T4096]
"""

from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_attention_gradients import cases, flash, given_tensors, own
from benchmarks.gpu_matmul import DTYPES, arguments

CALLS = 5


def main() -> None:
    given = arguments()
    with torch.no_grad():
        for name, (size, causal) in cases().items():
            if not all(part in name for part in given.only.split(",")):
                continue
            q, k, v, grad = given_tensors(size, causal, DTYPES[given.dtype])
            call = own(*flash(q, k, v, grad, causal))
            for _ in range(2):
                call()
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA]) as found:
                for _ in range(CALLS):
                    call()
                torch.cuda.synchronize()
            times: dict[str, float] = defaultdict(float)
            for event in found.events() or ():
                times[event.name] += event.device_time / CALLS
            print(f"{name}: " + " · ".join(f"{part[-12:]} {us:.0f}" for part, us in times.items() if us >= 1), flush=True)


if __name__ == "__main__":
    main()
