"""The launches of one call of an artifact on a GPU: what the manifest says of them, with a call's addresses and sizes."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from lowc.errors import CodegenError, LowcError
from lowc.runtime.cuda.direct import MAP_BYTES, Direct
from lowc.runtime.cuda.driver import DriverError
from lowc.runtime.cuda.modules import DEFAULT_SHARED, rejected
from lowc.standalone.launches import MAP_DTYPES, Gpu, Launching
from lowc.standalone.trees import value, values

_MOST = (1 << 31) - 1  # blocks of a launch
_MAP_ALIGN = 64


def loaded(driver: Direct, ptx: bytes, cubin: bytes, gpu: Gpu) -> dict[str, int]:
    """The functions of the kernels by name.  ``cubin`` is taken if there is one and the driver takes it.  Raises CodegenError if
    the driver rejects the PTX or a kernel is not in it."""
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
        raise CodegenError(f"the artifact's code for this GPU cannot be used: {error.message}") from error
    return functions


class Launcher:
    """``symbols``: names of the sizes by number, ``functions``: of the kernels by name."""

    def __init__(self, gpu: Gpu, symbols: Sequence[str], functions: Mapping[str, int]) -> None:
        self._symbols = symbols
        self._todo = [(each, functions[each.kernel]) for each in gpu.launches]

    def run(
        self, driver: Direct, stream: int, sizes: Mapping[str, int], memory: Mapping[str, Sequence[int]], word: int
    ) -> None:
        """Gives all launches to ``stream``.  ``memory``: addresses by kind of param; ``word``: that of a word for failed checks.

        Raises DriverError with the kernel's name, LowcError for sizes that are too large for a launch."""
        for launching, function in self._todo:
            blocks = value(launching.grid, sizes)
            if blocks <= 0:
                continue
            if blocks > _MOST:
                raise LowcError(f"kernel {launching.kernel} would take {blocks} blocks, and a GPU has {_MOST} at most")
            params, kept = self._params(launching, driver, sizes, memory, word)
            try:
                driver.launch(function, blocks, launching.threads, launching.shared, stream, params)
            except DriverError as error:
                raise DriverError(f"launching kernel {launching.kernel}: {error.message}", error.name) from error
            del kept

    def _params(
        self, launching: Launching, driver: Direct, sizes: Mapping[str, int], memory: Mapping[str, Sequence[int]], word: int
    ) -> tuple[Any, object]:
        """The addresses of the values of the params, and what holds these values."""
        found: list[int] = []
        for kind, number, offset in launching.params:
            if kind == "symbol":
                found.append(sizes[self._symbols[number]])
            else:
                found.append(memory[kind][number] + value(offset, sizes))
        count = len(found) + 2
        cells = (ctypes.c_int64 * count)(*found, word, launching.step)
        first = ctypes.addressof(cells)
        places = [first + 8 * n for n in range(count)]
        maps = (ctypes.c_char * (MAP_BYTES * len(launching.maps) + _MAP_ALIGN))() if launching.maps else None
        if maps is not None:
            start = -(-ctypes.addressof(maps) // _MAP_ALIGN) * _MAP_ALIGN
            for n, each in enumerate(launching.maps):
                place = start + MAP_BYTES * n
                base = found[each.param] + value(each.offset, sizes)
                driver.tensor_map(
                    MAP_DTYPES[each.dtype], base, values(each.sizes, sizes), values(each.strides, sizes), each.box, place
                )
                places.append(place)
        return (ctypes.c_void_p * len(places))(*places), (cells, maps)
