"""An artifact for a GPU and everything that it runs on, bound together to a callable."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from lowc.artifact import Artifact
from lowc.host import Host
from lowc.ir.nodes import Buffer
from lowc.once import same
from lowc.options import Options
from lowc.runtime.cuda import graphs, host, memory, nvtx
from lowc.runtime.cuda.calls import Calls, failed_run
from lowc.runtime.cuda.device import Device, device
from lowc.runtime.cuda.late import enrol
from lowc.runtime.cuda.modules import CudaModule
from lowc.runtime.cuda.table import Plan, Table, build, launches, natives, plan
from lowc.runtime.linker import Library
from lowc.runtime.program import (
    Call,
    Program,
    compiled_source,
    finished,
    profiled,
    shared_names,
    titles,
    without_grad,
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """An artifact on a device: ``tables`` by symbol of the native call, ``functions`` that walk them.  A function takes the slots
    of a call and a stream, and returns the walker's code."""

    device: Device
    plan: Plan
    module: CudaModule | None
    tables: Mapping[str, Table]
    functions: Mapping[str, Callable[[Any, int], int]]


@dataclass(frozen=True, slots=True)
class Gpu:
    """``stream``: "own" or "caller".  ``sides``: streams beside the main one.  ``graphs``: the captured calls, where the mode
    asks for them."""

    loaded: Loaded
    stream: str
    sides: int
    graphs: "graphs.Graphs | None"


def load(artifact: Artifact, on: Device, *, dump: str = "", branches: bool = True) -> Loaded:
    """Hands the artifact's PTX to the driver and makes its launch tables.  ``dump``: the folder for PTX that is rejected.  Raises
    CodegenError for that."""
    calls = natives(artifact)
    processors = on.driver.attribute(on.index, "MULTIPROCESSOR_COUNT") if branches and calls else 0
    slots = plan(artifact, processors)
    origins: dict[str, tuple[str, ...]] = {}
    for launch in (x for native in calls for x in launches(artifact, native)):
        symbol = artifact.entries[launch.kernel.name].symbol
        origins[symbol] = (*origins.get(symbol, ()), *launch.origin)
    module = CudaModule(on, artifact.code, artifact.entries, dump, origins, artifact.cubin) if calls else None
    first = enrol(artifact)
    tables: dict[str, Table] = {}
    functions: dict[str, Callable[[Any, int], int]] = {}
    for native in calls:
        assert module is not None
        table = build(artifact, native, slots, module.kernels, on.word.device, first)
        tables[native.symbol] = table
        functions[native.symbol] = partial(
            on.walk, ctypes.addressof(on.functions), table.address, table.count
        )
    return Loaded(on, slots, module, tables, functions)


@same
def walker_of(code: bytes) -> Library:
    """The walker of launch tables, loaded once in a process: a device keeps its address."""
    return Library(code, ("walk",), {})


def bind(
    artifact: Artifact,
    walker: int,
    index: int,
    constants: Sequence[torch.Tensor] = (),
    options: Options | None = None,
    *,
    on: Device | None = None,
) -> Program:
    """The program of ``artifact`` on device ``index``.

    ``walker``: address of the walker of launch tables.  ``constants`` are the last inputs.  ``on``: the device, if it is known.
    (Stream "auto" is "own" here; the compiler, which knows what the graph is for, has decided.)
    Raises LowcError if there is no driver, it rejects the code, or a size cannot be found.
    """
    options = options or Options()
    on = on or device(index, walker)
    loaded = load(artifact, on, dump=options.dump)
    own = options.stream != "caller" and bool(loaded.functions)
    text = host.render(artifact, loaded.plan, len(constants), own=own)
    functions = nvtx.ranged(loaded.functions, titles(artifact), on.seam) if options.nvtx else loaded.functions
    around = Calls(on, own=own, switch=bool(text.ops or text.into), sides=loaded.plan.sides)
    names = _names(artifact, loaded, text, around) | shared_names(text, functions)
    wanted, written = _places(artifact, len(constants))
    names["realigned"] = memory.realigner(lambda args: names["call"](args), wanted, written, host.ALIGNMENT)
    tensors = _aligned(artifact, constants)
    names.update(zip(text.constants, tensors, strict=True))
    code = compiled_source(text.source)
    call = profiled(lambda: artifact, text, code, names)
    if text.ops or text.into:
        call = without_grad(call)
    captured = None
    if options.mode == "reduce-overhead":
        captured = graphs.Graphs(call, artifact, on)
        call = captured.function()
    if tensors:
        call = memory.kept(call, tensors, on.seam, on.held)
    call = _on_device(call, on)
    stream = "own" if own else "caller"
    return finished(Program(lambda: artifact, text, code, call, Gpu(loaded, stream, loaded.plan.sides, captured)))


def source(artifact: Artifact, constants: int, options: Options, processors: int) -> str:
    """The host program that ``bind`` would make on a GPU of so many ``processors``, as text; needs no GPU."""
    own = options.stream != "caller" and bool(natives(artifact))
    return host.render(artifact, plan(artifact, processors), constants, own=own).source


def _names(artifact: Artifact, loaded: Loaded, text: Host, around: Calls) -> dict[str, Any]:
    """What the helpers in a host program mean on a GPU."""
    tables = [loaded.tables[symbol] for symbol in text.natives.values()]
    on = loaded.device
    return {
        "begin": around.begin,
        "empty": on.seam.empty,
        "enter": around.enter,
        "failed": lambda code, number: failed_run(code, artifact, tables[number], on.driver),
        "handed": around.handed,
        "leave": around.leave,
        "new_slots": ctypes.c_int64 * text.slots,
        "placed": memory.placed,
        "workspace": memory.workspace_maker(on.seam.empty),
    }


def _places(artifact: Artifact, constants: int) -> tuple[list[int], list[int]]:
    """Positions in the arguments of the inputs that must be aligned, and of those among them that a call writes."""
    inputs = artifact.module.inputs
    arguments = inputs[: len(inputs) - constants]
    aligned, written = host.aligned_inputs(artifact), host.written_inputs(artifact)
    wanted = [n for n, b in enumerate(arguments) if isinstance(b, Buffer) and b.name in aligned]
    changed = [n for n in wanted if (b := arguments[n]) is not None and b.name in written]
    return wanted, changed


def _aligned(artifact: Artifact, constants: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """``constants``, with aligned copies of those that must be aligned and are not."""
    wanted = host.aligned_inputs(artifact) - host.written_inputs(artifact)
    buffers = artifact.module.inputs[len(artifact.module.inputs) - len(constants) :]
    return [
        memory.copied(tensor)
        if buffer is not None and buffer.name in wanted and tensor.data_ptr() % host.ALIGNMENT
        else tensor
        for buffer, tensor in zip(buffers, constants, strict=True)
    ]


def _on_device(call: Call, on: Device) -> Call:
    """``call`` with the graph's device as torch's current one."""
    current, exchange, index = on.seam.device, on.seam.exchange_device, on.index

    def guarded(args: list[Any]) -> list[Any]:
        if current() == index:
            return call(args)
        before = exchange(index)
        try:
            return call(args)
        finally:
            exchange(before)

    return guarded
