"""Every option and environment variable: one row each, typed, saying whether it changes generated code.

Without effect today: mode "reduce-overhead" on a CPU (it is accepted, since other backends have it).
The cache's keys have every option whose ``Row.code`` is true, ``autotune_budget_s`` in modes that measure, and no other.
"""

import os
from collections.abc import Mapping
from typing import Any, Self, dataclass_transform

from lowc.errors import OptionError


class Row:
    __slots__ = ("choices", "code", "default", "doc", "env", "name")

    def __init__(
        self, name: str, default: bool | int | str, choices: tuple[Any, ...], code: bool, env: str, doc: str
    ) -> None:
        self.name, self.default, self.choices = name, default, choices
        self.code, self.env, self.doc = code, env, doc


ROWS: tuple[Row, ...] = (
    Row("isa", "auto", ("auto", "sse2", "avx2", "avx512", "interp"), True, "LOWC_ISA", "instruction set; interp: no code"),
    Row("threads", True, (True, False), True, "", "run large kernels on torch's OpenMP threads"),
    Row("stream", "auto", ("auto", "own", "caller"), False, "LOWC_STREAM", "GPU: lowc's own streams or the caller's"),
    Row("ptxas", "off", ("off", "auto"), True, "LOWC_PTXAS", "GPU: the driver makes code of PTX, or ptxas where there is one"),
    Row("nvtx", False, (True, False), False, "LOWC_NVTX", "GPU: native calls are NVTX ranges by kernel name"),
    Row("strict_errors", False, (True, False), False, "", "raise where a kernel has no code, instead of running it in ATen"),
    Row("fallback_random", False, (True, False), True, "", "random numbers are those that eager draws"),
    Row("numerics", "fast", ("fast", "strict"), True, "LOWC_NUMERICS", "strict: no approximate instructions"),
    Row("matmul", "auto", ("auto", "own", "library"), True, "LOWC_MATMUL", "matrix products by lowc's kernels or ATen's"),
    Row("attention", "auto", ("auto", "own", "library"), True, "LOWC_ATTENTION", "attention by lowc's kernels or ATen's"),
    Row("convolution", "auto", ("auto", "own", "library"), True, "LOWC_CONVOLUTION", "convolutions by lowc's kernels or ATen's"),
    Row("layout", "auto", ("auto", "kept"), True, "LOWC_LAYOUT", "convolutions get channels_last operands, or as in eager"),
    Row("check", False, (True, False), False, "LOWC_CHECK", "verify after every pass"),
    Row("time", False, (True, False), False, "LOWC_TIME", "print the time of every phase"),
    Row("dump", "", (), False, "LOWC_DUMP", "directory for a numbered file of each pass and stage"),
    Row("off", "", (), True, "LOWC_OFF", "comma-separated passes to skip"),
    Row("cache", True, (True, False), False, "LOWC_CACHE", "keep what is compiled for the next process"),
    Row("cache_dir", "", (), False, "LOWC_CACHE_DIR", "folder of the cache, instead of lowc in the user's cache folder"),
    Row("cache_limit_mb", 1024, (), False, "LOWC_CACHE_LIMIT", "MiB that the cache may grow to; 0: no cache"),
    Row("autotune_budget_s", 30, (), False, "LOWC_AUTOTUNE_BUDGET", "seconds that mode max-autotune may measure a graph"),
    Row("only", "", (), False, "LOWC_ONLY", "part of a kernel name: dumps show such kernels only"),
)
TUNED = ("max-autotune", "max-autotune-no-cudagraphs")
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass_transform(kw_only_default=True, frozen_default=True)
class _Values:
    """A frozen dataclass of keywords with defaults, for the type checker and for whoever uses it.  Making a real one takes a
    millisecond, and making a NamedTuple a fifth of one: a warm start loads none."""

    __slots__ = ("__dict__",)

    def __init__(self, **values: Any) -> None:
        if unknown := values.keys() - type(self).__annotations__.keys():
            raise TypeError(f"unknown fields: {', '.join(sorted(unknown))}")
        vars(self).update(values)

    def _asdict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).__annotations__}

    def _replace(self, **values: Any) -> Self:
        return type(self)(**vars(self) | values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} cannot be set")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._asdict() == self._asdict()

    def __hash__(self) -> int:
        return hash(tuple(self._asdict().values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"


class Options(_Values):
    """The value of every row, by name."""

    isa: str = "auto"
    threads: bool = True
    stream: str = "auto"
    ptxas: str = "off"
    nvtx: bool = False
    strict_errors: bool = False
    fallback_random: bool = False
    numerics: str = "fast"
    matmul: str = "auto"
    attention: str = "auto"
    convolution: str = "auto"
    layout: str = "auto"
    check: bool = False
    time: bool = False
    dump: str = ""
    off: str = ""
    cache: bool = True
    cache_dir: str = ""
    cache_limit_mb: int = 1024
    autotune_budget_s: int = 30
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
            values[row.name] = _checked(row, from_text(row, os.environ[row.env]), row.env)
    for name, value in (given or {}).items():
        if name not in rows:
            raise OptionError(f"unknown option {name!r}", hint="options are " + ", ".join(rows))
        values[name] = _checked(rows[name], value, name)
    return Options(**values)


def is_tuned(options: Options) -> bool:
    """Whether what is lowc's own is measured (``lowc.autotune``)."""
    return options.mode in TUNED


def with_stream(options: Options, graph: str) -> Options:
    """Stream "auto" decided for a graph of this name: training runs on the caller's, so that activations are freed once
    the backward pass has used them."""
    if options.stream != "auto":
        return options
    return options._replace(stream="caller" if graph in ("forward", "backward") else "own")


def from_text(row: Row, text: str) -> bool | int | str:
    """The value that ``text`` (of a variable, or of a command line) means; a number that is none stays text, and is
    then refused."""
    if isinstance(row.default, bool):
        return text.lower() not in ("", "0", "false", "no", "off")
    if isinstance(row.default, int) and text.strip().isdecimal():
        return int(text)
    return text


def _checked(row: Row, value: Any, name: str) -> Any:
    if type(value) is not type(row.default) or (row.choices and value not in row.choices):
        allowed = ", ".join(map(repr, row.choices)) or type(row.default).__name__
        raise OptionError(f"option {name} does not take {value!r}", hint=f"it takes {allowed}")
    return value
