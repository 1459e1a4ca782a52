"""Launch tables: what the steps of a native call are to the walker (``artifact.Record``).

``plan`` needs the artifact only: which slots there are, and what the host program puts into them.

    slots   those of ``Artifact.slots`` | extras: values that the host program works out (blocks, symbolic offsets)
            | addresses of placed temps | handles of the streams and events of ``branches`` | scratch for the list of params
            | the tensor maps of a launch

``build`` makes the table of one native call for a loaded module.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lowc.artifact import (
    MAP_DTYPES,
    MAP_RANK,
    MAP_SLOTS,
    RECORD_WORDS,
    Artifact,
    Native,
    Record,
    TensorMap,
)
from lowc.errors import LowcError
from lowc.ir.index import Index, constant
from lowc.ir.nodes import Launch
from lowc.runtime.cuda.branches import Await, Branches, Start, branch
from lowc.runtime.cuda.modules import Kernel

MAIN = -1  # the stream of the call


@dataclass(frozen=True, slots=True)
class Plan:
    """``extras``: index: its slot.  ``needs``: by symbol of a native call, the extras that it uses.  ``places``: placed temp: its
    slot.  ``branches``: by symbol; the slots of their events and streams start at ``lanes``: the event of the main stream, then
    stream, event of each of ``sides`` others.  ``scratch``: first slot of the list of params, ``maps``: of tensor maps.
    ``total``: slots in all.
    """

    extras: Mapping[Index, int]
    needs: Mapping[str, tuple[Index, ...]]
    places: Mapping[str, int]
    branches: Mapping[str, Branches]
    lanes: int
    sides: int
    scratch: int
    maps: int
    total: int


def plan(artifact: Artifact, processors: int = 0) -> Plan:
    """The slots of ``artifact``.  ``processors``: of the GPU; 0 for one stream only."""
    extras: dict[Index, int] = {}
    needs: dict[str, tuple[Index, ...]] = {}
    places: dict[str, int] = {}
    most = mapped = 0
    placed = dict(artifact.module.placed)
    for native in natives(artifact):
        wanted: list[Index] = []
        for launch in launches(artifact, native):
            entry = artifact.entries[launch.kernel.name]
            wanted.append(entry.grid)
            wanted += [index for each in entry.maps for index in (each.offset, *each.sizes, *each.strides)]
            mapped = max(mapped, len(entry.maps))
            for buffer in launch.args:
                if buffer.name in placed:
                    wanted.append(placed[buffer.name])
                    places.setdefault(buffer.name, 0)
            most = max(most, len(launch.args) + len(launch.kernel.sizes) + 2 + len(entry.maps))
        needs[native.symbol] = tuple(dict.fromkeys(n for n in wanted if constant(n) is None))
        for index in needs[native.symbol]:
            extras.setdefault(index, len(artifact.slots) + len(extras))
    first = len(artifact.slots) + len(extras)
    places = {name: first + number for number, name in enumerate(places)}
    lanes = first + len(places)
    branches = {n.symbol: branch(artifact, n, processors) for n in natives(artifact)}
    sides = max((b.sides for b in branches.values()), default=0)
    scratch = lanes + (1 + 2 * sides if sides else 0)
    maps = scratch + most
    return Plan(extras, needs, places, branches, lanes, sides, scratch, maps, maps + MAP_SLOTS * mapped)


def natives(artifact: Artifact) -> list[Native]:
    return [step for step in artifact.program if isinstance(step, Native)]


def launches(artifact: Artifact, native: Native) -> list[Launch]:
    found = [artifact.module.steps[i] for i in native.launches]
    return [step for step in found if isinstance(step, Launch)]


@dataclass(frozen=True, slots=True)
class Table:
    """``records``: ``count`` of them, in memory that stays where it is.  ``steps``: by record, the step of the module that it is
    for.  ``lists``: the params of launches, and the values among them that never change."""

    records: "ctypes.Array[ctypes.c_int64]"
    count: int
    steps: tuple[int, ...]
    lists: tuple[object, ...] = field(repr=False)

    @property
    def address(self) -> int:
        return ctypes.addressof(self.records)

    def rows(self) -> list[tuple[int, ...]]:
        """The records as numbers."""
        words = list(self.records)
        return [tuple(words[n : n + RECORD_WORDS]) for n in range(0, len(words), RECORD_WORDS)]


def build(
    artifact: Artifact, native: Native, slots: Plan, kernels: Mapping[str, Kernel], word: int, first_step: int
) -> Table:
    """The table of ``native``.  ``word``: the device's address of the error word; ``first_step``: the number of the module's
    first step (``late.enrol``)."""
    maker = _Maker(artifact, slots, word, first_step)
    for name in dict.fromkeys(b.name for launch in launches(artifact, native) for b in launch.args):
        if name in slots.places:
            maker.offset(name, native.launches[0])
    for do in slots.branches[native.symbol].order:
        if isinstance(do, Start):
            maker.launch(do.step, kernels, do.lane)
        elif isinstance(do, Await):
            maker.add(do.step, Record.WAIT, maker.event(do.other), maker.stream(do.lane))
        else:
            maker.add(do.step, Record.RECORD, maker.event(do.lane), maker.stream(do.lane))
    words = [int(word) for record in maker.records for word in record]
    return Table(
        (ctypes.c_int64 * len(words))(*words), len(maker.records), tuple(maker.steps), tuple(maker.lists)
    )


class _Maker:
    def __init__(self, artifact: Artifact, slots: Plan, word: int, first_step: int) -> None:
        self.artifact = artifact
        self.slots = slots
        self.word = word
        self.first_step = first_step
        self.numbers = {name: number for number, name in enumerate(artifact.slots)}
        self.placed = dict(artifact.module.placed)
        self.records: list[tuple[int, ...]] = []
        self.steps: list[int] = []
        self.lists: list[object] = []

    def add(self, step: int, *words: int) -> None:
        self.records.append((*words, *[0] * (RECORD_WORDS - len(words))))
        self.steps.append(step)

    def either(self, index: Index) -> int:
        """A number, or the inverted number of the slot where the host program puts the value."""
        value = constant(index)
        return ~self.slots.extras[index] if value is None else max(value, 0)

    def stream(self, lane: int) -> int:
        return MAIN if lane == 0 else self.slots.lanes + 2 * lane - 1

    def event(self, lane: int) -> int:
        return self.slots.lanes + 2 * lane

    def offset(self, name: str, step: int) -> None:
        target, base = self.slots.places[name], self.numbers["workspace"]
        self.add(step, Record.OFFSET, target, base, self.either(self.placed[name]))

    def launch(self, number: int, kernels: Mapping[str, Kernel], lane: int) -> None:
        launch = self.artifact.module.steps[number]
        assert isinstance(launch, Launch)
        kernel = kernels.get(launch.kernel.name)
        if kernel is None:
            raise LowcError(f"the artifact has no code for kernel {launch.kernel.name}")
        params = [self._slot(b.name) for b in launch.args]
        params += [self.numbers[s.name] for s in launch.kernel.sizes]
        params += [self._fixed(self.word), self._fixed(self.first_step + number)]
        entry = kernel.entry
        for position, each in enumerate(entry.maps):
            target = self.slots.maps + MAP_SLOTS * position
            self.map(number, each, self._slot(launch.args[each.param].name), target, entry.grid)
            params.append(target)
        self.add(
            number,
            Record.LAUNCH,
            kernel.function,
            self.either(entry.grid),
            entry.threads[0] + (entry.threads[1] << 32),
            entry.shared,
            self.stream(lane),
            self._list(params),
            len(params) + (self.slots.scratch << 32),
        )

    def map(self, step: int, each: TensorMap, base: int, target: int, blocks: Index) -> None:
        """The record that writes a tensor map before its launch."""
        sizes = [self.either(n) for n in each.sizes]
        strides = [self.either(n) for n in each.strides]
        pad = MAP_RANK - len(sizes)
        values = [self.either(each.offset), *sizes, *[1] * pad, *strides, *[0] * pad]
        words = [MAP_DTYPES[each.dtype], len(sizes), *each.box, *[1] * (MAP_RANK - len(each.box))]
        words += [1, *each.steps, *[1] * (MAP_RANK - 1 - len(each.steps)), int(bool(each.lower))]
        for corner in (each.lower, each.upper):
            words += [*corner, *[0] * (MAP_RANK - 2 - len(corner))]
        form = (ctypes.c_int32 * len(words))(*words)
        self.lists.append(form)
        self.add(step, Record.MAP, self.either(blocks), base, target, self._list(values), ctypes.addressof(form))

    def _slot(self, name: str) -> int:
        return self.slots.places[name] if name in self.slots.places else self.numbers[name]

    def _fixed(self, value: int) -> int:
        """The param that always has this value."""
        cell = ctypes.c_int64(value)
        self.lists.append(cell)
        return ~ctypes.addressof(cell)

    def _list(self, params: Sequence[int]) -> int:
        array = (ctypes.c_int64 * len(params))(*params)
        self.lists.append(array)
        return ctypes.addressof(array)
