"""An artifact as a shared library with a C interface: its object files linked, its weights behind them."""

import os
import re
from collections.abc import Mapping

from lowc.errors import LowcError, OptionError
from lowc.standalone import header, loader, shared, threads
from lowc.standalone.container import Container
from lowc.standalone.files import read_file, write_together

ENTRY = "entry.o"
FUNCTIONS = ("run", "sizes", "workspace", "message")
WEIGHTS = "lowc.weights"
OWN = "lowc"
"""The prefix that functions have in the artifact."""


def write_library(
    model: str | os.PathLike[str], library: str | os.PathLike[str], *, prefix: str = OWN, header_path: str = ""
) -> int:
    """Writes the artifact ``model`` as the shared library ``library``, and the header for it; bytes of the library.

    ``prefix``: of its functions, so that a program can use several.  Raises what ``load`` does, and LowcError for files that
    cannot be written.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", prefix, re.ASCII):
        raise OptionError(f"{prefix!r} cannot begin the names of C functions", hint="letters, digits and _")
    path = os.fspath(model)
    container = Container(read_file(path), path)
    container.check()
    manifest = loader.read_manifest(container)
    weights = loader.weights_content(container, manifest)
    codes = [code for code in manifest.code if code.format == "elf"]
    if not codes or ENTRY not in container.sections:
        what = f"{path} has no code for a CPU, and that for GPUs is for Python alone" if manifest.code else f"{path} has no code"
        raise LowcError(what, hint="lowc compile --target x86-64 adds it")
    inputs = [shared.Input(_section(container, ENTRY), {f"{OWN}_{name}": f"{prefix}_{name}" for name in FUNCTIONS})]
    for number, code in enumerate(codes):
        names = {code.symbol: f"run.{number}"}
        if code.once is not None:
            names[code.once.symbol] = f"once.{number}"
        inputs.append(shared.Input(_section(container, code.section), names))
    inputs.append(shared.Input(_section(container, threads.POOL), _NONE))
    exports = [f"{prefix}_{name}" for name in FUNCTIONS]
    parts = shared.link(inputs, exports, os.path.basename(os.fspath(library)), [weights] if len(weights) else (), WEIGHTS)
    described = [(header_path, (header.text(manifest, prefix).encode(),), 0o666)] if header_path else []
    return write_together((library, parts, 0o777), *described)[0]


_NONE: Mapping[str, str] = {}


def _section(container: Container, name: str) -> bytes:
    return bytes(container.section(name))
