"""Which lowc this is, and what it stands on."""


def versions() -> str:
    """One line: lowc, Python, and the installed torch and llvmlite, which are not imported for it."""
    from importlib.metadata import PackageNotFoundError, version
    from platform import machine, python_version

    from lowc import __version__

    parts = [f"lowc {__version__}", f"Python {python_version()} {machine()}"]
    for name in ("torch", "llvmlite"):
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            parts.append(f"{name} not installed")
    return ", ".join(parts)
