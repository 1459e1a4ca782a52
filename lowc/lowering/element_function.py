"""A function of elements (``ir/element_function.py``) inside a loop: an expression of its parameters there.

The functions of the table that make maps are used as they are, with a ``Builder`` that keeps what would be stored: a result is
what it is made of, so that a tensor that the function makes costs no memory.  What coordinates alone tell stays an index, so that
masks can be read (``scheduler.attention.seen``) and captured tensors be loaded without a check of where:

    bias[q_idx - kv_idx + 15]  →  load bias[i - j + 15]
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from lowc.errors import NotLowered
from lowc.ir.element_function import Function, Line, resolved
from lowc.ir.graph import TensorMeta
from lowc.ir.index import ZERO, Index, contiguous_strides, floordiv, ix, maximum, minimum, mod, prove_nonneg
from lowc.ir.nodes import Buffer, Const, Expr, FromIndex, Op
from lowc.ir.types import DTYPES, DType, i64
from lowc.lowering.builder import Builder, Operand
from lowc.lowering.scalars import cast, index_value
from lowc.lowering.values import Coords, Value, is_one, whole

Element = Callable[[Coords], Expr]
_ARITHMETIC: dict[str, Callable[[Index, Index], Index]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "max": maximum, "min": minimum,
}  # fmt: skip


def evaluate(
    b: Builder, function: Function, tensors: Sequence[Value], sizes: Sequence[Index], parameters: Sequence[Expr],
    table: dict[str, Callable[..., Any]],
) -> Expr:  # fmt: skip
    """The result of ``function`` of ``parameters``, in the loop that ``b`` has open; ``table``: functions of ops.

    Raises NotLowered for an op that is none of elements.
    """
    inside = Inside(b)
    values: list[Any] = [inside.made(p.dtype, (), lambda _, p=p: p) for p in parameters]
    kinds: dict[str, Callable[[Any], Any]] = {
        "%": values.__getitem__, "tensor": tensors.__getitem__, "size": sizes.__getitem__, "dtype": DTYPES.__getitem__,
    }  # fmt: skip
    for line in function.lines:
        values.append(_result(inside, line, kinds, table))
    return inside.read(resolved(function.result, kinds), ())


def _result(inside: "Inside", line: Line, kinds: dict[str, Callable[[Any], Any]], table: dict[str, Callable[..., Any]]) -> Value:
    args, kwargs = resolved(line.args, kinds), {key: resolved(a, kinds) for key, a in line.kwargs.items()}
    lower = table.get(line.target)
    shape = tuple([ix(n) for n in resolved(line.shape, kinds)])
    if lower is None:
        raise NotLowered(f"a function with {line.target}")
    value = lower(inside, TensorMeta(DTYPES[line.dtype], shape, contiguous_strides(shape), ZERO, "cpu"), *args, **kwargs)
    if not isinstance(value, Value) or value.shape != shape or value.dtype != DTYPES[line.dtype]:
        raise NotLowered(f"a function with {line.target}")
    return value


class Inside:
    """The ``Builder`` of functions of the table while a function of elements is evaluated in a loop of ``b``."""

    restrided: set[str] = set()

    def __init__(self, b: Builder) -> None:
        self.b, self.gpu, self.deterministic, self.alone, self.default = b, b.gpu, b.deterministic, b.alone, b.default
        self._made: dict[str, Element] = {}

    def __getattr__(self, name: str) -> NoReturn:
        raise NotLowered("a function that is none of elements")

    def made(self, dtype: DType, shape: Coords, element: Element) -> Value:
        """A value that is ``element`` at each place."""
        buffer = Buffer(f"%{len(self._made)}", dtype, shape, contiguous_strides(shape), "")
        if not shape:
            only = element(())
            element = lambda _: only  # noqa: E731
        self._made[buffer.name] = element
        return whole(buffer)

    def map(self, out: TensorMeta, element: Element, name: str = "") -> Value:
        return self.made(out.dtype, out.shape, lambda c: _folded(cast(element(c), out.dtype)))

    def load(self, value: Value, coords: Coords, mask: Expr | None = None) -> Expr:
        element = self._made.get(value.buffer.name)
        if element is None:
            return self.b.load(value, coords, mask)
        if value.coords is None or value.dtype != value.buffer.dtype:
            raise NotLowered("a function that reads bits as another type")
        return element(value.coords(coords))

    def read(self, value: Operand, coords: Coords, dtype: DType | None = None) -> Expr:
        """As ``Builder.read``."""
        if not isinstance(value, Value):
            return self.b.number(value, dtype)
        skipped = len(coords) - len(value.shape)
        inner = tuple(ZERO if is_one(n) else c for c, n in zip(coords[skipped:], value.shape, strict=True))
        loaded = self.load(value, inner)
        return loaded if dtype is None else cast(loaded, dtype)

    def number(self, value: Operand, dtype: DType | None) -> Expr:
        return self.b.number(value, dtype)

    def index(self, index: Index, dtype: DType = i64) -> Expr:
        return self.b.index(index, dtype)

    def let(self, value: Expr) -> Expr:
        return self.b.let(_folded(value))

    def checked(self, position: Expr, size: Index, mask: Expr | None = None) -> tuple[Index, Expr | None]:
        """As ``Builder.checked``, but without a check where none is needed."""
        known = _as_index(_folded(position))
        if known is None and (counted := _counted(position, size)) is not None and prove_nonneg(counted + size):
            known = mod(counted, size) if prove_nonneg(size - 1 - counted) else None
        if known is not None and prove_nonneg(known) and prove_nonneg(size - 1 - known):
            return known, mask
        return self.b.checked(position, size, mask)


# ---------------------------------------------------------------- indices


def _as_index(value: Expr) -> Index | None:
    """``value`` as an index, if it is an i64 that coordinates tell."""
    if isinstance(value, FromIndex) and value.dtype == i64:
        return value.index
    return ix(int(value.value)) if isinstance(value, Const) and value.dtype == i64 else None


def _folded(value: Expr) -> Expr:
    """``value``, an index if it is made of indices by one op."""
    if not isinstance(value, Op) or value.dtype != i64:
        return value
    if value.name == "select":
        return _chosen(value)
    parts = [_as_index(a) for a in value.args]
    if any(p is None for p in parts):
        return value
    known = [p for p in parts if p is not None]
    if value.name in _ARITHMETIC:
        return index_value(_ARITHMETIC[value.name](known[0], known[1]))
    if value.name == "neg":
        return index_value(-known[0])
    if value.name == "abs":
        return index_value(maximum(known[0], -known[0]))
    if value.name in ("floordiv", "floormod") and prove_nonneg(known[1] - 1):
        return index_value((floordiv if value.name == "floordiv" else mod)(known[0], known[1]))
    return value


def _chosen(value: Op) -> Expr:
    """A select that is the greater or the smaller of two, or whose condition is certain."""
    condition, *branches = value.args
    if not isinstance(condition, Op) or condition.name not in ("lt", "gt"):
        return value
    sides = [_as_index(a) for a in condition.args]
    yes, no = (_as_index(_folded(a)) for a in branches)
    less, more = sides if condition.name == "lt" else reversed(sides)
    if less is None or more is None or yes is None or no is None:
        return value
    if prove_nonneg(more - less - 1):
        return index_value(yes)
    if prove_nonneg(less - more):
        return index_value(no)
    if (yes, no) == (more, less):
        return index_value(maximum(yes, no))
    return index_value(minimum(yes, no)) if (yes, no) == (less, more) else value


def _counted(position: Expr, size: Index) -> Index | None:
    """The i of ``select(i < 0, i + size, i)``, which counts from the end where it is negative."""
    if not isinstance(position, Op) or position.name != "select":
        return None
    condition, behind, plain = position.args
    index = _as_index(plain)
    if index is None or _as_index(_folded(behind)) != index + size:
        return None
    if not isinstance(condition, Op) or condition.name != "lt" or [_as_index(a) for a in condition.args] != [index, ZERO]:
        return None
    return index
