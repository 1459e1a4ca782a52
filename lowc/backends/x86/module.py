"""A module @MACHINE as one LLVM module: its kernels, and ``i64 @run_N(ptr slots)`` for each run of
consecutive launches.
"""

from collections.abc import Mapping

from lowc.artifact import Artifact, Native, runs
from lowc.backends.llvm import toolchain
from lowc.backends.llvm.builder import ATTRIBUTES, Builder, ModuleText
from lowc.backends.llvm.places import Located, Places, of_assembly, of_llvm
from lowc.backends.x86.emit import emit_kernel
from lowc.backends.x86.operations import LIBM
from lowc.backends.x86.region import Region, quoted, scalar_index
from lowc.errors import CodegenError
from lowc.ir.nodes import Buffer, Extern, Launch, Module
from lowc.ir.walk import exprs, has_check, statements
from lowc.target import Target

ONCE = "once"  # the function of what is done once, not in each call
ERRORS = 16  # error codes of a step; the step number is above them


def slot_names(module: Module) -> tuple[str, ...]:
    """What the slots hold: addresses of buffers that have memory of their own, the workspace, sizes."""
    placed = {name for name, _ in module.placed}
    own = [b.name for b in (*module.inputs, *module.temps) if isinstance(b, Buffer) and b.name not in placed]
    return (*own, "workspace", *(s.name for s in module.symbols))


def emit_module(
    module: Module, target: Target, threads: bool, *, places: Places | None = None, apart: bool = False, once: int = 0
) -> tuple[str, tuple[Native | Extern, ...]]:
    """LLVM IR text and the host program.  ``apart``: each launch is a native call of its own.  ``once``: the first so many
    launches are no part of that, but a function ONCE of the same slots.  Raises CodegenError, with the
    ``origin`` of the launch that has no code.
    """
    text = ModuleText(ATTRIBUTES, places)
    done: set[int] = set()
    program: list[Native | Extern] = []
    for run in runs(module, apart):
        if isinstance(run, Extern):
            program.append(run)
            continue
        for number in run:
            step = module.steps[number]
            if isinstance(step, Launch) and id(step.kernel) not in done:
                done.add(id(step.kernel))
                _emit(text, step, target, threads)
        if first := tuple([number for number in run if number < once]):
            _run(text, module, first, ONCE)
        if len(first) < len(run):
            program.append(_run(text, module, run[len(first) :]))
    return text.text(), tuple(program)


def _emit(text: ModuleText, step: Launch, target: Target, threads: bool) -> None:
    try:
        emit_kernel(text, step.kernel, target.ops, threads)
    except CodegenError as error:
        error.origin = step.origin
        error.message = f"{error.message}\n  in kernel {step.kernel.name}"
        raise


def _run(text: ModuleText, module: Module, launches: tuple[int, ...], symbol: str = "") -> Native:
    symbol = symbol or f"run_{launches[0]}"
    b = Builder(text)
    slots = slot_names(module)
    region = Region(b, frozenset(), "%error")
    placed = dict(module.placed)

    def slot(name: str, type_: str) -> str:
        place = b.pure(f"getelementptr i64, ptr %slots, i64 {slots.index(name)}")
        return b.pure(f"load {type_}, ptr {place}, align 8")

    for size in module.symbols:
        region.sizes[size.name] = slot(size.name, "i64")
    error = b.alloca("i64", 8)
    b.line(f"store i64 0, ptr {error}, align 8")
    for number in launches:
        launch = module.steps[number]
        assert isinstance(launch, Launch)
        args: list[str] = []
        for buffer in launch.args:
            if buffer.name in placed:
                base, offset = slot("workspace", "ptr"), scalar_index(region, placed[buffer.name])
                args.append(f"ptr {b.pure(f'getelementptr i8, ptr {base}, i64 {offset}')}")
            else:
                args.append(f"ptr {slot(buffer.name, 'ptr')}")
        args += [f"i64 {region.sizes[s.name]}" for s in launch.kernel.sizes]
        b.line(f"call void @{quoted(launch.kernel.name)}({', '.join([*args, f'ptr {error}'])})")
        if _checks(launch):
            code = b.op(f"load i64, ptr {error}, align 8")
            marked = b.op(f"add i64 {code}, {ERRORS * number}")
            b.leave(b.op(f"icmp ne i64 {code}, 0"), [], f"i64 {marked}")
    b.finish(f"i64 @{symbol}(ptr %slots)", "i64 0")
    return Native(symbol, launches)


def _checks(launch: Launch) -> bool:
    return any(has_check(e) for s in statements(launch.kernel.body) for e in exprs(s))


def compile_module(module: Module, target: Target, threads: bool, apart: bool = False, once: int = 0) -> Artifact:
    """The Artifact for a module @MACHINE; raises CodegenError."""
    text, program = emit_module(module, target, threads, apart=apart, once=once)
    has_code = any(isinstance(step, Native) for step in program)
    code = toolchain.emit_object(text, target.cpu, target.features) if has_code else b""
    return Artifact(f"x86 {target.cpu}", code, slot_names(module), program, module)


def assembly(module: Module, target: Target, threads: bool) -> str:
    """The assembly of a module @MACHINE, as text."""
    return toolchain.emit_assembly(emit_module(module, target, threads)[0], target.cpu, target.features)


def located(module: Module, target: Target, threads: bool, numbers: Mapping[int, int]) -> tuple[Located, Located]:
    """LLVM IR and assembly, each line with what ``numbers`` has for the statement that it is for."""
    text = emit_module(module, target, threads, places=Places(numbers))[0]
    return of_llvm(text), of_assembly(toolchain.emit_assembly(text, target.cpu, target.features))


LIBM_NAMES = frozenset(name + suffix for name in LIBM.values() for suffix in ("", "f"))
