"""The launches of one call of an artifact on a GPU: what the manifest says of them, with a call's addresses and sizes."""

import ctypes
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lowc.errors import CodegenError, LowcError
from lowc.runtime.cuda.direct import MAP_BYTES, Direct
from lowc.runtime.cuda.driver import DriverError
from lowc.runtime.cuda.modules import DEFAULT_SHARED, rejected
from lowc.standalone.launches import MAP_DTYPES, MOST, Gpu, Launching
from lowc.standalone.trees import value, values

_MAP_ALIGN = 64
_AFTER = 2  # params behind a launch's own: the word for failed checks and the step
_ENTRY = re.compile(rb"\.entry\s+([\w$]+)\s*\(([^)]*)\)")


def loaded(driver: Direct, ptx: bytes, cubin: bytes, gpu: Gpu) -> dict[str, int]:
    """The functions of the kernels by name.  ``cubin`` is taken if there is one and the driver takes it.  Raises CodegenError if
    the driver rejects the PTX or a kernel is not in it, or takes other numbers of params than a launch has, beyond which the
    driver would read.

    What is loaded is never unloaded: a CUDA graph that somebody has captured may launch it after the model is gone."""
    taken = {name.decode(): params.count(b".param") for name, params in _ENTRY.findall(ptx)}
    for launching in gpu.launches:
        given = len(launching.params) + _AFTER + len(launching.maps)
        if taken.get(launching.kernel) != given:
            said = f"takes {taken[launching.kernel]}" if launching.kernel in taken else "is not in the code"
            text = f"a launch of {launching.kernel} has {given} params, and the kernel {said}"
            raise CodegenError(text, hint="compile the artifact again")
    module = driver.load(cubin)[0] if cubin else 0
    if not module:
        module, error, log = driver.load(ptx)
        if not module:
            raise rejected(ptx, error, log, "", {})
    functions: dict[str, int] = {}
    try:
        for launching in gpu.launches:
            if launching.kernel not in functions:
                functions[launching.kernel] = function = driver.function(module, launching.kernel)
                if launching.shared > DEFAULT_SHARED:
                    driver.allow_shared(function, launching.shared)
    except DriverError as error:
        driver.unload(module)
        raise CodegenError(f"the artifact's code for this GPU cannot be used: {error.message}") from error
    return functions


_KEPT = 16  # prepared calls


class _Ready(NamedTuple):
    """A launch with its values.  ``params``: a ctypes array of their addresses; ``values`` are what is there."""

    kernel: str
    function: int
    blocks: int
    threads: tuple[int, int]
    shared: int
    params: Any
    values: object


class Launcher:
    """``symbols``: names of the sizes by number, ``functions``: of the kernels by name, ``weights``: addresses.

    Launches that were prepared are kept for calls with the same addresses and sizes, which are the rule: allocators hand out the
    same memory again.  Nothing changes them, so threads may share them."""

    def __init__(
        self, gpu: Gpu, symbols: Sequence[str], functions: Mapping[str, int], weights: Sequence[int], driver: Direct
    ) -> None:
        self._symbols, self._weights, self._driver = symbols, weights, driver
        self._todo = [(each, functions[each.kernel]) for each in gpu.launches]
        self._ready: dict[tuple[Any, ...], list[_Ready]] = {}

    def run(
        self,
        stream: int,
        sizes: Mapping[str, int],
        inputs: Sequence[int],
        outputs: Sequence[int],
        workspace: int,
        word: int,
    ) -> None:
        """Gives all launches to ``stream``.  ``inputs``, ``outputs``, ``workspace``: addresses; ``word``: that of one for checks.

        Raises DriverError with the kernel's name, LowcError for sizes that are too large for a launch."""
        key = (word, workspace, *sizes.values(), *inputs, *outputs)
        ready = self._ready.get(key)
        if ready is None:
            memory = {"input": inputs, "output": outputs, "weight": self._weights, "workspace": (workspace,)}
            made = (self._prepared(each, function, sizes, memory, word) for each, function in self._todo)
            ready = [each for each in made if each is not None]
            if len(self._ready) >= _KEPT:
                self._ready.clear()
            self._ready[key] = ready
        for kernel, function, blocks, threads, shared, params, _ in ready:
            try:
                self._driver.launch(function, blocks, threads, shared, stream, params)
            except DriverError as error:
                raise DriverError(f"launching kernel {kernel}: {error.message}", error.name) from error

    def _prepared(
        self, launching: Launching, function: int, sizes: Mapping[str, int], memory: Mapping[str, Sequence[int]], word: int
    ) -> _Ready | None:
        """None for a launch of no blocks."""
        blocks = value(launching.grid, sizes)
        if blocks <= 0:
            return None
        if blocks > MOST:
            raise LowcError(f"kernel {launching.kernel} would take {blocks} blocks, and a GPU has {MOST} at most")
        found: list[int] = []
        for kind, number, offset in launching.params:
            if kind == "symbol":
                found.append(sizes[self._symbols[number]])
            else:
                found.append(memory[kind][number] + value(offset, sizes))
        count = len(found) + _AFTER
        cells = (ctypes.c_int64 * count)(*found, word, launching.step)
        first = ctypes.addressof(cells)
        places = [first + 8 * n for n in range(count)]
        maps = (ctypes.c_char * (MAP_BYTES * len(launching.maps) + _MAP_ALIGN))()
        start = -(-ctypes.addressof(maps) // _MAP_ALIGN) * _MAP_ALIGN
        for n, each in enumerate(launching.maps):
            place = start + MAP_BYTES * n
            base = found[each.param] + value(each.offset, sizes)
            lengths, strides = values(each.sizes, sizes), values(each.strides, sizes)
            try:
                dtype = MAP_DTYPES[each.dtype]
                if each.steps:
                    corners = each.lower, each.upper
                    self._driver.places_map(dtype, base, lengths, strides, each.box, corners, each.steps, place)
                else:
                    self._driver.tensor_map(dtype, base, lengths, strides, each.box, place)
            except (LowcError, ValueError, OverflowError) as error:
                what = f"kernel {launching.kernel} cannot copy boxes of a tensor of sizes {lengths}, strides {strides} in bytes"
                raise LowcError(f"{what}: {error}") from error
            places.append(place)
        params = (ctypes.c_void_p * len(places))(*places)
        return _Ready(launching.kernel, function, blocks, launching.threads, launching.shared, params, (cells, maps))
