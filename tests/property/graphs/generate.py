"""``random_program(seed)``: always the same one for a seed."""

import random
import warnings
from collections.abc import Callable

from tests.property.graphs.maker import Maker, Skip
from tests.property.graphs.ops import OPS
from tests.property.graphs.program import Program
from tests.property.graphs.views import VIEWS
from tests.property.graphs.writes import WRITES


def random_program(seed: int, lines: int = 0) -> Program:
    """About ``lines`` lines (0: a random number of them)."""
    rng = random.Random(f"graph {seed}")
    maker = Maker(rng, large=rng.random() < 0.12, grad=rng.random() < 0.25)
    lines = lines or rng.choice([2, 4, 6, 8, 10, 14, 20])
    for _ in range(rng.choice([1, 2, 3])):
        maker.new_input()
    if rng.random() < 0.06:
        attempt(maker, Maker.window)
    share = rng.choice([0.0, 0.0, 0.1, 0.3])  # of lines that write
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(lines * 4):
            if len(maker.lines) >= lines:
                break
            table = WRITES if rng.random() < share else OPS if rng.random() < 0.6 else VIEWS
            attempt(maker, rng.choices(list(table), list(table.values()))[0])
    return Program(seed, tuple(maker.inputs), tuple(maker.lines), tuple(_outputs(maker)))


def attempt(maker: Maker, add: Callable[[Maker], object]) -> None:
    try:
        add(maker)
    except (Skip, RuntimeError):  # the second is torch's, which refuses to look at some views
        pass


def _outputs(maker: Maker) -> list[str]:
    """The values nobody reads, and some that are read as well (so that a result is an alias now and then)."""
    used = {name for line in maker.lines for name in line.uses}
    assigned = [line.target for line in maker.lines if not line.writes]
    chosen = [n for n in dict.fromkeys(assigned) if n not in used or maker.rng.random() < 0.2]
    return chosen or [maker.inputs[0].name]

