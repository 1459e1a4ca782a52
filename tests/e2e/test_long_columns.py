"""Rows of scratch memory that loops share: where each lane of a vector has its own, all must fit on a stack."""

import pytest
import torch


@pytest.mark.parametrize("shape", [(20000, 32), (20000, 64), (2, 15000, 16)], ids=str)
def test_softmax_down_long_columns_has_code(shape: tuple[int, ...]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-2) * 2

    x = torch.randn(shape)
    found = torch.compile(function, backend="lowc", options={"strict_errors": True})(x)
    torch.testing.assert_close(found, function(x))
