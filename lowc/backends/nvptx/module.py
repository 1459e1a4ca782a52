"""A module @MACHINE as PTX: its kernels, and the runs of launches that the runtime makes tables of."""

from collections.abc import Mapping

from lowc.artifact import Artifact, Entry, Native, runs
from lowc.backends.llvm import toolchain
from lowc.backends.llvm.builder import ModuleText
from lowc.backends.llvm.places import Located, Places, of_assembly, of_llvm
from lowc.backends.nvptx.kernel import emit_kernel
from lowc.errors import CodegenError
from lowc.ir.nodes import Buffer, Extern, Launch, Module
from lowc.target import Target

ATTRIBUTES = "#0 = { nounwind }"


def slot_names(module: Module) -> tuple[str, ...]:
    """What the slots hold: addresses of buffers that have memory of their own, the workspace, sizes."""
    placed = {name for name, _ in module.placed}
    own = [b.name for b in (*module.inputs, *module.temps) if isinstance(b, Buffer) and b.name not in placed]
    return (*own, "workspace", *(s.name for s in module.symbols))


def emit_module(
    module: Module, target: Target, places: Places | None = None
) -> tuple[str, dict[str, Entry]]:
    """LLVM IR text and how each kernel is launched.  Raises CodegenError, with the ``origin`` of the launch that has no code."""
    text = ModuleText(ATTRIBUTES, places)
    entries: dict[str, Entry] = {}
    for step in module.steps:
        if not isinstance(step, Launch) or step.kernel.name in entries:
            continue
        try:
            entries[step.kernel.name] = emit_kernel(text, step.kernel, target)
        except CodegenError as error:
            error.origin = step.origin
            error.message = f"{error.message}\n  in kernel {step.kernel.name}"
            raise
    return text.text(), entries


def ptx(module: Module, target: Target) -> str:
    """The PTX of a module @MACHINE."""
    return toolchain.emit_ptx(emit_module(module, target)[0], target.cpu, target.features)


def located(module: Module, target: Target, numbers: Mapping[int, int]) -> tuple[Located, Located]:
    """LLVM IR and PTX, each line with what ``numbers`` has for the statement that it is for."""
    text, entries = emit_module(module, target, Places(numbers))
    return of_llvm(text), of_assembly(toolchain.emit_ptx(text, target.cpu, target.features)) if entries else ()


def compile_module(module: Module, target: Target) -> Artifact:
    """The Artifact for a module @MACHINE; raises CodegenError."""
    text, entries = emit_module(module, target)
    program: list[Native | Extern] = [
        run if isinstance(run, Extern) else Native(f"run_{run[0]}", run) for run in runs(module)
    ]
    code = toolchain.emit_ptx(text, target.cpu, target.features).encode() if entries else b""
    return Artifact("nvptx", code, slot_names(module), tuple(program), module, entries)
