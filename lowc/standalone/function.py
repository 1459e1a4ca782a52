"""What a loaded artifact is wherever it runs: a function whose arguments are checked against the manifest."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from lowc.errors import LowcError
from lowc.standalone.arrays import random_seed
from lowc.standalone.dtypes import fits, shown
from lowc.standalone.manifest import ITSELF, Code, Manifest, Tensor
from lowc.standalone.trees import size_text, value, values


class Given(Protocol):
    """What is asked of an argument: of numpy's arrays, and of those in a GPU's memory.  ``strides`` in bytes.  One that is an
    integer is in the host's memory."""

    @property
    def dtype(self) -> Any: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def strides(self) -> tuple[int, ...]: ...

    def __int__(self) -> int: ...


class Function:
    """A loaded artifact.  ``level``: which of its codes runs.  ``inputs`` and ``outputs`` say what a call takes and returns.

    Calls may be made from several threads at once.  A pickle of it, for another process, is the path of its file and a
    checksum; unpickling loads the file, and raises LowcError if it is gone or another.
    """

    def __init__(self, manifest: Manifest, code: Code, again: "tuple[Callable[..., Function], tuple[Any, ...]] | None") -> None:
        """``again``: a function and its arguments that give this one in another process, if there is one."""
        self.manifest, self.code, self.level = manifest, code, code.level
        self.name = manifest.name
        self.inputs, self.outputs = manifest.inputs, manifest.outputs
        self._again = again

    def __repr__(self) -> str:
        integers = {t.name for t in self.inputs if t.value is not None or t.drawn}
        shapes = {t.name: f"{t.dtype}[{', '.join(map(size_text, t.shape))}]" for t in self.inputs}
        inputs = ", ".join(f"{name}: {'int' if name in integers else shape}" for name, shape in shapes.items())
        return f"<lowc model {self.name}({inputs}), {self.level}>"

    def __reduce__(self) -> "tuple[Callable[..., Function], tuple[Any, ...]]":
        """Raises TypeError for a model that is in no file."""
        if self._again is None:
            raise TypeError(
                f"the model {self.name} is in no file, by whose path it could be pickled: save the package, and pickle what "
                "lowc.load gives for that file"
            )
        return self._again

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The results for ``args``, in order or by name, as the model returned them.  See ``Model`` and ``GpuModel`` for what
        arguments and results are, and what is raised."""
        return spread(self._results(self._ordered(args, named)), self.manifest.returns)

    def named(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name for inputs by name.  Raises as a call does."""
        results = self._results(self._ordered((), arrays))
        return {output.name: result for output, result in zip(self.outputs, results, strict=True)}

    def _results(self, given: Sequence[Any]) -> list[Any]:
        """The outputs in order for the arguments in order."""
        raise NotImplementedError

    def _ordered(self, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        names = [t.name for t in self.inputs]
        unknown = [name for name in named if name not in names]
        twice = [name for name in names[: len(args)] if name in named]
        drawn = {t.name: random_seed() for t in self.inputs[len(args) :] if t.drawn and t.name not in named}
        missing = [name for name in names[len(args) :] if name not in named and name not in drawn]
        if unknown or twice or missing or len(args) > len(names):
            wrong = [f"no {', '.join(missing)}"] if missing else []
            wrong += [f"{', '.join(unknown)} is unknown"] if unknown else []
            wrong += [f"{', '.join(twice)} is given twice"] if twice else []
            wrong += [f"{len(args)} arguments are too many"] if len(args) > len(names) else []
            raise LowcError(f"{self.name} takes {', '.join(names) or 'no arguments'}: " + "; ".join(wrong))
        return [*args, *(named[name] if name in named else drawn[name] for name in names[len(args) :])]

    def _sizes(self, arrays: Sequence[Given]) -> dict[str, int]:
        """The sizes that ``arrays`` tell, after a check of all that they must be."""
        for array, tensor in zip(arrays, self.inputs, strict=True):
            if not fits(array.dtype, tensor.dtype):
                self._refuse(tensor, f"has dtype {array.dtype}, not {shown(tensor.dtype)}", "convert it with .astype")
            if len(array.shape) != len(tensor.shape):
                self._refuse(tensor, f"has {len(array.shape)} dimensions, not {len(tensor.shape)}", "")
            if isinstance(array, np.ndarray) and not array.flags.aligned:
                self._refuse(tensor, "is not aligned in memory", "copy it")
        sizes: dict[str, int] = {}
        for symbol in self.manifest.symbols:
            number, dim, factor, added = symbol.source
            extent = int(arrays[number]) if dim == ITSELF else arrays[number].shape[dim]
            size, rest = divmod(extent - added, factor)
            if rest or size < symbol.low or (symbol.high is not None and size > symbol.high):
                allowed = f"{factor * symbol.low + added} to "
                allowed += "any" if symbol.high is None else str(factor * symbol.high + added)
                allowed += f" in steps of {factor}" if factor != 1 else ""
                what = f"is {extent}" if dim == ITSELF else f"has size {extent} in dimension {dim}"
                self._refuse(self.inputs[number], f"{what}; it takes {allowed}", "")
            sizes[symbol.name] = size
        for array, tensor in zip(arrays, self.inputs, strict=True):
            if tensor.value is not None and int(array) != value(tensor.value, sizes):
                self._refuse(tensor, f"is {int(array)}, not {value(tensor.value, sizes)}", "")
            wanted = values(tensor.shape, sizes)
            if array.shape != wanted:
                self._refuse(tensor, f"has shape {array.shape}, not {wanted}", "")
            size = array.dtype.itemsize
            strides = tuple([n * size for n in values(tensor.strides, sizes)])
            if 0 not in wanted and any(n > 1 and s != a for n, s, a in zip(wanted, strides, array.strides)):
                what = f"has strides {array.strides} in bytes, not {strides}"
                self._refuse(tensor, what, "copy it, with numpy.ascontiguousarray say")
        for condition, shown_ in self.manifest.conditions:
            if not value(condition, sizes):
                pairs = zip(self.inputs, arrays, strict=True)
                found = ", ".join(f"{t.name}{list(a.shape)}" if t.value is None else f"{t.name} {int(a)}" for t, a in pairs)
                raise LowcError(
                    f"{self.name} is for inputs with {shown_} only, not for {found}", hint="export it for such sizes"
                )
        return sizes

    def _refuse(self, tensor: Tensor, what: str, hint: str) -> None:
        raise LowcError(f"{self.name}: input {tensor.name} {what}", hint=hint)


def spread(results: Sequence[Any], structure: Any) -> Any:
    """``results`` in the structure ``Manifest.returns``."""
    if structure is None or isinstance(structure, int):
        return None if structure is None else results[structure]
    kind, inner = structure
    if kind == "dict":
        return {name: spread(results, part) for name, part in inner.items()}
    made = [spread(results, part) for part in inner]
    return tuple(made) if kind == "tuple" else made
