"""Functions with collectives, one kind each, and their inputs: what is compiled has to give what eager gives.

``CASES``: name → a function of (group, tensors), and one of (rank, ranks) that makes the tensors, on the CPU.  Also run on
GPUs, by ``benchmarks/distributed.py``.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor

import lowc

Case = tuple[Callable[..., Any], Callable[[int, int], tuple[Tensor, ...]]]


def _ops() -> Any:
    return torch.ops._c10d_functional


def _drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def square(rank: int, ranks: int) -> tuple[Tensor, ...]:
    return (_drawn(4 * ranks, 6, seed=rank), _drawn(4 * ranks, 6, seed=10 + rank))


def large(rank: int, ranks: int) -> tuple[Tensor, ...]:
    return (_drawn(512, 1024, seed=rank),)


def all_reduce(group: Any, x: Tensor, y: Tensor) -> Any:
    return collectives.all_reduce(x * 2, "sum", group) + y.sin()


def all_reduce_max(group: Any, x: Tensor, y: Tensor) -> Any:
    return collectives.all_reduce(x, "max", group).relu()


def average(group: Any, x: Tensor, y: Tensor) -> Any:
    return collectives.all_reduce(x + y, "sum", group) / dist.get_world_size(group)


def transposed(group: Any, x: Tensor, y: Tensor) -> Any:
    return collectives.all_reduce(x.t(), "sum", group) * 2, collectives.broadcast(x.t(), 0, group)


def all_gather(group: Any, x: Tensor, y: Tensor) -> Any:
    ops, name, ranks = _ops(), group.group_name, dist.get_world_size(group)
    rows = ops.wait_tensor(ops.all_gather_into_tensor(x * 2, ranks, name))
    columns = ops.wait_tensor(ops.all_gather_into_tensor(y.exp(), ranks, name))
    return rows + 1, torch.cat(columns.chunk(ranks), 1)


def reduce_scatter(group: Any, x: Tensor, y: Tensor) -> Any:
    ops, name, ranks = _ops(), group.group_name, dist.get_world_size(group)
    return ops.wait_tensor(ops.reduce_scatter_tensor(x * y, "sum", ranks, name)) - 1


def all_to_all(group: Any, x: Tensor, y: Tensor) -> Any:
    return collectives.all_to_all_single(x.cos(), None, None, group) * 3


def uneven_all_to_all(group: Any, x: Tensor, y: Tensor) -> Any:
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    to = [1 + n for n in range(ranks)]
    return collectives.all_to_all_single((x + 1)[: sum(to)], [1 + rank] * ranks, to, group).tanh()


def broadcast(group: Any, x: Tensor, y: Tensor) -> Any:
    return collectives.broadcast(x - y, 0, group) * y


def coalesced(group: Any, x: Tensor, y: Tensor) -> Any:
    ops, name, ranks = _ops(), group.group_name, dist.get_world_size(group)
    sums = ops.all_reduce_coalesced([x, y * 2], "sum", name)
    gathered = ops.all_gather_into_tensor_coalesced([x + 1, y], ranks, name)
    parts = ops.reduce_scatter_tensor_coalesced([x * y, y], "sum", ranks, name)
    return [ops.wait_tensor(each) * 2 for each in (*sums, *gathered, *parts)]


def two_in_flight(group: Any, x: Tensor, y: Tensor) -> Any:
    ops, name = _ops(), group.group_name
    first, second = ops.all_reduce(x * 2, "sum", name), ops.all_reduce(y * 3, "sum", name)
    between = (x @ y.t()).sin()
    return ops.wait_tensor(second) - ops.wait_tensor(first), between


def equal_ones(group: Any, x: Tensor, y: Tensor) -> Any:
    """None of the three may be left out: another rank may not have noticed that they are equal."""
    parts = [collectives.all_reduce(x * 2, "sum", group) for _ in range(3)]
    return parts[0] + parts[1] * parts[2]


def unused(group: Any, x: Tensor, y: Tensor) -> Any:
    ops, name = _ops(), group.group_name
    ops.wait_tensor(ops.all_reduce(x, "sum", name))
    return y * 2


def overwritten(group: Any, x: Tensor) -> Any:
    """The operand dies when its collective has started, and temps of the same size follow it."""
    ops, name, ranks = _ops(), group.group_name, dist.get_world_size(group)
    operand = x.sin()
    running = ops.all_gather_into_tensor(operand, ranks, name)
    operand = operand * 0
    for _ in range(4):
        x = torch.softmax(x @ x.t(), 1) @ x + operand
    return ops.wait_tensor(running), x


def written_input(group: Any, x: Tensor) -> Any:
    ops, name, ranks = _ops(), group.group_name, dist.get_world_size(group)
    running = ops.all_gather_into_tensor(x, ranks, name)
    x.mul_(0)
    return ops.wait_tensor(running) + 1


def _written_later(group: Any, x: Tensor) -> Any:
    """What ``written_input`` means: in eager the collective may see what is written while it runs."""
    ops, name, ranks = _ops(), group.group_name, dist.get_world_size(group)
    gathered = ops.wait_tensor(ops.all_gather_into_tensor(x, ranks, name))
    x.mul_(0)
    return gathered + 1


def in_place(group: Any, x: Tensor, y: Tensor) -> Any:
    """torch.distributed's own functions, which Dynamo turns into functional ones."""
    total = x * 3
    dist.all_reduce(total, group=group)
    out = x.new_empty(x.shape[0] * dist.get_world_size(group), x.shape[1])
    dist.all_gather_into_tensor(out, y, group=group)
    dist.all_reduce(y, group=group)
    return total, out


def chained(group: Any, x: Tensor, y: Tensor) -> Any:
    for _ in range(3):
        x = collectives.all_reduce(x.tanh(), "sum", group) + y
    return x


CASES: dict[str, Case] = {
    **{
        each.__name__: (each, square)
        for each in (
            all_reduce,
            all_reduce_max,
            average,
            transposed,
            all_gather,
            reduce_scatter,
            all_to_all,
            uneven_all_to_all,
            broadcast,
            coalesced,
            two_in_flight,
            equal_ones,
            unused,
            in_place,
            chained,
        )
    },
    "overwritten": (overwritten, large),
    "written_input": (written_input, large),
}
_MEANT = {"written_input": _written_later}


def compare(name: str, group: Any, device: str, **compiled_with: Any) -> str:
    """Runs a case in eager and compiled (twice); "" if they agree, else how they do not.  Every rank has to call it."""
    function, make = CASES[name]
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=lowc.lowc_backend, fullgraph=True, **compiled_with)
    given = [t.to(device) for t in make(rank, ranks)]
    wanted_inputs = [t.clone() for t in given]
    wanted = _waited(_MEANT.get(name, function)(group, *wanted_inputs))
    for _ in range(2):
        inputs = [t.clone() for t in given]
        found = _waited(compiled(group, *inputs))
        try:
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(inputs, wanted_inputs)
        except AssertionError as error:
            return str(error)
    return ""


def _waited(value: Any) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(value)
    return [collectives.wait_tensor(t) if isinstance(t, collectives.AsyncCollectiveTensor) else t.clone() for t in leaves]
