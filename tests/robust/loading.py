"""What loaders of data and other processes do with compiled functions; their children import this module."""

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

OPTIONS = {"cache": False, "strict_errors": True}


def normalised(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean()) / (x.std() + 1e-5)


def compiled() -> Any:
    return torch.compile(normalised, backend="lowc", dynamic=False, options=OPTIONS)


class Rows(Dataset[torch.Tensor]):
    """Row ``n`` is normalised by a function that was compiled ``before`` the workers were made, or that each compiles."""

    def __init__(self, before: bool) -> None:
        self.fn: Any = None
        if before:
            self.fn = compiled()
            self.fn(self.row(0))

    def row(self, number: int) -> torch.Tensor:
        return torch.linspace(0, 1 + number, 1000) ** 2

    def __getitem__(self, number: int) -> torch.Tensor:
        if self.fn is None:
            self.fn = compiled()
        return self.fn(self.row(number))

    def __len__(self) -> int:
        return 24


def loaded(method: str, before: bool) -> bool:
    """Whether two workers, made by fork or spawn, give the right rows."""
    rows = Rows(before)
    loader = DataLoader(rows, batch_size=4, num_workers=2, multiprocessing_context=method, timeout=120)
    got = torch.cat(list(loader))
    return torch.allclose(got, torch.stack([normalised(rows.row(n)) for n in range(len(rows))]), atol=1e-5)


def apart(pipe: Any) -> None:
    """In a process of its own: compiles, calls, answers."""
    x = torch.randn(300, 50)
    fn = torch.compile(lambda x: (x.exp().sum(1), x @ x.t()), backend="lowc", options=OPTIONS)
    right = (x.exp().sum(1), x @ x.t())
    pipe.send(all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(fn(x), right, strict=True)))
