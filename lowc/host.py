"""A host program as plain data: what ``runtime.host`` writes, the cache keeps, and ``runtime.program`` runs."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Host:
    """The host program: its Python ``source``, and the free names of that beyond ``runtime.host.HELPERS`` and the dtypes.

    ``natives``: function of one pointer to slots: symbol of the object.  ``ops``: (ATen target, number of
    results); ``into``: the same, called with the memory of its results first.  ``literals``: a marked string
    of ``ir/graph.py``, or a number that Python cannot spell. ``constants``: the names of the last inputs, in
    order.  ``slots``: how many there are.
    """

    source: str = ""
    slots: int = 0
    natives: dict[str, str] = field(default_factory=dict)
    ops: dict[str, tuple[str, int]] = field(default_factory=dict)
    into: dict[str, tuple[str, int]] = field(default_factory=dict)
    literals: dict[str, str | float | complex] = field(default_factory=dict)
    constants: tuple[str, ...] = ()
