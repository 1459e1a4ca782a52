"""Which lines of a function's listings belong together.

A line carries ``nodes`` (ops of the graph that it computes the value of) and ``statements`` (of the MACHINE kernel).  Four
kinds of link, each from something that the compiler kept, none from a guess at meaning:

* op to kernel: the ``origin`` of a launch;
* loops to machine: both lines define or write the same variable, buffer or axis (``i0_o`` is a part of ``i0``), since
  passes that split and bind keep names; a variable that passes made is for what it is used for;
* op to loops: the line writes the buffer that the op's own kernel wrote when it was lowered, or computes the variable that
  has taken the buffer's place;
* machine to LLVM to assembly: LLVM's debug locations.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lowc.backends.llvm.places import Located
from lowc.ir.index import Index, Opaque, atoms
from lowc.ir.nodes import (
    Acc,
    Alloc,
    For,
    FromIndex,
    Kernel,
    Launch,
    Let,
    Load,
    Module,
    Stmt,
    Store,
    Update,
    Var,
)
from lowc.ir.printer import print_kernel_lines
from lowc.ir.walk import exprs, statements, stores
from lowc.ir.walk import parts as subexpressions


@dataclass(frozen=True, slots=True)
class Line:
    """``nodes``, ``statements`` and ``source`` (a line of the user's, 0 for none) are numbers of the whole page."""

    text: str
    nodes: tuple[int, ...] = ()
    statements: tuple[int, ...] = ()
    source: int = 0


Name = tuple[str, str]


def name_of(shown: object, params: Mapping[str, str]) -> Name | None:
    """What a statement defines or writes: its sort and name; ``params``: module buffers by the kernel's names for them."""
    match shown:
        case For():
            return "axis", shown.axis.name
        case Let():
            return "var", shown.var.name
        case Acc() | Update():
            return "var", shown.vars[0].name
        case Store() | Alloc():
            return "buffer", params.get(shown.buffer.name, shown.buffer.name)
        case _:
            return None


def params_of(launch: Launch) -> dict[str, str]:
    """The module's name of each buffer that a launched kernel has as a parameter."""
    return {param.name: arg.name for param, arg in zip(launch.kernel.params, launch.args, strict=True)}


def made_by(lowered: Module) -> dict[str, tuple[str, ...]]:
    """For each buffer of a module as it was lowered: names of the ops whose kernels write it."""
    made: dict[str, tuple[str, ...]] = {}
    for step in lowered.steps:
        if isinstance(step, Launch):
            names = params_of(step)
            for buffer in {s.buffer.name: None for s in stores(step.kernel.body)}:
                ops = map(node_name, step.origin)
                made[names.get(buffer, buffer)] = tuple(dict.fromkeys((*made.get(names.get(buffer, buffer), ()), *ops)))
    return made


def node_name(origin: str) -> str:
    """An origin is "node = aten.op.overload  # file.py:12 in forward: code"."""
    return origin.partition(" = ")[0]


def number(kernel: Kernel, first: int) -> dict[int, int]:
    """A number for each statement of ``kernel``, and for itself, by ``id``."""
    numbers: dict[int, int] = {}
    for _, shown in print_kernel_lines(kernel):
        if shown is not None:
            numbers.setdefault(id(shown), first + len(numbers))
    return numbers


def machine_lines(kernel: Kernel, numbers: Mapping[int, int]) -> tuple[Line, ...]:
    return tuple(
        Line(text, (), () if shown is None else (numbers[id(shown)],))
        for text, shown in print_kernel_lines(kernel)
    )


def loops_lines(
    loops: Launch, machine: Launch, numbers: Mapping[int, int], made: Mapping[str, Sequence[str]], nodes: Mapping[str, int]
) -> tuple[Line, ...]:
    """The lines of the kernel of ``loops``, which became that of ``machine``, whose statements have ``numbers``.

    ``made``: see ``made_by``.  ``nodes``: the ops fused into it, by name.
    """
    shown_as, became = params_of(loops), params_of(machine)
    listed = print_kernel_lines(loops.kernel)
    known = {name for _, shown in listed if (name := name_of(shown, shown_as))}
    parts = _parts(machine.kernel, became, known, numbers)
    kernels = (numbers[id(machine.kernel)],)
    out: list[Line] = []
    for text, shown in listed:
        name = name_of(shown, shown_as)
        statements = tuple(parts.get(name, ())) if name else kernels if shown is loops.kernel else ()
        if len(nodes) == 1 and shown is not None:
            out.append(Line(text, tuple(nodes.values()), statements))
        else:
            out.append(Line(text, tuple(_nodes(shown, name, made, nodes)), statements))
    return tuple(out)


def _parts(
    kernel: Kernel, params: Mapping[str, str], known: set[Name], numbers: Mapping[int, int]
) -> dict[Name, list[int]]:
    """The statements of ``kernel`` @MACHINE that a line @LOOPS which defines one of the names ``known`` became.

    A variable that passes made (``t0``) is for what it is used for.
    """
    parts: dict[Name, list[int]] = {}
    wanted: dict[str, dict[Name, None]] = {}
    for stmt in reversed(statements(kernel.body)):
        name = name_of(stmt, params)
        whole = _whole(name, known) if name else None
        own = {whole: None} if whole else wanted.get(stmt.var.name, {}) if isinstance(stmt, Let) else {}
        for each in own:
            parts.setdefault(each, []).append(numbers[id(stmt)])
        for used in _uses(stmt):
            wanted.setdefault(used, {}).update(own)
    return parts


def _uses(stmt: Stmt) -> Iterable[str]:
    """Names of variables that ``stmt`` reads itself, in values and as coordinates."""
    for expr in exprs(stmt):
        for part in subexpressions(expr):
            if isinstance(part, Var):
                yield part.name
            elif isinstance(part, Load):
                yield from _opaque(part.index)
            elif isinstance(part, FromIndex):
                yield from _opaque((part.index,))
    if isinstance(stmt, Store):
        yield from _opaque(stmt.index)


def _opaque(index: Iterable[Index]) -> Iterable[str]:
    return (atom.name for each in index for atom in atoms(each) if isinstance(atom, Opaque))


def _whole(name: Name, known: set[Name]) -> Name | None:
    """``name``, or what it is a part of: the axis ``i0`` for ``i0_o``, the accumulator ``v0`` for its array ``v0_row``."""
    sort, text = name
    while name not in known:
        text, _, last = text.rpartition("_")
        if not text:
            return None
        name = ("var" if sort == "buffer" and last == "row" else sort), text
    return name


_MADE_OF = re.compile(r"v_(.*?)(_\d+)?$")


def _nodes(
    shown: object, name: Name | None, made: Mapping[str, Sequence[str]], nodes: Mapping[str, int]
) -> Iterable[int]:
    """The ops whose value ``shown`` computes, of those in the kernel."""
    if name is None or isinstance(shown, For | Alloc):
        return ()
    buffers = [name[1]]
    if isinstance(shown, Let) and (found := _MADE_OF.match(name[1])):  # pass forward: what was stored and loaded again
        buffers = [name[1].removeprefix("v_"), found[1]]
    for buffer in buffers:
        if ops := [nodes[op] for op in made.get(buffer, ()) if op in nodes]:
            return ops
    return ()


def counterpart(step: Launch, fused: Module) -> Launch | None:
    """The launch @LOOPS that became ``step`` @MACHINE: that with the same ops in it, else with some of them."""
    launches = [each for each in fused.steps if isinstance(each, Launch)]
    alike = [each for each in launches if each.origin == step.origin]
    named = [each for each in alike if each.kernel.name == step.kernel.name]
    part = [each for each in launches if set(each.origin) & set(step.origin)]
    return next(iter((*named, *alike, *part)), None)


# ---------------------------------------------------------------- code by kernel

_DEFINE = re.compile(r"^define .*?@(\"?)([^\"(]+)\1\(")
_LABEL = re.compile(r"^(\"?)([\w.$][^\":]*)\1:")
_ENTRY = re.compile(r"\.entry ([\w$.]+)")


def llvm_functions(lines: Located) -> dict[str, list[tuple[str, int]]]:
    """Lines by the function that they are in; those in none are left out."""
    return _cut(lines, _DEFINE, lambda text: text == "}")


def assembly_functions(lines: Located) -> dict[str, list[tuple[str, int]]]:
    """Lines by function, each with the constants before it."""
    return _cut(lines, _LABEL, lambda text: text.lstrip().startswith(".size"), before=True)


def ptx_functions(lines: Located) -> dict[str, list[tuple[str, int]]]:
    """Lines by entry point."""
    return _cut(lines, _ENTRY, lambda text: text == "}")


def _cut(
    lines: Located, begin: re.Pattern[str], end: Callable[[str], bool], before: bool = False
) -> dict[str, list[tuple[str, int]]]:
    found: dict[str, list[tuple[str, int]]] = {}
    held: list[tuple[str, int]] = []
    name = ""
    for text, place in lines:
        start = begin.search(text) if not name else None
        if start and not start.group(start.lastindex or 1).startswith(".L"):
            name = start.group(start.lastindex or 1)
            held = held if before else []
        held.append((text, place))
        if name and end(text):
            found[name] = held
            name, held = "", []
    return found


def of_kernel(
    functions: Mapping[str, Sequence[tuple[str, int]]], symbol: str, symbols: Iterable[str]
) -> tuple[Line, ...]:
    """The functions of the kernel called ``symbol``: its own, and those of its parallel loops (``symbol.1`` and its ``.worker``).

    ``symbols``: of all kernels, since one's name may begin with that of another.
    """
    others = [s for s in symbols if s.startswith(symbol) and len(s) > len(symbol)]

    def belongs(name: str) -> bool:
        own = name == symbol or name.startswith(symbol + ".")
        return own and not any(name == other or name.startswith(other + ".") for other in others)

    return tuple(
        Line(text, (), (place,) if place else ())
        for name, lines in functions.items()
        if belongs(name)
        for text, place in lines
    )
