"""What happens around the native calls of one call of a compiled function.

With a stream of its own (``own``), the call's work forks from the caller's stream by an event, and the caller's stream has joined
it again when the call returns, be it by an exception.  So to the caller it is as if all had run on its stream: memory that was
allocated there before the fork, and that is let go after the join, is never in use when somebody else gets it.  The host program
keeps to that; what is allocated in between comes from the own stream's memory, and ``handed`` tells the allocator about the part
of it that the caller gets.

Without, kernels go to the caller's stream, and nothing needs to be said.
"""

from typing import Any

from lowc.artifact import Artifact
from lowc.errors import LowcError
from lowc.ir.nodes import Launch
from lowc.runtime.cuda.device import Device
from lowc.runtime.cuda.driver import Driver
from lowc.runtime.cuda.streams import Lane
from lowc.runtime.cuda.table import Table


class Calls:
    """``own``: see above.  ``switch``: torch's current stream is the own one meanwhile (for calls of ATen).  ``sides``: how many
    more streams a call needs."""

    def __init__(self, device: Device, *, own: bool, switch: bool = False, sides: int = 0) -> None:
        self.device = device
        self.own = own
        self.switch = switch and own
        self.sides = sides
        self._seam = device.seam
        self._raw_stream = device.seam.raw_stream
        self._lanes = device.lanes
        self._spare = device.lanes.spare
        self._word = device.word

    def begin(self) -> int:
        """The caller's stream, where that is all that a call needs."""
        caller = self._raw_stream()
        # The default stream is never in a capture, and to ask about it while others capture is an error.
        if self._word.value.value and not (caller and self._seam.capturing()):
            self._word.look()
        return caller

    def enter(self) -> Lane:
        """A lane for this call, its ``work`` stream having waited for the caller's.  Raises what was reported late, unless the
        caller is capturing (an exception would destroy the capture)."""
        caller = self._raw_stream()
        if caller and self._seam.capturing():
            take = self._lanes.take_for_capture
        else:
            if self._word.value.value:
                self._word.look()
            take = self._lanes.take
        lane = take()
        lane.work = lane.stream if self.own else caller
        if self.sides:
            lane.done = False
            lane.sides = tuple(take() for _ in range(self.sides))
            pairs = (h for side in lane.sides for h in (side.stream, side.event.handle))
            lane.handles = (lane.event.handle, *pairs)
        if self.own and (code := lane.fork(caller)):
            self._give(lane)
            raise failed_link(code, self.device.driver)
        if self.switch:
            name = lane.name or self._seam.external(lane.stream)
            lane.name, lane.before = name, self._seam.stream_name()
            self._seam.set_stream(*name)
        return lane

    def leave(self, lane: Lane) -> None:
        """The caller's stream waits for all of the call's work."""
        if lane.before is not None:
            before, lane.before = lane.before, None
            self._seam.set_stream(*before)
        if lane.sides and not lane.done:
            self._gather(lane)
        code = lane.join() if self.own else 0
        if lane.sides or lane.captured:
            self._give(lane)
        else:
            self._spare.append(lane)
        if code:
            raise failed_link(code, self.device.driver)

    def _gather(self, lane: Lane) -> None:
        """After an exception: what side streams have been given is waited for as well."""
        with self.device.driver.inside(self.device.context):
            for side in lane.sides:
                side.event.record(side.stream)
                side.event.wait(lane.work)

    def _give(self, lane: Lane) -> None:
        sides, lane.sides = lane.sides, ()
        for each in (lane, *sides):
            self._lanes.give(each)

    def handed(self, *tensors: Any) -> None:
        """Tensors from the own stream's memory that the caller gets."""
        for tensor in tensors:
            self._seam.keep(tensor)


def failed_link(code: int, driver: Driver) -> LowcError:
    return driver.error(code & 0xFFFFFFFF, "ordering lowc's stream with the caller's")


def failed_run(code: int, artifact: Artifact, table: Table, driver: Driver) -> LowcError:
    """The exception for a walk over ``table`` that did not return 0."""
    result, record = code & 0xFFFFFFFF, code >> 32
    name, text = driver.describe(result)
    if record >= table.count:
        return LowcError(f"the GPU's context cannot be used: {name} ({text})")
    step = artifact.module.steps[table.steps[record]]
    kernel = step.kernel.name if isinstance(step, Launch) else "?"
    return LowcError(
        f"launching kernel {kernel} (record {record}) failed: {name} ({text})",
        where="; ".join(step.origin[:2]),
        hint="an earlier kernel may be at fault: errors on the GPU come late (CUDA_LAUNCH_BLOCKING=1 tells)",
    )
