"""Lines that compute: elementwise ops, reductions, scans, norms, and a few calls that stay ATen's."""

from collections.abc import Callable

import torch
from torch import Tensor

from tests.property.graphs.maker import Maker, Skip

EXACT = "neg abs square reciprocal relu sign sgn floor ceil trunc round frac nan_to_num positive".split()
ROUND = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc sigmoid "
    "sqrt rsqrt deg2rad rad2deg"  # eager's sqrt is MKL's, which may be off by a unit
).split()
ACTIVATIONS = {
    "F.silu({})": "round",
    "F.gelu({}, approximate='tanh')": "round",
    "F.gelu({})": "sum",
    "F.mish({})": "round",
    "F.softplus({})": "round",
    "F.softplus({}, 2.0, 1.0)": "round",
    "F.elu({})": "round",
    "F.selu({})": "round",
    "F.celu({}, 0.5)": "round",
    "F.hardsigmoid({})": "round",
    "F.hardswish({})": "round",
    "F.hardtanh({}, -0.5, 1.5)": "exact",
    "F.relu6({})": "exact",
    "F.leaky_relu({}, 0.1)": "exact",
    "F.threshold({}, 0.5, -1.0)": "exact",
    "F.logsigmoid({})": "round",
    "F.softsign({})": "round",
    "F.tanhshrink({})": "sum",
    "F.softshrink({}, 0.3)": "round",
    "F.hardshrink({}, 0.3)": "exact",
}
PREDICATES = "isnan isinf isfinite isposinf isneginf signbit logical_not".split()
BINARY = "add sub mul div".split()
EXTREMA = "maximum minimum fmax fmin".split()
COMPARE = "eq ne lt le gt ge logical_and logical_or logical_xor".split()
FLOAT_BINARY = "atan2 hypot logaddexp logaddexp2 xlogy copysign pow".split()
SCALARS = (0, 1, 2, -1, 3, 0.5, -1.5, 2.0, 1e-3, 7)


def unary(m: Maker) -> None:
    x = m.floating()
    name = m.rng.choice(EXACT + ROUND)
    m.emit(f"torch.{name}({x})", x, noise="exact" if name in EXACT else "round")


def activation(m: Maker) -> None:
    x = m.floating()
    text = m.rng.choice(list(ACTIVATIONS))
    if "hardsigmoid" in text and m.tensor(x).dtype == torch.float64 and m.tensor(x).requires_grad:
        raise Skip  # eager's gradient is f32's 1/6 there (docs/limits.md)
    m.emit(text.format(x), x, noise=ACTIVATIONS[text])


def predicate(m: Maker) -> None:
    x = m.pick()
    m.emit(f"torch.{m.rng.choice(PREDICATES)}({x})", x)


def unary_int(m: Maker) -> None:
    x = m.whole()
    name = m.rng.choice("neg abs sign bitwise_not square logical_not sqrt exp sigmoid reciprocal floor".split())
    m.emit(f"torch.{name}({x})", x, noise="exact" if name == "reciprocal" else "round")


def _operand(m: Maker, x: str, floating: bool | None = None) -> tuple[str, tuple[str, ...]]:
    """The second operand of a binary op: a number or a value that broadcasts."""
    if m.rng.random() < 0.3:
        return repr(m.rng.choice(SCALARS)), ()
    y = m.partner(x, floating)
    return y, (y,)


def binary(m: Maker) -> None:
    x = m.pick()
    name = m.rng.choice(BINARY)
    y, uses = _operand(m, x)
    alpha = f", alpha={m.rng.choice([2, -1, 3])}" if name in ("add", "sub") and m.rng.random() < 0.15 else ""
    if m.rng.random() < 0.2 and not alpha:
        sign = {"add": "+", "sub": "-", "mul": "*", "div": "/"}[name]
        m.emit(f"{y} {sign} {x}", x, *uses, noise="exact")
    else:
        m.emit(f"torch.{name}({x}, {y}{alpha})", x, *uses, noise="sum" if alpha else "exact")


def extremum(m: Maker) -> None:
    x = m.pick()
    y = m.partner(x)
    m.emit(f"torch.{m.rng.choice(EXTREMA)}({x}, {y})", x, y, noise="zero")


def compare(m: Maker) -> None:
    x = m.pick()
    y, uses = _operand(m, x)
    m.emit(f"torch.{m.rng.choice(COMPARE[: 6 if not uses else None])}({x}, {y})", x, *uses)


def float_binary(m: Maker) -> None:
    x = m.floating()
    name = m.rng.choice(FLOAT_BINARY)
    y = m.partner(x)
    if name == "pow" and m.rng.random() < 0.6:
        y, uses = repr(m.rng.choice([0.5, 2, 3, -1, 2.5, -2, 0])), ()
    else:
        uses = (y,)
    noise = {"copysign": "exact", "logaddexp": "sum", "logaddexp2": "sum", "hypot": "sum"}.get(name, "round")
    m.emit(f"torch.{name}({x}, {y})", x, *uses, noise=noise)


def division(m: Maker) -> None:
    x = m.pick()
    if m.tensor(x).is_floating_point() or m.rng.random() < 0.4:
        y, uses = _operand(m, x, floating=True)
    else:
        y = m.partner(x, floating=False)
        y, uses = m.emit(f"{y}.abs() + 1", y) if m.tensor(y).dtype.itemsize > 1 else "3", (y,)
        uses = tuple(u for u in (y,) if u in m.space)
    if y == "0":
        y = "2"
    text = m.rng.choice(
        [
            f"torch.remainder({x}, {y})",
            f"torch.fmod({x}, {y})",
            f"torch.floor_divide({x}, {y})",
            f"torch.div({x}, {y}, rounding_mode='trunc')",
            f"torch.div({x}, {y}, rounding_mode='floor')",
        ]
    )
    m.emit(text, x, *uses, noise="exact")


def bits(m: Maker) -> None:
    x = m.whole()
    y = m.partner(x, floating=False)
    if m.rng.random() < 0.3:
        m.emit(f"torch.bitwise_{m.rng.choice(['left', 'right'])}_shift({x}, {m.rng.choice([0, 1, 3])})", x)
    else:
        m.emit(f"torch.bitwise_{m.rng.choice(['and', 'or', 'xor'])}({x}, {y})", x, y)


def mask(m: Maker, x: str) -> str:
    """A bool that broadcasts with ``x``."""
    if m.rng.random() < 0.5:
        y = m.partner(x)
        return m.emit(f"{y} > {m.rng.choice(SCALARS)}", y)
    return m.new_input(tuple(m.tensor(x).shape), dtype="bool")


def select(m: Maker) -> None:
    x = m.pick()
    which = m.rng.randrange(6)
    if which < 2:
        c, y = mask(m, x), m.partner(x)
        m.emit(f"torch.where({c}, {x}, {y})", c, x, y)
    elif which == 2:
        c = mask(m, x)
        m.emit(f"torch.masked_fill({x}, {c}, {m.rng.choice([0, 1, -2])})", x, c)
    elif which == 3:
        low, high = m.rng.choice([(-1, 1), (0, 3), (0.5, None), (None, 2), (2, -2)])
        m.emit(f"torch.clamp({x}, {low}, {high})", x, noise="zero")
    elif which == 4:
        y, z = m.partner(x), m.partner(x)
        m.emit(f"torch.clamp({x}, {y}, {z})", x, y, z, noise="zero")
    else:
        c = mask(m, x)
        m.emit(f"torch.where({c}, {x}, {m.rng.choice([0, 1.5, -1])})", c, x)


def ternary(m: Maker) -> None:
    x = m.floating()
    y, z = m.partner(x, True), m.partner(x, True)
    text = m.rng.choice(
        [
            f"torch.addcmul({x}, {y}, {z}, value={m.rng.choice([1, 0.5, -2])})",
            f"torch.addcdiv({x}, {y}, {z}, value={m.rng.choice([1, 0.5])})",
            f"torch.lerp({x}, {y}, {m.rng.choice([0.25, 0.75])})",
            f"torch.lerp({x}, {y}, {z})",
        ]
    )
    m.emit(text, x, y, z, noise="sum")


def convert(m: Maker) -> None:
    x = m.pick()
    if m.tensor(x).is_floating_point() and m.rng.random() < 0.4:
        dtype = m.rng.choice(["int64", "int32", "bool", "uint8", "int8", "int16"])
        low = 0 if dtype == "uint8" else -100
        m.emit(f"{x}.nan_to_num(0.0, 100.0, {low}.0).clamp({low}, 100).to(torch.{dtype})", x)
    elif m.tensor(x).is_floating_point():
        m.emit(f"{x}.to(torch.{m.rng.choice(['float32', 'float64', 'bfloat16', 'float16'])})", x, noise="exact")
    else:
        to = m.rng.choice("float32 float64 bfloat16 float16 int64 int32 int16 int8 uint8 bool".split())
        m.emit(f"{x}.to(torch.{to})", x, noise="exact")


def _dims(m: Maker, x: Tensor) -> str:
    count = m.rng.randint(1, x.ndim)
    picked = sorted(m.rng.sample(range(x.ndim), count))
    return str([d - x.ndim if m.rng.random() < 0.4 else d for d in picked])


def _dim(m: Maker, x: Tensor) -> int:
    if x.ndim == 0:
        raise Skip
    return m.rng.randrange(-x.ndim, x.ndim)


def reduction(m: Maker) -> None:
    x = m.pick()
    t = m.tensor(x)
    keep = f", keepdim={m.rng.random() < 0.5}"
    which = m.rng.randrange(9)
    if which == 0 or t.ndim == 0:
        name = m.rng.choice("sum mean prod amax amin max min any all std var count_nonzero argmax argmin".split())
        m.emit(f"torch.{name}({x})", x, noise=_noise_of(name))
    elif which <= 3:
        name = m.rng.choice("sum sum mean amax amin std var logsumexp any all".split())
        extra = ", correction=0" if name in ("std", "var") and m.rng.random() < 0.5 else ""
        m.emit(f"torch.{name}({x}, {_dims(m, t)}{extra}{keep})", x, noise=_noise_of(name))
    elif which == 4:
        m.emit(f"torch.{m.rng.choice(['argmax', 'argmin'])}({x}, {_dim(m, t)}{keep})", x)
    elif which == 5:
        part = m.rng.choice(["values", "indices"])
        m.emit(f"torch.{m.rng.choice(['max', 'min'])}({x}, {_dim(m, t)}{keep}).{part}", x, noise="zero")
    elif which == 6:
        order = m.rng.choice(["2", "1", "float('inf')", "0", "3", "-float('inf')"])
        m.emit(f"torch.linalg.vector_norm({x}, {order}, {_dims(m, t)}{keep})", x, noise="sum")
    elif which == 7:
        name = m.rng.choice(["prod", "sum", "count_nonzero"])
        dtype = m.rng.choice(["", "", ", dtype=torch.float32", ", dtype=torch.int64"])
        if name == "count_nonzero" or (dtype.endswith("int64") and t.is_floating_point()):
            dtype = ""
        m.emit(f"torch.{name}({x}, {_dim(m, t)}{dtype})", x, noise=_noise_of(name))
    else:
        name = m.rng.choice(["var_mean", "std_mean"])
        m.emit(f"torch.{name}({x}, {_dims(m, t)})[{m.rng.randrange(2)}]", x, noise="sum")


def _noise_of(name: str) -> str:
    if name in ("amax", "amin", "max", "min"):
        return "zero"
    return "move" if name in ("any", "all", "count_nonzero", "argmax", "argmin") else "sum"


def scan(m: Maker) -> None:
    x = m.pick(lambda t: t.ndim > 0)
    d = _dim(m, m.tensor(x))
    name = m.rng.choice(["cumsum", "cumsum", "cumprod", "cummax", "cummin"])
    if name in ("cummax", "cummin"):
        m.emit(f"torch.{name}({x}, {d}).{m.rng.choice(['values', 'indices'])}", x, noise="zero")
    else:
        m.emit(f"torch.{name}({x}, {d})", x, noise="sum")


def norm(m: Maker) -> None:
    x = m.floating(1)
    t = m.tensor(x)
    d = _dim(m, t)
    dtype = str(t.dtype).removeprefix("torch.")
    which = m.rng.randrange(4)
    if which == 0:
        m.emit(f"torch.softmax({x}, {d})", x, noise="sum")
    elif which == 1:
        m.emit(f"torch.log_softmax({x}, {d})", x, noise="sum")
    elif which == 2:
        last = tuple(t.shape[-1:])
        w, b = m.new_input(last, dtype=dtype), m.new_input(last, dtype=dtype)
        m.emit(f"F.layer_norm({x}, {last}, {w}, {b})", x, w, b, noise="sum")
    else:
        m.emit(f"F.normalize({x}, dim={d})", x, noise="sum")


def called(m: Maker) -> None:
    """Calls that stay ATen's, between kernels."""
    x = m.floating(1)
    t = m.tensor(x)
    dtype = str(t.dtype).removeprefix("torch.")
    which = m.rng.randrange(4)
    if which == 0:
        w = m.new_input((m.rng.choice([1, 3, 8]), t.shape[-1]), dtype=dtype)
        m.emit(f"F.linear({x}, {w})", x, w, noise="sum")
    elif which == 1:
        m.emit(f"torch.sort({x}, {_dim(m, t)}, stable=True).{m.rng.choice(['values', 'indices'])}", x)
    elif which == 2:
        m.emit(f"torch.digamma({x})", x, noise="round")
    else:
        y = m.floating(2)
        a = m.tensor(y)
        w = m.new_input((a.shape[-1], m.rng.choice([1, 2, 5])), dtype=str(a.dtype).removeprefix("torch."))
        m.emit(f"torch.matmul({y}, {w})", y, w, noise="sum")


OPS: dict[Callable[[Maker], None], int] = {
    unary: 8,
    activation: 4,
    predicate: 1,
    unary_int: 2,
    binary: 12,
    extremum: 3,
    compare: 3,
    float_binary: 3,
    division: 3,
    bits: 2,
    select: 6,
    ternary: 2,
    convert: 6,
    reduction: 9,
    scan: 2,
    norm: 3,
    called: 1,
}
