"""Which of an artifact's codes a GPU runs, and which GPU is meant."""

import re
from collections.abc import Sequence
from typing import Any

from lowc.errors import LowcError
from lowc.standalone.launches import Gpu
from lowc.standalone.manifest import Code


def index_of(device: Any) -> int | None:
    """The number of the GPU ``device`` ("cuda:1", "cuda", or what prints so), None for the CPU ("cpu" or None).

    Raises LowcError for anything else."""
    if device is None or str(device) == "cpu":
        return None
    found = re.fullmatch(r"cuda(?::(\d{1,4}))?", str(device))
    if found is None:
        raise LowcError(f"artifacts do not run on device {str(device)!r}", hint='device is "cpu", "cuda" or "cuda:1"')
    return int(found[1] or 0)


def gpu_of(code: Code) -> Gpu:
    """How ``code``, which is for GPUs, is launched."""
    assert code.gpu is not None  # manifest.from_json
    return code.gpu


def best(codes: Sequence[Code], name: str, capability: int, driver: int) -> Code:
    """The one of ``codes`` for the highest capability that a GPU ``name`` of ``capability`` (90 for 9.0) with a driver for CUDA
    ``driver`` (12080 for 12.8) runs.  Raises LowcError if there is none."""
    known = sorted((c for c in codes if c.format == "ptx"), key=lambda code: -gpu_of(code).capability)
    here = f"{name} (compute capability {capability // 10}.{capability % 10})"
    if not known:
        levels = ", ".join(code.level for code in codes) or "nothing"
        raise LowcError(f"the artifact has no code for a GPU, but for {levels}", hint=f"{_ADD} sm_{capability} adds it")
    fitting = [c for c in known if _runs(gpu_of(c), capability)]
    if not fitting:
        levels = ", ".join(code.level for code in known)
        raise LowcError(f"{here} cannot run the artifact: its code is for {levels}", hint=f"{_ADD} sm_{capability} adds it")
    for code in fitting:
        if driver >= gpu_of(code).driver:
            return code
    least = min(gpu_of(code).driver for code in fitting)
    raise LowcError(
        f"the driver of {here} is for CUDA {_version(driver)}, and the artifact's code needs one for {_version(least)}",
        hint="update the NVIDIA driver",
    )


_ADD = "lowc compile --target"


def _runs(gpu: Gpu, capability: int) -> bool:
    return gpu.capability == capability or (gpu.capability < capability and not gpu.exact)


def _version(cuda: int) -> str:
    return f"{cuda // 1000}.{cuda % 1000 // 10}"
