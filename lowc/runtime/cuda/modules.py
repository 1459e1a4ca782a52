"""PTX to kernels: the driver's compiler turns text into code for this GPU (and keeps it in a cache of its own)."""

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from lowc.artifact import Entry
from lowc.errors import CodegenError
from lowc.runtime.cuda.device import Device

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
        device: Device,
        ptx: bytes,
        entries: Mapping[str, Entry],
        dump: str = "",
        origins: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """Raises CodegenError with the compiler's words, the kernel's name and origin (``origins``, by symbol), and the path of
        the PTX (in ``dump``, or in a temporary folder)."""
        self._device = device
        self.handle = 0
        with device.driver.inside(device.context):
            self.handle, error, self.log = device.driver.load(ptx)
            if not self.handle:
                raise rejected(ptx, error, self.log, dump, origins or {})
            self.kernels = {name: self._kernel(name, entry) for name, entry in entries.items()}

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
    path = _keep(ptx, dump)
    lines = [f"the driver rejects the PTX{f' of kernel {kernel}' if kernel else ''}: {error}"]
    lines += [f"  {line}" for line in log.splitlines()[:5]]
    return CodegenError("\n".join(lines), hint=f"the PTX is in {path}", origin=origins.get(kernel, ()))


_LINE = re.compile(r"\bline (\d+)")
_ENTRY = re.compile(rb"\.entry\s+([\w$.]+)")


def kernel_at(ptx: bytes, line: int) -> str:
    """The kernel in which a line of PTX (from 1) stands, empty if it is in none."""
    above = b"\n".join(ptx.splitlines()[:line])
    names = _ENTRY.findall(above)
    return names[-1].decode() if names else ""


def _keep(ptx: bytes, dump: str) -> str:
    folder = dump or tempfile.mkdtemp(prefix="lowc-")
    try:
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "rejected.ptx")
        with open(path, "wb") as file:
            file.write(ptx)
    except OSError as error:
        return f"no file ({error})"
    return path
