"""Whether lowc's results are right: eager's dtypes, shapes and strides; NaN, infinities and signs of zeros where eager has them;
values within the OpInfo's tolerance of eager, or no further from float64 than twice eager's own distance.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import toleranceOverride

SUITES = {None, "TestCommon", "TestInductorOpInfo", "TestDecomp", "TestUnaryUfuncs", "TestReductions", "TestGradients"}


def tolerances(op: Any, dtype: torch.dtype, device: str = "cpu") -> tuple[float, float]:
    """(rtol, atol): torch's own for ``dtype``, or what the OpInfo grants this op if that is more."""
    rtol, atol = default_tolerances(dtype)
    for info in op.decorators:
        if getattr(info, "cls_name", "") not in SUITES or info.device_type not in (None, device):
            continue
        for inner in info.decorators:
            if isinstance(inner, toleranceOverride) and dtype in inner.d:
                atol, rtol = max(atol, inner.d[dtype].atol), max(rtol, inner.d[dtype].rtol)
    return rtol, atol


def difference(
    ours: Sequence[Any],
    eager: Sequence[Any],
    exact: Sequence[Any] | None,
    op: Any,
    *,
    values: bool = True,
    forward: int | None = None,
    undefined: Collection[int] = (),
) -> str | None:
    """What is wrong with ``ours``, or None.  ``exact``: the results on float64 inputs, if there are any.

    ``values``: compare these, too (not what is left uninitialised), but of the results in ``undefined``.  From result
    number ``forward`` on they are gradients, whose strides are what AOTAutograd makes them (docs/limits.md) and where signs of
    zeros depend on how formulas are arranged.
    """
    if len(ours) != len(eager):
        return f"{len(ours)} results, not {len(eager)}"
    for number, (a, b) in enumerate(zip(ours, eager, strict=True)):
        c = exact[number] if exact is not None and len(exact) == len(eager) else None
        found = _one(a, b, c, op, values and number not in undefined, forward is not None and number >= forward)
        if found is not None:
            return f"result {number}: {found}"
    return None


def _one(a: Any, b: Any, c: Any, op: Any, values: bool, gradient: bool) -> str | None:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return None if a is None and b is None else f"{type(a).__name__}, not {type(b).__name__}"
    if (a.dtype, a.shape, a.requires_grad, a.device) != (b.dtype, b.shape, b.requires_grad, b.device):
        return f"{_type(a)}, not {_type(b)}"
    a, b = a.detach().resolve_conj().resolve_neg(), b.detach().resolve_conj().resolve_neg()
    if b.layout != torch.strided or b.is_nested or b.is_quantized:
        return None if a.layout == b.layout else f"{a.layout}, not {b.layout}"
    if not gradient and b.numel() and _steps(a) != _steps(b):
        return f"strides {a.stride()}, not {b.stride()} for shape {tuple(b.shape)}"
    if not values:
        return None
    if b.dtype.is_complex:
        return _floats(torch.view_as_real(a), torch.view_as_real(b), _real(c), op, b.dtype, False)
    if b.dtype.is_floating_point:
        if b.dtype.itemsize < 2:
            same = torch.equal(a.view(torch.uint8), b.view(torch.uint8))
            return None if same else "other float8 values"
        return _floats(a, b, _real(c), op, b.dtype, not gradient)
    wrong = a != b
    return f"{int(wrong.sum())} of {b.numel()} values: {_show(a, b, wrong)}" if wrong.any() else None


def _type(x: Tensor) -> str:
    return f"{x.dtype}{list(x.shape)}" + (" with gradient" if x.requires_grad else "") + ("" if x.is_cpu else f" on {x.device}")


def _steps(x: Tensor) -> list[int]:
    return [s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1]


def _real(c: Any) -> Tensor | None:
    if not isinstance(c, Tensor) or c.layout != torch.strided:
        return None
    c = c.detach().resolve_conj().resolve_neg()
    return torch.view_as_real(c) if c.dtype.is_complex else c


def _floats(a: Tensor, b: Tensor, c: Tensor | None, op: Any, dtype: torch.dtype, zeros: bool) -> str | None:
    rtol, atol = tolerances(op, dtype, b.device.type)
    if c is not None and c.shape != b.shape:
        c = None
    narrow = b.dtype in (torch.float16, torch.bfloat16)
    rounded = c.to(b.dtype) if c is not None and narrow else None  # wider intermediates may overflow later
    wrong = _pattern(a, b)
    if rounded is not None:
        wrong &= _pattern(a, rounded)
    if wrong.any():
        return f"NaN or infinity in {int(wrong.sum())} of {b.numel()} values: {_show(a, b, wrong)}"
    finite = a.isfinite() & b.isfinite()
    wide_a, wide_b = a.double(), b.double()
    wrong = finite & ((wide_a - wide_b).abs() > atol + rtol * wide_b.abs())
    if wrong.any() and c is not None:
        finite &= c.isfinite()
        wide_c = c.double()
        near = atol + rtol * wide_c.abs()
        ours, theirs = (((x - wide_c).abs() / near)[finite] for x in (wide_a, wide_b))
        allowed = max(1.0, 2 * float(theirs.max())) if finite.any() else 1.0
        wrong &= finite & ((wide_a - wide_c).abs() > allowed * near)
        if wrong.any():
            return (
                f"{int(wrong.sum())} of {b.numel()} values, error {float(ours.max()):.3g} tolerances, "
                f"eager's {float(theirs.max()):.3g}: {_show(a, b, wrong)}"
            )
    elif wrong.any():
        return f"{int(wrong.sum())} of {b.numel()} values: {_show(a, b, wrong)}"
    wrong = (a == 0) & (b == 0) & (a.signbit() != b.signbit())
    if zeros and wrong.any():
        return f"sign of {int(wrong.sum())} zeros of {b.numel()} values: {_show(a, b, wrong)}"
    return None


def _pattern(a: Tensor, b: Tensor) -> Tensor:
    """Where one is NaN and the other not, or one is an infinity that the other is not."""
    infinite = a.isinf() | b.isinf()
    return (a.isnan() != b.isnan()) | (infinite & (a != b) & ~a.isnan() & ~b.isnan())


def _show(a: Tensor, b: Tensor, wrong: Tensor) -> str:
    return f"{a[wrong][:3].tolist()}, not {b[wrong][:3].tolist()}"
