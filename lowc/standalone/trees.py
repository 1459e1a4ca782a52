"""Sizes that are known only when called, as plain data: trees of numbers, names and operations, ``["+", ["*", 4, "s0"], 1]``.

``value`` does the arithmetic; comparisons are 1 or 0.  ``size_text`` shows one.  ``tree``, ``number`` and ``text`` read parts of
JSON that may be anything.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Tree = int | str | list[Any]
OPERATIONS = ("+", "*", "//", "%", "min", "max", "<", "<=", "==", "!=")


def value(tree: Tree, sizes: Mapping[str, int]) -> int:
    """What ``tree`` comes to; divisors below 1 count as 1, as in native code."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return sizes[tree]
    name, a, b = tree[0], value(tree[1], sizes), value(tree[2], sizes)
    if name == "+":
        return a + b
    if name == "*":
        return a * b
    if name in ("//", "%"):
        return a // max(b, 1) if name == "//" else a % max(b, 1)
    if name in ("min", "max"):
        return min(a, b) if name == "min" else max(a, b)
    return int({"<": a < b, "<=": a <= b, "==": a == b, "!=": a != b}[name])


def values(trees: Sequence[Tree], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Each of ``trees``."""
    return tuple([tree if isinstance(tree, int) else value(tree, sizes) for tree in trees])


def size_text(tree: Tree) -> str:
    """A size as a person writes it."""
    if not isinstance(tree, list):
        return str(tree)
    name, a, b = tree
    if name in ("min", "max"):
        return f"{name}({size_text(a)}, {size_text(b)})"
    return f"({size_text(a)} {name} {size_text(b)})"


def tree(data: Any, known: frozenset[str]) -> Tree:
    """``data`` as a tree over the names ``known``.  Raises ValueError for anything else."""
    if isinstance(data, str) and data in known:
        return data
    if type(data) is int:
        return number(data)
    if isinstance(data, list) and len(data) == 3 and data[0] in OPERATIONS:
        return [data[0], tree(data[1], known), tree(data[2], known)]
    raise ValueError(f"{data!r} is no size")


def text(data: Any) -> str:
    """Raises TypeError for what is no text."""
    if not isinstance(data, str):
        raise TypeError(f"{data!r} is no text")
    return data


def number(data: Any) -> int:
    """A number that native code can hold.  Raises ValueError for anything else."""
    if type(data) is not int or not -(1 << 63) <= data < 1 << 63:
        raise ValueError(f"{data!r} is no number of 64 bits")
    return data


def within(data: Any, least: int, most: int, what: str) -> int:
    """Raises ValueError for what is no number ``least`` .. ``most``."""
    if not least <= number(data) <= most:
        raise ValueError(f"{what} {data} is not among {least} to {most}")
    return data
