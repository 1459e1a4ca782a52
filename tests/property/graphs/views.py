"""Lines that move data: views, copies, concatenation, padding, indexing, pooling, and tensors made of nothing."""

from collections.abc import Callable

from torch import Tensor

from tests.property.graphs.maker import Maker, Skip


def any_dim(m: Maker, t: Tensor) -> int:
    if t.ndim == 0:
        raise Skip
    return m.rng.randrange(-t.ndim, t.ndim)


def window_text(m: Maker, t: Tensor) -> str:
    """An index of slices and numbers for a tensor like ``t``, as ``[1:, None, ..., 0]``."""
    if t.ndim == 0:
        return m.rng.choice(["[None]", "[...]"])
    parts = []
    for n in t.shape[: m.rng.randint(1, t.ndim)]:
        parts.append(
            m.rng.choice(
                [
                    ":",
                    "1:",
                    f":{max(n // 2, 1)}",
                    "::2",
                    "-1:",
                    f"{n // 3}:{max(n - 1, 0)}",
                    str(m.rng.randrange(-n, n)) if n else ":",
                ]
            )
        )
    if m.rng.random() < 0.15:
        parts.insert(m.rng.randint(0, len(parts)), "None")
    if m.rng.random() < 0.2:
        parts.insert(0, "...")
    return "[" + ", ".join(parts) + "]"


def view_text(m: Maker, x: str) -> str:
    """An expression that is a view of ``x``."""
    t = m.tensor(x)
    which = m.rng.randrange(11)
    if which <= 2:
        return x + window_text(m, t)
    if which == 3 and t.ndim > 1:
        return f"{x}.permute({m.rng.sample(range(t.ndim), t.ndim)})"
    if which == 4 and t.ndim > 1:
        return f"{x}.transpose({any_dim(m, t)}, {any_dim(m, t)})"
    if which == 5:
        return f"{x}.unsqueeze({m.rng.randint(-t.ndim - 1, t.ndim)})"
    if which == 6:
        return f"{x}.squeeze()" if m.rng.random() < 0.5 else f"{x}.squeeze({any_dim(m, t)})"
    if which == 7 and t.ndim > 1:
        a, b = m.rng.sample(range(t.ndim), 2)
        return f"{x}.diagonal({m.rng.choice([0, 0, 1, -1])}, {a}, {b})"
    if which == 8 and t.ndim:
        d = any_dim(m, t)
        size = m.rng.randint(1, max(t.shape[d], 1))
        return f"{x}.unfold({d}, {size}, {m.rng.choice([1, 2, 3])})"
    if which == 9 and t.ndim:
        d = any_dim(m, t)
        text = m.rng.choice([f"chunk({m.rng.choice([2, 3])}, {d})", f"split({m.rng.choice([1, 2, 5])}, {d})"])
        return f"{x}.{text}[{m.rng.choice([0, -1])}]"
    return f"{x}.view({split_shape(m, t)})"


def split_shape(m: Maker, t: Tensor) -> str:
    """Another shape with as many elements."""
    if t.numel() == 0:
        return str([*t.shape, 1])
    left, shape = t.numel(), []
    for _ in range(m.rng.randint(0, 3)):
        divisors = [d for d in range(1, min(left, 40) + 1) if left % d == 0]
        shape.append(m.rng.choice(divisors))
        left //= shape[-1]
    shape.insert(m.rng.randint(0, len(shape)), left)
    return str(shape)


def view(m: Maker) -> None:
    x = m.pick()
    m.emit(view_text(m, x), x)


def expand(m: Maker) -> None:
    x = m.pick()
    t = m.tensor(x)
    shape = [m.rng.choice([2, 3, 5]) if n == 1 else -1 for n in t.shape]
    lead = [m.rng.choice([1, 2, 4])] if m.rng.random() < 0.5 else []
    m.emit(f"{x}.expand({[*lead, *shape]})", x)


def move(m: Maker) -> None:
    x = m.pick()
    t = m.tensor(x)
    which = m.rng.randrange(8)
    if which == 0:
        m.emit(f"torch.flip({x}, [{any_dim(m, t)}])", x)
    elif which == 1:
        m.emit(f"torch.roll({x}, {m.rng.choice([1, -2, 5])}, {any_dim(m, t)})", x)
    elif which == 2:
        m.emit(f"{x}.repeat({[m.rng.choice([1, 2, 3]) for _ in range(t.ndim + m.rng.randrange(2))]})", x)
    elif which == 3:
        m.emit(f"{x}.reshape({split_shape(m, t)})", x)
    elif which == 4:
        m.emit(f"{x}.{m.rng.choice(['contiguous', 'clone'])}()", x)
    elif which == 5:
        m.emit(f"torch.{m.rng.choice(['tril', 'triu'])}({x}, {m.rng.choice([0, 1, -1, 2])})", x)
    elif which == 6:
        m.emit(f"{x}.repeat_interleave({m.rng.choice([2, 3])}, {any_dim(m, t)})", x)
    else:
        m.emit(f"torch.tensor_split({x}, {m.rng.choice([2, 3])}, {any_dim(m, t)})[{m.rng.choice([0, 1, -1])}]", x)


def join(m: Maker) -> None:
    x = m.pick(lambda t: t.ndim > 0)
    if m.rng.random() < 0.5:
        others = [m.alike(x) for _ in range(m.rng.choice([1, 1, 2, 3]))]
    else:
        t, d = m.tensor(x), any_dim(m, m.tensor(x))
        shape = list(t.shape)
        shape[d] = m.rng.choice([0, 1, 2, 5])
        y = m.new_input(tuple(shape))
        m.emit(f"torch.cat([{x}, {y}, {x}], {d})", x, y, noise="exact")
        return
    name = m.rng.choice(["cat", "stack"])
    m.emit(f"torch.{name}([{', '.join([x, *others])}], {any_dim(m, m.tensor(x))})", x, *others, noise="exact")


def pad(m: Maker) -> None:
    x = m.pick(lambda t: t.ndim > 0)
    t = m.tensor(x)
    if m.rng.random() < 0.6:
        count = m.rng.randint(1, t.ndim)
        amounts = [m.rng.choice([0, 1, 2, 3, -1]) for _ in range(2 * count)]
        m.emit(f"F.pad({x}, {amounts}, value={m.rng.choice([0, 1, -2])})", x)
    else:
        count = max(t.ndim - 2, 1)
        amounts = [m.rng.choice([0, 1, 2]) for _ in range(2 * count)]
        m.emit(f"F.pad({x}, {amounts}, mode={m.rng.choice(['reflect', 'replicate', 'circular'])!r})", x)


def take(m: Maker) -> None:
    x = m.pick(lambda t: t.ndim > 0)
    t = m.tensor(x)
    d = any_dim(m, t)
    n = t.shape[d]
    which = m.rng.randrange(8)
    if which == 0:
        i = m.index_for((m.rng.choice([1, 2, 5, 9]),), n)
        m.emit(f"torch.index_select({x}, {d}, {i})", x, i)
    elif which == 1:
        i = m.index_for(tuple(t.shape), n)
        m.emit(f"torch.gather({x}, {d}, {i})", x, i)
    elif which == 2:
        i = m.index_for(m.rng.choice([(3,), (2, 3), (1,), ()]), t.shape[0], negative=True)
        m.emit(f"{x}[{i}]", x, i)
    elif which == 3 and t.ndim > 1:
        i = m.index_for((4,), t.shape[0], negative=True)
        j = m.index_for(m.rng.choice([(4,), (1,), (3, 1)]), t.shape[-1], negative=True)
        m.emit(f"{x}[{i}, ..., {j}]", x, i, j)
    elif which == 4 and t.ndim > 1:
        i = m.index_for(m.rng.choice([(3,), (2, 2)]), t.shape[1], negative=True)
        m.emit(f"{x}[{m.rng.choice([':', '1:', '::2', 'None'])}, {i}]" if t.ndim > 1 else f"{x}[{i}]", x, i)
    elif which == 5 and t.ndim == 2 and t.is_floating_point():
        i = m.index_for(m.rng.choice([(3,), (2, 3)]), t.shape[0])
        m.emit(f"F.embedding({i}, {x})", x, i)
    elif which == 6:
        y = m.partner(x)
        edges = m.emit(f"torch.linspace(-2, 2, {m.rng.choice([1, 4, 9])})")
        m.emit(f"torch.bucketize({y}.float(), {edges}, right={m.rng.random() < 0.5})", y, edges)
    else:
        i = m.index_for((*t.shape[:-1], m.rng.choice([1, 2])), t.shape[-1])
        m.emit(f"torch.take_along_dim({x}, {i}, -1)", x, i)


def scatter(m: Maker) -> None:
    x = m.pick(lambda t: t.ndim > 0)
    t = m.tensor(x)
    d = any_dim(m, t)
    dtype = str(t.dtype).removeprefix("torch.")
    which = m.rng.randrange(8)
    if which == 0:
        i = m.index_for(tuple(t.shape), t.shape[d])
        m.emit(f"torch.scatter({x}, {d}, {i}, {m.rng.choice([0, 1, 2])})", x, i)
    elif which in (1, 2):
        i, y = m.index_for(tuple(t.shape), t.shape[d]), m.alike(x, dtype)
        m.emit(f"torch.scatter{m.rng.choice(['', '_add'])}({x}, {d}, {i}, {y})", x, i, y, noise="sum")
    elif which == 3:
        i, y = m.index_for(tuple(t.shape), t.shape[d]), m.alike(x, dtype)
        how = m.rng.choice(["sum", "prod", "amax", "amin", "mean"])
        include = m.rng.random() < 0.5
        m.emit(f"torch.scatter_reduce({x}, {d}, {i}, {y}, {how!r}, include_self={include})", x, i, y, noise="sum")
    elif which in (4, 5):
        i = m.index_for((m.rng.choice([1, 3, 6]),), t.shape[d])
        y = m.emit(f"torch.index_select({x}, {d}, {i})", x, i)
        y = m.alike(y, dtype)
        name, noise = m.rng.choice([("index_add", "sum"), ("index_copy", "move")])
        m.emit(f"torch.{name}({x}, {d}, {i}, {y})", x, i, y, noise=noise)
    elif which == 6:
        i = m.index_for((m.rng.choice([1, 3, 6]),), t.shape[d])
        m.emit(f"torch.index_fill({x}, {d}, {i}, {m.rng.choice([0, 1, 3])})", x, i)
    else:
        i = m.index_for((m.rng.choice([1, 4]),), t.shape[0], negative=True)
        y = m.alike(m.emit(f"{x}[{i}]", x, i), dtype)
        accumulate = m.rng.random() < 0.6
        m.emit(f"torch.index_put({x}, ({i},), {y}, accumulate={accumulate})", x, i, y, noise="sum")


def into_part(m: Maker) -> None:
    """Functional writes of a part: slice_scatter, select_scatter, diagonal_scatter."""
    x = m.pick(lambda t: t.ndim > 0)
    t, d = m.tensor(x), any_dim(m, m.tensor(x))
    dtype = str(t.dtype).removeprefix("torch.")
    which = m.rng.randrange(3)
    if which == 0:
        start, step = m.rng.choice([0, 1]), m.rng.choice([1, 2])
        y = m.alike(m.emit(f"{x}.movedim({d}, 0)[{start}::{step}].movedim(0, {d})", x), dtype)
        m.emit(f"torch.slice_scatter({x}, {y}, {d}, {start}, None, {step})", x, y)
    elif which == 1 and t.shape[d]:
        place = m.rng.randrange(-t.shape[d], t.shape[d])
        y = m.alike(m.emit(f"{x}.select({d}, {place})", x), dtype)
        m.emit(f"torch.select_scatter({x}, {y}, {d}, {place})", x, y)
    elif t.ndim > 1:
        y = m.alike(m.emit(f"{x}.diagonal()", x), dtype)
        m.emit(f"torch.diagonal_scatter({x}, {y})", x, y)


def make(m: Maker) -> None:
    x = m.pick()
    t = m.tensor(x)
    n = m.rng.choice([1, 3, 8, 17])
    text, uses = m.rng.choice(
        [
            (f"torch.arange({n})", ()),
            (f"torch.arange(0, {n}, 2, dtype=torch.float32)", ()),
            (f"torch.zeros({list(t.shape)})", ()),
            (f"torch.ones_like({x})", (x,)),
            (f"torch.full_like({x}, 3)", (x,)),
            (f"torch.full({list(t.shape)}, -1.5)", ()),
            (f"torch.eye({n}, {n + 1})", ()),
            (f"{x}.new_zeros(({n}, 2))", (x,)),
            (f"torch.linspace(0, 1, {n})", ()),
            (f"F.one_hot(torch.arange({n}) % 3, 4)", ()),
        ]
    )
    m.emit(text, *uses, noise="round" if "linspace" in text else "move")


def pool(m: Maker) -> None:
    x = m.pick(lambda t: t.is_floating_point() and t.ndim in (3, 4))
    t = m.tensor(x)
    size, step = m.rng.choice([(2, 2), (3, 1), (2, 1), (3, 2)])
    text, noise = m.rng.choice(
        [
            (f"F.avg_pool2d({x}, {size}, {step}, {size // 2}, count_include_pad={m.rng.random() < 0.5})", "sum"),
            (f"F.max_pool2d({x}, {size}, {step}, {size // 2})", "zero"),
            (f"F.adaptive_avg_pool2d({x}, ({m.rng.choice([1, 2, 3])}, {m.rng.choice([1, 2, 5])}))", "sum"),
        ]
    )
    if t.ndim == 4 and m.rng.random() < 0.25:
        text, noise = f"F.interpolate({x}, scale_factor=2, mode={m.rng.choice(['nearest', 'bilinear'])!r})", "sum"
    m.emit(text, x, noise=noise)


VIEWS: dict[Callable[[Maker], None], int] = {
    view: 10,
    expand: 2,
    move: 6,
    join: 3,
    pad: 3,
    take: 6,
    scatter: 3,
    into_part: 2,
    make: 2,
    pool: 2,
}
