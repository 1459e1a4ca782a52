"""Copies: dtype conversion, clone, and the closing copy_ into an input."""

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import constant
from lowc.ir.nodes import Expr
from lowc.ir.types import is_computable
from lowc.lowering.builder import Builder
from lowc.lowering.scalars import cast
from lowc.lowering.values import Coords, Value, is_one
from lowc.lowering.views import expanded


def convert(b: Builder, out: TensorMeta, self: Value, *_: object, **__: object) -> Value:
    """A copy in the dtype and strides of ``out``."""
    eighths = "x" in (self.dtype.kind, out.dtype.kind)
    if not (is_computable(self.dtype) or self.dtype.kind == "x") or not (is_computable(out.dtype) or out.dtype.kind == "x"):
        raise NotLowered(f"conversion of {self.dtype} to {out.dtype}")
    if eighths and {self.dtype.kind, out.dtype.kind} != {"x", "f"}:
        raise NotLowered(f"conversion of {self.dtype} to {out.dtype}")
    if not eighths:
        return b.map(out, lambda c: cast(b.load(self, c), out.dtype))
    target = b.temp(out.dtype, out.shape, out.strides)
    b.fill(target, lambda c: cast(b.load(self, c, kinds="biufx"), out.dtype))
    return target


def to_copy(b: Builder, out: TensorMeta, self: Value, **_: object) -> Value:
    """aten._to_copy: dtype and memory format are those of ``out``."""
    return convert(b, out, self)


def copy(b: Builder, out: TensorMeta, self: Value, src: Value, non_blocking: bool = False) -> Value:
    """aten.copy, the functional form: ``src`` in the shape and dtype of ``self``."""
    return convert(b, out, expanded(src, out.shape))


def copy_(b: Builder, out: TensorMeta, self: Value, src: Value, non_blocking: bool = False) -> Value:
    """Writes ``src`` into the memory that ``self`` views."""
    if self.strides is None or any(
        constant(s) == 0 and not is_one(n) for s, n in zip(self.strides, self.shape, strict=True)
    ):
        raise NotLowered("writes to memory that overlaps itself")
    source = expanded(src, self.shape)
    if source.buffer is self.buffer:
        if source.strides == self.strides and source.offset == self.offset and source.dtype == self.dtype:
            return self
        source = b.copy(source)

    def element(c: Coords) -> Expr:
        return cast(b.load(source, c), self.dtype)

    b.fill(self, element)
    return self
