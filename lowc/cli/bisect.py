"""``lowc bisect FILE.py:FN``: the kernel, and the stage of the compiler, at which results leave eager's."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowc.cli import arguments
from lowc.cli.load import load, load_module
from lowc.errors import LowcError

if TYPE_CHECKING:
    from lowc.faults.bisect import Finding
    from lowc.faults.captured import Captured
    from lowc.faults.trial import How

WHAT = {
    "lowering": "lowering: the loop nest made of an op is wrong",
    "host program": "the host program (lowc/runtime): loops and code are right, what is around their calls is not",
    "code": "the backend: the module @MACHINE is right, the code made of it is not",
    "linker": "lowc's linker: the same object file is right when LLVM's linker loads it",
    "": "no stage alone: compiled as a whole it fails, stage by stage it does not",
}


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "bisect",
        help="find the kernel and the stage at fault for a wrong result, an error or a crash",
        description="Compares a compiled function with eager, graph by graph; of the first that fails finds the first kernel "
        "that fails given right inputs, and the first stage (lowering, each pass, host program, code, linker) after which it "
        "does.  Exit status: 0 if all is right, 1 if something was found.",
    )
    add_arguments(parser, short=True)
    parser.add_argument("--files", type=Path, metavar="DIR", help="write the program before and after the stage there")
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser, short: bool) -> None:
    arguments.add_function(parser, short)
    parser.add_argument("--import", dest="imports", action="append", default=[], metavar="FILE.py", help="run this file first")
    parser.add_argument("--seconds", type=float, default=120.0, help="what one trial may take (default: %(default)s)")


def run(chosen: argparse.Namespace) -> int:
    from lowc.faults.bisect import find

    seen, how, target = prepared(chosen)
    if not seen.cases:
        raise LowcError(f"{chosen.place} gives no graph that lowc compiles", hint="lowc explain says why")
    for reason in seen.unsupported:
        print(f"a graph is left to torch: {reason}")
    for case in seen.cases:
        found = find(case, target, how)
        ops = len(case.graph.nodes)
        if found is None:
            print(f"graph {case.graph.name}, {ops} ops: right")
            continue
        _show(found, ops)
        if chosen.files:
            _write(found, chosen.files)
        return 1
    if seen.astray:
        print(f"the graphs are compiled rightly, but are not the function: {seen.astray}")
        print("at fault: what traced it and took it apart (Dynamo, AOTAutograd, lowc/frontend)")
        return 1
    return 0


def prepared(chosen: argparse.Namespace) -> "tuple[Captured, How, Any]":
    """What is to be tried, how, and for which Target."""
    from lowc.cli.compilation import target_for
    from lowc.faults.captured import captured
    from lowc.faults.trial import How, single_threaded

    threads = single_threaded()
    for file in chosen.imports:
        load_module(Path(file))
    fn, inputs = load(chosen.place)
    if chosen.target:
        raise LowcError("--target compiles for a GPU that need not be there; results must be", hint="put the inputs on the GPU")
    options = arguments.options(chosen)
    seen = captured(fn, inputs, dynamic=chosen.dynamic or None, backward=not chosen.inference)
    return seen, How(options, threads, chosen.seconds), target_for(options, None)


def _show(found: "Finding", ops: int) -> None:
    print(f"graph {found.graph}, {ops} ops: {found.verdict}")
    print(f"kernel: {found.kernel or 'unknown'}")
    for op in found.ops:
        print(f"  {op}")
    print(f"at fault: {WHAT.get(found.stage, 'pass ' + found.stage)}")
    print(f"  {found.detail}")
    if found.helps:
        print(f"right with: {', '.join(found.helps)}")


def _write(found: "Finding", folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in found.files.items():
            (folder / name).write_text(text)
    except OSError as error:
        raise LowcError(f"cannot write to {folder}: {error.strerror}") from error
    print(f"files: {', '.join(str(folder / name) for name in found.files)}")
