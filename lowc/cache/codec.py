"""An artifact and its host program as the sections of a cache entry, and back.  Data only: JSON, IR text, machine code.

    meta       JSON: everything small
    code       the object file, or PTX
    cubin      what ptxas made of that, if it did
    module     the module @MACHINE as text, which ``ir.parser`` reads back
    source     the host program in Python
    bytecode   the same compiled, as ``marshal`` writes it; the key says for which Python

A call needs the host program and the code.  The module is for messages and for whoever looks; reading it takes as long
as a hundred calls, so it is parsed when somebody asks.  Tensors are not kept: they are the graph's, and whoever has the
graph has them.
"""

import json
import marshal
import struct
from collections.abc import Mapping
from functools import cached_property
from types import CodeType
from typing import TYPE_CHECKING, Any

from lowc.cache.entry import Damaged
from lowc.errors import LowcError
from lowc.host import Host

if TYPE_CHECKING:
    from lowc.artifact import Artifact, Entry, TensorMap
    from lowc.ir.index import Index

Literal = str | float | complex
UNREADABLE = (KeyError, IndexError, ValueError, TypeError, AttributeError, EOFError, OverflowError, RecursionError, struct.error)
"""What reading data raises that has another form than it should."""


class Stored:
    """What an entry holds.  ``code``: the object file.  ``symbols``: of the native calls in order.  ``host``: the host program;
    ``bytecode``: that compiled."""

    def __init__(self, sections: Mapping[str, bytes], meta: Mapping[str, Any], host: Host, bytecode: CodeType) -> None:
        self.sections, self.meta = sections, meta
        self.host, self.bytecode = host, bytecode
        self.code = sections["code"]
        self.symbols = tuple(map(str, meta["symbols"]))

    @cached_property
    def artifact(self) -> "Artifact":
        """The whole artifact, its module parsed.  Raises Damaged as ``decode`` does."""
        try:
            return self._read()
        except (LowcError, *UNREADABLE) as error:
            raise Damaged(f"it cannot be read: {type(error).__name__}: {error}") from error

    def _read(self) -> "Artifact":
        from lowc.artifact import Artifact, Native, runs
        from lowc.ir.nodes import Extern
        from lowc.ir.parser import parse_module

        module = parse_module(self.sections["module"].decode())
        natives = [run for run in runs(module) if not isinstance(run, Extern)]
        named = {run: Native(symbol, run) for run, symbol in zip(natives, self.symbols, strict=True)}
        program = tuple(run if isinstance(run, Extern) else named[run] for run in runs(module))
        sizes = {symbol.name: symbol for symbol in module.symbols}
        for launch in module.steps:
            if not isinstance(launch, Extern):
                sizes |= {symbol.name: symbol for symbol in launch.kernel.sizes}
        entries = {name: _entry(data, sizes) for name, data in self.meta["entries"].items()}
        slots, cubin = tuple(self.meta["slots"]), self.sections["cubin"]
        return Artifact(self.meta["target"], self.code, slots, program, module, entries, cubin)


def encode(artifact: "Artifact", host: Host, bytecode: CodeType) -> dict[str, bytes]:
    """The sections of the entry for ``artifact``."""
    from lowc.artifact import Native
    from lowc.ir.index import text
    from lowc.ir.printer import print_module

    meta = {
        "target": artifact.target,
        "slots": artifact.slots,
        "symbols": [step.symbol for step in artifact.program if isinstance(step, Native)],
        "entries": {
            name: [entry.symbol, text(entry.grid), entry.threads, entry.shared, entry.aligned, [_map(m) for m in entry.maps]]
            for name, entry in artifact.entries.items()
        },
        "host": {
            "slots": host.slots,
            "natives": host.natives,
            "ops": host.ops,
            "into": host.into,
            "literals": {name: _plain(value) for name, value in host.literals.items()},
            "constants": host.constants,
        },
    }
    return {
        "meta": json.dumps(meta).encode(),
        "code": artifact.code,
        "cubin": artifact.cubin,
        "module": print_module(artifact.module).encode(),
        "source": host.source.encode(),
        "bytecode": marshal.dumps(bytecode),
    }


def decode(sections: Mapping[str, bytes]) -> Stored:
    """What ``encode`` wrote.  ``sections`` must be of an entry whose checksum and key are right.  Raises Damaged for what is
    incomplete nevertheless."""
    try:
        meta: dict[str, Any] = json.loads(sections["meta"])
        given = meta["host"]
        host = Host(
            sections["source"].decode(),
            int(given["slots"]),
            {str(name): str(symbol) for name, symbol in given["natives"].items()},
            {str(name): (str(op), int(count)) for name, (op, count) in given["ops"].items()},
            {str(name): (str(op), int(count)) for name, (op, count) in given["into"].items()},
            {str(name): _literal(*value) for name, value in given["literals"].items()},
            tuple(map(str, given["constants"])),
        )
        bytecode = marshal.loads(sections["bytecode"])
        if not isinstance(bytecode, CodeType) or not {"code", "cubin", "module"} <= sections.keys():
            raise Damaged("it lacks a part")
        return Stored(sections, meta, host, bytecode)
    except UNREADABLE as error:
        raise Damaged(f"it cannot be read: {type(error).__name__}: {error}") from error


def _plain(value: Literal) -> list[str]:
    """A literal of a host program as strings, to the last bit."""
    if isinstance(value, str):
        return ["text", value]
    number = complex(value)
    bits = struct.pack(">dd", number.real, number.imag).hex()
    return ["complex" if isinstance(value, complex) else "float", bits]


def _literal(kind: str, value: str) -> Literal:
    if kind == "text":
        return value
    real, imaginary = struct.unpack(">dd", bytes.fromhex(value))
    return complex(real, imaginary) if kind == "complex" else float(real)


def _map(each: "TensorMap") -> list[Any]:
    from lowc.ir.index import text

    sizes, strides = [text(n) for n in each.sizes], [text(n) for n in each.strides]
    return [each.param, each.dtype, text(each.offset), sizes, strides, each.box, each.lower, each.upper, each.steps]


def _entry(data: list[Any], sizes: Mapping[str, Any]) -> "Entry":
    from lowc.artifact import Entry, TensorMap
    from lowc.ir.expressions import Scope, parse_index
    from lowc.ir.lexer import Cursor

    symbol, grid, threads, shared, aligned, maps = data
    scope = Scope()
    for name, size in sizes.items():
        scope.add(name, size)

    def index(text: str) -> "Index":
        return parse_index(Cursor(text), scope)

    found = [
        TensorMap(param, dtype, index(offset), tuple(map(index, lengths)), tuple(map(index, strides)), *map(tuple, numbers))
        for param, dtype, offset, lengths, strides, *numbers in maps
    ]
    return Entry(symbol, index(grid), (threads[0], threads[1]), shared, tuple(aligned), tuple(found))
