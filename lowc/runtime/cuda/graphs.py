"""``mode="reduce-overhead"``: a call is captured as a CUDA graph and replayed from then on.

For each set of input sizes: the first call runs as it is (it warms up libraries and torch's allocator), the second one is
captured and replayed, later ones are replayed.  What a replay needs:

* Inputs at the address that they had in both first calls (parameters, mostly) are read where they are.  When one of them
  moves, the call is captured anew, and that input is copied from then on.
* Other inputs are copied into memory of the graph's.
* Outputs are copied out of the graph's memory, so that no later call overwrites what an earlier one returned; those that are
  views of inputs become views of the inputs of this call.

Replays follow one another on the device, whatever streams they are called on.  A call that cannot be captured runs as it is, and
``reason`` says why: it is logged once.
"""

import logging
from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any

import torch

from lowc.artifact import Artifact
from lowc.collection import collection_paused
from lowc.errors import LowcError
from lowc.ir import arithmetic, collective
from lowc.ir.index import Symbol
from lowc.ir.nodes import Extern
from lowc.runtime.cuda import host as device_host
from lowc.runtime.cuda.device import Device
from lowc.runtime.cuda.results import recipe
from lowc.runtime.cuda.streams import Event

log = logging.getLogger("lowc")

MOST = 16  # captures of one compiled graph

# Ops that wait for the device, or whose results' sizes depend on data.
_SYNCHRONISING = frozenset(
    "item _local_scalar_dense is_nonzero equal nonzero nonzero_static masked_select argwhere unique _unique2 unique_dim "
    "unique_consecutive bincount histc index repeat_interleave cpu numpy pin_memory _pin_memory _assert_async".split()
)
Call = Callable[[list[Any]], list[Any]]


def refusal(artifact: Artifact) -> str:
    """Why calls of ``artifact`` cannot be captured; empty if they can."""
    if written := sorted(device_host.written_inputs(artifact)):
        return f"it changes its input {written[0]}"
    for step in artifact.program:
        if isinstance(step, Extern) and not arithmetic.is_size(step):
            if collective.is_collective(step.target):
                return f"{step.target} is a collective, whose other ranks may not replay theirs"
            name = step.target.split(".")[1] if "." in step.target else step.target
            if name in _SYNCHRONISING or any(isinstance(r, Symbol) for r in step.results):
                return f"{step.target} waits for the device"
            if _elsewhere((*step.args, *(value for _, value in step.kwargs))):
                return f"{step.target} touches another device"
    if not artifact.program:
        return "it has nothing to run"
    return ""


def _elsewhere(args: Sequence[Any]) -> bool:
    return any(
        _elsewhere(a) if isinstance(a, tuple) else isinstance(a, str) and a.startswith("device:cpu")
        for a in args
    )


class Graphs:
    """The captured calls of one program.  ``captures``: how many were made.  ``reason``: why none (or no more) is made."""

    def __init__(self, call: Call, artifact: Artifact, device: Device) -> None:
        self.reason = refusal(artifact)
        self.captures = 0
        self._call = call
        self._device = device
        self._sets: dict[Any, _Set] = {}
        self._lock = RLock()
        self._capture = capture_with_torch
        if self.reason:
            self._say(self.reason)

    def function(self) -> Call:
        """What to call instead of the program."""

        def replaying(args: list[Any]) -> list[Any]:
            return self.run(args)

        return self._call if self.reason else replaying

    def run(self, args: list[Any]) -> list[Any]:
        seam = self._device.seam
        caller = seam.raw_stream()
        if caller and seam.capturing():
            return self._call(args)  # into the user's graph
        key = tuple((tuple(a.shape), a.stride()) if isinstance(a, torch.Tensor) else a for a in args)
        # What is enqueued for one replay must not mix with another thread's.
        with self._lock:
            graph = self._graph(key, args)
            if graph is not None:
                self._device.word.look()
                given = list(args)
                args.clear()
                return graph.replay(given, caller)
        return self._call(args)

    def _graph(self, key: Any, args: list[Any]) -> "Captured | None":
        """The graph to replay for these inputs, made now if it is time; None for a call as it is."""
        found = self._sets.get(key)
        if found is None:
            if len(self._sets) >= 4 * MOST:
                return None
            found = self._sets[key] = _Set(_addresses(args))
            if why := self._not_here(args):
                found.plain = why
                self._say(why)
            return None
        if not found.plain and (found.graph is None or found.graph.moved(args)):
            self._make(found, args)
        return found.graph

    def _not_here(self, args: Sequence[Any]) -> str:
        for number, arg in enumerate(args):
            if isinstance(arg, torch.Tensor) and not self._device.seam.holds(arg):
                return f"input {number} is on {arg.device}"
        return ""

    def _make(self, found: "_Set", args: list[Any]) -> None:
        """Captures a call; leaves ``found.graph`` None if that is not to be."""
        found.stay &= {n for n, address in enumerate(_addresses(args)) if address == found.first[n]}
        if found.graph is not None:
            self._device.seam.synchronize()  # it may be running
            found.graph = None
        if self.captures >= MOST:
            found.plain = f"{MOST} CUDA graphs have been captured already"
            self._say(found.plain)
            return
        self.captures += 1
        try:
            found.graph = self._capture(self._call, self._device, args, frozenset(found.stay))
        except Exception as error:
            log.debug("the reason in full", exc_info=True)
            text = str(error).strip().splitlines()
            found.plain = f"the capture failed: {text[0] if text else type(error).__name__}"
            self._say(found.plain)

    def _say(self, reason: str) -> None:
        self.reason = reason
        log.warning("no CUDA graph for a call of mode reduce-overhead: %s", reason)


def _addresses(args: Sequence[Any]) -> list[int]:
    return [a.data_ptr() if isinstance(a, torch.Tensor) else 0 for a in args]


class _Set:
    """Calls with inputs of the same sizes.  ``first``: addresses in the first call; ``stay``: inputs that have not moved since;
    ``plain``: why such calls run as they are."""

    __slots__ = ("first", "graph", "plain", "stay")

    def __init__(self, first: list[int]) -> None:
        self.first = first
        self.stay = set(range(len(first)))
        self.graph: Captured | None = None
        self.plain = ""


class Captured:
    """One captured call.  ``fixed``: addresses of the inputs that are read where they are; ``copies``: the graph's own memory for
    the others; ``inside``, ``outputs``: the captured call's arguments and results."""

    def __init__(
        self,
        device: Device,
        graph: Any,
        fixed: Sequence[tuple[int, int]],
        copies: Sequence[tuple[int, torch.Tensor]],
        inside: Sequence[Any],
        outputs: Sequence[Any],
    ) -> None:
        self._device = device
        self._graph = graph
        self._fixed = tuple(fixed)
        self._copies = tuple(copies)
        self._results = recipe(outputs, inside)
        with device.driver.inside(device.context):
            self._done = Event(device.driver)
        self._last: int | None = None

    def moved(self, args: Sequence[Any]) -> bool:
        return any(args[n].data_ptr() != address for n, address in self._fixed)

    def replay(self, args: Sequence[Any], caller: int) -> list[Any]:
        """Runs on ``caller``, which is torch's current stream."""
        if self._last not in (None, caller):
            with self._device.driver.inside(self._device.context):
                self._done.wait(caller)
            for _, copy in self._copies:
                self._device.seam.keep(copy)
        try:
            with torch.no_grad():
                for number, copy in self._copies:
                    copy.copy_(args[number])
                self._graph.replay()
                return self._results(args)
        finally:  # also when memory for the results runs out: the next replay must not overtake this one
            self._done.record(caller)
            self._last = caller


Fixed = list[tuple[int, int]]
Copies = list[tuple[int, torch.Tensor]]


def memory_for(args: Sequence[Any], stay: frozenset[int]) -> tuple[Fixed, Copies, list[Any]]:
    """Where a graph reads its inputs: addresses of those that ``stay``, memory for the others, and the arguments of the call
    that is captured."""
    fixed: Fixed = []
    copies: Copies = []
    inside: list[Any] = []
    for number, arg in enumerate(args):
        if isinstance(arg, torch.Tensor) and number not in stay:
            if torch._debug_has_internal_overlap(arg) == 1:
                raise LowcError(f"input {number} has elements that share memory")
            copy = torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device=arg.device)
            copies.append((number, copy))
            inside.append(copy)
            continue
        if isinstance(arg, torch.Tensor):
            fixed.append((number, arg.data_ptr()))
        inside.append(arg)
    return fixed, copies, inside


def capture_with_torch(call: Call, device: Device, args: list[Any], stay: frozenset[int]) -> Captured:
    """Captures ``call`` on a stream of lowc's, with memory of its own.  ``args`` stays as it is.

    No garbage is collected meanwhile: a graph of the user's in it cannot be destroyed during a capture, and would end it.
    """
    fixed, copies, inside = memory_for(args, stay)
    lane = device.lanes.take()
    try:
        stream = torch.cuda.ExternalStream(lane.stream, device=device.index)
        graph = torch.cuda.CUDAGraph()
        with collection_paused(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            outputs = call(list(inside))
    finally:
        device.lanes.give(lane)
    return Captured(device, graph, fixed, copies, inside, outputs)
