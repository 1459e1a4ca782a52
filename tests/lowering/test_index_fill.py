"""``index_fill`` where its input has strides that are not those of a contiguous tensor."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lowc.dynamo import lowc_backend


@pytest.mark.parametrize(
    "x, index, dim, value",
    [
        (torch.ones(1).as_strided((1, 1), (1, 0)), [0], 1, 3),
        (torch.arange(24.0).view(4, 6).t(), [0, 2, -1, 0], 1, 3.5),
        (torch.arange(120.0).view(4, 6, 5)[:, ::2], [0, 2], -2, torch.tensor(2.0)),
        (torch.arange(6), [0, 5], 0, True),
        (torch.ones(0, 3), [0], 1, 1.0),
        (torch.ones(3, 3, dtype=torch.bool), [], 1, False),
    ],
    ids=["one", "turned", "window", "whole", "empty", "none"],
)
def test_values_and_strides(x: Tensor, index: list[int], dim: int, value: Any) -> None:
    def f(x: Tensor, index: Tensor) -> Tensor:
        return torch.index_fill(x, dim, index, value)

    torch._dynamo.reset()
    at = torch.tensor(index, dtype=torch.int64)
    found = torch.compile(f, backend=lowc_backend, options={"strict_errors": True})(x, at)
    wanted = f(x, at)
    assert torch.equal(found, wanted) and found.dtype == wanted.dtype
    assert [s for s, n in zip(found.stride(), x.shape) if n > 1] == [s for s, n in zip(wanted.stride(), x.shape) if n > 1]
