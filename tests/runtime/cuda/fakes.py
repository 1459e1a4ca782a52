"""A driver and a torch without a GPU: every call is written down, kernels are Python functions on the CPU's memory.

``Fake.log`` has ("launch", kernel, blocks, threads, shared, stream, params), ("memset", address, byte, bytes, stream),
("record", event, stream), ("wait", stream, event), and what tests add.  ``ordered(log, a, b)`` says whether streams and events
have entry ``b`` run after entry ``a``.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from lowc.artifact import Artifact, Entry, Native
from lowc.backends.nvptx import walker
from lowc.ir.index import Index, ix
from lowc.ir.nodes import Extern, Launch, Module
from lowc.options import Options
from lowc.runtime.cuda.device import Device
from lowc.runtime.cuda.driver import DriverError
from lowc.runtime.cuda.program import bind
from lowc.runtime.program import Program

POINTER, INT, UINT, LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_int64
CONTEXT = 0x7000


class Fake:
    """Stands in for ``driver.Driver``.  ``kernels``: what launches of a name do, given (params, blocks).
    ``load_results``: what comes of an image, where that is not ``load_result``; ``loaded``: the images, in order.
    ``fail``: name of a function: (how many calls of it succeed first, error code)."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.kernels: dict[str, Callable[[list[int], int], None]] = {}
        self.counts: dict[str, int] = {}
        self.fail: dict[str, tuple[int, int]] = {}
        self.calls: dict[str, int] = {}
        self.context = 0
        self.names: dict[int, str] = {}
        self.streams: list[int] = []
        self.in_capture: set[int] = set()
        self.shared: dict[str, int] = {}
        self.load_result: tuple[int, str, str] = (0x9000, "", "")
        self.load_results: dict[bytes, tuple[int, str, str]] = {}
        self.loaded: list[bytes] = []
        self._next = 0x100
        self._memory: list[Any] = []
        self._callbacks = self._make_callbacks()

    def _code(self, name: str) -> int:
        number = self.calls[name] = self.calls.get(name, 0) + 1
        after, code = self.fail.get(name, (1 << 30, 0))
        return code if number > after else 0

    def _make_callbacks(self) -> dict[str, Any]:
        def get(where: int) -> int:
            ctypes.c_int64.from_address(where).value = self.context
            return self._code("cuCtxGetCurrent")

        def put(context: int | None) -> int:
            self.context = context or 0
            return self._code("cuCtxSetCurrent")

        def launch(
            f: Any, x: int, y: int, z: int, tx: int, ty: int, tz: int, shared: int, s: Any, p: int, e: Any
        ) -> int:
            name = self.names[f]
            pointers = (ctypes.c_void_p * self.counts.get(name, 0)).from_address(p or 0)
            values = [ctypes.c_int64.from_address(pointer or 0).value for pointer in pointers]
            assert (y, z, tz, e) == (1, 1, 1, None)
            self.log.append(("launch", name, x, (tx, ty), shared, s or 0, tuple(values)))
            if code := self._code("cuLaunchKernel"):
                return code
            self.kernels.get(name, lambda *_: None)(values, x)
            return 0

        def memset(address: int, byte: int, count: int, stream: Any) -> int:
            self.log.append(("memset", address, byte, count, stream or 0))
            return self._code("cuMemsetD8Async")

        def record(event: Any, stream: Any) -> int:
            self.log.append(("record", event or 0, stream or 0))
            return self._code("cuEventRecord")

        def wait(stream: Any, event: Any, flags: int) -> int:
            self.log.append(("wait", stream or 0, event or 0))
            return self._code("cuStreamWaitEvent")

        def encode(*args: Any) -> int:
            target, dtype, rank, address, dims, strides, box, steps, *modes = args
            assert target % 64 == 0
            lengths, further = ((ctypes.c_uint64 * n).from_address(a) for n, a in ((rank, dims), (rank - 1, strides)))
            boxes, ones = ((ctypes.c_uint32 * rank).from_address(a) for a in (box, steps))
            assert list(ones) == [1] * rank
            self.log.append(("map", dtype, address or 0, list(lengths), list(further), list(boxes), tuple(modes)))
            (ctypes.c_int64 * 16).from_address(target)[:] = [len(self.log) * 100 + n for n in range(16)]
            return self._code("cuTensorMapEncodeTiled")

        def places(*args: Any) -> int:
            target, dtype, rank, address, dims, strides, low, high, channels, count, steps, *modes = args
            assert target % 64 == 0
            lengths, further = ((ctypes.c_uint64 * n).from_address(a) for n, a in ((rank, dims), (rank - 1, strides)))
            corners = [list((ctypes.c_int32 * (rank - 2)).from_address(a)) for a in (low, high)]
            apart = list((ctypes.c_uint32 * rank).from_address(steps))
            known = dtype, address or 0, list(lengths), list(further), *corners, (channels, count), apart, tuple(modes)
            self.log.append(("places", *known))
            (ctypes.c_int64 * 16).from_address(target)[:] = [len(self.log) * 100 + n for n in range(16)]
            return self._code("cuTensorMapEncodeIm2col")

        kind = ctypes.CFUNCTYPE
        sizes = [UINT] * 7
        return {
            "cuCtxGetCurrent": kind(INT, POINTER)(get),
            "cuCtxSetCurrent": kind(INT, POINTER)(put),
            "cuLaunchKernel": kind(INT, POINTER, *sizes, POINTER, POINTER, POINTER)(launch),
            "cuMemsetD8Async": kind(INT, LONG, ctypes.c_ubyte, LONG, POINTER)(memset),
            "cuEventRecord": kind(INT, POINTER, POINTER)(record),
            "cuStreamWaitEvent": kind(INT, POINTER, POINTER, UINT)(wait),
            "cuTensorMapEncodeTiled": kind(INT, POINTER, UINT, UINT, *[POINTER] * 5, *[UINT] * 4)(encode),
            "cuTensorMapEncodeIm2col": kind(
                INT, POINTER, UINT, UINT, *[POINTER] * 5, UINT, UINT, POINTER, *[UINT] * 4
            )(places),
        }

    # ------------------------------------------------------------ driver.Driver

    def addresses(self, names: Sequence[str]) -> list[int]:
        return [ctypes.cast(self._callbacks[name], POINTER).value or 0 for name in names]

    def retain(self, index: int) -> int:
        return CONTEXT + index

    def attribute(self, index: int, name: str) -> int:
        return {"MULTIPROCESSOR_COUNT": 132}.get(name, 1)

    def version(self) -> int:
        return 13000

    def device_name(self, index: int) -> str:
        return "fake"

    def describe(self, code: int) -> tuple[str, str]:
        return f"CUDA_ERROR_{code}", f"error {code}"

    def error(self, code: int, doing: str) -> DriverError:
        name, text = self.describe(code)
        return DriverError(f"{doing} failed: {name} ({text})", name)

    @contextmanager
    def inside(self, context: int) -> Iterator[None]:
        yield

    def _handle(self) -> int:
        self._next += 1
        return self._next

    def stream(self) -> int:
        self.streams.append(self._handle())
        return self.streams[-1]

    def capturing(self, stream: int) -> bool:
        return stream in self.in_capture

    def event(self) -> int:
        return self._handle()

    def record(self, event: int, stream: int) -> None:
        self.log.append(("record", event, stream))

    def wait(self, stream: int, event: int) -> None:
        self.log.append(("wait", stream, event))

    def pinned(self, size: int) -> tuple[int, int]:
        memory = (ctypes.c_char * size)()
        self._memory.append(memory)
        return ctypes.addressof(memory), ctypes.addressof(memory)

    def load(self, image: bytes) -> tuple[int, str, str]:
        self.loaded.append(image)
        return self.load_results.get(image, self.load_result)

    def function_attribute(self, function: int, name: str) -> int:
        return {"NUM_REGS": 40, "LOCAL_SIZE_BYTES": 0, "SHARED_SIZE_BYTES": 32}[name]

    def function(self, module: int, name: str) -> int:
        handle = self._handle()
        self.names[handle] = name
        return handle

    def allow_shared(self, function: int, size: int) -> None:
        self.shared[self.names[function]] = size


class FakeTorch:
    """Stands in for ``seam.Seam``: ``current`` is torch's current stream, ``here`` its current device."""

    def __init__(self, log: list[tuple[Any, ...]], index: int = 0) -> None:
        self.log = log
        self.index = index
        self.current = 0
        self.here = index
        self.is_capturing = False
        self.allocated: list[tuple[int, torch.Tensor]] = []
        self.kept: list[torch.Tensor] = []

    def raw_stream(self) -> int:
        return self.current

    def stream_name(self) -> tuple[int, int, int]:
        return self.current, self.index, 1

    def set_stream(self, stream: int, index: int, kind: int) -> None:
        assert (index, kind) == (self.index, 1)
        self.current = stream

    def external(self, stream: int) -> tuple[int, int, int]:
        return stream, self.index, 1

    def capturing(self) -> bool:
        assert self.current, "asked about the default stream"
        return self.is_capturing

    def device(self) -> int:
        return self.here

    def exchange_device(self, index: int) -> int:
        before, self.here = self.here, index
        return before

    def empty(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        assert self.here == self.index
        made = torch.empty_strided(shape, strides, dtype=dtype)
        self.allocated.append((self.current, made))
        return made

    def push_range(self, title: str) -> None:
        self.log.append(("push", title))

    def pop_range(self) -> None:
        self.log.append(("pop",))

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.dtype is not torch.float64  # let that be on the CPU

    def keep(self, tensor: torch.Tensor) -> None:
        self.log.append(("keep", self.current))
        self.kept.append(tensor)

    def synchronize(self) -> None:
        self.log.append(("synchronize",))


class Ops(torch.utils._python_dispatch.TorchDispatchMode):
    """Writes down ATen ops with torch's current stream: ("op", name, stream)."""

    def __init__(self, seam: FakeTorch) -> None:
        super().__init__()
        self.seam = seam

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seam.log.append(("op", str(func), self.seam.current))
        return func(*args, **(kwargs or {}))


def device(index: int = 0) -> tuple[Device, Fake, FakeTorch]:
    fake = Fake()
    seam = FakeTorch(fake.log, index)
    return Device(index, walker.address(), fake, seam), fake, seam  # type: ignore[arg-type]


def artifact(module: Module, entries: dict[str, Entry] | None = None) -> Artifact:
    """Each run of launches is one native call; kernels have one block of 32 threads unless ``entries`` says otherwise."""
    from lowc.artifact import runs
    from lowc.ir.nodes import Buffer

    placed = {name for name, _ in module.placed}
    slots = [
        b.name for b in (*module.inputs, *module.temps) if isinstance(b, Buffer) and b.name not in placed
    ]
    slots += ["workspace", *(s.name for s in module.symbols)]
    program = [r if isinstance(r, Extern) else Native(f"run_{r[0]}", r) for r in runs(module)]
    kernels = [s.kernel for s in module.steps if isinstance(s, Launch)]
    found = {k.name: entry(k.name) for k in kernels} | (entries or {})
    return Artifact("nvptx", b".version 9.0", tuple(slots), tuple(program), module, found)


def entry(
    name: str,
    grid: Index | int = 1,
    threads: tuple[int, int] = (32, 1),
    shared: int = 0,
    aligned: tuple[int, ...] = (),
) -> Entry:
    return Entry(name, ix(grid), threads, shared, aligned)


def load(
    module: Module,
    on: tuple[Device, Fake, FakeTorch],
    entries: dict[str, Entry] | None = None,
    constants: Sequence[torch.Tensor] = (),
    options: Options | None = None,
    **kernels: Callable[[list[int], int], None],
) -> Program:
    """A program on the fake device; ``kernels``: what each kernel does with (params, blocks)."""
    made = artifact(module, entries)
    gpu, fake, _ = on
    for step in module.steps:
        if isinstance(step, Launch):
            fake.counts[step.kernel.name] = len(step.args) + len(step.kernel.sizes) + 2
    fake.kernels |= kernels
    return bind(made, walker.address(), gpu.index, constants, options, on=gpu)


def ordered(log: Sequence[tuple[Any, ...]], a: int, b: int) -> bool:
    """Whether log entry ``b`` runs after entry ``a`` has ended, by the order of streams and by events."""
    reached: dict[int, bool] = {}  # stream: whether what it is given now runs after a
    events: dict[int, bool] = {}
    for number, what in enumerate(log[: b + 1]):
        if what[0] == "record":
            events[what[1]] = reached.get(what[2], False)
        elif what[0] == "wait":
            reached[what[1]] = reached.get(what[1], False) or events.get(what[2], False)
        stream = stream_of(what)
        if number == b:
            return reached.get(stream, False)
        if number == a:
            reached[stream] = True
    raise AssertionError("no such entries")


_STREAM = {"launch": 5, "memset": 4, "record": 2, "wait": 1, "op": 2, "user": 1}


def stream_of(what: tuple[Any, ...]) -> int:
    return what[_STREAM[what[0]]] if what[0] in _STREAM else -1


def of(log: Sequence[tuple[Any, ...]], kind: str, name: str = "") -> list[int]:
    """Places in the log of entries of a kind."""
    return [n for n, what in enumerate(log) if what[0] == kind and (not name or what[1] == name)]
