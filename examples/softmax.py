"""Softmax written out: five ops that become one kernel, which reads each row from memory once.

lowc dump examples/softmax.py:softmax --stage loops
lowc dump examples/softmax.py:softmax --stage asm
"""

import torch


def softmax(x: torch.Tensor) -> torch.Tensor:
    shifted = x - x.amax(1, keepdim=True)
    powers = shifted.exp()
    return powers / powers.sum(1, keepdim=True)


def inputs() -> tuple[torch.Tensor]:
    return (torch.randn(2048, 2048, generator=torch.Generator().manual_seed(0)),)
