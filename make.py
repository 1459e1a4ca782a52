"""Makes lowc's environment in .venv and runs the demo or the tests in it.  Needs Python 3.11 and nothing else.

    python3 make.py demo     train a small GPT with torch.compile(backend="lowc")
    python3 make.py test     ruff, pyright and the tests

The versions installed are those of constraints.txt.  Further arguments are handed to the demo, or to pytest.
"""

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")


def run(*command: str | Path) -> int:
    """Runs ``command`` in the project's folder with .venv first on the PATH; returns its exit status."""
    line = [str(part) for part in command]
    print("$", " ".join(Path(line[0]).name if n == 0 else part for n, part in enumerate(line)), flush=True)
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}
    return subprocess.run(line, cwd=ROOT, env=env, check=False).returncode


def install(extra: str) -> None:
    """Creates .venv, or brings it up to date, with lowc in editable form and the requirements of ``extra``.

    A stamp holds the hash of what was installed, so that a second call costs nothing.
    """
    wanted = hashlib.sha256(sys.version.encode())
    for name in ("pyproject.toml", "constraints.txt"):
        wanted.update((ROOT / name).read_bytes())
    stamp = VENV / f"installed{extra.strip('[]') and '-' + extra.strip('[]')}"
    if PYTHON.exists() and stamp.exists() and stamp.read_text() == wanted.hexdigest():
        return
    if not PYTHON.exists():
        print("$ python3 -m venv .venv", flush=True)
        venv.create(VENV, with_pip=True)
    status = run(PYTHON, "-m", "pip", "install", "--quiet", "-c", "constraints.txt", "-e", f".{extra}")
    if status:
        sys.exit(f"make.py: pip could not install lowc (exit {status}); see its message above")
    stamp.write_text(wanted.hexdigest())


def demo(arguments: list[str]) -> int:
    install("")
    return run(PYTHON, "examples/demo.py", *arguments)


def test(arguments: list[str]) -> int:
    """Stops at the first of ruff, pyright and pytest that fails."""
    install("[dev]")
    workers = str(min(os.cpu_count() or 1, 8))
    return (
        run(PYTHON, "-m", "ruff", "check", ".")
        or run(PYTHON, "-m", "pyright")
        or run(PYTHON, "-m", "pytest", "-q", "-n", workers, *arguments)
    )


def main() -> int:
    targets = {"demo": demo, "test": test}
    if sys.version_info < (3, 11):  # noqa: UP036  (whatever Python is there runs this file)
        sys.exit("make.py: lowc needs Python 3.11 or later; this is " + sys.version.split()[0])
    if len(sys.argv) < 2 or sys.argv[1] not in targets:
        sys.exit(__doc__)
    return targets[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
