"""What the functions that add lines to a program work with: the values so far, and how to make more of them."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.property.graphs.program import Input, Line, values

DIMS = (1, 2, 2, 3, 3, 4, 5, 7, 8, 9, 16, 17, 33)
LARGE = (1, 3, 32, 40, 64, 100, 130)
FLOAT_DTYPES = ("float32", "float32", "float32", "float32", "float64", "bfloat16", "float16")
INT_DTYPES = ("int64", "int64", "int32", "int16", "int8", "uint8", "bool")
KINDS = ("normal", "normal", "normal", "small", "small", "special", "positive")
MOST = 20_000  # elements of one value


class Skip(Exception):
    """This line cannot be made of the values at hand."""


@dataclass
class Maker:
    rng: random.Random
    large: bool
    grad: bool
    inputs: list[Input] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    space: dict[str, Any] = field(default_factory=dict)  # torch, F, and every value by name

    def __post_init__(self) -> None:
        self.space |= {"torch": torch, "F": torch.nn.functional}

    # ---------------------------------------------------------------- values

    @property
    def names(self) -> list[str]:
        return [n for n, x in self.space.items() if isinstance(x, Tensor)]

    def tensor(self, name: str) -> Tensor:
        return self.space[name]

    def pick(self, wanted: Callable[[Tensor], bool] = lambda x: True) -> str:
        """A value, the latest ones more often; an input of a fitting kind may be made."""
        found = [n for n in self.names if wanted(self.tensor(n))]
        if not found:
            for _ in range(4):
                name = self.new_input()
                if wanted(self.tensor(name)):
                    return name
            raise Skip
        place = max(int(len(found) * self.rng.random() ** 0.6), 0)
        return found[min(place, len(found) - 1)]

    def floating(self, least: int = 0) -> str:
        return self.pick(lambda x: x.is_floating_point() and x.ndim >= least)

    def whole(self, least: int = 0) -> str:
        return self.pick(lambda x: not x.is_floating_point() and x.ndim >= least)

    def partner(self, name: str, floating: bool | None = None) -> str:
        """Something that broadcasts with ``name``: a value that does, a new input, or one of fewer or other dims."""
        x = self.tensor(name)

        def fits(y: Tensor) -> bool:
            if floating is not None and y.is_floating_point() != floating:
                return False
            pairs = list(zip(reversed(x.shape), reversed(y.shape), strict=False))
            return all(a == b or 1 in (a, b) for a, b in pairs) and x.numel() * y.numel() <= MOST * 16

        found = [n for n in self.names if fits(self.tensor(n))]
        if found and self.rng.random() < 0.75:
            return self.rng.choice(found)
        shape = [n if self.rng.random() < 0.75 else 1 for n in x.shape][self.rng.choice([0, 0, 0, 1]) :]
        return self.new_input(tuple(shape), floating=floating)

    def alike(self, name: str, dtype: str = "") -> str:
        """Something of the same shape, and of ``dtype`` if one is named."""
        x = self.tensor(name)
        found = [
            n
            for n in self.names
            if self.tensor(n).shape == x.shape and dtype in ("", str(self.tensor(n).dtype).removeprefix("torch."))
        ]
        if found and self.rng.random() < 0.7:
            return self.rng.choice(found)
        return self.new_input(tuple(x.shape), dtype=dtype)

    def index_for(self, shape: tuple[int, ...], bound: int, negative: bool = False) -> str:
        """An int64 input of ``shape`` with places below ``bound``."""
        if bound == 0 and 0 not in shape:
            raise Skip
        return self.new_input(shape, dtype="int64", kind=f"{'index' if negative else 'place'} {bound}")

    # ---------------------------------------------------------------- inputs

    def shape(self, dims: int | None = None) -> tuple[int, ...]:
        dims = self.rng.choice([0, 1, 1, 2, 2, 2, 3, 3, 4]) if dims is None else dims
        choice = LARGE if self.large else DIMS
        sizes = [0 if self.rng.random() < 0.015 else self.rng.choice(choice) for _ in range(dims)]
        while _product(sizes) > MOST:
            sizes[sizes.index(max(sizes))] //= 2
        return tuple(sizes)

    def new_input(
        self, shape: tuple[int, ...] | None = None, *, floating: bool | None = None, dtype: str = "", kind: str = ""
    ) -> str:
        rng = self.rng
        shape = self.shape() if shape is None else shape
        if not dtype:
            if floating is None:
                floating = rng.random() < 0.75
            dtype = rng.choice(FLOAT_DTYPES if floating else INT_DTYPES)
        kind = kind or (rng.choice(KINDS) if "float" in dtype else "whole")
        strides, offset, count = self._layout(shape)
        grad = self.grad and "float" in dtype and rng.random() < 0.7
        name = f"x{len(self.inputs)}"
        spec = Input(name, dtype, shape, strides, offset, count, kind, rng.randrange(10**6), "", grad)
        self.inputs.append(spec)
        x = values(spec.kind, spec.seed, getattr(torch, dtype), count).as_strided(shape, strides, offset)
        self.space[name] = x.requires_grad_(grad)
        return name

    def window(self) -> str:
        """An input that shares the storage of another."""
        plain = [i for i in self.inputs if not i.base and not i.grad and i.count > 2]
        bases = [i for i in plain if not i.kind.startswith(("place", "index"))]
        if not bases:
            raise Skip
        base = self.rng.choice(bases)
        offset, step = self.rng.randrange(base.count), self.rng.choice([1, 1, 2])
        size = (base.count - offset - 1) // step + 1
        name = f"x{len(self.inputs)}"
        spec = Input(name, base.dtype, (size,), (step,), offset, base.count, base.kind, base.seed, base.name)
        self.inputs.append(spec)
        self.space[name] = self.tensor(base.name).as_strided(spec.shape, spec.strides, offset)
        return name

    def _layout(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int, int]:
        """Strides, offset and elements of the storage: contiguous, permuted, with gaps, or expanded."""
        rng, dims = self.rng, len(shape)
        order = list(range(dims))
        if rng.random() < 0.3:
            rng.shuffle(order)
        step = rng.choice([1, 1, 1, 2]) if rng.random() < 0.4 else 1
        offset = rng.choice([0, 0, 0, 1, 3]) if rng.random() < 0.3 else 0
        gap = rng.choice([0, 1, 3]) if rng.random() < 0.15 else 0
        expanded = rng.randrange(dims) if dims and rng.random() < 0.06 else None
        strides, reach = [0] * dims, step
        for d in reversed(order):
            if d == expanded:
                continue
            strides[d] = reach
            reach = reach * max(shape[d], 1) + gap
        if 0 in shape:
            return tuple(strides), 0, 0
        return tuple(strides), offset, offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))

    # ---------------------------------------------------------------- lines

    def emit(self, expression: str, *uses: str, noise: str = "move", best_effort: bool = False) -> str:
        """Adds ``vN = expression`` and says which name that is.  Raises Skip if eager refuses it."""
        name = f"v{len(self.lines)}"
        self._try(Line(f"{name} = {expression}", name, tuple(uses), noise), name)
        return name

    def write(self, statement: str, target: str, *uses: str, noise: str = "move") -> None:
        """Adds a statement that changes what ``target`` holds."""
        x = self.tensor(target)
        if x.requires_grad and x.is_leaf:
            raise Skip
        self._try(Line(statement, target, tuple(uses), noise, True), target)

    def _try(self, line: Line, name: str) -> None:
        try:
            exec(line.text, self.space)
        except Exception as error:
            raise Skip from error
        x = self.space[name]
        if not isinstance(x, Tensor) or x.numel() > MOST or x.layout != torch.strided or x.dtype.is_complex:
            del self.space[name]
            raise Skip
        self.lines.append(line)


def _product(sizes: list[int]) -> int:
    total = 1
    for n in sizes:
        total *= n
    return total
