"""Cases from public bug reports of tensor compilers, as data: what each calls, on what, and how the result is compared.

Every function was written for this file, and the values differ from those of the reports; ``source`` names the report that
showed the class of bug, or is "coverage".  ``report_values`` and ``report_shapes`` hold the cases,
``test_reports.py`` runs them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Report:
    """``make_inputs`` builds fresh inputs at every call.

    ``raises``: eager raises, and so must the compiled function.  ``exact``: bit for bit, signed zeros included (NaN equals NaN),
    else within ``rtol`` and ``atol``.  ``strides``, ``alias``, ``mutates``: strides of outputs, which outputs share storage
    with which inputs, and inputs after the call must match as well.  ``grad``: gradients of the sum of outputs too.
    ``second``: inputs for a second call of the same compiled function.  ``capture``: Dynamo has to capture scalars and
    data-dependent shapes.  ``platform``: eager's own result is platform-defined, so that only a crash is a failure.
    """

    id: str
    source: str
    run: Callable[..., Any]
    make_inputs: Callable[[], tuple[Any, ...]]
    notes: str = ""
    kind: str = ""
    raises: bool = False
    exact: bool = True
    rtol: float = 0.0
    atol: float = 0.0
    strides: bool = False
    mutates: bool = False
    alias: bool = False
    grad: bool = False
    dynamic: bool | None = None
    second: Callable[[], tuple[Any, ...]] | None = None
    fullgraph: bool = True
    capture: bool = False
    platform: bool = False


REPORTS: list[Report] = []
PT = "pytorch/pytorch#"


def case(
    id: str, source: str, make_inputs: Callable[[], tuple[Any, ...]], **how: Any
) -> Callable[[Any], Any]:
    """Enters the decorated function as a Report."""

    def enter(run: Callable[..., Any]) -> Callable[..., Any]:
        REPORTS.append(Report(id, source, run, make_inputs, **how))
        return run

    return enter


def T(data: Any, dtype: torch.dtype | None = None) -> Tensor:
    return torch.tensor(data, dtype=dtype)


def R(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


INF, NAN = math.inf, math.nan
f16, bf16, f32, f64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
u8, i8, i16, i32, i64 = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64
