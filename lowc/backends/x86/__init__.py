"""The x86 backend: ``detect`` the Target, ``stages`` to look at, ``compile_module`` to an Artifact,
``load`` its code.

Module @MACHINE ── emit (LLVM IR text) ── toolchain (object) ── load (addresses)
"""

from collections.abc import Callable, Mapping

from lowc.artifact import Artifact, Native
from lowc.backends.llvm import toolchain
from lowc.backends.x86 import detect as _detect
from lowc.backends.x86 import module as _module
from lowc.ir.nodes import Module
from lowc.options import Options
from lowc.target import Target


def detect(options: Options) -> Target:
    """The Target that ``options.isa`` asks for; raises CodegenError if this processor lacks it."""
    return _detect.detect(options.isa)


def compile_module(module: Module, target: Target, options: Options) -> Artifact:
    """The Artifact for a module @MACHINE.  Raises CodegenError, naming the kernel, for what has no code."""
    return _module.compile_module(module, target, options.threads)


def stages(target: Target, options: Options) -> dict[str, Callable[[Module], str]]:
    """What a module @MACHINE becomes, as text, by file extension: ``.ll`` and ``.s``."""
    return {
        ".ll": lambda module: _module.emit_module(module, target, options.threads)[0],
        ".s": lambda module: _module.assembly(module, target, options.threads),
    }


def load(artifact: Artifact, imports: Mapping[str, int]) -> toolchain.Library:
    """The artifact's code in this process; ``imports`` are the addresses of the OpenMP functions."""
    names = tuple(step.symbol for step in artifact.program if isinstance(step, Native))
    return toolchain.Library(artifact.code, names, {**toolchain.libm(_module.LIBM_NAMES), **imports})
