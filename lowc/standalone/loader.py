"""``load("model.lowc")``: an artifact as a function on arrays, in a process with numpy and nothing else (cuda.bindings on a GPU).

    file ─ container (checksums) ─ manifest ─ weights ─┬─ code for this processor ─ linker ─ Model
                                                       └─ code for a GPU ─ driver ─ GpuModel
"""

import ctypes
import json
import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from lowc.errors import LowcError
from lowc.runtime.linker import Library
from lowc.standalone import cpu, gpu_choice, threads, weights
from lowc.standalone.call import Model
from lowc.standalone.container import Container
from lowc.standalone.dtypes import numpy_dtype
from lowc.standalone.files import read_file
from lowc.standalone.function import Function
from lowc.standalone.manifest import (
    ABI,
    CHECK_BYTES,
    FORMATS,
    READING,
    Code,
    Manifest,
    Tensor,
    from_json,
    interface,
)

if TYPE_CHECKING:
    from lowc.standalone.gpu_device import GpuDevice

_RUN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_AGAIN = "copy or compile it again"


def load(path: str | os.PathLike[str], *, level: str | None = None, device: Any = "cpu") -> Function:
    """The function in the artifact ``path``, ready to be called: a ``Model``, or a ``GpuModel`` on a GPU.

    ``level``: which of its codes to take, as "x86-64-v3" or "sm_90"; the best that this processor, or the GPU, runs if None.
    ``device``: "cpu", or a GPU as "cuda:0".  The whole file is read and checked first.  Raises ArtifactError for a file that is
    no artifact, damaged or of another version; LowcError if its weights are missing, this processor or GPU cannot run it, or
    there is no driver.
    """
    file = os.path.abspath(os.fsdecode(path))
    return load_content(read_file(path), os.fsdecode(path), level=level, device=device, file=file)


def reloaded(file: str, level: str | None, digest: str, device: str = "cpu") -> Function:
    """What a pickled Function is: ``load(file, level=level, device=device)``, if that is still the file it came from.

    ``digest``: of its Container.  Raises LowcError if the file is gone, or another one; else what ``load`` raises."""
    if not os.path.exists(file):
        raise LowcError(
            f"a pickled model has the path of its artifact, and there is no {file}",
            hint="put the artifact there again, or pickle what lowc.load gives for where it is now",
        )
    content = read_file(file)
    if Container(content, file).digest != digest:
        raise LowcError(
            f"{file} is not the artifact that the model was loaded from before it was pickled: it has been changed",
            hint="lowc.load loads the new one, which can be pickled as well",
        )
    return load_content(content, file, level=level, device=device, file=file)


def load_content(
    content: memoryview,
    path: str,
    *,
    level: str | None = None,
    device: Any = "cpu",
    file: str = "",
    on: "GpuDevice | None" = None,
) -> Function:
    """``load`` for the content of a file; ``path``: where the weights lie beside it, and what messages call it.  ``file``: where
    another process finds it; "" if nowhere.  ``on``: the GPU, if it is known."""
    index = gpu_choice.index_of(device)
    container = Container(content, path)
    container.check()
    manifest = read_manifest(container)
    constants = _constants(container, manifest)
    codes = manifest.code if level is None else tuple(c for c in manifest.code if c.level == level)
    if level is not None and not codes:
        levels = ", ".join(c.level for c in manifest.code)
        raise LowcError(f"{path} has no code for {level}", hint=f"it has {levels}")
    again = (reloaded, (file, level, container.digest, "cpu" if index is None else f"cuda:{index}")) if file else None
    if on is not None or index is not None:
        return _on_gpu(container, manifest, codes, constants, again, on or _device(index or 0))
    code = cpu.best(codes)
    symbols = [code.symbol] + ([] if code.once is None else [code.once.symbol])
    library = Library(bytes(container.section(code.section)), tuple(symbols), threads.functions(container.section))
    run, *once = [_RUN(library.address(symbol)) for symbol in symbols]
    return Model(manifest, code, constants, run, (library,), again, *once)


def _device(index: int) -> "GpuDevice":
    from lowc.standalone.gpu_device import device

    return device(index)


def _on_gpu(
    container: Container, manifest: Manifest, codes: Sequence[Code], constants: Sequence[np.ndarray], again: Any, on: "GpuDevice"
) -> Function:
    from lowc.standalone.gpu import GpuModel
    from lowc.standalone.launcher import loaded

    code = gpu_choice.best(codes, on.name, on.capability, on.version)
    gpu = gpu_choice.gpu_of(code)
    cubin = container.section(gpu.cubin) if gpu.cubin and gpu.capability == on.capability else b""
    with on.driver.inside(on.context):
        functions = loaded(on.driver, bytes(container.section(code.section)[:-CHECK_BYTES]), bytes(cubin), gpu)
    return GpuModel(manifest, code, constants, functions, on, again)


def read_manifest(container: Container) -> Manifest:
    """The manifest in ``container``.  Raises ArtifactError if there is none that this lowc understands."""
    try:
        data = json.loads(bytes(container.section("manifest")))
        if data["abi"] != ABI:
            raise container.error(
                f"its code expects calls of version {data['abi']}, this lowc makes those of version {ABI}", "compile it again"
            )
        manifest = from_json(data)
    except READING as error:
        raise container.error(f"its manifest cannot be read ({type(error).__name__}: {error})", _AGAIN) from error
    for code in manifest.code:
        if code.format in FORMATS and container.section(code.section)[-CHECK_BYTES:] != interface(manifest, code):
            raise container.error(f"its code for {code.level} was compiled for other sizes than its manifest says", _AGAIN)
    return manifest


def weights_content(container: Container, manifest: Manifest) -> memoryview:
    """The safetensors file of the weights, in ``container`` or beside it.  Raises LowcError if it is missing or damaged."""
    row = manifest.weights_file
    if row is None:
        return container.section("weights")
    folder = os.path.dirname(os.path.abspath(container.path))
    path = os.path.join(folder, row["name"])
    if not os.path.exists(path):
        raise LowcError(
            f"the weights of the artifact are missing: there is no {path}",
            hint=f"put {row['name']} into the folder of the artifact",
        )
    content = read_file(path)
    if len(content) != row["size"] or sha256(content).hexdigest() != row["sha256"]:
        raise weights.refused(path, "they are not those that the artifact was made with, or damaged")
    return content


def _constants(container: Container, manifest: Manifest) -> list[np.ndarray]:
    """The weights in the order of the manifest, each as it should be."""
    path = container.path if manifest.weights_file is None else manifest.weights_file["name"]
    try:
        found = weights.read(weights_content(container, manifest)) if manifest.weights else {}
    except ValueError as error:
        raise weights.refused(path, str(error)) from error
    return [_constant(found, tensor, path) for tensor in manifest.weights]


def _constant(found: Mapping[str, Any], tensor: Tensor, path: str) -> np.ndarray:
    if tensor.key not in found:
        raise weights.refused(path, f"there is no {tensor.key}")
    dtype, shape, array = found[tensor.key]
    if dtype != tensor.dtype or shape != tensor.shape:
        raise weights.refused(path, f"{tensor.key} is {dtype}{list(shape)}, not {tensor.dtype}{list(tensor.shape)}")
    return np.require(array, numpy_dtype(dtype), ("C", "A"))

