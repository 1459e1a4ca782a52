"""The NVIDIA backend: a ``target`` from what the driver tells, ``compile_module`` to an Artifact with PTX, ``stages`` to look at.

Module @MACHINE ── plan (threads) ── emit (LLVM IR text of one thread) ── toolchain (PTX) ── assembler (a cubin; by option only)

``devices`` has GPUs to compile for where none is, ``occupancy`` what a multiprocessor holds: both serve whoever looks at code.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from lowc.artifact import Artifact
from lowc.backends.llvm.places import Located
from lowc.backends.nvptx import assembler
from lowc.backends.nvptx import module as _module
from lowc.backends.nvptx.barriers import BOUNDED
from lowc.backends.nvptx.detect import default, target
from lowc.backends.nvptx.kernel import symbol
from lowc.ir.nodes import Module
from lowc.options import Options
from lowc.target import Target

__all__ = ["compile_module", "default", "located", "stages", "symbol", "target"]


def compile_module(module: Module, target: Target, options: Options) -> Artifact:
    """The Artifact for a module @MACHINE.  Raises CodegenError, naming the kernel, for what has no code."""
    if options.check:  # a wait that never ends becomes an error
        target = replace(target, ops=target.ops | {BOUNDED})
    artifact = _module.compile_module(module, target)
    if options.ptxas == "auto" and artifact.code:
        return replace(artifact, cubin=assembler.assembled(artifact.code, target.cpu, options.dump))
    return artifact


def stages(target: Target, options: Options) -> dict[str, Callable[[Module], str]]:
    """What a module @MACHINE becomes, as text, by file extension: ``.ll`` and ``.ptx``."""
    return {
        ".ll": lambda module: _module.emit_module(module, target)[0],
        ".ptx": lambda module: _module.ptx(module, target),
    }


def located(module: Module, target: Target, options: Options, numbers: Mapping[int, int]) -> dict[str, Located]:
    """As ``stages``, as lines, each with what ``numbers`` has for (the ``id`` of) the statement that it is for."""
    return dict(zip((".ll", ".ptx"), _module.located(module, target, numbers), strict=True))
