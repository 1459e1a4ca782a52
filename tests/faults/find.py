"""Faults planted in lowc, each looked for by ``lowc bisect`` and shrunk by ``lowc reduce``.

    python -m tests.faults.find [NAME ...]

Prints a line of JSON for each: what the two commands said, which files bisect wrote, the text of reduce's.  Each command is a
child of this process, which only imports, so that torch is loaded once.
"""

import io
import json
import os
import sys
import tempfile
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Planted:
    """``name``: a file of ``planted``.  What bisect shall say: ``status`` and ``stage``, and an op of the kernel at fault.

    ``most``: ops that may be left after reduce.
    """

    name: str
    victim: str
    status: str
    stage: str
    op: str
    most: int = 1


FAULTS = (
    Planted("lowering_maximum", "chosen", "wrong", "lowering", "aten.maximum.default"),
    Planted("lowering_raises", "softmax", "error", "lowering", "aten.amax.default"),
    Planted("inline_coordinates", "turned", "wrong", "inline", "aten.add.Tensor", 3),
    Planted("fold_quotients", "scaled", "wrong", "fold", "aten.div.Tensor"),
    Planted("schedule_tails", "columns", "wrong", "schedule", "aten.cos.default", 2),
    Planted("schedule_raises", "long_rows", "error", "schedule", "aten.sum.dim_IntList", 2),
    Planted("emission_lanes", "softmax", "wrong", "code", "aten.amax.default", 2),
    Planted("emission_address", "looked_up", "crash", "code", "aten.embedding.default", 2),
    Planted("runtime_linker", "chosen", "wrong", "linker", "aten.mul.Tensor", 2),
    Planted("runtime_placed", "padded", "wrong", "host program", "aten.mm.default", 2),
)


def said(*arguments: str) -> tuple[int, str]:
    """(exit status of ``lowc ARGUMENTS``, all that it printed)."""
    from lowc.cli import main

    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        status = main(arguments)
    return status, out.getvalue()


def looked_for(planted: Planted, folder: Path) -> dict[str, Any]:
    place, plant = f"{HERE / 'victims.py'}:{planted.victim}", str(HERE / "planted" / f"{planted.name}.py")
    small, files = folder / f"{planted.name}.py", folder / planted.name
    common = (place, "--import", plant, "--seconds", "60")
    return {
        "name": planted.name,
        "bisect": in_child("bisect", *common, "--files", str(files)),
        "reduce": in_child("reduce", *common, "-o", str(small), "--budget", "60"),
        "files": sorted(p.name for p in files.glob("*")),
        "script": small.read_text() if small.exists() else "",
    }


def in_child(*arguments: str) -> tuple[int, str]:
    """``said``, in a child, which a fault is planted in once."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(2)
            content = said(*arguments)
        except BaseException:
            content = 3, traceback.format_exc()
        with os.fdopen(write, "w") as file:
            file.write(json.dumps(content))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.waitpid(pid, 0)
    status, printed = json.loads(text)
    return status, printed


def main() -> None:
    import lowc.cli.bisect
    import lowc.cli.reduce
    import lowc.faults.smaller
    import lowc.faults.stages  # noqa: F401

    torch.set_num_threads(1)
    names = sys.argv[1:] or [p.name for p in FAULTS]
    with tempfile.TemporaryDirectory() as folder:
        for planted in FAULTS:
            if planted.name in names:
                print(json.dumps(looked_for(planted, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
