"""Artifacts that run without torch and without a compiler: from a program of torch's to the file ``model.lowc``.

    ExportedProgram ─ frontend.exported ─ ir.Graph ─ lowering ─ (scheduler ─ x86 backend) for each level ─ standalone.container

Every op must have a kernel of lowc's: there is no ATen where the artifact runs.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lowc import __version__, compiler
from lowc.artifact import Native
from lowc.collection import collection_paused
from lowc.errors import InternalError, LowcError, OptionError
from lowc.ir.graph import Graph, Input, Ref, TensorMeta
from lowc.ir.index import FloorDiv, Index, Max, Min, Mod, Symbol, constant, split
from lowc.ir.nodes import Buffer, Extern, Launch, Module, View
from lowc.ir.walk import exprs, has_check, statements, storage_size
from lowc.options import Options
from lowc.standalone import container, cpu, library, loader, manifest, threads, weights
from lowc.standalone.call import Model
from lowc.standalone.dtypes import NUMBERS
from lowc.standalone.files import write_together, write_whole

if TYPE_CHECKING:
    from lowc.frontend.exported import Exported
    from lowc.target import Target

DEFAULT_LEVELS = ("x86-64-v4", "x86-64-v3", "x86-64")

Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Package:
    """An artifact that has not been written yet.  ``sections``: all but the manifest and the weights.  ``weights``: the parts of
    a safetensors file.  ``kernels``: how many there are, by level.  ``texts``: by level what was asked for, by kind."""

    manifest: manifest.Manifest
    sections: Mapping[str, bytes]
    weights: tuple[bytes | memoryview, ...]
    kernels: Mapping[str, int]
    texts: Mapping[str, Mapping[str, str | bytes]] = field(default_factory=dict)

    def content(self) -> list[bytes | memoryview]:
        """The parts of the file, weights inside."""
        return container.write({"manifest": _described(self.manifest)} | dict(self.sections), "weights", self.weights)

    def save(self, path: Any, *, weights_path: Any = None) -> tuple[int, int]:
        """Writes the artifact, with its weights inside, or beside it as the file ``weights_path`` (in the same folder); bytes of
        each.  Raises LowcError if that fails; then neither is half-written."""
        if weights_path is None:
            return write_whole(path, self.content()), 0
        if os.path.dirname(os.path.abspath(weights_path)) != os.path.dirname(os.path.abspath(path)):
            raise LowcError("weights lie beside the artifact, in the same folder", hint="give a file name there")
        size, digest = container.size_and_checksum(self.weights)
        row = {"name": os.path.basename(os.fspath(weights_path)), "size": size, "sha256": digest}
        described = {"manifest": _described(replace(self.manifest, weights_file=row))}
        content = container.write(described | dict(self.sections))
        written, beside = write_together((path, content, 0o666), (weights_path, self.weights, 0o666))
        return written, beside

    def load(self) -> Model:
        """The function in it, in this process, as ``lowc.load`` of the saved file."""
        return loader.load_content(memoryview(b"".join(self.content())), self.manifest.name)


def compile_graph(graph: Any, inputs: Sequence[Any] = (), options: Options | None = None, trace: Any = None) -> Any:
    """A ``torch.fx.GraphModule`` (or an ``nn.Module``, or an ExportedProgram) on example ``inputs`` as a Package, which can be
    saved; an ``ir.Graph``, with its constants for ``inputs``, as a function of this process (``compiler.compile_graph``).

    Raises LowcError for what cannot be exported or has no kernel.
    """
    if isinstance(graph, Graph):
        return compiler.compile_graph(graph, inputs, options, trace)
    if not hasattr(graph, "graph_signature"):
        from lowc.frontend.exported import export

        graph = export(graph, tuple(inputs))
    return compile_program(graph, options=options)


def ptx(program: Any, gpu: str, options: Options | None = None) -> bytes:
    """The PTX of an ``ExportedProgram`` for a GPU as "sm_90", which need not be there.  Raises LowcError if an op has no kernel
    of lowc's there."""
    from lowc.backends.nvptx.devices import model, target_of
    from lowc.cli.elsewhere import on_gpu
    from lowc.frontend.exported import program_graph
    from lowc.lowering.table import TABLE
    from lowc.trace import Trace

    options = (options or Options())._replace(strict_errors=True)
    graph = on_gpu(program_graph(program, "model", TABLE.keys()).graph)
    return compiler.cross_compile(graph, target_of(model(gpu)), options, Trace()).code


def _described(made: manifest.Manifest) -> bytes:
    return json.dumps(manifest.to_json(made)).encode()


def compile_program(
    program: Any,
    *,
    name: str = "model",
    levels: Sequence[str] = DEFAULT_LEVELS,
    options: Options | None = None,
    emit: Sequence[str] = (),
    report: Report | None = None,
) -> Package:
    """The artifact of an ``ExportedProgram``.

    ``levels``: of the x86-64 ABI, or "native".  ``emit``: of EMIT, kept in ``Package.texts`` for each level.
    ``report(what, done, of)`` is called as it goes on.  Raises LowcError, with the op and the user's line, for what has no
    kernel.
    """
    from lowc.frontend.exported import program_graph
    from lowc.lowering.table import TABLE

    levels = ordered(levels)
    options = (options or Options())._replace(matmul="own", isa="auto", strict_errors=True)
    steps, tell = len(levels) + 2, report or (lambda what, done, of: None)
    with collection_paused():
        tell("export", 0, steps)
        exported = program_graph(program, name, TABLE.keys())
        tell("lowering", 1, steps)
        module = _lowered(exported, options)
        base = _manifest(exported, name, options)
        sections = {threads.SERIAL: _object("serial"), threads.POOL: _object("pool")}
        codes: list[manifest.Code] = []
        kernels: dict[str, int] = {}
        texts: dict[str, dict[str, str | bytes]] = {}
        for number, level in enumerate(levels):
            tell(level, 2 + number, steps)
            try:
                code, content, kernels[level], texts[level] = _code(module, exported, level, options, emit)
            except LowcError:
                raise
            except Exception as error:
                raise InternalError(error) from error
            sections[code.section] = content + manifest.interface(base, code.slots, code.workspace)
            codes.append(code)
        made, parts = replace(base, code=tuple(codes)), _weights(exported)
        sections[library.ENTRY] = _entry(made, parts)
        tell("done", steps, steps)
    return Package(made, sections, parts, kernels, texts)


EMIT = ("ir", "ll", "asm", "obj")


def ordered(levels: Sequence[str]) -> tuple[str, ...]:
    """``levels``, the best first, each once.  Raises OptionError for an unknown one."""
    order = ("native", *cpu.LEVELS)
    if unknown := [level for level in levels if level not in order]:
        raise OptionError(f"unknown target {unknown[0]!r}", hint="targets are " + ", ".join(order))
    return tuple(level for level in order if level in levels)


def _lowered(exported: "Exported", options: Options) -> Module:
    """The loop nests.  Raises LowcError for an op that has none."""
    from lowc.lowering.lower import lower

    module = lower(exported.graph, options, alone=True)
    for step in module.steps:
        if isinstance(step, Extern):
            line = step.origin[0].partition("  # ")[2] if step.origin else ""
            raise LowcError(
                f"{step.target} exists only in ATen, and an artifact runs without it: {step.because or 'sizes through floats'}",
                where=line,
                hint="write it by other ops, or leave it outside of the model",
            )
    return module


def _code(
    module: Module, exported: "Exported", level: str, options: Options, emit: Sequence[str]
) -> tuple[manifest.Code, bytes, int, dict[str, str | bytes]]:
    """What the manifest says of the code for ``level``; the object file; how many kernels it has; the texts asked for."""
    from lowc.ir.printer import print_module
    from lowc.scheduler import pipeline

    levels: Any = import_module("lowc.backends.x86.levels")
    x86: Any = import_module("lowc.backends.x86")
    target: Target = levels.level(level)
    machine = _placed(pipeline.run(module, target, options))
    made = x86.compile_module(machine, target, options)
    natives = [step.symbol for step in made.program if isinstance(step, Native)]
    if len(natives) != 1:
        raise LowcError("the model computes nothing", hint="return what is computed from the inputs")
    code = manifest.Code(
        level,
        _needs(level),
        f"{level}.o",
        natives[0],
        _slots(made.slots, machine, exported),
        _tree(machine.workspace),
        {str(n): "; ".join(s.origin) for n, s in enumerate(machine.steps) if isinstance(s, Launch) and _checks(s)},
    )
    show: Mapping[str, Callable[[], str | bytes]] = {
        "ir": lambda: print_module(machine),
        "ll": lambda: x86.stages(target, options)[".ll"](machine),
        "asm": lambda: x86.stages(target, options)[".s"](machine),
        "obj": lambda: made.code,
    }
    kernels = len({id(s.kernel) for s in machine.steps if isinstance(s, Launch)})
    return code, made.code, kernels, {kind: show[kind]() for kind in emit}


def _checks(launch: Launch) -> bool:
    return any(has_check(e) for s in statements(launch.kernel.body) for e in exprs(s))


def _needs(level: str) -> tuple[str, ...]:
    return cpu.native_needs() if level == "native" else cpu.LEVELS[level]


def _placed(module: Module) -> Module:
    """``module`` with every temp that is not returned in the workspace: an artifact has no other memory."""
    returned = {view.buffer.name for view in module.outputs if isinstance(view, View)}
    placed, end = dict(module.placed), module.workspace
    for temp in module.temps:
        if temp.name not in placed and temp.name not in returned:
            end = -(-end // _ALIGN) * _ALIGN
            placed[temp.name] = end
            end = end + storage_size(temp) * temp.dtype.bytes
    return replace(module, placed=tuple(placed.items()), workspace=end)


_ALIGN = 64


def _object(name: str) -> bytes:
    """One of the object files that are the same in all artifacts."""
    made: Any = import_module(f"lowc.backends.x86.{name}")
    return made.code()


def _entry(made: manifest.Manifest, parts: Sequence[bytes | memoryview]) -> bytes:
    """The object file with the C interface."""
    entry: Any = import_module("lowc.backends.x86.entry")
    needs: list[list[Any]] = []
    for code in made.code:
        bits, saved = cpu.cpuid_bits(code.needs)
        needs.append([entry.Need(*row) for row in bits] + ([entry.Need(0, 0, 0, saved, True)] if saved else []))
    return entry.code(made, library.OWN, NUMBERS, needs, weights.offsets(parts, [t.key for t in made.weights]))


# ---------------------------------------------------------------- the manifest


def _manifest(exported: "Exported", name: str, options: Options) -> manifest.Manifest:
    """All but the code.  Raises LowcError for a size that no input tells."""
    graph = exported.graph
    given, fixed = graph.inputs[: len(exported.inputs)], graph.inputs[len(exported.inputs) :]
    metas = {i.name: (i.meta,) for i in graph.inputs} | {n.name: n.outputs for n in graph.nodes}
    outputs: list[manifest.Tensor | manifest.Size] = []
    for title, output in zip(exported.outputs, graph.outputs, strict=True):
        if isinstance(output, Ref):
            outputs.append(_tensor(title, metas[output.name][output.number]))
        else:
            assert isinstance(output, Index)
            outputs.append(manifest.Size(title, _tree(output)))
    return manifest.Manifest(
        name,
        tuple(_symbol(symbol, given) for symbol in graph.symbols),
        tuple(_number(i.name, i.meta) if isinstance(i.meta, Index) else _tensor(i.name, i.meta) for i in given),
        tuple(_tensor(i.name, i.meta, key) for i, key in zip(fixed, exported.weights, strict=True)),
        tuple(outputs),
        exported.returns,
        tuple((tree, shown) for shown, tree in ((t, _condition(c)) for t, c in exported.conditions) if not isinstance(tree, int)),
        (),
        options.numerics,
        __version__,
    )


def _tensor(name: str, meta: object, key: str = "") -> manifest.Tensor:
    assert isinstance(meta, TensorMeta)
    if meta.dtype.name not in NUMBERS:
        raise LowcError(f"{name} has dtype {meta.dtype}, which artifacts do not have", hint="they have " + ", ".join(NUMBERS))
    return manifest.Tensor(name, meta.dtype.name, _trees(meta.shape), _trees(meta.strides), key)


def _number(name: str, meta: Index) -> manifest.Tensor:
    """An input that is an integer: 0-d, for the caller who has arrays."""
    return manifest.Tensor(name, "i64", (), (), value=_tree(meta))


def _symbol(symbol: Symbol, given: Sequence[Input]) -> manifest.Symbol:
    """Where the size ``symbol`` is found: factor * symbol + added is a dimension of an input, or an input that is an integer."""
    for number, each in enumerate(given):
        extents = enumerate(each.meta.shape) if isinstance(each.meta, TensorMeta) else ((manifest.ITSELF, each.meta),)
        for dim, extent in extents:
            assert isinstance(extent, Index)
            factor, rest = split(extent, symbol)
            scale, added = constant(factor), constant(rest)
            if scale and scale > 0 and added is not None:
                return manifest.Symbol(symbol.name, symbol.lo, symbol.hi, (number, dim, scale, added))
    raise LowcError(
        f"the size {symbol.name} cannot be found from the sizes of the inputs", hint="sizes from data are not supported"
    )


def _slots(names: Sequence[str], module: Module, exported: "Exported") -> tuple[tuple[str, int], ...]:
    """What each slot of the native call holds, as the manifest says it."""
    places: dict[str, tuple[str, int]] = {"workspace": ("workspace", 0)}
    count = len(exported.inputs)
    for n, each in enumerate(module.inputs):
        if isinstance(each, Buffer):
            places[each.name] = ("input", n) if n < count else ("weight", n - count)
    for number, output in enumerate(module.outputs):
        if isinstance(output, View):
            places[output.buffer.name] = ("output", number)
    places |= {symbol.name: ("symbol", number) for number, symbol in enumerate(exported.graph.symbols)}
    return tuple(places[name] for name in names)


def _condition(condition: Any) -> manifest.Tree:
    """A condition of ``frontend.guards`` as the manifest has it; a number if it does not depend on the call."""
    if isinstance(condition, Index):
        return _tree(condition)
    name, a, b = condition
    tree: list[Any] = [name, _condition(a), _condition(b)]
    return manifest.value(tree, {}) if all(isinstance(part, int) for part in tree[1:]) else tree


def _trees(indices: Sequence[Index]) -> tuple[manifest.Tree, ...]:
    return tuple(map(_tree, indices))


_OPERATIONS = {FloorDiv: "//", Mod: "%", Min: "min", Max: "max"}


def _tree(index: Index) -> manifest.Tree:
    """``index`` as the manifest has it."""
    total: manifest.Tree | None = None
    for monomial, coefficient in index.terms:
        term: manifest.Tree | None = None if coefficient == 1 and monomial else coefficient
        for atom in monomial:
            if isinstance(atom, Symbol):
                part: manifest.Tree = atom.name
            elif isinstance(atom, FloorDiv | Mod):
                part = [_OPERATIONS[type(atom)], _tree(atom.num), _tree(atom.den)]
            else:
                assert isinstance(atom, Min | Max)
                part = [_OPERATIONS[type(atom)], _tree(atom.a), _tree(atom.b)]
            term = part if term is None else ["*", term, part]
        assert term is not None
        total = term if total is None else ["+", total, term]
    return 0 if total is None else total


def _weights(exported: "Exported") -> tuple[bytes | memoryview, ...]:
    from lowc.frontend.dtypes import dtype_of
    from lowc.frontend.exported import memory

    rows = {key: (dtype_of(t.dtype).name, tuple(t.shape), memory(t)) for key, t in exported.weights.items()}
    return tuple(weights.write(rows))
