"""Code of an artifact for GPUs: PTX, and how its kernels are launched, as data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lowc.artifact import Entry
from lowc.backends.nvptx import assembler, devices
from lowc.backends.nvptx.detect import FIRST_PTX, PTX_VERSIONS, capability, least_shared
from lowc.errors import LowcError
from lowc.ir.elsewhere import on_gpu
from lowc.ir.nodes import Launch, Module
from lowc.options import Options
from lowc.package.describe import places, tree_of, trees_of
from lowc.package.lowered import checks, kernel_count, lowered, placed
from lowc.standalone import manifest
from lowc.standalone.launches import Gpu, Launching, Map

if TYPE_CHECKING:
    from lowc.frontend.exported import Exported
    from lowc.target import Target

EMIT = ("ir", "ll", "ptx")
_PTX = 80
"""The PTX version that drivers from CUDA 12.0 on read; what needs a later one is for GPUs that need later drivers as well."""


def level(name: str) -> str:
    """"sm_90" of what names that GPU.  Raises OptionError for one that lowc does not know."""
    major, minor = devices.model(name).capability
    return f"sm_{major}{minor}"


def target(name: str) -> "tuple[Target, int]":
    """The Target for a GPU as "sm_90", and the CUDA version whose driver can read the PTX for it; where that runs on later GPUs
    as well, blocks have no more shared memory than any of them gives."""
    model = devices.model(name)
    least = max(FIRST_PTX.get(model.capability, 0), _PTX)
    driver = min(cuda for cuda, ptx in PTX_VERSIONS if ptx >= least)
    made: Target = import_module("lowc.backends.nvptx.detect").target(model.capability, model.processors, driver, model.l2)
    return (made if made.cpu.endswith("a") else replace(made, shared=least_shared(model.capability))), driver


def code(
    exported: "Exported", name: str, options: Options, emit: Sequence[str], cubin: bool
) -> tuple[manifest.Code, dict[str, bytes], int, dict[str, str | bytes]]:
    """What the manifest says of the code for the GPU ``name`` ("sm_90"); its sections, the first of which is the PTX; how many
    kernels it has; the texts asked for.  ``cubin``: also as ptxas assembles it.

    Raises LowcError, with the user's line, for an op that has no kernel there, and where there is no ptxas."""
    from lowc.ir.printer import print_module
    from lowc.scheduler import pipeline

    nvptx: Any = import_module("lowc.backends.nvptx")
    here, driver = target(name)
    machine = placed(pipeline.run(lowered(on_gpu(exported.graph), options, here), here, options))
    made = nvptx.compile_module(machine, here, options._replace(ptxas="off"))
    if not made.entries:
        raise LowcError("the model computes nothing", hint="return what is computed from the inputs")
    sections: dict[str, bytes] = {f"{name}.ptx": made.code}
    if cubin:
        sections[f"{name}.cubin"] = assembler.assemble(made.code, here.cpu).cubin
    exact = here.cpu.endswith("a")
    gpu = Gpu(capability(here), exact, driver, f"{name}.cubin" if cubin else "", _launches(machine, exported, made.entries))
    found = manifest.Code(name, (), f"{name}.ptx", "", (), tree_of(machine.workspace), checks(machine), "ptx", gpu)
    show: Mapping[str, Callable[[], str | bytes]] = {
        "ir": lambda: print_module(machine),
        "ll": lambda: nvptx.stages(here, options)[".ll"](machine),
        "ptx": lambda: made.code,
    }
    return found, sections, kernel_count(machine), {kind: show[kind]() for kind in emit if kind in EMIT}


def _launches(module: Module, exported: "Exported", entries: Mapping[str, Entry]) -> tuple[Launching, ...]:
    """All launches of a call in order."""
    known = places(module, exported)
    inside = dict(module.placed)
    found: list[Launching] = []
    for number, step in enumerate(module.steps):
        assert isinstance(step, Launch)  # package.lowered
        entry = entries[step.kernel.name]
        params: list[tuple[str, int, Any]] = []
        for buffer in step.args:
            place = inside.get(buffer.name)
            params.append((*known[buffer.name], 0) if place is None else ("workspace", 0, tree_of(place)))
        params += [(*known[size.name], 0) for size in step.kernel.sizes]
        maps = tuple(
            Map(m.param, m.dtype, tree_of(m.offset), trees_of(m.sizes), trees_of(m.strides), m.box, m.lower, m.upper, m.steps)
            for m in entry.maps
        )
        grid = tree_of(entry.grid)
        found.append(Launching(entry.symbol, number, grid, entry.threads, entry.shared, tuple(params), entry.aligned, maps))
    return tuple(found)
