"""Checks of sizes and types that the graph carries along: those that hold by construction need no code."""

from lowc.errors import NotLowered
from lowc.ir.index import Index, constant, prove_nonneg
from lowc.lowering.builder import Builder


def assert_scalar(b: Builder, out: object, self: object, assert_msg: str) -> tuple[()]:
    """Nothing where the condition is a number other than 0."""
    known = constant(self) if isinstance(self, Index) else self
    if isinstance(known, int | float) and known:
        return ()
    if isinstance(self, Index) and prove_nonneg(self - 1):
        return ()
    raise NotLowered("a condition that only the call can decide")


def nothing(b: Builder, out: object, *args: object, **kwargs: object) -> tuple[()]:
    """A statement about metadata, which the graph's own types repeat."""
    return ()
