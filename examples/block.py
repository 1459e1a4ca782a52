"""A transformer's feed-forward block with its backward pass, and a function that Dynamo has to break.

lowc explain examples/block.py:block
lowc explain examples/block.py:broken
"""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


block = Block


def block_inputs() -> tuple[torch.Tensor]:
    return (torch.randn(8, 128, 256, generator=torch.Generator().manual_seed(0)),)


def broken(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2).relu()
    print("the mean is", float(y.mean()))  # Dynamo stops here and starts again below
    return y.sort(-1).values.tanh()


def broken_inputs() -> tuple[torch.Tensor]:
    return (torch.randn(64, 64, generator=torch.Generator().manual_seed(0)),)
