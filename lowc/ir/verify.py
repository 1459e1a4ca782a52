"""The rules of a module (docs/design.md 1.3, 1.4): what the runner calls after a pass when ``check`` is on.

Checked: one object a name, every step's arguments against its kernel, values defined before use, sizes known, what is
returned, where temps are placed, and each kernel once (``verify_kernel``).  Near linear; nothing is printed unless a rule is
broken.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from lowc.errors import VerifyError
from lowc.ir import arithmetic
from lowc.ir.graph_printer import tensor_text
from lowc.ir.index import ZERO, Index, Symbol, constant, ix, prove_nonneg
from lowc.ir.nodes import LEVELS, Arg, Buffer, Extern, Kernel, Launch, Module, View
from lowc.ir.printer import print_module_lines
from lowc.ir.verify_kernel import Accesses, verify_kernel
from lowc.ir.verify_values import MachineOps, check_name, excerpt, operands
from lowc.ir.walk import storage_size

__all__ = ["MachineOps", "verify_kernel", "verify_module"]


@dataclass(slots=True)
class _State:
    """``buffers`` and ``symbols`` by name; what the steps so far have ``defined``; when each temp is live (first, last step)."""

    module: Module
    level: str
    machine: MachineOps | None
    buffers: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    symbols: dict[str, Symbol] = field(default_factory=dict[str, Symbol])
    temps: set[str] = field(default_factory=set[str])
    defined: set[str] = field(default_factory=set[str])
    kernels: dict[str, tuple[Kernel, Accesses]] = field(default_factory=dict[str, tuple[Kernel, Accesses]])
    live: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    made: set[str] = field(default_factory=set[str])
    node: object = None

    def fail(self, rule: str) -> NoReturn:
        raise VerifyError(f"module: {rule}\n{excerpt(print_module_lines(self.module), self.node)}")


def verify_module(module: Module, level: str | None = None, machine: MachineOps | None = None) -> None:
    """Raises VerifyError if ``module`` breaks a rule of ``level`` (its own, if not given); ``machine``: see verify_kernel."""
    level = level or module.level
    s = _State(module, level, machine, node=module)
    if level not in LEVELS:
        s.fail(f"unknown level {level}")
    _declarations(s)
    for number, step in enumerate(module.steps):
        s.node = step
        if isinstance(step, Launch):
            _launch(s, step, number)
        else:
            _extern(s, step, number)
    s.node = module.outputs
    returned: set[str] = set()
    for output in module.outputs:
        _arg(s, output, len(module.steps))
        returned.update(v.buffer.name for v in _views(output))
    _placement(s, returned)


def _declarations(s: _State) -> None:
    """Symbols, inputs and temps: names, shapes, and which symbols have a value from the start."""
    for symbol in s.module.symbols:
        _name(s, symbol.name)
        s.symbols[symbol.name] = symbol
    for item in s.module.inputs:
        s.node = item
        if isinstance(item, Symbol):
            _index(s, ix(item))
            s.defined.add(item.name)
        elif item is not None:
            _declare(s, item)
            s.defined.add(item.name)
            s.defined.update(size.name for size in s.symbols.values() if ix(size) in item.shape)
    for temp in s.module.temps:
        s.node = temp
        _declare(s, temp)
        s.temps.add(temp.name)
        if _empty(temp):
            s.defined.add(temp.name)


def _name(s: _State, name: str) -> None:
    if name in s.buffers or name in s.symbols:
        s.fail(f"the name {name} is already taken; names of buffers and symbols are unique in a module")
    check_name(name, s.fail)


def _declare(s: _State, buffer: Buffer) -> None:
    _name(s, buffer.name)
    s.buffers[buffer.name] = buffer
    if buffer.space != "global":
        s.fail(f"{buffer.name} is in {buffer.space}; buffers of a module are global")
    if len(buffer.shape) != len(buffer.strides):
        s.fail(f"{buffer.name} has {len(buffer.shape)} dimensions but {len(buffer.strides)} strides")
    for index in (*buffer.shape, *buffer.strides):
        _index(s, index)


def _empty(buffer: Buffer) -> bool:
    return any(size == ZERO for size in buffer.shape)


# ---------------------------------------------------------------- steps


def _launch(s: _State, step: Launch, number: int) -> None:
    kernel = step.kernel
    known, accesses = s.kernels.get(kernel.name, (None, None))
    if known is not None and known is not kernel:
        s.fail(f"two kernels are called {kernel.name}")
    if accesses is None:
        accesses = verify_kernel(kernel, s.level, s.machine)
        s.kernels[kernel.name] = (kernel, accesses)
    if len(step.args) != len(kernel.params):
        s.fail(f"{kernel.name} has {len(kernel.params)} parameters, got {len(step.args)} arguments")
    for size in kernel.sizes:
        _index(s, ix(size))
        if size.name not in s.defined:
            s.fail(f"{kernel.name} needs the size {size}, to which nothing has given a value yet")
    used: dict[str, int] = {}
    for position, (arg, param) in enumerate(zip(step.args, kernel.params, strict=True)):
        _buffer(s, arg, number)
        if arg.dtype != param.dtype:
            s.fail(f"{arg.name} is {arg.dtype}, parameter {param.name} of {kernel.name} is {param.dtype}")
        if not _lies_as(arg, param, s.level):
            a, p = (tensor_text(b.dtype, b.shape, b.strides) for b in (arg, param))
            s.fail(f"{arg.name} is {a}, parameter {param.name} of {kernel.name} is {p}")
        if position in accesses.needs and arg.name not in s.defined:
            s.fail(f"{kernel.name} reads {arg.name}, which nothing has written yet")
        before = used.setdefault(arg.name, position)
        if before != position and (before in accesses.writes or position in accesses.writes):
            s.fail(
                f"{arg.name} is passed twice to {kernel.name}, which writes it; distinct buffers never overlap"
            )
    s.defined.update(step.args[n].name for n in accesses.writes)


def _lies_as(arg: Buffer, param: Buffer, level: str) -> bool:
    """Whether ``arg`` has the sizes and strides of ``param``, or, where kernels see memory as one line, as much of it."""
    if (arg.shape, arg.strides) == (param.shape, param.strides):
        return True
    spare = constant(storage_size(arg) - storage_size(param))
    return level != "LOOPS" and (spare is None or spare >= 0)


def _extern(s: _State, step: Extern, number: int) -> None:
    if arithmetic.is_size(step) and (what := arithmetic.fault(step)):
        s.fail(what)
    for arg in step.args:
        _arg(s, arg, number)
    for _, arg in step.kwargs:
        _arg(s, arg, number)
    for buffer in step.writes:
        _buffer(s, buffer, number)
    for result in step.results:
        if isinstance(result, Symbol):
            _index(s, ix(result))
        elif result is not None:
            _buffer(s, result, number)
            if result.name not in s.temps:
                s.fail(f"the result {result.name} is an input; results are temps")
            s.made.add(result.name)
        if (
            result is not None
            and result.name in s.defined
            and not (isinstance(result, Buffer) and _empty(result))
        ):
            s.fail(f"{result.name} has a value already; a result is the storage of a temp not written before")
    s.defined.update(r.name for r in step.results if r is not None)
    made = [size for r in step.results if isinstance(r, Buffer) for size in r.shape]
    s.defined.update(size.name for size in s.symbols.values() if ix(size) in made)


def _views(arg: Arg) -> Iterator[View]:
    if isinstance(arg, View):
        yield arg
    elif isinstance(arg, tuple):
        for item in arg:
            yield from _views(item)


def _arg(s: _State, arg: Arg, number: int) -> None:
    """An argument of an extern call, or an output: its buffers have been written, its sizes are known."""
    if isinstance(arg, tuple):
        for item in arg:
            _arg(s, item, number)
    elif isinstance(arg, Index):
        _index(s, arg, known=True)
    elif isinstance(arg, View):
        _buffer(s, arg.buffer, number)
        if arg.buffer.name not in s.defined and all(size != ZERO for size in arg.shape):
            s.fail(f"{arg.buffer.name} is used, but nothing has written it")
        if len(arg.shape) != len(arg.strides):
            s.fail(
                f"a view of {arg.buffer.name} has {len(arg.shape)} dimensions but {len(arg.strides)} strides"
            )
        for index in (*arg.shape, *arg.strides, arg.offset):
            _index(s, index, known=True)


def _buffer(s: _State, buffer: Buffer, number: int) -> None:
    """``buffer`` is one of the module's; it is live at step ``number``."""
    declared = s.buffers.get(buffer.name)
    if declared is None:
        s.fail(f"{buffer.name} is no input or temp of the module")
    if declared is not buffer:
        s.fail(f"{buffer.name} is another object than the input or temp of that name")
    first, _ = s.live.get(buffer.name, (number, number))
    s.live[buffer.name] = (first, number)


def _index(s: _State, index: Index, known: bool = False) -> None:
    """``index`` depends on symbols of the module only; ``known``: on such that have a value by now."""
    for monomial, _ in index.terms:
        for atom in monomial:
            if isinstance(atom, Symbol):
                if s.symbols.get(atom.name) != atom:
                    s.fail(f"the size {atom} (with this range) is not among the module's symbols")
                if known and atom.name not in s.defined:
                    s.fail(f"the size {atom} is used, but nothing has given it a value")
            elif hasattr(atom, "name"):
                s.fail(f"{atom} in {index}: outside kernels only sizes can be used")
            else:
                for inner in operands(atom):  # type: ignore[arg-type]
                    _index(s, inner, known)


# ---------------------------------------------------------------- placement


def _placement(s: _State, returned: set[str]) -> None:
    """Temps in the workspace: which may be, and that no two of them overlap in memory and in time."""
    s.node = s.module
    placed = dict(s.module.placed)
    if len(placed) != len(s.module.placed):
        s.fail("a temp is placed twice")
    for name, offset in placed.items():
        s.node = s.buffers.get(name, s.module)
        if name not in s.temps:
            s.fail(f"{name} is placed, but is no temp")
        if name in returned or name in s.made:
            s.fail(
                f"{name} is placed, but is {'returned' if name in returned else 'the result of an extern call'}"
            )
        _index(s, offset)
        end = offset + extent_bytes(s.buffers[name])
        if (room := constant(s.module.workspace - end)) is not None and room < 0 or not prove_nonneg(offset):
            s.fail(
                f"{name} is placed at {offset} .. {end}, outside the workspace of {s.module.workspace} bytes"
            )
    _overlaps(s, placed)


def _overlaps(s: _State, placed: dict[str, Index]) -> None:
    starts: dict[int, list[str]] = {}
    for name in placed:
        if name in s.live:
            starts.setdefault(s.live[name][0], []).append(name)
    active: list[tuple[str, Index, Index]] = []
    for step in sorted(starts):
        active = [entry for entry in active if s.live[entry[0]][1] >= step]
        for name in starts[step]:
            start, end = placed[name], placed[name] + extent_bytes(s.buffers[name])
            for other, low, high in active:
                if (constant(start - high) or 0) < 0 and (constant(low - end) or 0) < 0:
                    s.node = s.buffers[name]
                    s.fail(f"{name} and {other} are live at step {step} and overlap in the workspace")
            active.append((name, start, end))


def extent_bytes(buffer: Buffer) -> Index:
    """Bytes from the first to past the last element of ``buffer``; 0 if it is empty for certain."""
    return storage_size(buffer) * buffer.dtype.bytes
