"""Lines that change what a value or an input holds, also through views of it."""

from collections.abc import Callable

from tests.property.graphs.maker import Maker, Skip
from tests.property.graphs.ops import mask
from tests.property.graphs.views import view_text, window_text


def target(m: Maker) -> str:
    """A value that may be written to: inputs, views and what lines made."""
    return m.pick(lambda t: not (t.requires_grad and t.is_leaf))


def in_place(m: Maker) -> None:
    x = target(m)
    y = m.partner(x)
    name, noise = m.rng.choice([("add", "exact"), ("sub", "exact"), ("mul", "exact"), ("div", "exact"), ("copy", "exact")])
    m.write(f"{x}.{name}_({y})", x, y, noise=noise)


def through_view(m: Maker) -> None:
    x = target(m)
    text = view_text(m, x) if m.rng.random() < 0.6 else x + window_text(m, m.tensor(x))
    which = m.rng.randrange(5)
    if which == 0:
        m.write(f"{text}.fill_({m.rng.choice([0, 1, -2])})", x)
    elif which == 1:
        m.write(f"{text}.mul_({m.rng.choice([2, -1, 3])})", x, noise="exact")
    elif which == 2:
        m.write(f"{text}.zero_()", x)
    else:
        v = m.emit(text, x)
        y = m.partner(v)
        m.write(f"{v}.{m.rng.choice(['add_', 'copy_', 'mul_'])}({y})", v, y, x, noise="exact")


def activation_in_place(m: Maker) -> None:
    x = m.pick(lambda t: t.is_floating_point() and not (t.requires_grad and t.is_leaf))
    text, noise = m.rng.choice(
        [("relu_()", "exact"), ("exp_()", "round"), ("neg_()", "exact"), ("clamp_(-1, 1)", "zero"), ("sigmoid_()", "round")]
    )
    m.write(f"{x}.{text}", x, noise=noise)


def assign(m: Maker) -> None:
    x = target(m)
    y = m.partner(x)
    m.write(f"{x}{window_text(m, m.tensor(x))} = {m.rng.choice([y, '0', '2'])}", x, y, noise="exact")


def indexed(m: Maker) -> None:
    x = target(m)
    t = m.tensor(x)
    if t.ndim == 0:
        raise Skip
    i = m.index_for((m.rng.choice([1, 3]),), t.shape[0], negative=True)
    which = m.rng.randrange(4)
    if which == 0:
        m.write(f"{x}[{i}] = {m.rng.choice([0, 1, 5])}", x, i)
    elif which == 1:
        c = mask(m, x)
        m.write(f"{x}.masked_fill_({c}, {m.rng.choice([0, 1])})", x, c)
    elif which == 2:
        place = m.index_for(tuple(t.shape), t.shape[0])
        m.write(f"{x}.scatter_(0, {place}, {m.rng.choice([1, 2])})", x, place)
    else:
        j = m.index_for((3,), t.shape[0])
        y = m.emit(f"{x}.index_select(0, {j}) * 1", x, j, noise="exact")
        m.write(f"{x}.index_add_(0, {j}, {y})", x, j, y, noise="sum")


def write_out(m: Maker) -> None:
    x = target(m)
    y = m.alike(x, str(m.tensor(x).dtype).removeprefix("torch."))
    m.write(f"torch.add({y}, {m.rng.choice([1, 2])}, out={x})", x, y, noise="exact")


WRITES: dict[Callable[[Maker], None], int] = {
    in_place: 3,
    through_view: 4,
    activation_in_place: 1,
    assign: 2,
    indexed: 2,
    write_out: 1,
}
