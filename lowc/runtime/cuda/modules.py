"""PTX to kernels: the driver's compiler turns text into code for this GPU (and keeps it in a cache of its own).

Where ptxas has made a cubin of it already (option ``ptxas``), that is loaded; the driver compiles the PTX if it does not take it.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowc.artifact import Entry, Usage, kernel_at
from lowc.errors import CodegenError
from lowc.trace import keep

if TYPE_CHECKING:
    from lowc.runtime.cuda.device import Device

log = logging.getLogger("lowc")

DEFAULT_SHARED = 48 * 1024  # bytes of dynamic shared memory that need no leave


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of the driver, and how it is launched."""

    name: str
    function: int
    entry: Entry


class CudaModule:
    """Loaded PTX.  ``kernels``: by kernel name.  ``log``: what the driver's compiler said.

    It is never unloaded: a CUDA graph that somebody has captured may launch its kernels after the object is gone.
    """

    def __init__(
        self,
        device: "Device",
        ptx: bytes,
        entries: Mapping[str, Entry],
        dump: str = "",
        origins: Mapping[str, tuple[str, ...]] | None = None,
        cubin: bytes = b"",
    ) -> None:
        """``cubin``: the code of ``ptx``, if there is any.

        Raises CodegenError with the compiler's words, the kernel's name and origin (``origins``, by symbol), and the path of
        the PTX (in ``dump``, or in a temporary folder)."""
        self._device = device
        self.handle = 0
        with device.driver.inside(device.context):
            if cubin:
                self.handle, error, self.log = device.driver.load(cubin)
                if not self.handle:
                    log.warning("the driver compiles the PTX, as it rejects what ptxas made of it: %s %s", error, self.log)
            if not self.handle:
                self.handle, error, self.log = device.driver.load(ptx)
                if not self.handle:
                    raise rejected(ptx, error, self.log, dump, origins or {})
            self.kernels = {name: self._kernel(name, entry) for name, entry in entries.items()}

    def usage(self) -> dict[str, Usage]:
        """What each kernel takes, by its name in the PTX, as the driver says."""
        ask = self._device.driver.function_attribute
        found: dict[str, Usage] = {}
        with self._device.driver.inside(self._device.context):
            for kernel in self.kernels.values():
                of = kernel.function
                local = ask(of, "LOCAL_SIZE_BYTES")
                spilled = None if local else 0  # the driver does not tell spills from arrays
                found[kernel.entry.symbol] = Usage(ask(of, "NUM_REGS"), local, spilled, ask(of, "SHARED_SIZE_BYTES"))
        return found

    def _kernel(self, name: str, entry: Entry) -> Kernel:
        function = self._device.driver.function(self.handle, entry.symbol)
        if entry.shared > DEFAULT_SHARED:
            self._device.driver.allow_shared(function, entry.shared)
        return Kernel(name, function, entry)


def rejected(
    ptx: bytes, error: str, log: str, dump: str, origins: Mapping[str, tuple[str, ...]]
) -> CodegenError:
    """The error for PTX that the driver does not take; writes the PTX to a file."""
    kernel = next((k for n in _LINE.findall(log) if (k := kernel_at(ptx, int(n)))), "")
    path = keep(ptx, dump, "rejected.ptx")
    lines = [f"the driver rejects the PTX{f' of kernel {kernel}' if kernel else ''}: {error}"]
    lines += [f"  {line}" for line in log.splitlines()[:5]]
    return CodegenError("\n".join(lines), hint=f"the PTX is in {path}", origin=origins.get(kernel, ()))


_LINE = re.compile(r"\bline (\d+)")
