"""Every option and environment variable: one row each, typed, saying whether it changes generated code.

Without effect today: every mode but "reduce-overhead" on a GPU (they are accepted, since other backends have them).  Nothing
reads ``Row.code`` yet, as nothing compiled is kept from one process to the next; a cache would take its keys from it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lowc.errors import OptionError


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    default: bool | int | str
    choices: tuple[Any, ...]
    code: bool
    env: str
    doc: str


ROWS: tuple[Row, ...] = (
    Row("isa", "auto", ("auto", "sse2", "avx2", "avx512", "interp"), True, "LOWC_ISA", "instruction set; interp: no code"),
    Row("threads", True, (True, False), True, "", "run large kernels on torch's OpenMP threads"),
    Row("stream", "auto", ("auto", "own", "caller"), False, "LOWC_STREAM", "GPU: lowc's own streams or the caller's"),
    Row("ptxas", "off", ("off", "auto"), True, "LOWC_PTXAS", "GPU: the driver makes code of PTX, or ptxas where there is one"),
    Row("nvtx", False, (True, False), False, "LOWC_NVTX", "GPU: native calls are NVTX ranges by kernel name"),
    Row("strict_errors", False, (True, False), False, "", "raise where a kernel has no code, instead of running it in ATen"),
    Row("fallback_random", False, (True, False), True, "", "random numbers are those that eager draws"),
    Row("numerics", "fast", ("fast", "strict"), True, "LOWC_NUMERICS", "strict: no approximate instructions"),
    Row("check", False, (True, False), False, "LOWC_CHECK", "verify after every pass"),
    Row("time", False, (True, False), False, "LOWC_TIME", "print the time of every phase"),
    Row("dump", "", (), False, "LOWC_DUMP", "directory for a numbered file of each pass and stage"),
    Row("off", "", (), True, "LOWC_OFF", "comma-separated passes to skip"),
    Row("only", "", (), False, "LOWC_ONLY", "part of a kernel name: dumps show such kernels only"),
)
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True, slots=True)
class Options:
    """The value of every row, by name."""

    isa: str = "auto"
    threads: bool = True
    stream: str = "auto"
    ptxas: str = "off"
    nvtx: bool = False
    strict_errors: bool = False
    fallback_random: bool = False
    numerics: str = "fast"
    check: bool = False
    time: bool = False
    dump: str = ""
    off: str = ""
    only: str = ""
    mode: str = "default"


def parse(mode: str | None, given: Mapping[str, Any] | None) -> Options:
    """Options from ``torch.compile``'s keywords over the environment over the defaults.

    Raises OptionError for an unknown mode, name or value, listing the known ones.
    """
    if mode is not None and mode not in MODES:
        raise OptionError(f"unknown mode {mode!r}", hint="modes are " + ", ".join(MODES))
    values: dict[str, Any] = {"mode": mode or "default"}
    rows = {row.name: row for row in ROWS}
    for row in ROWS:
        if row.env and row.env in os.environ:
            values[row.name] = _checked(row, _from_text(row, os.environ[row.env]), row.env)
    for name, value in (given or {}).items():
        if name not in rows:
            raise OptionError(f"unknown option {name!r}", hint="options are " + ", ".join(rows))
        values[name] = _checked(rows[name], value, name)
    return Options(**values)


def _from_text(row: Row, text: str) -> bool | str:
    if isinstance(row.default, bool):
        return text.lower() not in ("", "0", "false", "no", "off")
    return text


def _checked(row: Row, value: Any, name: str) -> Any:
    if type(value) is not type(row.default) or (row.choices and value not in row.choices):
        allowed = ", ".join(map(repr, row.choices)) or type(row.default).__name__
        raise OptionError(f"option {name} does not take {value!r}", hint=f"it takes {allowed}")
    return value
