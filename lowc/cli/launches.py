"""The kernels of a graph for a GPU as they are launched: shapes, what they take of a multiprocessor, bytes, the least time."""

from collections.abc import Mapping
from dataclasses import dataclass

from lowc.artifact import Artifact, Entry, Usage
from lowc.cli import cost
from lowc.cli.compilation import Result
from lowc.errors import LowcError
from lowc.ir.index import text
from lowc.ir.nodes import Alloc, Kernel, Launch
from lowc.ir.walk import statements


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """A kernel that is launched ``times``.

    ``blocks`` (an index over its sizes, as text) of ``threads`` (x, y) with ``shared`` bytes.  ``usage`` and ``occupancy`` (the
    share of a multiprocessor's warps, and what allows no more) are None where nothing is there that could tell.  ``bytes`` of one
    launch; ``seconds``: those at the bandwidth of memory, None if that is not known.
    """

    name: str
    times: int
    blocks: str
    threads: tuple[int, int]
    shared: int
    usage: Usage | None
    occupancy: tuple[float, str] | None
    bytes: int
    seconds: float | None


def launches(result: Result, cpu: str) -> tuple[list[LaunchLine], str]:
    """One line for each kernel of ``result``, in the order of first launches; and who says what they take, or why nobody does.

    ``result`` is for a GPU that LLVM calls ``cpu`` ("sm_90a").
    """
    gpu, artifact = result.gpu, result.artifact
    assert gpu is not None and artifact is not None
    kernels: dict[str, Kernel] = {}
    times: dict[str, int] = {}
    for step in artifact.module.steps:
        if isinstance(step, Launch):
            kernels.setdefault(step.kernel.name, step.kernel)
            times[step.kernel.name] = times.get(step.kernel.name, 0) + 1
    usage, source = _usage(result.usage, artifact, cpu) if kernels else ({}, "")
    lines: list[LaunchLine] = []
    for name, kernel in kernels.items():
        entry = artifact.entries[name]
        used = usage.get(entry.symbol)
        moved = cost.of_kernel(kernel, bound=True).bytes
        seconds = moved / gpu.bandwidth if gpu.bandwidth else None
        shared = entry.shared + (used.shared if used else _static(kernel, entry))
        share = _occupancy(gpu.capability, entry, used, shared)
        lines.append(
            LaunchLine(name, times[name], text(entry.grid), entry.threads, shared, used, share, moved, seconds)
        )
    return lines, source


def _usage(known: Mapping[str, Usage], artifact: Artifact, cpu: str) -> tuple[Mapping[str, Usage], str]:
    """What kernels take, by their names in the PTX: the driver's word where the GPU is, else that of ptxas."""
    from lowc.backends.nvptx import assembler

    if known:
        return known, "registers as the driver says"
    try:
        return assembler.assemble(artifact.code, cpu).usage, "registers as ptxas says"
    except LowcError as error:
        return {}, f"registers are not known: {error.message.splitlines()[0]}"


def _static(kernel: Kernel, entry: Entry) -> int:
    """Shared memory of the kernel's own arrays; what the backend adds to exchange values between warps is not known here."""
    if entry.shared:
        return 0  # all of them are in the dynamic part
    arrays = [s.buffer for s in statements(kernel.body) if isinstance(s, Alloc) and s.buffer.space == "shared"]
    return sum(cost.elements(b.shape) * b.dtype.bytes for b in arrays)


def _occupancy(
    capability: tuple[int, int], entry: Entry, used: Usage | None, shared: int
) -> tuple[float, str] | None:
    from lowc.backends.nvptx.occupancy import occupancy

    if used is None:
        return None
    found = occupancy(capability, entry.threads[0] * entry.threads[1], used.registers, shared)
    return (found.share, found.bound) if found else None
