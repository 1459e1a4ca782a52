"""The first stage of the compiler after which a graph is wrong.

The interpreter says what a module means at every level, so what lowering made, and what each pass made of it, is run and compared
with eager.  Where the module @MACHINE is still right, either the host program around it is wrong (it is, if it is wrong with the
interpreter in place of native code), or the native code.  That is loaded by LLVM's linker as well as by lowc's: where they
disagree, lowc's linker is wrong.
"""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from lowc import compiler
from lowc.artifact import Artifact
from lowc.faults import modules
from lowc.faults.cut import Case
from lowc.faults.judge import Expected, wrong
from lowc.faults.trial import How, Verdict, failed, outcome, strict, watched
from lowc.ir.graph import device_of
from lowc.ir.graph_printer import print_graph
from lowc.ir.nodes import Module
from lowc.ir.printer import print_module
from lowc.options import Options
from lowc.scheduler import pipeline
from lowc.target import Target


class _Late(Exception):
    """The time for a stage is over."""


@dataclass(frozen=True)
class Stage:
    """``name``: lowering, a pass, "host program", "code", "linker", or "" if none was found.  ``launch``: (kernel, its ops) where
    it happened.  ``files``: the program before and after the stage, by the names of files for them."""

    name: str
    verdict: Verdict
    launch: tuple[str, tuple[str, ...]]
    files: Mapping[str, str]


def first_wrong(case: Case, target: Target, how: How) -> Stage:
    """The first stage that is at fault for what is wrong with ``case``.  Raises what torch raises for it."""
    options = strict(how.options)
    wanted = case.expected()
    files = {"graph.txt": print_graph(case.graph)}
    before: Module | None = None
    module: Module | None = None
    for name, make in makers(case, target, options):
        try:
            with _within(how.seconds):
                module = make(before)
                text = print_module(module)
                verdict = _interpreted(case, wanted, module)
        except _Late:
            verdict, text = Verdict("timeout", "", f"longer than {how.seconds:.0f} s"), ""
        except Exception as error:
            verdict, text = failed(error), ""
        files = {k: v for k, v in files.items() if k in ("graph.txt", "before.lowc")} | ({"after.lowc": text} if text else {})
        if verdict.bad:
            where = ("", verdict.origin)
            if module is not None and text and before is not None:
                where = modules.first_apart(case, before, module) or where
            if not where[1] and (known := module if text else before) is not None:
                where = modules.only_launch(known)
            return Stage(name, verdict, where, files)
        before, files = module, {"graph.txt": files["graph.txt"], "before.lowc": text}
    assert module is not None
    machine = {"graph.txt": files["graph.txt"], "machine.lowc": print_module(module)}
    if how.options.isa == "interp" or not device_of(case.graph).startswith("cpu"):
        return Stage("", Verdict("right"), ("", ()), machine)
    return _beyond(case, wanted, module, target, how, machine)


def makers(
    case: Case, target: Target, options: Options
) -> Iterator[tuple[str, Callable[[Module | None], Module]]]:
    """(name of a stage, what makes its module of the one before): lowering, then each pass."""
    yield "lowering", lambda _: compiler.lowered(case.graph, options, target)
    off = pipeline.switched_off(options)
    for row in pipeline.PASSES:
        if row.name not in off and row.only in ("", target.kind):
            yield row.name, lambda module, row=row: pipeline.apply(row, module, target, options)  # type: ignore[arg-type]


def _interpreted(case: Case, wanted: list[Expected], module: Module) -> Verdict:
    inputs = case.copies()
    found = case.found(modules.interpret(module, inputs), inputs)
    detail = wrong([replace(each, strides=None) for each in wanted], found)  # how results lie is up to the host program
    return Verdict("wrong", "", detail) if detail else Verdict("right")


def _beyond(
    case: Case, wanted: list[Expected], module: Module, target: Target, how: How, files: dict[str, str]
) -> Stage:
    """Of a module @MACHINE that is right: the host program, the code, the linker."""
    from lowc.backends import x86

    where = modules.only_launch(module)

    def tried(made: Callable[[], Any]) -> Verdict:
        return watched(lambda: _attempt(case, wanted, made), "cpu", how)

    verdict = tried(lambda: compiler.interpreted(module))
    if verdict.bad:
        return Stage("host program", verdict, where, files | {"host.py": _source(module)})
    options = strict(how.options)
    for extension, show in x86.stages(target, options).items():
        try:
            files = files | {f"code{extension}": show(module)}
        except Exception as error:
            verdict = failed(error)
            return Stage("code", verdict, ("", verdict.origin) if verdict.origin else where, files)

    def native(load: Callable[[Artifact], Mapping[str, Callable[[Any], int]]]) -> Verdict:
        return tried(lambda: _bound(x86.compile_module(module, target, options), load))

    ours = native(compiler.linked)
    if not ours.bad:
        return Stage("", ours, where, files)
    theirs = native(_by_llvm)
    return Stage("code" if theirs.bad else "linker", ours, where, files)


def _attempt(case: Case, wanted: list[Expected], made: Callable[[], Any]) -> Verdict:
    try:
        call = made()
    except Exception as error:
        return failed(error)
    return outcome(case, wanted, call)


def _bound(artifact: Artifact, load: Callable[[Artifact], Mapping[str, Callable[[Any], int]]]) -> Any:
    from lowc.runtime.program import bind

    return bind(artifact, load(artifact) if artifact.code else {}).call


def _by_llvm(artifact: Artifact) -> Mapping[str, Callable[[Any], int]]:
    from lowc.artifact import Native
    from lowc.backends import x86
    from lowc.runtime import openmp
    from lowc.runtime.program import natives_of

    symbols = [step.symbol for step in artifact.program if isinstance(step, Native)]
    return natives_of(x86.load(artifact, openmp.functions()), symbols)


def _source(module: Module) -> str:
    from lowc.runtime import interpreted
    from lowc.runtime.host import render

    try:
        return render(interpreted.artifact(module), 0).source
    except Exception as error:
        return f"# {type(error).__name__}: {error}\n"


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raises _Late in what runs inside, if it is Python and takes longer (in the main thread only)."""

    def late(*_: Any) -> None:
        raise _Late

    try:
        before = signal.signal(signal.SIGALRM, late)
    except ValueError:  # another thread: no limit
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
