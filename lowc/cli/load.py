"""``FILE.py:FN``: a function or module of the user's, and the inputs to call it with.

``FN`` is a function, an object that can be called (an ``nn.Module``), or a class or function without parameters that makes one.
Inputs are what ``FN_inputs()``, or else ``inputs()``, returns: a tuple of arguments, or one argument.  ``FN_calls()``, if there
is one, returns a list of such inputs for further calls.
"""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from lowc.errors import LowcError


def load(place: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What ``place`` names, and its inputs.

    Raises LowcError if the file, the name or the inputs are not there, or making them raises.
    """
    fn, calls = load_calls(place)
    return fn, calls[0]


def load_calls(place: str) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    """What ``place`` names, and the inputs of each call; raises LowcError as ``load`` does."""
    file, _, name = place.rpartition(":")
    if not file or not name.isidentifier():
        raise LowcError(
            f"{place!r} is not of the form FILE.py:FN", hint="e.g. lowc dump examples/softmax.py:softmax"
        )
    module = load_module(Path(file))
    if not callable(found := getattr(module, name, None)):
        names = [
            n
            for n, v in vars(module).items()
            if callable(v) and getattr(v, "__module__", "") == module.__name__
        ]
        raise LowcError(
            f"{file} has nothing to call by the name {name!r}", hint="it has " + (", ".join(names) or "none")
        )
    make = getattr(module, f"{name}_inputs", None) or getattr(module, "inputs", None)
    if make is None:
        raise LowcError(
            f"{file} does not say what to call {name} with", hint=f"add {name}_inputs(), returning a tuple"
        )
    try:
        more = getattr(module, f"{name}_calls", list)
        calls = [given if isinstance(given, tuple) else (given,) for given in (make(), *more())]
        return _made(found, calls[0]), calls
    except Exception as error:
        raise LowcError(f"{place} or its inputs cannot be made: {type(error).__name__}: {error}") from error


def declared(place: str, what: str) -> Any:
    """What ``FN_WHAT()``, or else ``WHAT()``, of the file of ``place``, which has been loaded, returns; None if there is none."""
    file, _, name = place.rpartition(":")
    module = sys.modules[_name(Path(file))]
    make = getattr(module, f"{name}_{what}", None) or getattr(module, what, None)
    return None if make is None else make()


def _name(path: Path) -> str:
    return f"_lowc_cli_{path.stem}"  # not the stem: a random.py of the user's must not replace Python's


def load_module(path: Path) -> ModuleType:
    """The Python file at ``path``, imported under a name of its own.  Raises LowcError if it is not there, or raises."""
    if not path.is_file():
        raise LowcError(f"there is no file {path}")
    name = _name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LowcError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise LowcError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _made(found: Any, inputs: tuple[Any, ...]) -> Callable[..., Any]:
    """``found`` itself, or what it makes if it is a factory: a class, or a function that does not take the inputs."""
    makes = inspect.isclass(found) or (inspect.isfunction(found) and inputs and not inspect.signature(found).parameters)
    made: Any = found() if makes else found
    return made
