"""``lowc run``: an artifact on arrays of a file.  Needs numpy alone."""

import argparse
import io
import time
import zipfile
from typing import Any

from lowc.errors import LowcError


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run an artifact of lowc compile",
        description="Runs an artifact on the arrays of an .npz file; needs numpy alone, and cuda-bindings on a GPU.",
    )
    parser.add_argument("model", metavar="MODEL.lowc")
    parser.add_argument("-i", "--inputs", metavar="IN.npz", required=True, help="an array for each input, by name")
    parser.add_argument("-o", "--outputs", metavar="OUT.npz", required=True, help="is given an array for each output, by name")
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="cpu (the default), or a GPU as cuda:0")
    parser.add_argument("--level", default=None, metavar="LEVEL", help="which code to run; default: the best for the device")
    parser.add_argument("--time", type=int, default=0, metavar="N", help="call it N more times and print the median")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Raises LowcError for files that cannot be read or written, and for inputs that do not fit."""
    from lowc.standalone.files import write_whole
    from lowc.standalone.loader import load

    model = load(chosen.model, level=chosen.level, device=chosen.device)
    arrays = read(chosen.inputs)
    import numpy as np

    results = model.named(arrays)
    content = io.BytesIO()
    np.savez(content, **{name: np.asarray(result) for name, result in results.items()})  # type: ignore[arg-type]
    write_whole(chosen.outputs, (content.getvalue(),))
    if chosen.time > 0:
        times: list[float] = []
        for _ in range(chosen.time):
            begin = time.perf_counter()
            model.named(arrays)
            times.append(time.perf_counter() - begin)
        print(f"{sorted(times)[len(times) // 2] * 1e6:.1f} us")
    return 0


def read(path: str) -> dict[str, Any]:
    """The arrays of an .npz file by name; nothing in it is unpickled.  Raises LowcError if it is none."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            if not hasattr(file, "files"):
                raise ValueError("it is one array, not an archive of named ones")
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        why = getattr(error, "strerror", None) or error
        raise LowcError(f"{path} cannot be read: {why}", hint="numpy.savez(path, name=array, ...) writes such a file") from error
