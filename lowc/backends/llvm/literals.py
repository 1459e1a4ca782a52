"""Integer and bool operands whose value is known, in each lane: read from their LLVM text, computed with,
and written again.

LLVM folds constants as well, but some accesses must be told apart by whether their mask is known (see
``access``).
"""

import operator
from collections.abc import Callable, Sequence

from lowc.ir.types import DType

_FOLDED: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def read(text: str, lanes: int) -> tuple[int, ...] | None:
    """The numbers that a constant operand is, one a lane (one in all for 0 lanes); None if it is none or
    holds floats.
    """
    if text[0] == "%" or text in ("poison", "zeroinitializer"):
        return None
    if text[0] == "<":
        return tuple(_number(item) for item in text[1:-1].split(", "))
    if text.startswith("splat ("):
        text = text[7:-1].split(" ")[1]
        if text.startswith("0x"):
            return None
        return (_number(text),) * lanes
    return None if text.startswith("0x") else (_number(text),) * max(1, lanes)


def _number(item: str) -> int:
    word = item.split(" ")[-1]
    return 1 if word == "true" else 0 if word == "false" else int(word)


def write(numbers: Sequence[int], dtype: DType, lanes: int) -> str:
    """The operand that is ``numbers``, wrapped to the width of ``dtype``."""
    words = [_word(n, dtype) for n in numbers]
    if not lanes:
        return words[0]
    type_ = "i1" if dtype.kind == "b" else f"i{dtype.bits}"
    if all(w == words[0] for w in words):
        return f"splat ({type_} {words[0]})"
    return f"<{', '.join(f'{type_} {w}' for w in words)}>"


def _word(number: int, dtype: DType) -> str:
    if dtype.kind == "b":
        return "true" if number & 1 else "false"
    wrapped = number & (2**dtype.bits - 1)
    return str(wrapped - 2**dtype.bits if wrapped >> (dtype.bits - 1) else wrapped)


def fold(name: str, dtype: DType, texts: Sequence[str], result: DType, lanes: int) -> str | None:
    """The op ``name`` on two operands of integers or bools of ``dtype``, if both are known; else None."""
    function = _FOLDED.get(name)
    if (
        function is None
        or dtype.kind not in "biu"
        or len(texts) != 2
        or texts[0][0] == "%"
        or texts[1][0] == "%"
    ):
        return None
    a, b = (read(t, lanes) for t in texts)
    if a is None or b is None:
        return None
    if dtype.kind == "u":
        a, b = ([n & (2**dtype.bits - 1) for n in values] for values in (a, b))
    return write([int(function(x, y)) for x, y in zip(a, b, strict=True)], result, lanes)
