"""A host program as plain data: what ``runtime.host`` writes, the cache keeps, and ``runtime.program`` runs."""

from collections.abc import Mapping

TORCH_NAMES: dict[str, str] = {
    "bool": "bool",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "c64": "complex64",
    "c128": "complex128",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
"""What torch calls the dtypes, which are free names of every host program."""


class Host:
    """The host program: its Python ``source``, and the free names of that beyond ``runtime.host.HELPERS`` and the dtypes.

    ``natives``: function of one pointer to slots: symbol of the object.  ``ops``: (ATen target, number of
    results); ``into``: the same, called with the memory of its results first.  ``literals``: a marked string
    of ``ir/graph.py``, or a number that Python cannot spell. ``constants``: the names of the last inputs, in
    order.  ``slots``: how many there are.
    """

    __slots__ = ("constants", "into", "literals", "natives", "ops", "slots", "source")

    def __init__(
        self,
        source: str = "",
        slots: int = 0,
        natives: Mapping[str, str] | None = None,
        ops: Mapping[str, tuple[str, int]] | None = None,
        into: Mapping[str, tuple[str, int]] | None = None,
        literals: Mapping[str, str | float | complex] | None = None,
        constants: tuple[str, ...] = (),
    ) -> None:
        self.source, self.slots, self.constants = source, slots, constants
        self.natives = dict(natives or {})
        self.ops = dict(ops or {})
        self.into = dict(into or {})
        self.literals = dict(literals or {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Host) and all(getattr(self, name) == getattr(other, name) for name in self.__slots__)
