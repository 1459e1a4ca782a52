"""The pass table and the runner, which is the only caller of passes.

To add a pass: write ``lowc/scheduler/NAME.py`` with ``run(module, target, options) -> module`` and add a row; add pairs to
``ORDER`` for what it needs to come after or before, with the reason.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from lowc.errors import LowcError, OptionError
from lowc.ir.nodes import Launch, Module
from lowc.ir.printer import print_kernel, print_module
from lowc.ir.verify import verify_module
from lowc.ir.verify_gpu import verify_threads
from lowc.options import Options
from lowc.scheduler import (
    attach,
    fold,
    forward,
    fuse,
    hoist,
    im2col,
    inline,
    legalise,
    linearise,
    localise,
    memory,
    once,
    recompute,
    relax,
    schedule,
    share,
    split,
    uniform,
)
from lowc.target import Target


@dataclass(frozen=True, slots=True)
class Pass:
    """``takes`` and ``gives`` are levels; a pass that is not ``required`` can be switched off (``LOWC_OFF``).

    ``only``: the kind of target that it is for.
    """

    name: str
    run: Callable[[Module, Target, Options], Module]
    takes: str
    gives: str
    required: bool
    why: str
    only: str = ""


PASSES: tuple[Pass, ...] = (
    Pass("attach", attach.run, "LOOPS", "LOOPS", True, "kernels from text have params of their own"),
    Pass("inline", inline.run, "LOOPS", "LOOPS", False, "a map computed where it is used needs no memory"),
    Pass("fuse", fuse.run, "LOOPS", "LOOPS", False, "kernels over common loops read shared data once"),
    Pass("forward", forward.run, "LOOPS", "LOOPS", False, "fusing leaves loads of what was just stored, and stores nobody reads"),
    Pass("recompute", recompute.run, "LOOPS", "LOOPS", False, "cheap or seldom-read values need no memory"),
    Pass("fold", fold.run, "LOOPS", "LOOPS", False, "fewer names to carry, and a program that reads well"),
    Pass("share", share.run, "LOOPS", "LOOPS", False, "a costly value that two loops use is kept in cache"),
    Pass("localise", localise.run, "LOOPS", "LOOPS", False, "a row that one iteration makes and uses stays in cache"),
    Pass("linearise", linearise.run, "LOOPS", "SCHEDULED", True, "with addresses as numbers, strides can be seen"),
    Pass("im2col", im2col.run, "SCHEDULED", "SCHEDULED", False, "what multiplies matrices convolves as well", "nvptx"),
    Pass("split", split.run, "SCHEDULED", "SCHEDULED", True, "blocks cannot wait for one another", "nvptx"),
    Pass("schedule", schedule.run, "SCHEDULED", "SCHEDULED", False, "loops bound to cores and lanes, reductions in blocks"),
    Pass("uniform", uniform.run, "SCHEDULED", "SCHEDULED", False, "a mask that lanes share is one branch", "nvptx"),
    Pass("relax", relax.run, "SCHEDULED", "SCHEDULED", False, "what is rounded at once need not be exact before", "nvptx"),
    Pass("once", once.run, "SCHEDULED", "SCHEDULED", False, "what is made of weights alone need not be made in each call", "x86"),
    Pass("hoist", hoist.run, "SCHEDULED", "SCHEDULED", False, "inlining repeats work that does not change in a loop"),
    Pass("memory", memory.run, "SCHEDULED", "BUFFERED", True, "temps share one workspace, equal kernels are compiled once"),
    Pass("legalise", legalise.run, "BUFFERED", "MACHINE", True, "only ops and types that the target has"),
)

ORDER: tuple[tuple[str, str, str], ...] = (
    ("attach", "inline", "a load is matched with the kernel that stores its buffer"),
    ("inline", "fuse", "fusing first would tie a map to one consumer's loops, though it could vanish"),
    ("fuse", "forward", "stores and loads meet in one iteration only once kernels are fused"),
    ("forward", "localise", "what is forwarded needs no scratch memory"),
    ("forward", "recompute", "what is forwarded is no longer loaded, and need not be computed twice"),
    ("recompute", "localise", "what is recomputed needs no scratch memory"),
    ("fold", "share", "folded expressions can be compared"),
    ("forward", "fold", "forwarding names every stored value; most names are then used once"),
    ("localise", "linearise", "dimensions must still be visible to tell which belong to the outer loops"),
    ("linearise", "split", "loops that walk as one are one: long reductions go in even chunks"),
    ("linearise", "im2col", "loops over places that walk as one are one"),
    ("im2col", "split", "a product of few tiles is divided among blocks"),
    ("split", "schedule", "what is a launch must be known before its axes are bound to a grid"),
    ("linearise", "schedule", "strides decide the order and the lanes"),
    ("schedule", "uniform", "lanes are there only once axes are bound"),
    ("uniform", "hoist", "a mask that lanes share can leave their loop"),
    ("schedule", "relax", "values kept in registers are seen with all that uses them"),
    ("relax", "hoist", "names that hoisting gives would hide what is added to what"),
    ("schedule", "once", "what schedules copy for later use is there to be seen"),
    ("once", "hoist", "names in front of loops would tie what is constant to what is not"),
    ("once", "memory", "what is kept has no place in the workspace"),
    ("schedule", "hoist", "splitting makes loops that invariants can leave"),
    ("hoist", "legalise", "expanded maths is many statements to move instead of one"),
    ("memory", "legalise", "equal kernels are then legalised once"),
)


APPROXIMATING = frozenset({"ex2", "avx512bf16", "amx-bf16"})
"""Abilities of targets that strict numerics do without."""


class Trace(Protocol):
    """What the runner tells a trace: the time of each pass and the program after it."""

    def phase(self, name: str) -> AbstractContextManager[object]: ...

    def dump(self, name: str, text: Callable[[], str]) -> None: ...


def run(module: Module, target: Target, options: Options, trace: Trace | None = None) -> Module:
    """``module`` @LOOPS through every pass to @MACHINE.

    Raises OptionError if ``options.off`` names no pass that can be switched off; with ``options.check`` verifies after each pass
    (VerifyError names it).
    """
    off = switched_off(options)
    for each in PASSES:
        if each.name not in off and each.only in ("", target.kind):
            module = apply(each, module, target, options, trace)
    return module


def switched_off(options: Options) -> set[str]:
    """The passes that ``options.off`` names.  Raises OptionError if one is no pass, or is required."""
    off = {name for name in options.off.split(",") if name}
    optional = [p.name for p in PASSES if not p.required]
    if unknown := off - set(optional):
        raise OptionError(f"cannot switch off {', '.join(sorted(unknown))}", hint="passes are " + ", ".join(optional))
    return off


def apply(each: Pass, module: Module, target: Target, options: Options, trace: Trace | None = None) -> Module:
    """One pass; a failure says which."""
    if options.numerics == "strict":
        target = replace(target, ops=target.ops - APPROXIMATING)
    with trace.phase(each.name) if trace else nullcontext():
        try:
            module = each.run(module, target, options)
            if options.check:
                verify_module(module, each.gives)
                if target.kind == "nvptx" and each.gives == "MACHINE":
                    verify_threads(module)
        except LowcError as error:
            error.message = f"{error.message}\n  in pass {each.name}"
            raise
    if trace:
        trace.dump(each.name, lambda: listing(module, options))
    return module


def listing(module: Module, options: Options) -> str:
    """``module`` as dumps show it: whole, or with ``options.only`` the kernels alone whose name has that in it."""
    if not options.only:
        return print_module(module)
    kernels = {id(s.kernel): s.kernel for s in module.steps if isinstance(s, Launch)}
    return "\n".join(print_kernel(k) for k in kernels.values() if options.only in k.name)
