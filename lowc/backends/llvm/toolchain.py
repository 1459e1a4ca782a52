"""LLVM through llvmlite: text to object, assembly or PTX, object to callable addresses.

No IR passes, vectors are explicit already; but for PTX memory of a function becomes registers.
"""

import ctypes
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count

import llvmlite.binding as llvm

from lowc.errors import CodegenError


def _machine(triple: str, cpu: str, features: str, opt: int) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(cpu=cpu, features=features, opt=opt, reloc="pic", codemodel="small")


def _parse(text: str) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CodegenError(
            f"LLVM rejects the generated code: {error}", hint="LOWC_DUMP=DIR keeps it"
        ) from error
    return module


def emit_object(text: str, cpu: str, features: str, opt: int = 2) -> bytes:
    """The object file for LLVM IR ``text``; raises CodegenError with LLVM's message."""
    triple = llvm.get_process_triple()
    return bytes(_machine(triple, cpu, features, opt).emit_object(_parse(text)))


def emit_assembly(text: str, cpu: str, features: str, opt: int = 2) -> str:
    """The assembly for LLVM IR ``text``; raises CodegenError."""
    triple = llvm.get_process_triple()
    return _machine(triple, cpu, features, opt).emit_assembly(_parse(text))


NVPTX = "nvptx64-nvidia-cuda"


@cache
def _nvptx(cpu: str, features: str) -> tuple[llvm.TargetMachine, llvm.PassBuilder]:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(NVPTX).create_target_machine(cpu=cpu, features=features, opt=3)
    return machine, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=0))


def emit_ptx(text: str, cpu: str, features: str) -> str:
    """The PTX for LLVM IR ``text``, allocas promoted to registers where all their indices are constant; raises CodegenError."""
    machine, builder = _nvptx(cpu, features)
    module = _parse(text)
    module.triple, module.data_layout = NVPTX, str(machine.target_data)
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return machine.emit_assembly(module)


@cache
def _jit() -> llvm.LLJIT:
    """The one linker of this process: making another for each library would take ten times as long as
    linking.

    JITLink takes one piece of memory for an object.  The older linker asks for each section by itself, and
    ends the process if those lie over 2 GiB apart, as in a process with CUDA's libraries.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler(use_jit_link=True)


_numbers = count()


class Library:
    """Loaded code: ``address(name)`` for each of the functions asked for.  The code is unloaded with the
    object.

    Raises CodegenError if the code calls a function that ``imports`` (name: address) does not have.
    """

    def __init__(self, code: bytes, names: Sequence[str], imports: Mapping[str, int]) -> None:
        # LLVM's linker would write what it misses to stderr itself
        if missing := sorted(undefined(code) - set(imports)):
            raise CodegenError(f"generated code cannot be linked: it calls {', '.join(missing)}")
        builder = llvm.JITLibraryBuilder()
        builder.add_object_img(code)
        for name, address in imports.items():
            builder.import_symbol(name, address)
        for name in names:
            builder.export_symbol(name)
        try:
            self._tracker = builder.link(_jit(), f"lowc.{next(_numbers)}")  # LLVM wants a new name each time
        except RuntimeError as error:
            raise CodegenError(f"generated code cannot be linked: {error}") from error

    def address(self, name: str) -> int:
        return self._tracker[name]


def undefined(code: bytes) -> frozenset[str]:
    """Names that the object file ``code`` (64-bit little-endian ELF) uses and does not define.

    Layout: System V ABI, chapter 4: section headers of 64 bytes, symbols of 24.
    """
    (table,), (size, count) = struct.unpack_from("<Q", code, 0x28), struct.unpack_from("<HH", code, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, table + n * size) for n in range(count)]
    found: set[str] = set()
    for _, kind, _, _, start, length, link, *_ in sections:
        if kind != _SYMTAB:
            continue
        names = sections[link][4]
        for place in range(start + 24, start + length, 24):  # the first symbol is none
            name, _, _, section = struct.unpack_from("<IBBH", code, place)
            if section == 0:
                found.add(code[names + name : code.index(b"\0", names + name)].decode())
    return frozenset(found)


_SYMTAB = 2


@cache
def libm(names: frozenset[str]) -> dict[str, int]:
    """Addresses of functions of the C maths library, which is mapped into every Python process."""
    library = ctypes.CDLL("libm.so.6")
    return {n: ctypes.cast(getattr(library, n), ctypes.c_void_p).value or 0 for n in names}
