"""Lowering: a tensor graph becomes loop nests and extern calls."""

from lowc.lowering.lower import lower

__all__ = ["lower"]
