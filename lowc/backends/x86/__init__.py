"""The x86 backend: ``detect`` the Target, ``stages`` to look at, ``compile_module`` to an Artifact,
``load`` its code.

Module @MACHINE ── emit (LLVM IR text) ── toolchain (object) ── load (addresses)
"""

from collections.abc import Callable, Mapping

from lowc.artifact import Artifact, Native
from lowc.backends.llvm import toolchain
from lowc.backends.llvm.places import Located
from lowc.backends.x86 import detect as _detect
from lowc.backends.x86 import module as _module
from lowc.backends.x86 import region as _region
from lowc.ir.nodes import Module
from lowc.options import Options
from lowc.target import Target


def detect(options: Options) -> Target:
    """The Target that ``options.isa`` asks for; raises CodegenError if this processor lacks it."""
    return _detect.detect(options.isa)


def compile_module(module: Module, target: Target, options: Options, apart: bool = False, once: int = 0) -> Artifact:
    """The Artifact for a module @MACHINE; ``apart``: each launch is a native call of its own, to be timed.  ``once``: the first
    so many launches are no part of its program, but the function ``once``.  Raises CodegenError, naming the kernel, for what
    has no code."""
    return _module.compile_module(module, target, options.threads, apart, once)


def stages(target: Target, options: Options) -> dict[str, Callable[[Module], str]]:
    """What a module @MACHINE becomes, as text, by file extension: ``.ll`` and ``.s``."""
    return {
        ".ll": lambda module: _module.emit_module(module, target, options.threads)[0],
        ".s": lambda module: _module.assembly(module, target, options.threads),
    }


def located(module: Module, target: Target, options: Options, numbers: Mapping[int, int]) -> dict[str, Located]:
    """As ``stages``, as lines, each with what ``numbers`` has for (the ``id`` of) the statement that it is for."""
    return dict(zip((".ll", ".s"), _module.located(module, target, options.threads, numbers), strict=True))


def symbol(kernel: str) -> str:
    """The function of ``kernel`` in those texts; functions for its parallel loops are called ``symbol.1``, and so on."""
    return _region.quoted(kernel).strip('"')


def load(artifact: Artifact, imports: Mapping[str, int]) -> toolchain.Library:
    """The artifact's code in this process; ``imports`` are the addresses of the OpenMP functions."""
    names = tuple(step.symbol for step in artifact.program if isinstance(step, Native))
    return toolchain.Library(artifact.code, names, {**toolchain.libm(_module.LIBM_NAMES), **imports})
