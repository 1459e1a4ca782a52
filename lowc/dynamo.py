"""The backend that ``torch.compile(backend="lowc")`` calls."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from lowc import machine
from lowc.options import parse


def lowc_backend(
    gm: Any,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles ``gm``, a ``torch.fx.GraphModule`` from Dynamo; the function takes and returns what it does.

    Raises OptionError for an unknown mode, option or value.
    """
    chosen = parse(mode, options)
    from lowc.cache.folder import folder_of
    from lowc.frontend.aot import compile_module
    from lowc.reuse import compile_or_reuse, is_kept, lowered_ops
    from lowc.traces import Traces

    cache = folder_of(chosen)
    wide = chosen.isa in ("auto", "avx512") and "avx512f" in machine.processor_flags()

    return compile_module(
        gm,
        example_inputs,
        compile_source=partial(compile_or_reuse, options=chosen, folder=cache),
        keep=partial(lowered_ops, cache),
        strict=chosen.strict_errors,
        fallback_random=chosen.fallback_random,
        channels_last=chosen.layout == "auto" and chosen.numerics == "fast",
        own_convolutions=chosen.convolution == "own" or (chosen.convolution == "auto" and wide),
        place=Traces(cache, chosen) if cache and is_kept(chosen) else None,
    )
