"""What the ranks of a test do: python -m tests.distributed.jobs JOB[:ARGUMENT],... RANK RANKS FOLDER"""

import datetime
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh

import lowc
from tests.distributed.cases import CASES, compare
from tests.e2e.models import GPT


def collectives(*names: str) -> dict[str, str]:
    """Case: how it is wrong, or ""."""
    checked = {"overwritten"}  # the IR of all would take as long again
    options = {name: {"strict_errors": True, "check": name in checked} for name in names or CASES}
    return {name: compare(name, dist.group.WORLD, "cpu", options=given) for name, given in options.items()}


def replayed() -> bool:
    """A collective in mode reduce-overhead, which has nothing to replay on a CPU: right each time."""

    def run(x: Tensor) -> Tensor:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD).sin()

    compiled = torch.compile(run, backend=lowc.lowc_backend, mode="reduce-overhead")
    inputs = [torch.full((3, 5), float(dist.get_rank() + n)) for n in range(3)]
    return all(torch.allclose(compiled(x), run(x)) for x in inputs)


def cache() -> list[int]:
    """(entries after compiling, entries written again when the same is compiled anew)."""
    folder = Path(os.environ["LOWC_CACHE_DIR"])

    def entries() -> set[tuple[str, int]]:
        torch._dynamo.reset()
        torch.compile(lambda x: (x.sin() * 3).softmax(1), backend=lowc.lowc_backend)(torch.ones(6, 5))
        dist.barrier()
        return {(file.name, file.stat().st_ino) for file in folder.glob("*") if not file.name.startswith(".")}

    before = entries()
    dist.barrier()
    return [len(before), len(entries() - before)]


# ---------------------------------------------------------------- training


def _batches(count: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(100 + dist.get_rank())
    return [tuple(torch.randint(0, 97, (3, 31), generator=draw) for _ in range(2)) for _ in range(count)]


def _losses(run: Callable[..., Any], parameters: Any, batches: Any, steps: int, **optimizer: Any) -> list[float]:
    adam = torch.optim.AdamW(parameters, lr=1e-3, **optimizer)
    found: list[float] = []
    for step in range(steps):
        out = run(*batches[step % len(batches)])
        loss = out[1] if isinstance(out, tuple) else out
        loss.backward()
        adam.step()
        adam.zero_grad()
        found.append(loss.item())
    return found


def _trained(make: Callable[[Any], tuple[Any, nn.Module]], steps: int) -> dict[str, Any]:
    """Losses of eager and of what is compiled, and how many graphs lowc made and did not make of it."""
    found: dict[str, Any] = {}
    for side, backend in (("eager", None), ("lowc", lowc.lowc_backend)):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        run, model = make(backend)
        found[side] = _losses(run, model.parameters(), _batches(4), steps)
    return found | {"graphs": counters["lowc"]["graphs"], "unsupported": counters["lowc"]["graphs_unsupported"]}


def ddp(steps: str) -> dict[str, Any]:
    """DistributedDataParallel whose buckets are so small that Dynamo's graph is split at them."""
    dist._DEFAULT_FIRST_BUCKET_BYTES = 100 << 10

    def make(backend: Any) -> tuple[Any, nn.Module]:
        model = nn.parallel.DistributedDataParallel(GPT(layers=1), bucket_cap_mb=0.2)
        return (torch.compile(model, backend=backend) if backend else model), model

    return _trained(make, int(steps))


def fsdp(steps: str) -> dict[str, Any]:
    """FSDP2: each block is sharded by itself, and compiled; its parameters are gathered around each pass."""
    from torch.distributed.fsdp import fully_shard

    def make(backend: Any) -> tuple[Any, nn.Module]:
        model, mesh = GPT(), init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            if backend:
                block.compile(backend=backend)
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, model

    return _trained(make, int(steps))


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(24), nn.Linear(24, 36), nn.Linear(36, 24)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def tensor_parallel() -> dict[str, Any]:
    """A perceptron whose hidden layer is spread over the ranks: (results and gradients) beside one that is not spread."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch._dynamo.reset()
    counters.clear()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x = torch.randn(7, 24, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    whole = Perceptron()
    spread: Any = Perceptron()
    spread.load_state_dict(whole.state_dict())
    parallelize_module(spread, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    mine, given = x.clone().requires_grad_(), x.clone().requires_grad_()
    compiled = torch.compile(spread, backend=lowc.lowc_backend, options={"strict_errors": True}, fullgraph=True)
    out, wanted = compiled(mine), whole(given)
    out.square().sum().backward()
    wanted.square().sum().backward()
    pairs = {"out": (out, wanted), "x": (mine.grad, given.grad)}
    for (name, a), b in zip(spread.named_parameters(), whole.parameters(), strict=True):
        pairs[name] = (a.grad.full_tensor() if hasattr(a.grad, "full_tensor") else a.grad, b.grad)
    wrong = {name: float((a - b).abs().max()) for name, (a, b) in pairs.items() if not torch.allclose(a, b, 1e-4, 1e-5)}
    return {"wrong": wrong, "graphs": counters["lowc"]["graphs"], "unsupported": counters["lowc"]["graphs_unsupported"]}


JOBS: dict[str, Callable[..., Any]] = {
    job.__name__: job for job in (collectives, replayed, cache, ddp, fsdp, tensor_parallel)
}


def main(jobs: str, rank: str, ranks: str, folder: str) -> None:
    """``jobs``: "collectives,ddp:50", each with its arguments behind colons."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", int(ranks))
    limit = datetime.timedelta(seconds=200)
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(ranks), timeout=limit)
    found: dict[str, Any] = {}
    for job in jobs.split(","):
        name, *given = job.split(":")
        start = time.perf_counter()
        found[name] = JOBS[name](*given)
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
        dist.barrier()
    Path(folder, f"result{rank}").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
