"""The import ranks of docs/design.md, read from the sources."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "lowc").rglob("*.py"))

# Of each package or file.  Of one rank only the same stage may be imported, and what WITHIN_RANK has.
RANKS = {
    "errors": 0,
    "options": 0,
    "ir": 1,
    "artifact": 1,
    "target": 1,
    "trace": 0,
    "machine": 0,
    "collection": 0,
    "host": 0,
    "once": 0,
    "cache": 2,
    "frontend": 2,
    "lowering": 2,
    "scheduler": 2,
    "runtime": 2,
    "standalone": 2,
    "backends.llvm": 2,
    "backends.x86": 2,
    "backends.nvptx": 2,
    "backends": 2,
    "compiler": 3,
    "autotune": 3,
    "reuse": 3,
    "traces": 3,
    "package": 3,
    "dynamo": 3,
    "faults": 3,
    "cli": 3,
    "__main__": 3,
    "": 3,
}
WITHIN_RANK = {
    ("options", "errors"),
    ("artifact", "ir"),
    ("target", "ir"),
    ("standalone", "runtime"),
    ("backends.x86", "backends.llvm"),
    ("backends.nvptx", "backends.llvm"),
}
TORCH = ("frontend", "runtime", "faults")


def stage_of(module: str) -> str:
    """The key of RANKS for "lowc.scheduler.fuse"."""
    parts = module.split(".")[1:]
    for length in (2, 1, 0):
        if (stage := ".".join(parts[:length])) in RANKS:
            return stage
    raise AssertionError(f"{module} has no rank: add it to docs/design.md and here")


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """(module, line, whether it is imported when the file is): imports for type checkers only are left out."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    lazy = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, node.lineno, id(node) not in lazy
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for name in node.names:
                # "from lowc.ir import walk" imports lowc.ir.walk
                yield f"{node.module}.{name.name}", node.lineno, id(node) not in lazy


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_ranks(path: Path) -> None:
    here = stage_of(module_of(path))
    for name, line, _ in imports(path):
        if name.split(".")[0] != "lowc":
            continue
        there = stage_of(name)
        allowed = (
            here == there or RANKS[there] < RANKS[here] or (here, there) in WITHIN_RANK or RANKS[here] == 3
        )
        if there == "" and name == "lowc.__version__":
            allowed = RANKS[here] == 3
        assert allowed, (
            f"{path.relative_to(ROOT)}:{line}: {here} (rank {RANKS[here]}) imports {there or 'lowc'} (rank {RANKS[there]})"
        )


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_foreign_imports(path: Path) -> None:
    here = stage_of(module_of(path))
    for name, line, _ in imports(path):
        place = f"{path.relative_to(ROOT)}:{line} imports {name}"
        package = name.split(".")[0]
        assert not name.startswith("torch._inductor"), place
        if package == "torch":
            assert here in TORCH, place
        if package == "llvmlite":
            assert here.startswith("backends"), place
        if package == "sympy":
            assert here == "frontend", place
        if RANKS[here] == 0:
            import sys

            assert package in sys.stdlib_module_names or package == "lowc", place


def test_no_cycles() -> None:
    """Files that import each other while they are imported."""
    modules = {module_of(p): p for p in FILES}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        found = set()
        for name, _, eager in imports(path):
            while eager and name.startswith("lowc") and name not in modules:
                name = name.rpartition(".")[0]
            if eager and name in modules and name != module:
                found.add(name)
        graph[module] = found
    state: dict[str, int] = {}

    def visit(module: str, chain: list[str]) -> None:
        assert state.get(module) != 1, " imports ".join([*chain[chain.index(module) :], module])
        if module not in state:
            state[module] = 1
            for other in sorted(graph[module]):
                visit(other, [*chain, module])
            state[module] = 2

    for module in modules:
        visit(module, [])


def test_what_runs_artifacts_needs_numpy_alone() -> None:
    """Whatever files of lowc ``standalone`` imports, at once or later, and they in turn: none knows torch or LLVM."""
    modules = {module_of(p): p for p in FILES}
    todo = [m for m in modules if m.startswith("lowc.standalone")] + ["lowc.cli", "lowc.cli.run", "lowc.cli.link"]
    seen: set[str] = set()
    while todo:
        module = todo.pop()
        seen.add(module)
        for name, line, eager in imports(modules[module]):
            if name.startswith("lowc"):
                while name not in modules:
                    name = name.rpartition(".")[0]
                if name not in seen and name != "lowc" and (eager or module.startswith("lowc.standalone")):
                    todo.append(name)
            elif eager or module.startswith("lowc.standalone"):
                import sys

                package = name.split(".")[0]
                assert package == "numpy" or package in sys.stdlib_module_names, f"{module}:{line} imports {name}"
    assert "lowc.runtime.linker" in seen


def test_importing_lowc_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = "import lowc, sys; print([m for m in ('torch', 'llvmlite', 'numpy', 'cuda', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
