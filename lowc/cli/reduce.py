"""``lowc reduce FILE.py:FN -o SMALL.py``: a smaller graph that fails in the same way, as a Python file of its own."""

import argparse
from pathlib import Path
from typing import Any

from lowc.cli.bisect import add_arguments, prepared
from lowc.errors import LowcError
from lowc.options import ROWS, Options


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "reduce",
        help="shrink what is wrong, raises or crashes to a small Python file",
        description="Finds the first graph of a function that fails (wrong, an error, a crash), and makes it smaller: one "
        "kernel's ops, fewer of them, smaller and plainer inputs.  The file needs torch and lowc alone; it is run once to see "
        "that it fails.  Exit status: 0 if all is right, 1 if a file was written.",
    )
    add_arguments(parser, short=False)
    parser.add_argument("-o", "--out", type=Path, default=Path("reduced.py"), help="the file (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds for making it smaller (default: %(default)s)")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    from lowc.faults.script import confirmed, script
    from lowc.faults.smaller import reduced
    from lowc.faults.trial import strict, tried

    seen, how, target = prepared(chosen)
    before = [Path(file).read_text() for file in chosen.imports]
    for case in seen.cases:
        verdict = tried(case, how)
        if not verdict.bad:
            continue
        print(f"graph {case.graph.name}, {len(case.graph.nodes)} ops: {verdict}")
        found = reduced(case, verdict, target, how, chosen.budget)
        small = tried(found.case, how)
        try:
            chosen.out.write_text(script(found.case, small, kept(strict(how.options)), found.recipes, before))
        except OSError as error:
            raise LowcError(f"cannot write {chosen.out}: {error.strerror}") from error
        print(f"{len(found.case.graph.nodes)} ops, {len(found.case.inputs)} inputs, after {found.trials} trials: {small}")
        if confirmed(str(chosen.out), small, how.seconds):
            print(f"{chosen.out} fails in the same way: python {chosen.out}")
        else:
            print(f"{chosen.out} does not fail by itself: what torch.compile makes of it is another graph; lowc bisect says more")
        return 1
    print(f"{len(seen.cases)} graphs, all right" + (f"; but {seen.astray}" if seen.astray else ""))
    return 0


def kept(options: Options) -> dict[str, Any]:
    """What the file compiles with: the options that change code, and those by which a trial raises what goes wrong."""
    names = {row.name for row in ROWS if row.code} | {"strict_errors", "check", "cache"}
    return {name: value for name, value in options._asdict().items() if name in names}
