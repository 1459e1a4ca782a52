"""From an artifact to a callable: the host program's text, run once, with its free names bound to functions
of this process.

``bind(artifact, natives, constants)`` gives a ``Program``; calling its ``call`` with a list of inputs empties
the list and returns the list of outputs.  ``natives`` maps the names of native functions to callables that
take a pointer to slots (``bytes`` or a ctypes array) and return the error code of ``artifact.Native``.
"""

import ctypes
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import _profiler_enabled

from lowc.errors import LowcError
from lowc.host import TORCH_NAMES, Host
from lowc.runtime import arena, tensors

if TYPE_CHECKING:
    from lowc.artifact import Artifact

NativeCall = Callable[[Any], int]
Call = Callable[[list[Any]], list[Any]]
Made = Callable[[], "Artifact"]
Around = Callable[[Callable[..., Any]], Callable[..., Any]]


class Program:
    """One compiled graph: what it runs, the host program's text, and the function to call (which has the Program as its
    attribute ``program``, and ``_boxed_call``, by which torch knows that it empties its argument).  ``made``: what it
    runs, which a program from the cache reads only when somebody asks.  ``code``: ``host.source`` compiled. ``gpu``: on
    a GPU, ``cuda.program.Gpu``.
    """

    __slots__ = ("call", "code", "gpu", "host", "made")

    def __init__(self, made: Made, host: Host, code: CodeType, call: Call, gpu: Any = None) -> None:
        self.made, self.host, self.code, self.call, self.gpu = made, host, code, call, gpu

    @property
    def artifact(self) -> "Artifact":
        return self.made()

    @property
    def source(self) -> str:
        return self.host.source


def function_at(address: int, library: object = None) -> NativeCall:
    """The native function at ``address`` as a callable, which keeps ``library`` loaded.

    A call takes slots (bytes or a ctypes array) and releases the interpreter lock, which costs 0.03 us.
    """
    function = _PROTOTYPE(address)
    function.library = library  # type: ignore[attr-defined]
    return function


def natives_of(library: Any, symbols: Iterable[str]) -> dict[str, NativeCall]:
    """The native functions of a loaded ``library`` (``address`` gives that of a symbol), by their symbols."""
    return {symbol: function_at(library.address(symbol), library) for symbol in symbols}


_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)


def bind(
    artifact: "Artifact",
    natives: Mapping[str, NativeCall],
    constants: Sequence[torch.Tensor] = (),
    *,
    checked: bool = False,
    forward: bool = False,
    pool: arena.Pool | None = None,
    around: Around | None = None,
) -> Program:
    """The program of ``artifact``.  ``constants`` are its last inputs.

    With ``checked``, each call makes sure that its inputs are what the program was made for (0.5 us a
    tensor); without, somebody else must have done so, as Dynamo's guards do: native code believes its
    pointers.  ``forward``: it is the forward pass of a training step, see ``arena``.  ``pool``: where
    workspaces come from.  ``around`` is put around each function that is a step of the program: native code and calls of ATen.
    Raises LowcError if an op is unknown to this torch or a size cannot be found.
    """
    from lowc.runtime.host import render

    host = render(artifact, len(constants), checked=checked)
    return bind_host(
        lambda: artifact, host, natives, constants, checked=checked, forward=forward, pool=pool, around=around
    )


def bind_host(
    made: Made,
    host: Host,
    natives: Mapping[str, NativeCall],
    constants: Sequence[torch.Tensor] = (),
    *,
    code: CodeType | None = None,
    checked: bool = False,
    forward: bool = False,
    pool: arena.Pool | None = None,
    around: Around | None = None,
) -> Program:
    """``bind`` for what has been rendered already.  ``code``: ``host.source`` compiled, if it is at hand."""
    pool = _POOL if pool is None else pool
    names = _cpu_names(made, host, pool) | shared_names(host, natives)
    names.update(zip(host.constants, constants, strict=True))
    if around is not None:
        names.update((name, around(names[name])) for name in (*host.natives, *host.ops, *host.into))
    code = code or compiled_source(host.source)
    call = profiled(made, host, code, names)
    if checked:
        call = _checked(names["check"], call)
    if host.ops or host.into:
        call = without_grad(call)
    if forward:
        call = _shrinking(pool, call)
    return finished(Program(made, host, code, call))


def finished(program: Program) -> Program:
    """``program``, its function marked for torch and pointing back to it."""
    setattr(program.call, "_boxed_call", True)  # noqa: B010
    setattr(program.call, "program", program)  # noqa: B010
    return program


# One pool for all programs of the process: what a call of one leaves is memory for the next.
_POOL = arena.Pool()


def free_workspaces() -> None:
    """Frees the workspaces that are kept for the next call of any program."""
    _POOL.clear()


def _cpu_names(made: Made, host: Host, pool: arena.Pool) -> dict[str, Any]:
    """What the helpers in a host program mean on the CPU."""
    return {
        "count": tensors.count,
        "empty": tensors.empty,
        "expect": tensors.expect,
        "failed": lambda code: failure(made(), code),
        "give": pool.give,
        "new_slots": ctypes.c_int64 * host.slots,
        "pack": struct.Struct(f"{host.slots}q").pack,
        "placed": arena.placed,
        "take": pool.take,
        # torch tells OpenMP how many threads it may use when it is first asked in a thread
        "threads_as_torch": torch.get_num_threads,
    }


def shared_names(host: Host, natives: Mapping[str, Callable[..., int]]) -> dict[str, Any]:
    """What the other free names of a host program mean, on every device."""
    names: dict[str, Any] = {
        "as_strided": torch.as_strided,
        "bumped": tensors.bumped,
        "cast_view": tensors.cast_view,
        "finished": tensors.finished,
        "math": math,
        "restride": tensors.restride,
        "bool_": torch.bool,
    }
    names |= {name: getattr(torch, name) for name in TORCH_NAMES.values() if name != "bool"}
    names |= {name: natives[symbol] for name, symbol in host.natives.items()}
    if host.ops or host.into:
        from lowc.runtime import externs

        names |= {name: externs.resolve(*what) for name, what in host.ops.items()}
        names |= {name: externs.resolve_into(*what) for name, what in host.into.items()}
    for name, value in host.literals.items():
        names[name] = tensors.from_name(value) if isinstance(value, str) else value
    return names


def compiled_source(source: str) -> CodeType:
    """The host program ``source`` as Python's own code."""
    return compile(source, "<lowc host program>", "exec")


def run_code(code: CodeType, names: dict[str, Any]) -> Call:
    """The function ``call`` that a compiled host program defines; ``names`` become its globals."""
    exec(code, names)
    return names["call"]


def profiled(made: Made, host: Host, code: CodeType, names: dict[str, Any]) -> Call:
    """The function of ``code``, whose native calls show up in torch's profiler by the names of their kernels while it is on."""
    call = run_code(code, names)

    def recorded(run: Callable[..., int], title: str) -> Callable[..., int]:
        def native(*given: Any) -> int:
            with torch.profiler.record_function(title):
                return run(*given)

        return native

    second: list[Call] = []

    def watched(args: list[Any]) -> list[Any]:
        if not _profiler_enabled():
            return call(args)
        if not second:
            names_of_kernels = titles(made())
            named = {name: recorded(names[name], names_of_kernels[symbol]) for name, symbol in host.natives.items()}
            second.append(run_code(code, names | named))
        return second[0](args)

    return watched if host.natives else call


def titles(artifact: "Artifact") -> dict[str, str]:
    """For each native function: the kernels that it runs, e.g. "lowc: sum_0, div_0 and 3 more"."""
    from lowc.artifact import Native
    from lowc.ir.nodes import Launch

    found: dict[str, str] = {}
    for step in artifact.program:
        if isinstance(step, Native):
            launches = [artifact.module.steps[i] for i in step.launches]
            kernels = [launch.kernel.name for launch in launches if isinstance(launch, Launch)]
            more = f" and {len(kernels) - 3} more" if len(kernels) > 3 else ""
            found[step.symbol] = "lowc: " + ", ".join(kernels[:3]) + more
    return found


def _checked(check: Callable[[list[Any]], None], call: Call) -> Call:
    def checked(args: list[Any]) -> list[Any]:
        check(args)
        return call(args)

    return checked


def _shrinking(pool: arena.Pool, call: Call) -> Call:
    """``call``, before which large spare workspaces are freed."""

    def shrinking(args: list[Any]) -> list[Any]:
        pool.shrink()
        return call(args)

    return shrinking


def without_grad(call: Call) -> Call:
    """``call`` with autograd off: what it computes is recorded, if at all, by whoever asked for the graph."""

    def guarded(args: list[Any]) -> list[Any]:
        if torch.is_grad_enabled():
            with torch.no_grad():
                return call(args)
        return call(args)

    return guarded


def failure(artifact: "Artifact", code: int) -> Exception:
    """The exception for a native call's error ``code``: eager's type, with the ops at fault and the user's
    line.
    """
    from lowc.ir.nodes import Launch
    from lowc.runtime import failures

    kind, step = code % 16, code // 16
    launch = artifact.module.steps[step] if 0 <= step < len(artifact.module.steps) else None
    origin = "; ".join(launch.origin) if isinstance(launch, Launch) else ""
    return failures.failure(kind, origin) or LowcError(
        f"native code of step {step} failed with code {code}", where=origin
    )
