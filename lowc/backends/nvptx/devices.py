"""GPUs that lowc can compile for where they are not: one well-known model for each compute capability.

A capability says which instructions there are; the scheduler also asks how many multiprocessors share the work.  So "sm_90" means
the model named here, and whoever shows code or times for it says so.  Figures are those of NVIDIA's data sheets; the driver is
the newest that lowc knows, and for 7.0 and 7.2 the last that reads code for them.
"""

import re
from dataclasses import dataclass

from lowc.backends.nvptx.detect import target
from lowc.errors import OptionError
from lowc.target import Target


@dataclass(frozen=True, slots=True)
class Model:
    """``l2`` in bytes, ``bandwidth`` of its memory in bytes a second (0: unknown).  ``driver``: 13000 for CUDA 13.0."""

    name: str
    capability: tuple[int, int]
    processors: int
    l2: int
    bandwidth: int
    driver: int = 13000


MB, GB = 1 << 20, 10**9
MODELS = (
    Model("V100", (7, 0), 80, 6 * MB, 900 * GB, 12090),
    Model("Xavier", (7, 2), 8, MB // 2, 137 * GB, 12090),
    Model("T4", (7, 5), 40, 4 * MB, 320 * GB),
    Model("A100", (8, 0), 108, 40 * MB, 1555 * GB),
    Model("RTX 3090", (8, 6), 82, 6 * MB, 936 * GB),
    Model("Orin", (8, 7), 16, 4 * MB, 205 * GB),
    Model("RTX 4090", (8, 9), 128, 72 * MB, 1008 * GB),
    Model("H100", (9, 0), 132, 50 * MB, 3350 * GB),
    Model("B200", (10, 0), 148, 126 * MB, 8000 * GB),
    Model("B300", (10, 3), 148, 126 * MB, 8000 * GB),
    Model("Thor", (11, 0), 20, 32 * MB, 273 * GB),
    Model("RTX 5090", (12, 0), 170, 96 * MB, 1792 * GB),
    Model("DGX Spark", (12, 1), 48, 24 * MB, 273 * GB),
)
NAME = re.compile(r"sm_(\d+)(\d)[af]?")


def model(name: str) -> Model:
    """The GPU that stands for ``name``, e.g. "sm_90".  Raises OptionError for a name that no row has."""
    found = NAME.fullmatch(name)
    for each in MODELS:
        if found and each.capability == (int(found[1]), int(found[2])):
            return each
    known = ", ".join(f"sm_{major}{minor}" for major, minor in (m.capability for m in MODELS))
    raise OptionError(f"unknown GPU {name!r}", hint=f"lowc knows {known}")


def target_of(gpu: Model) -> Target:
    """Raises CodegenError for a GPU or a driver that is too old."""
    return target(gpu.capability, gpu.processors, gpu.driver, gpu.l2)
