"""The exceptions for failed checks of generated code: eager's type, with the ops at fault and the user's line."""

INDEX, DIVISION = 1, 2
LATE = "reported late: the kernel ran in an earlier call"
"""What is to be said of a check that failed on a GPU and was found only afterwards."""


def failure(kind: int, origin: str, note: str = "") -> Exception | None:
    """``origin``: the ops of the kernel, empty if unknown.  ``note``: what else is to be said.  None for an unknown kind."""
    about = "; ".join(t for t in (f"in {origin}" if origin else "", note) if t)
    where = f" ({about})" if about else ""
    if kind == INDEX:
        return IndexError(f"index out of range{where}")
    if kind == DIVISION:
        return RuntimeError(f"ZeroDivisionError{where}")
    return None
