"""A Python process that has numpy and lowc's sources, and nothing else: no site-packages, so no torch and no llvmlite."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent


def environment(folder: Path) -> dict[str, str]:
    """The variables of such a process; ``folder`` gets links to what it may import."""
    packages = folder / "packages"
    if not packages.exists():
        packages.mkdir()
        home = Path(np.__file__).resolve().parent
        for source in (home, home.parent / "numpy.libs", ROOT / "lowc"):
            if source.exists():
                (packages / source.name).symlink_to(source)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LOWC_", "VIRTUAL_ENV"))}
    return kept | {"PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}


def python(folder: Path, *arguments: str, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
    """``python ARGUMENTS`` in ``folder``."""
    command = [sys.executable, "-S", "-s", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment(folder) | extra, capture_output=True, text=True, timeout=120)
    assert not check or done.returncode == 0, done.stderr
    return done
