"""NVIDIA's own tools, where they are installed: ``ptxas`` (PTX to a cubin) and ``nvdisasm`` or ``cuobjdump`` (a cubin to text).

lowc needs none of them, as the driver compiles PTX.  They tell what it does not: registers and spills without a GPU, and SASS.
Each is looked for on the PATH, then in the pip packages ``nvidia-cuda-*``, then beside torch's Triton.
"""

import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from lowc.artifact import Usage, kernel_at
from lowc.errors import CodegenError, LowcError
from lowc.trace import keep

log = logging.getLogger("lowc")

# Where pip packages put programs, under the folders of the package before the colon.
FOLDERS = ("nvidia:cuda_nvcc/bin", "nvidia:*/bin", "triton:backends/nvidia/bin")


@dataclass(frozen=True, slots=True)
class Assembled:
    """``usage``: by the kernels' names in the PTX."""

    cubin: bytes
    usage: Mapping[str, Usage]


def find(name: str) -> str:
    """The path of a tool of this name; empty if there is none."""
    if found := shutil.which(name):
        return found
    for place in FOLDERS:
        package, _, below = place.partition(":")
        try:
            spec = find_spec(package)  # imports nothing: these are packages of the top level
        except ValueError:  # somebody has put something without a spec in its place
            continue
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for path in sorted(Path(folder).glob(f"{below}/{name}")):
                if os.access(path, os.X_OK):
                    return str(path)
    return ""


def assemble(ptx: bytes, cpu: str, dump: str = "") -> Assembled:
    """The cubin of ``ptx`` for ``cpu`` ("sm_90a").

    Raises LowcError if there is no ptxas.  If it rejects the PTX, CodegenError with its words, the kernel's name, the command,
    and the path of the PTX (in the folder ``dump``, or in a temporary one).
    """
    tool = find("ptxas")
    if not tool:
        raise LowcError("there is no ptxas", hint="pip install nvidia-cuda-nvcc, or put a CUDA toolkit's bin on the PATH")
    with tempfile.TemporaryDirectory(prefix="lowc-") as folder:
        source, result = Path(folder) / "code.ptx", Path(folder) / "code.cubin"
        source.write_bytes(ptx)
        done = _run([tool, f"-arch={cpu}", "-v", str(source), "-o", str(result)])
        if done.returncode or not result.exists():
            raise _rejected(ptx, cpu, done, dump)
        return Assembled(result.read_bytes(), usage(done.stderr + done.stdout))


def assembled(ptx: bytes, cpu: str, dump: str = "") -> bytes:
    """The cubin, or nothing where ptxas is missing or fails: then the driver has to do, and the log says why."""
    try:
        return assemble(ptx, cpu, dump).cubin
    except LowcError as error:
        log.warning("the driver compiles the PTX: %s", error)
        return b""


def disassemble(cubin: bytes) -> str:
    """The SASS of ``cubin``; raises LowcError where neither tool is installed, or it fails."""
    commands = {"nvdisasm": ["-c"], "cuobjdump": ["-sass"]}  # today's cuobjdump calls nvdisasm, older ones did without
    tool = next((path for name in commands if (path := find(name))), "")
    if not tool:
        raise LowcError(
            "there is neither nvdisasm nor cuobjdump",
            hint="pip install nvidia-cuda-nvdisasm, or put a CUDA toolkit's bin on the PATH",
        )
    with tempfile.TemporaryDirectory(prefix="lowc-") as folder:
        path = Path(folder) / "code.cubin"
        path.write_bytes(cubin)
        done = _run([tool, *commands[Path(tool).name], str(path)])
    if done.returncode:
        raise LowcError(f"{Path(tool).name} fails: {_said(done)}")
    return done.stdout


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise LowcError(f"{command[0]} cannot be run: {error.strerror}") from error


def _said(done: "subprocess.CompletedProcess[str]") -> str:
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    return "\n  ".join(lines[:5]) or f"exit status {done.returncode}"


def _rejected(ptx: bytes, cpu: str, done: "subprocess.CompletedProcess[str]", dump: str) -> CodegenError:
    said = _said(done)
    line = re.search(r"line (\d+)", said)
    kernel = kernel_at(ptx, int(line[1])) if line else ""
    path = keep(ptx, dump, "rejected.ptx")
    return CodegenError(
        f"ptxas rejects the PTX{f' of kernel {kernel}' if kernel else ''}:\n  {said}", hint=f"ptxas -arch={cpu} {path}"
    )


_KERNEL = re.compile(r"Function properties for ([\w$.]+)")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def usage(said: str) -> dict[str, Usage]:
    """What ``ptxas -v`` says of each kernel."""
    found: dict[str, Usage] = {}
    kernel, stack, spilled = "", 0, 0
    for line in said.splitlines():
        if match := _KERNEL.search(line):
            kernel = match[1]
        elif match := _SPILLS.search(line):
            stack, spilled = int(match[1]), int(match[2]) + int(match[3])
        elif match := _USED.search(line):
            shared = _SHARED.search(line)
            found[kernel] = Usage(int(match[1]), stack, spilled, int(shared[1]) if shared else 0)
    return found
