"""The host program of an artifact for a GPU, as Python source (see ``runtime/host.py``, of which it is a variant).

    def call(args):
        x, w = args
        args.clear()
        if (x.data_ptr() | w.data_ptr()) & 15:
            return realigned([x, w])
        out = empty((8, 256), (256, 1), float32)
        here = enter()
        try:
            stream = here.work
            slots = new_slots(x.data_ptr(), w.data_ptr(), out.data_ptr())
            code = run_0(slots, stream)
            if code:
                raise failed(code, 0)
        finally:
            leave(here)
        return [out]

With a stream of its own, memory of the caller's stream is allocated before ``enter``, and inputs stay alive until after
``leave``: what is freed in between could be given to somebody whose work does not wait for ours.  Without (``own=False``),
``begin`` takes the place of both, and inputs die after their last use.
"""

from collections.abc import Mapping

from lowc.artifact import Artifact, Native
from lowc.host import Host
from lowc.ir.index import Symbol, atoms, text
from lowc.ir.nodes import Buffer, Extern, Launch
from lowc.runtime.cuda.table import Plan
from lowc.runtime.host import RESERVED, Renderer, consecutive, views

HELPERS = ("begin", "enter", "handed", "here", "leave", "realigned", "stream", "workspace")
ALIGNMENT = 16


def render(artifact: Artifact, plan: Plan, constants: int = 0, *, own: bool = True) -> Host:
    """The host program.  ``own``: on a stream of its own.  Raises LowcError if a size cannot be found."""
    renderer = _DeviceRenderer(artifact, plan, constants, own)
    renderer.call()
    return renderer.host


def aligned_inputs(artifact: Artifact) -> set[str]:
    """The inputs that kernels want aligned to 16 bytes."""
    steps = artifact.module.steps
    numbers = [n for step in artifact.program if isinstance(step, Native) for n in step.launches]
    launches = [step for n in numbers if isinstance(step := steps[n], Launch)]
    wanted = {x.args[p].name for x in launches for p in artifact.entries[x.kernel.name].aligned}
    return wanted & {b.name for b in artifact.module.inputs if isinstance(b, Buffer)}


def written_inputs(artifact: Artifact) -> set[str]:
    """The inputs that a call changes."""
    renderer = Renderer(artifact, 0)
    by_ops = {b.name for step in artifact.program if isinstance(step, Extern) for b in step.writes}
    return renderer.written | (by_ops & renderer.inputs)


class _DeviceRenderer(Renderer):
    def __init__(self, artifact: Artifact, plan: Plan, constants: int, own: bool) -> None:
        super().__init__(artifact, constants)
        self.plan = plan
        self.own_stream = own
        self.host.slots = plan.total
        self.reserved = RESERVED | set(HELPERS)
        self.handed: list[str] = []
        self.inside = False

    def call(self) -> None:
        self._unpack()
        self._realign()
        has_natives = any(isinstance(step, Native) for step in self.artifact.program)
        lanes = has_natives and (self.own_stream or self.plan.sides > 0)
        if self.own_stream and has_natives:
            self._allocate_early()
        if self.placed:
            self._require((self.module.workspace,))
            self.emit(f"ws = workspace({text(self.module.workspace)})")
        if has_natives:
            self.emit("here = enter()" if lanes else "stream = begin()")
        if lanes:
            self.emit("try:")
            self.indent = "    "
            self.emit("stream = here.work")
        self.inside = lanes and self.own_stream
        self._steps()
        if lanes:
            if self.plan.sides:
                self.emit("here.done = True")
            self.indent = ""
            self.emit("finally:")
            self.emit("    leave(here)")
        own = [self.name(n) for n in self.handed if n in self.returned]
        if own:
            self.emit(f"handed({', '.join(own)})")
        self._return()

    def _realign(self) -> None:
        wanted = aligned_inputs(self.artifact)
        names = [self.name(b.name) for b in self.arguments if isinstance(b, Buffer) and b.name in wanted]
        if not names:
            return
        given = [
            self.name(e.name) if isinstance(e, Buffer) else e.name if isinstance(e, Symbol) else "None"
            for e in self.arguments
        ]
        self.emit(f"if ({' | '.join(f'{n}.data_ptr()' for n in names)}) & {ALIGNMENT - 1}:")
        self.emit(f"    return realigned([{', '.join(given)}])")

    def _allocate_early(self) -> None:
        """All memory that does not come from an op, if its size is known: from the caller's stream's memory."""
        self.held |= self.inputs
        made = {
            r.name for s in self.artifact.program if isinstance(s, Extern) for r in s.results if r is not None
        }
        wanted: dict[str, Buffer] = {}
        for step in self.artifact.program:
            if isinstance(step, Native):
                numbers = [self.module.steps[n] for n in step.launches]
                wanted |= {b.name: b for x in numbers if isinstance(x, Launch) for b in x.args}
            else:
                values = (*step.args, *(value for _, value in step.kwargs))
                wanted |= {view.buffer.name: view.buffer for view in views(values)}
        wanted |= self.returned
        for name, buffer in wanted.items():
            if name in self.alive or name in self.placed or name in made:
                continue
            sizes = {a for n in (*buffer.shape, *buffer.strides) for a in atoms(n) if isinstance(a, Symbol)}
            if sizes <= self.known:
                self._allocate(buffer)
                self.held.add(name)

    def _allocate(self, buffer: Buffer) -> None:
        super()._allocate(buffer)
        if self.inside:
            self.handed.append(buffer.name)

    def _take_result(self, result: Buffer, pending: bool = False) -> None:
        super()._take_result(result, pending)
        if self.inside and result.name not in self.placed:
            self.handed.append(result.name)

    def _native(self, step: Native) -> None:
        launches = [x for n in step.launches if isinstance(x := self.module.steps[n], Launch)]
        needed = {b.name: b for launch in launches for b in launch.args}
        for buffer in needed.values():
            if buffer.name not in self.alive and buffer.name not in self.placed:
                self._allocate(buffer)
        number = len(self.host.natives)
        run = f"run_{number}"
        self.host.natives[run] = step.symbol
        values = [(slot, self._slot(holds, needed)) for slot, holds in enumerate(self.artifact.slots)]
        extras = self.plan.needs[step.symbol]
        self._require(extras)
        values += [(slot, text(n) if n in extras else "") for n, slot in self.plan.extras.items()]
        if self.plan.sides:
            places = range(self.plan.lanes, self.plan.lanes + 1 + 2 * self.plan.sides)
            gap = range(len(values), self.plan.lanes)
            values += [(slot, "") for slot in gap]
            values += [(slot, f"here.handles[{n}]") for n, slot in enumerate(places)]
        if self.single:
            self.emit(f"slots = new_slots({', '.join(value or '0' for _, value in values)})")
        else:
            fresh = [(slot, value) for slot, value in values if value and slot not in self.filled]
            self.filled.update(slot for slot, _ in fresh)
            for first, group in consecutive(fresh):
                index = f"{first}" if len(group) == 1 else f"{first}:{first + len(group)}"
                self.emit(f"slots[{index}] = {', '.join(group)}")
        self.emit(f"code = {run}(slots, stream)")
        self.emit("if code:")
        self.emit(f"    raise failed(code, {number})")

    def _slot(self, holds: str, needed: Mapping[str, Buffer]) -> str:
        if holds == "workspace":
            return "ws.data_ptr()" if self.placed else ""
        return super()._slot(holds, needed)
