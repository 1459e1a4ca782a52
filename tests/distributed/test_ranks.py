"""Two processes on the CPU: collectives in compiled functions, and training with DDP, FSDP2 and tensor parallelism.

    python -m pytest -m "slow or not slow" tests/distributed     # FSDP2 and DDP for 50 steps, and four ranks

Starting two processes, Dynamo in each, takes longer than most of what they do: jobs share them.
"""

from typing import Any

import pytest

from tests.distributed.ranks import needed, run

pytestmark = [needed(), pytest.mark.timeout(500)]


def close(found: dict[str, Any], least: int) -> None:
    """The losses are eager's, by the tolerance of tests/e2e/test_training.py, and lowc has compiled at least so many graphs."""
    import torch

    torch.testing.assert_close(torch.tensor(found["lowc"]), torch.tensor(found["eager"]), rtol=1e-3, atol=1e-4)
    assert found["eager"][-1] < found["eager"][0], "there is something to learn"
    assert found["graphs"] >= least and not found["unsupported"]


def test_collectives_the_cache_and_tensor_parallelism() -> None:
    for found in run("collectives,replayed,cache,tensor_parallel"):
        assert not {name: wrong for name, wrong in found["collectives"].items() if wrong}
        assert found["replayed"]
        entries, again = found["cache"]
        assert entries > 0 and again == 0
        assert found["tensor_parallel"] == {"wrong": {}, "graphs": 2, "unsupported": 0}


def test_a_few_steps_of_ddp_and_fsdp() -> None:
    for found in run("ddp:10,fsdp:10"):
        close(found["ddp"], 4)  # several parts, forward and backward
        close(found["fsdp"], 2)


@pytest.mark.slow
def test_fifty_steps_of_ddp_and_fsdp() -> None:
    for found in run("ddp:50,fsdp:50"):
        close(found["ddp"], 4)
        close(found["fsdp"], 2)


@pytest.mark.slow
def test_four_ranks() -> None:
    for found in run("collectives,tensor_parallel,fsdp:10", ranks=4):
        assert not {name: wrong for name, wrong in found["collectives"].items() if wrong}
        assert found["tensor_parallel"]["wrong"] == {}
        close(found["fsdp"], 2)
