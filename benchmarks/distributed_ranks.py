"""One rank of ``benchmarks.distributed``, which starts it: does its parts with the other ranks, and writes what it finds as
lines of JSON, one for each thing as soon as it is known.
"""

import datetime
import itertools
import json
import logging
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import lowc
from tests.e2e.models import Block

ROUNDS, ROUND = 3, 8  # steps in turn, for the times
FIRST = 10  # losses that have to be eager's to rounding
ENOUGH = 30  # seconds, for Inductor


class Rank:
    """``device``: of this rank, "cuda:1" or "cpu".  ``small``: sizes for a CPU.  ``seconds``: until all has to be over."""

    def __init__(self, argv: list[str]) -> None:
        self.backend, rank, ranks, folder, parts, sides, steps, seconds = argv
        self.rank, self.ranks = int(rank), int(ranks)
        self.parts, self.sides, self.steps = parts.split(","), sides.split(","), int(steps)
        self.end = time.monotonic() + float(seconds)
        self.folder = Path(folder)
        self.cuda = self.backend == "nccl"
        self.small = not self.cuda
        self.device = f"cuda:{rank}" if self.cuda else "cpu"
        self.file = open(self.folder / f"rank{rank}.jsonl", "w", buffering=1)

    def say(self, kind: str, part: str, **what: Any) -> None:
        self.file.write(json.dumps({"kind": kind, "part": part, "rank": self.rank, **what}) + "\n")

    def check(self, name: str, wrong: str, note: str = "") -> None:
        self.say("check", "collectives", name=name, ok=not wrong, text=wrong or note)

    def agreed(self, here: bool) -> bool:
        """What rank 0 thinks: ranks must do the same."""
        said = torch.tensor([float(here)], device=self.device)
        dist.broadcast(said, 0)
        return bool(said.item())

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


def main() -> None:
    me = Rank(sys.argv[1:])
    torch.set_float32_matmul_precision("high")  # of all sides
    how: dict[str, Any] = {}
    if me.cuda:
        torch.cuda.set_device(me.rank)
        how["device_id"] = torch.device(me.device)
    store = dist.FileStore(str(me.folder / "store"), me.ranks)
    dist.init_process_group(
        me.backend, store=store, rank=me.rank, world_size=me.ranks, timeout=datetime.timedelta(seconds=60), **how
    )
    name = torch.cuda.get_device_name(me.rank) if me.cuda else "CPU"
    me.say("machine", me.parts[0], text=f"{name}, torch {torch.__version__}")
    for part in me.parts:
        me.say("begin", part)
        try:
            PARTS[part](me)
        except BaseException as error:
            traceback.print_exc()
            me.say("error", part, text=f"{type(error).__name__}: {error}")
            os._exit(1)  # the others may be in a collective: whoever started us ends them
        me.say("end", part)
    dist.barrier()
    dist.destroy_process_group()


# ---------------------------------------------------------------- collectives


def check_collectives(me: Rank) -> None:
    from tests.distributed.cases import CASES, compare

    for name in CASES:
        try:
            wrong = compare(name, dist.group.WORLD, me.device, options={"strict_errors": True})
        except Exception as error:  # on all ranks, or they are ended
            traceback.print_exc()
            wrong = f"{type(error).__name__}: {error}"
        me.check(name, wrong)
    _check_graphs(me)
    _check_cache(me)
    if me.cuda:
        _check_device(me)


def _check_graphs(me: Rank) -> None:
    """``mode="reduce-overhead"`` with a collective: refused with a reason on a GPU, and right everywhere."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    listener = Listener()
    logging.getLogger("lowc").addHandler(listener)
    import torch.distributed._functional_collectives as collectives

    def run(x: Tensor) -> Tensor:
        return collectives.all_reduce(x * 2, "sum", dist.group.WORLD).sin() + x

    compiled = torch.compile(run, backend=lowc.lowc_backend, mode="reduce-overhead")
    wrong = ""
    with torch.no_grad():
        for number in range(4):
            x = torch.full((300, 5), float(number + me.rank), device=me.device)
            wanted = (2.0 * (me.ranks * number + me.ranks * (me.ranks - 1) / 2) + 0 * x).sin() + x
            if not torch.allclose(compiled(x), wanted, rtol=1e-5, atol=1e-5):
                wrong = f"call {number} is wrong"
    refused = next((text for text in said if "no CUDA graph" in text), "")
    if me.cuda and not refused:
        wrong = wrong or "nothing was said of CUDA graphs"
    logging.getLogger("lowc").removeHandler(listener)
    me.check("mode reduce-overhead", wrong, refused)


def _check_cache(me: Rank) -> None:
    """What a rank has compiled is found again in the folder that all share."""
    folder = Path(os.environ["LOWC_CACHE_DIR"])

    def run(x: Tensor) -> Tensor:
        return (x.sin() * 3 + me.ranks).softmax(1)

    def compiled() -> set[tuple[str, int]]:  # an entry that is written again is another file
        torch._dynamo.reset()
        torch.compile(run, backend=lowc.lowc_backend)(torch.ones(64, 33, device=me.device))
        dist.barrier()
        return {(file.name, file.stat().st_ino) for file in folder.glob("*") if not file.name.startswith(".")}

    before, after = compiled(), compiled()
    wrong = "" if before and before == after else f"{len(after - before)} of {len(before)} entries were written again"
    me.check("one cache folder", wrong, f"{len(after)} entries, all found again")


def _check_device(me: Rank) -> None:
    """Kernels run where the tensors are, whatever device is current."""
    from lowc.runtime.cuda import device

    other = (me.rank + 1) % me.ranks
    torch.cuda.set_device(other)
    x = torch.randn(1000, 65, device=me.device)
    with torch.no_grad():
        y = torch.compile(lambda x: (x * 2).softmax(1), backend=lowc.lowc_backend)(x)
    current = torch.cuda.current_device()
    torch.cuda.set_device(me.rank)
    wrong = "" if str(y.device) == me.device and torch.allclose(y, (x * 2).softmax(1), atol=1e-5) else f"on {y.device}"
    used = sorted(device._devices)
    if used != [me.rank] or current != other:
        wrong = wrong or f"devices {used}, and {current} was current afterwards"
    me.check("kernels on the rank's own GPU", wrong, "the current device being another")


# ---------------------------------------------------------------- training


class GPT(nn.Module):
    def __init__(self, words: int, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(words, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Perceptrons(nn.Module):
    """Residual MLPs with a loss, for tensor parallelism."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        for norm, up, down in zip(self.norms, self.ups, self.downs):
            x = x + down(F.gelu(up(norm(x)), approximate="tanh"))
        return F.mse_loss(x, targets)


def _gpt(me: Rank) -> nn.Module:
    torch.manual_seed(0)
    return (GPT(97, 128, 2, 4, 32) if me.small else GPT(8192, 1024, 2, 16, 512)).to(me.device)


def _sentences(me: Rank) -> list[tuple[Tensor, Tensor]]:
    """Batches of a language in which four of five words follow from the word before; each rank has its own."""
    words, batch, length = (97, 4, 32) if me.small else (8192, 8, 512)
    following = torch.randperm(words, generator=torch.Generator().manual_seed(7))
    draw = torch.Generator().manual_seed(me.rank)
    made: list[tuple[Tensor, Tensor]] = []
    for _ in range(4):
        text = [torch.randint(0, words, (batch,), generator=draw)]
        for _ in range(length):
            other = torch.randint(0, words, (batch,), generator=draw)
            text.append(torch.where(torch.rand(batch, generator=draw) < 0.8, following[text[-1]], other))
        whole = torch.stack(text, 1).to(me.device)
        made.append((whole[:, :-1].contiguous(), whole[:, 1:].contiguous()))
    return made


def _mesh(me: Rank) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cuda" if me.cuda else "cpu", (me.ranks,))


def train_ddp(me: Rank) -> None:
    from torch.nn.parallel import DistributedDataParallel

    def make(backend: Any) -> tuple[Any, nn.Module]:
        model = DistributedDataParallel(_gpt(me), bucket_cap_mb=1 if me.small else 100)
        return (torch.compile(model, backend=backend) if backend else model), model

    _train(me, "ddp", make, _sentences(me), 3e-4)


def train_fsdp(me: Rank) -> None:
    from torch.distributed.fsdp import fully_shard

    def make(backend: Any) -> tuple[Any, nn.Module]:
        model: Any = _gpt(me)
        for block in model.blocks:
            if backend:
                block.compile(backend=backend)
            fully_shard(block, mesh=_mesh(me))
        fully_shard(model, mesh=_mesh(me))
        return model, model

    _train(me, "fsdp", make, _sentences(me), 3e-4)


def train_tp(me: Rank) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    width, layers, batch = (64, 2, 32) if me.small else (2048, 3, 4096)

    def make(backend: Any) -> tuple[Any, nn.Module]:
        torch.manual_seed(0)
        model = Perceptrons(width, layers).to(me.device)
        plan = {f"ups.{n}": ColwiseParallel() for n in range(layers)} | {f"downs.{n}": RowwiseParallel() for n in range(layers)}
        model = parallelize_module(model, _mesh(me), plan)
        return (torch.compile(model, backend=backend) if backend else model), model

    draw = torch.Generator().manual_seed(1)  # the same on every rank
    batches = [tuple(torch.randn(batch, width, generator=draw).to(me.device) for _ in range(2)) for _ in range(4)]
    _train(me, "tp", make, batches, 1e-4)


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """Parameters that are DTensors apart from those that are not: one call of an op takes no mixture."""
    kinds: dict[type, list[Any]] = {}
    for each in model.parameters():
        kinds.setdefault(type(each.data), []).append(each)
    return [{"params": each} for each in kinds.values()]


def _train(me: Rank, part: str, make: Callable[[Any], tuple[Any, nn.Module]], batches: Any, rate: float) -> None:
    """Trains with each side, then times them in turn."""
    steps: dict[str, Callable[[], Tensor]] = {}
    found: dict[str, dict[str, Any]] = {}
    for side in ["eager", *(s for s in me.sides if s != "eager")]:
        if side == "inductor" and not me.agreed(me.end - time.monotonic() > ENOUGH):
            me.say("note", part, text="no time was left for inductor")
            continue
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        try:
            steps[side], found[side] = _trained(me, side, make, batches, rate)
        except Exception as error:
            if side != "inductor":
                raise
            traceback.print_exc()
            me.say("note", part, text=f"inductor: {type(error).__name__}: {error}"[:300])
            continue
        _judge(found, side)
        me.say("trained", part, side=side, **found[side])
    times: dict[str, list[float]] = {side: [] for side in steps}
    for turn in range(ROUNDS + 1):  # the first warms up
        for side, step in steps.items():
            me.synchronize()
            dist.barrier()
            start = time.perf_counter()
            for _ in range(ROUND):
                step()
            me.synchronize()
            if turn:
                times[side].append((time.perf_counter() - start) / ROUND * 1e3)
    for side, each in times.items():
        me.say("training", part, side=side, ms=statistics.median(each), **found[side])


def _trained(
    me: Rank, side: str, make: Callable[[Any], tuple[Any, nn.Module]], batches: Any, rate: float
) -> tuple[Callable[[], Tensor], dict[str, Any]]:
    """(one more step, what the first ``me.steps`` were)."""
    run, model = make({"eager": None, "lowc": lowc.lowc_backend}.get(side, side))
    optimizer = torch.optim.AdamW(_groups(model), lr=rate, foreach=True)
    turns = itertools.cycle(batches)

    def step() -> Tensor:
        loss = run(*next(turns))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    start = time.perf_counter()
    losses = [step()]
    me.synchronize()
    first = time.perf_counter() - start
    losses += [step() for _ in range(me.steps - 1)]
    counters = torch._dynamo.utils.counters
    graphs = counters["lowc"]["graphs"] if side == "lowc" else counters["stats"]["unique_graphs"]
    unsupported = counters["lowc"]["graphs_unsupported"]
    return step, {"losses": [float(x) for x in losses], "first_s": first, "graphs": graphs, "unsupported": unsupported}


def _judge(found: dict[str, dict[str, Any]], side: str) -> None:
    """Adds how far the losses are from eager's, and whether that will do: the tolerance is that of tests/e2e/test_training.py."""
    mine, eager = found[side], found["eager"]["losses"]
    pairs = list(zip(mine["losses"], eager, strict=True))
    mine["difference"] = max(abs(a - b) / abs(b) for a, b in pairs)
    close = all(abs(a - b) <= 1e-4 + 1e-3 * abs(b) for a, b in pairs[:FIRST])
    compiled = side != "lowc" or (mine["graphs"] > 0 and not mine["unsupported"])
    mine["ok"] = bool(close and compiled)


PARTS = {"collectives": check_collectives, "tp": train_tp, "ddp": train_ddp, "fsdp": train_fsdp}

if __name__ == "__main__":
    main()
