"""The one family of errors that lowc raises, each saying what went wrong, where, and what to do."""


class LowcError(Exception):
    """Base of all errors of lowc.

    ``message`` says what is wrong with which op, dtypes and shapes; ``where`` is the user's file, line and code; ``hint`` is what
    to do.  ``str()`` shows them on at most a dozen lines.  ``origin``: that of the launch whose kernel it is about, by which the
    compiler knows what to leave to ATen; empty if unknown (then it leaves everything).
    """

    def __init__(self, message: str, *, where: str = "", hint: str = "", origin: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.where = where or "; ".join(origin[:2])
        self.hint = hint
        self.origin = origin

    def __str__(self) -> str:
        lines = self.message.splitlines()[:8]
        if self.where:
            lines.append(f"  at: {self.where}")
        if self.hint:
            lines.append(f"  try: {self.hint}")
        return "\n".join(lines)


class OptionError(LowcError):
    """An unknown option or mode, or a value that it does not take."""


class Unsupported(LowcError):
    """A graph that cannot be written as an ``ir.Graph`` (sparse tensors, quantised ones, ...); torch runs it instead."""


class NotLowered(LowcError):
    """lowc has no kernel for this op on these arguments; it becomes an extern call of ATen, with the message as the reason."""


class ParseError(LowcError):
    """IR text that is no program; the message shows the line."""


class VerifyError(LowcError):
    """A program that breaks a rule of its level; the message shows the printed program with the offending line marked."""


class ScheduleError(LowcError):
    """A schedule that does not fit its kernel, or would change its meaning."""


class CodegenError(LowcError):
    """A kernel for which no code can be generated (an op or dtype the backend has no row for, or an LLVM failure)."""


class InternalError(LowcError):
    """A bug in lowc: what its ``__cause__`` was raised for should not happen, whatever the user does."""

    def __init__(self, error: Exception) -> None:
        super().__init__(
            f"a bug in lowc: {type(error).__name__}: {error}",
            hint="please report it, with the traceback that strict_errors=True gives and the files that LOWC_DUMP=dir writes",
        )
