"""What the tests of artifacts compile: small models with inputs, in eval mode."""

from typing import Any

import torch
from torch import nn

from tests.e2e import models as zoo


def mlp() -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(19, 33), nn.GELU(), nn.LayerNorm(33), nn.Linear(33, 7))
    return model.eval(), (torch.randn(5, 19),)


def resnet() -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(1)
    model, inputs, _ = zoo.resnet()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # not those of an untrained one, which hide mistakes
            nn.init.uniform_(module.running_mean, -0.3, 0.3)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model.eval(), inputs


class Logits(nn.Module):
    """A GPT without its loss."""

    def __init__(self, model: zoo.GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.model.token(ids) + self.model.position(torch.arange(ids.shape[1]))
        for block in self.model.blocks:
            x = block(x)
        return self.model.head(self.model.norm(x))


def gpt() -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(2)
    return Logits(zoo.GPT()).eval(), (zoo.tokens(2, 17, below=97),)
