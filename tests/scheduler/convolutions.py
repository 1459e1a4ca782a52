"""Convolutions whose channels lie side by side as kernels @SCHEDULED."""

from collections.abc import Sequence

from lowc.ir.nodes import Kernel
from lowc.ir.parser import parse_kernel
from lowc.scheduler import linearise


def convolution(
    images: int | str, size: Sequence[int], channels: int, made: int, taps: Sequence[int] = (3, 3), step: int = 1, pad: int = 1,
    gap: int = 1, dtype: str = "bf16", pitch: int = 0, result: str = "{s} + f32(bias[o])",
) -> Kernel:  # fmt: skip
    """out = f(convolution(x, w)), of ``images`` (a name: a size of the call) of ``size``, as lowering writes it; pixels of x are
    ``pitch`` elements apart if that is not 0."""
    places = [(n + 2 * pad - (t - 1) * gap - 1) // step + 1 for n, t in zip(size, taps, strict=True)]
    axes, numbers = ("z", "y", "x")[-len(size) :], ("c", "a", "b")[-len(size) :]
    at, masks = [], []
    for axis, tap, extent, count, window in zip(axes, numbers, size, places, taps, strict=True):
        at.append(f"{axis}*{step} + {tap}*{gap} - {pad}")
        if pad:
            masks.append(f"(idx({at[-1]}) >= 0)")
        if (count - 1) * step + (window - 1) * gap - pad >= extent:
            masks.append(f"(idx({at[-1]}) < {extent})")
    mask = f" if {' & '.join(masks)}" if masks else ""
    shape, shown = f"{images}, {', '.join(map(str, size))}", ", ".join(map(str, places))
    strides = ""
    if pitch:
        steps = [pitch]
        for extent in reversed(size):
            steps.append(steps[-1] * extent)
        strides = f" : {', '.join(map(str, reversed(steps)))}, 1"
    loops = [("n", images), *zip(axes, places, strict=True), ("o", made)]
    summed = [("d", channels), *zip(numbers, taps, strict=True)]
    sizes, windows = f"{images}: size 1.. ~ 3, " if isinstance(images, str) else "", ", ".join(map(str, taps))
    text = f"""kernel f({sizes}x_: {dtype}[{shape}, {channels}{strides}], w: {dtype}[{made}, {windows}, {channels}],
      bias: {dtype}[{made}], out: {dtype}[{images}, {shown}, {made}]) {{
      {" ".join(f"for {a} in {n} {{" for a, n in loops)}
        acc s: f32 = add
        {" ".join(f"for {a} in {n} {{" for a, n in summed)}
          s add= product(f32(x_[n, {", ".join(at)}, d{mask}]), f32(w[o, {", ".join(numbers)}, d]))
        {"}" * len(summed)}
        out[n, {", ".join(axes)}, o] = {dtype}({result.format(s="s")})
      {"}" * len(loops)}
    }}"""
    return linearise._linear(parse_kernel(text))
