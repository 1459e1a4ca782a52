"""Artifacts that run without torch and without a compiler: from a program of torch's to the file ``model.lowc``.

    ExportedProgram ─ frontend.exported ─ ir.Graph ─┬─ lowering ─ (scheduler ─ x86 backend) for each level ─┐
                                                    └─ (lowering ─ scheduler ─ nvptx backend) for each GPU ─┴─ container

Every op must have a kernel of lowc's: there is no ATen where the artifact runs.  ``describe`` is the manifest, ``for_cpu`` and
``for_gpu`` the code, ``lowered`` what both begin with.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lowc import compiler
from lowc.collection import collection_paused
from lowc.errors import InternalError, LowcError, OptionError
from lowc.ir.elsewhere import on_cpu
from lowc.ir.graph import Graph
from lowc.options import Options
from lowc.package.describe import described
from lowc.package.lowered import lowered, with_constants
from lowc.standalone import container, cpu, library, loader, manifest, weights
from lowc.standalone.files import write_together, write_whole
from lowc.standalone.function import Function

if TYPE_CHECKING:
    from lowc.frontend.exported import Exported

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

    def load(self, *, device: Any = "cpu") -> Function:
        """The function in it, in this process, as ``lowc.load`` of the saved file."""
        return loader.load_content(memoryview(b"".join(self.content())), self.manifest.name, device=device)


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


def _described(made: manifest.Manifest) -> bytes:
    return json.dumps(manifest.to_json(made)).encode()


def compile_program(
    program: Any,
    *,
    name: str = "model",
    levels: Sequence[str] = DEFAULT_LEVELS,
    options: Options | None = None,
    emit: Sequence[str] = (),
    cubin: bool = False,
    report: Report | None = None,
) -> Package:
    """The artifact of an ``ExportedProgram``.

    ``levels``: of the x86-64 ABI, "native", and GPUs as "sm_90".  ``emit``: of EMIT, kept in ``Package.texts`` for each level
    that has such a text.  ``cubin``: code for GPUs also as ptxas assembles it.  ``report(what, done, of)`` is called as it goes
    on.  Raises LowcError, with the op and the user's line, for what has no kernel; OptionError for an unknown level.
    """
    from lowc.frontend.exported import program_graph
    from lowc.lowering.table import TABLE

    if options and options.fallback_random:
        raise OptionError("artifacts cannot draw eager's random numbers (fallback_random)", hint="they have lowc's own")
    levels, gpus = ordered(levels)
    options = (options or Options())._replace(matmul="own", isa="auto", strict_errors=True)
    steps = len(levels) + len(gpus) + 2

    def tell(what: str, done: int) -> None:
        if report is not None:
            report(what, done, steps)

    with collection_paused():
        tell("export", 0)
        exported = program_graph(program, name, TABLE.keys())
        base = described(exported, name, options)
        made = Package(base, {}, _weights(exported), {}, {})
        if levels:
            made = _with_cpus(made, exported, levels, options, emit, tell)
        for number, gpu in enumerate(gpus):
            tell(gpu, 2 + len(levels) + number)
            made = _with_gpu(made, exported, gpu, options, emit, cubin)
        tell("done", steps)
    return made


def _with_cpus(
    made: Package,
    exported: "Exported",
    levels: Sequence[str],
    options: Options,
    emit: Sequence[str],
    tell: Callable[[str, int], None],
) -> Package:
    """``made`` with code for each of ``levels``, what runs its parallel loops, and the C interface."""
    from lowc.package import for_cpu

    tell("lowering", 1)
    module = with_constants(lowered(on_cpu(exported.graph), options), len(exported.inputs))
    sections, kernels, texts = for_cpu.common(), dict(made.kernels), dict(made.texts)
    codes = list(made.manifest.code)
    for number, level in enumerate(levels):
        tell(level, 2 + number)
        code, content, kernels[level], texts[level] = _guarded(for_cpu.code, module, exported, level, options, emit)
        sections[code.section] = content + manifest.interface(made.manifest, code)
        codes.append(code)
    described = replace(made.manifest, code=tuple(codes))
    sections[library.ENTRY] = for_cpu.entry(described, made.weights)
    return replace(made, manifest=described, sections={**made.sections, **sections}, kernels=kernels, texts=texts)


def _with_gpu(made: Package, exported: "Exported", gpu: str, options: Options, emit: Sequence[str], cubin: bool) -> Package:
    """``made`` with code for the GPU ``gpu``."""
    from lowc.package import for_gpu

    code, sections, kernels, texts = _guarded(for_gpu.code, exported, gpu, options, emit, cubin)
    sections[code.section] += manifest.interface(made.manifest, code)
    return replace(
        made,
        manifest=replace(made.manifest, code=(*made.manifest.code, code)),
        sections={**made.sections, **sections},
        kernels={**made.kernels, gpu: kernels},
        texts={**made.texts, gpu: texts},
    )


def _guarded(make: Callable[..., Any], *args: Any) -> Any:
    """``make(*args)``.  Raises InternalError for what is no error of the user's."""
    try:
        return make(*args)
    except LowcError:
        raise
    except Exception as error:
        raise InternalError(error) from error


EMIT = ("ir", "ll", "asm", "obj", "ptx")


def ordered(levels: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those of ``levels`` that are for CPUs, the best first, and the GPUs, the latest first; each once.  Raises OptionError for
    an unknown one."""
    from lowc.package import for_gpu

    order = ("native", *cpu.LEVELS)
    gpus = {for_gpu.level(each) for each in levels if each.startswith("sm_")}
    if unknown := [each for each in levels if each not in order and not each.startswith("sm_")]:
        raise OptionError(f"unknown target {unknown[0]!r}", hint=f"targets are {', '.join(order)}, and GPUs as sm_90")
    latest_first = sorted(gpus, key=lambda gpu: -int(gpu.removeprefix("sm_")))
    return tuple(each for each in order if each in levels), tuple(latest_first)


def _weights(exported: "Exported") -> tuple[bytes | memoryview, ...]:
    from lowc.frontend.dtypes import dtype_of
    from lowc.frontend.exported import memory

    rows = {key: (dtype_of(t.dtype).name, tuple(t.shape), memory(t)) for key, t in exported.weights.items()}
    return tuple(weights.write(rows))
