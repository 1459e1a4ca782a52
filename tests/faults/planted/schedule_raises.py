"""Vectorisation: dividing a long sum into blocks raises."""

from lowc.ir.index import Index, constant
from lowc.scheduler import cascade


def _turns(wanted: int, strip: int, extent: Index) -> int:
    return wanted // ((constant(extent) or 0) - (constant(extent) or 0))


cascade._turns = _turns
