"""What is on a page: the user's lines, and each graph with its ops, its steps and the code of its kernels."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from lowc.artifact import Artifact
from lowc.cli import cost
from lowc.cli.compilation import Compiled, Report
from lowc.cli.page import links, source
from lowc.cli.page.links import Line
from lowc.cli.page.source import SourceFile
from lowc.ir.graph import Node
from lowc.ir.graph_printer import print_graph
from lowc.ir.index import text
from lowc.ir.nodes import Extern, Kernel, Launch, Module
from lowc.ir.printer import print_module_lines
from lowc.options import Options


@dataclass(frozen=True, slots=True)
class Code:
    """A kernel at the levels at which it is one thing, however often it is launched: MACHINE, LLVM IR, assembly or PTX."""

    machine: tuple[Line, ...]
    llvm: tuple[Line, ...]
    assembly: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A step: a kernel or a call of ATen.

    ``ops``: of ATen, with how often; ``where``: lines, as (name of the file, number).  ``seconds``: None if not measured.
    ``shape``: how a GPU launches it.  ``loops``: the kernel @LOOPS, or the call.  ``code``: a number in ``Page.codes``, or -1.
    """

    name: str
    ops: tuple[tuple[str, int], ...]
    where: tuple[tuple[str, int], ...]
    cost: cost.Cost
    seconds: float | None
    shape: str
    because: str
    nodes: tuple[int, ...]
    loops: tuple[Line, ...]
    code: int


@dataclass(frozen=True, slots=True)
class GraphPage:
    name: str
    ops: tuple[Line, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """``machine``: what the code is for; ``assembly``: what it is called there.  ``notes``: graph breaks and what torch runs."""

    title: str
    machine: str
    assembly: str
    sources: tuple[SourceFile, ...]
    graphs: tuple[GraphPage, ...]
    codes: tuple[Code, ...]
    notes: tuple[str, ...]


class _Builder:
    """Numbers what is on the page: ops, statements, kernels."""

    def __init__(self, options: Options, lines: Mapping[tuple[str, int], int]) -> None:
        self.options = options
        self.lines = lines
        self.nodes = 0
        self.statements = 0
        self.codes: list[Code] = []

    def graph(self, compiled: Compiled) -> GraphPage:
        nodes = {node.name: self.nodes + n for n, node in enumerate(compiled.graph.nodes, 1)}
        self.nodes += len(nodes)
        artifact = compiled.result.artifact
        module = compiled.machine if artifact is None or artifact.module.level != "MACHINE" else artifact.module
        numbers, codes = self._kernels(compiled, module, artifact)
        made = links.made_by(compiled.lowered)
        printed = {id(shown): line.strip() for line, shown in print_module_lines(module)}
        rows: list[Row] = []
        for place, step in enumerate(module.steps):
            own = {name: nodes[name] for o in step.origin if (name := links.node_name(o)) in nodes}
            if isinstance(step, Launch):
                before = links.counterpart(step, compiled.fused)
                loops = links.loops_lines(before, step, numbers, made, own) if before else ()
                same = before is not None and before.origin == step.origin
                spent = cost.of_kernel(before.kernel) if before and same else cost.of_kernel(step.kernel, bound=True)
                name, because, code = step.kernel.name, "", codes[id(step.kernel)]
            else:
                loops = (Line(printed[id(step)], tuple(own.values())),)
                spent, name, because, code = cost.of_extern(step), step.target, step.because, -1
            rows.append(
                Row(
                    name,
                    _ops(step.origin),
                    _where(step.origin),
                    spent,
                    compiled.result.seconds.get(place),
                    _shape(step, artifact) if compiled.result.gpu else "",
                    because,
                    tuple(own.values()),
                    loops,
                    code,
                )
            )
        return GraphPage(compiled.graph.name, tuple(self._ops(compiled, nodes)), tuple(rows))

    def _kernels(
        self, compiled: Compiled, module: Module, artifact: Artifact | None
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Numbers of statements, and of the ``Code`` of each kernel, by ``id``."""
        kernels: dict[int, Kernel] = {id(s.kernel): s.kernel for s in module.steps if isinstance(s, Launch)}
        numbers: dict[int, int] = {}
        for kernel in kernels.values():
            found = links.number(kernel, self.statements + 1)
            numbers.update(found)
            self.statements += len(found)
        if not kernels:
            return numbers, {}
        gpu = compiled.result.gpu is not None
        backend: Any = import_module("lowc.backends.nvptx" if gpu else "lowc.backends.x86")
        llvm, assembly = backend.located(module, compiled.target, self.options, numbers).values()
        cut = links.ptx_functions if gpu else links.assembly_functions
        functions, instructions = links.llvm_functions(llvm), cut(assembly)
        symbols = {key: backend.symbol(kernel.name) for key, kernel in kernels.items()}
        codes: dict[int, int] = {}
        for key, kernel in kernels.items():
            named = symbols[key], tuple(symbols.values())
            code = Code(
                links.machine_lines(kernel, numbers),
                links.of_kernel(functions, *named),
                links.of_kernel(instructions, *named),
            )
            codes[key] = len(self.codes)
            self.codes.append(code)
        return numbers, codes

    def _ops(self, compiled: Compiled, nodes: Mapping[str, int]) -> Iterator[Line]:
        """The graph's text; where an op comes from is a link instead of a comment."""
        graph = compiled.graph
        lines = print_graph(graph).splitlines()
        first = 1 + len(graph.inputs)
        for number, line in enumerate(lines):
            place = number - first
            if 0 <= place < len(graph.nodes):
                node = graph.nodes[place]
                yield Line(_without_place(line, node), (nodes[node.name],), source=self._source(node.where))
            else:
                yield Line(line)

    def _source(self, where: str) -> int:
        found = source.place(where)
        return self.lines[found] if found else 0


def build(title: str, report: Report, options: Options) -> Page:
    """The page of everything in ``report``.  Raises CodegenError for a kernel that has no code, if fallbacks did not help."""
    sources, lines = source.files(node.where for c in report.graphs for node in c.graph.nodes)
    builder = _Builder(options, lines)
    graphs = tuple(map(builder.graph, report.graphs))
    notes = [f"Graph break: {reason}" + (f" at {_short(where)}" if where else "") for reason, where in report.breaks]
    notes += [f"Run by torch as it is: {reason}" for reason in report.unsupported]
    on_gpu = any(c.result.gpu for c in report.graphs)
    machines = dict.fromkeys(c.result.gpu.name if c.result.gpu else c.target.cpu for c in report.graphs)
    targets = dict.fromkeys(f"{c.target.cpu}" for c in report.graphs if c.result.gpu)
    machine = ", ".join((*targets, *machines))
    return Page(title, machine, "PTX" if on_gpu else "assembly", sources, graphs, tuple(builder.codes), tuple(notes))


def _without_place(line: str, node: Node) -> str:
    return line.removesuffix(f"  # {' '.join(node.where.split())}") if node.where else line


def _ops(origins: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """The ops of a step, "aten." left out, each once."""
    found: dict[str, int] = {}
    for origin in origins:
        target = origin.partition("  # ")[0].partition(" = ")[2]
        name = ".".join(target.split(".")[:2]).removeprefix("aten.").removeprefix("prims.")
        found[name] = found.get(name, 0) + 1
    return tuple(found.items())


def _where(origins: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    found = (source.place(origin.partition("  # ")[2]) for origin in origins)
    return tuple(dict.fromkeys((file.rpartition("/")[2], line) for file, line in filter(None, found)))


def _short(where: str) -> str:
    found = source.place(where)
    return f"{found[0].rpartition('/')[2]}:{found[1]}" if found else where


def _shape(step: Launch | Extern, artifact: Artifact | None) -> str:
    """ "2048 x (128, 1)": blocks of threads."""
    if not isinstance(step, Launch) or artifact is None or step.kernel.name not in artifact.entries:
        return ""
    entry = artifact.entries[step.kernel.name]
    threads = " x ".join(str(n) for n in entry.threads if n > 1) or "1"
    return f"{text(entry.grid)} blocks of {threads}"
