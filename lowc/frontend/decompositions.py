"""Which ATen ops are taken apart before lowc sees them."""

from collections.abc import Callable
from typing import Any

import torch


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The decomposition table for AOTAutograd."""
    return dict(torch._decomp._core_aten_decompositions_post_autograd())
