"""An optimizer step as a graph: Adam over 24 tensors, compiled as one function, beside the same function in eager.

python examples/adam.py
lowc explain examples/adam.py:adam
"""

import copy
import statistics
import time

import torch

Tensors = list[torch.Tensor]


def adam(parameters: Tensors, gradients: Tensors, means: Tensors, squares: Tensors) -> None:
    """One step in place, at step 10 of training."""
    rate, beta1, beta2 = 1e-3, 0.9, 0.999
    for p, g, m, v in zip(parameters, gradients, means, squares):
        m.mul_(beta1).add_(g, alpha=1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        p.addcdiv_(m / (1 - beta1**10), (v / (1 - beta2**10)).sqrt_().add_(1e-8), value=-rate)


def adam_inputs() -> tuple[Tensors, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(256, 256), (256,), (1024, 256), (1024,), (256, 1024), (256,)] * 4
    values = [[torch.randn(s, generator=generator) for s in shapes] for _ in range(4)]
    values[3] = [v.abs() for v in values[3]]
    return tuple(values)


def main() -> None:
    with torch.no_grad():
        eager, ours = adam_inputs(), adam_inputs()
        compiled = torch.compile(adam, backend="lowc", fullgraph=True)
        check = copy.deepcopy(eager)
        adam(*check)
        compiled(*ours)
        worst = max(float((a - b).abs().max()) for a, b in zip(ours[0], check[0]))
        print(f"largest difference from eager after one step: {worst:.1e}")
        times: dict[str, list[float]] = {"eager": [], "lowc": []}
        for _ in range(30):
            for name, fn, state in (("eager", adam, eager), ("lowc", compiled, ours)):
                start = time.perf_counter()
                fn(*state)
                times[name].append(time.perf_counter() - start)
        for name, values in times.items():
            print(f"{name:<6} {statistics.median(values) * 1e3:7.3f} ms a step")


if __name__ == "__main__":
    main()
