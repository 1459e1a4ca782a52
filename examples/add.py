"""One op on two dtypes: what becomes of it is docs/one-op.md.

lowc dump examples/add.py:add --stage loops
"""

import torch


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(1000, dtype=torch.bfloat16), torch.ones(1000)
