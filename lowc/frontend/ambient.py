"""What AOTAutograd's tracing, and lowc's passes on what it traces, look at beside the graph: settings of the process, as text.

Most of it the guards of Dynamo do not have, since AOTAutograd of the same process has seen the same.  A setting is here if an op
may be traced otherwise for it, or a convolution lie otherwise in memory: one more costs a microsecond, one too few a wrong
result.
"""

from typing import Any

import torch
from torch._functorch import config as functorch
from torch.autograd import forward_ad
from torch.fx.experimental import _config as symbolic

from lowc.frontend.text import NoTextError

_TORCH: Any = torch
_C: Any = torch._C


def text_of_thread() -> str:
    """Raises NoTextError in states that have no text: modes, transforms and hooks that are functions."""
    for why, there in _OTHERWISE:
        if there():
            raise NoTextError(why)
    lines = [f"{name} = {value()!r}" for name, value in _OF_THE_THREAD]
    for kind in _C._autocast_supported_devices():
        if torch.is_autocast_enabled(kind):
            lines.append(f"autocast {kind} = {torch.get_autocast_dtype(kind)}")
    return "\n".join(lines)


def text_of_settings() -> str:
    """The others: those that a backward pass, compiled later and perhaps in a thread of autograd's, should find as they were.

    Raises NoTextError.
    """
    lines = [f"{name} = {value()!r}" for name, value in _SETTINGS]
    for config in (functorch, symbolic):
        values: dict[str, Any] = config.save_config_portable()
        lines += [f"{config.__name__}.{name} = {value!r}" for name, value in sorted(values.items())]
    text = "\n".join(lines)
    if " at 0x" in text:
        raise NoTextError("a setting is an object")
    return text


def _several_processes() -> bool:
    group = torch.distributed
    return group.is_available() and group.is_initialized()


def _compiled_autograd() -> bool:
    from torch._dynamo import compiled_autograd

    return bool(compiled_autograd.compiled_autograd_enabled or compiled_autograd.in_compiled_autograd_region)


def _registered() -> bool:
    """Whether a user has given one of torch's ops another meaning.  (What is registered below that, kernels of devices, fake ones
    and batched ones, comes with imports of torch's own, and the graph is the same.)"""
    below = ("/Meta", "/CPU", "/CUDA", "/MPS", "/FuncTorchBatched", "/FuncTorchBatchedDecomposition")
    # Two thousand names lie all over the memory; those of torch's own fake kernels are set aside without a look at them.
    own: Any = getattr(_TORCH._meta_registrations, "_meta_lib_dont_use_me_use_register_meta", None)
    others: set[str] = torch.library._impls - getattr(own, "_op_impls", set[str]())
    return any(name.startswith("aten/") and not name.endswith(below) for name in others)


def _logged() -> bool:
    """Whether somebody wants to see the graphs that AOTAutograd makes."""
    from torch._logging import _internal as logs

    names = ("aot_graphs", "aot_joint_graph", "aot_graphs_effects", "joint_graph_passes")
    traced = any(getattr(handler, "root_dir", None) is not None for handler in logs.trace_log.handlers)
    return traced or any(name in logs.log_state.artifact_names for name in names)


_OTHERWISE = (
    ("a mode is on", lambda: _C._len_torch_function_stack() or _C._len_torch_dispatch_stack()),
    ("a transform is on", lambda: _C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0),
    ("saved tensors have hooks", lambda: _C._autograd._top_saved_tensors_default_hooks(True) is not None),
    ("anomalies are looked for", torch.is_anomaly_enabled),
    ("there are several processes", _several_processes),
    ("backward passes are compiled by Dynamo", _compiled_autograd),
    ("a kernel of torch has been replaced", _registered),
    ("AOTAutograd's graphs are logged", _logged),
    ("AOTAutograd checks itself", lambda: functorch.debug_assert or functorch.fake_tensor_propagate_real_tensors),
)

_BACKENDS = torch.backends
_OF_THE_THREAD = (
    ("grad", torch.is_grad_enabled),
    ("inference", torch.is_inference_mode_enabled),
    ("autocast cache", torch.is_autocast_cache_enabled),
    ("default device", torch.get_default_device),
    ("threads", torch.get_num_threads),
)
_SETTINGS = (
    ("default dtype", torch.get_default_dtype),
    ("deterministic", torch.are_deterministic_algorithms_enabled),
    ("deterministic warns", torch.is_deterministic_algorithms_warn_only_enabled),
    ("filled", lambda: _TORCH.utils.deterministic.fill_uninitialized_memory),
    ("fp32", lambda: [_C._get_fp32_precision_getter(*each) for each in _PRECISIONS]),
    ("reduced f16", lambda: str(_BACKENDS.cuda.matmul.allow_fp16_reduced_precision_reduction)),
    ("reduced bf16", lambda: str(_BACKENDS.cuda.matmul.allow_bf16_reduced_precision_reduction)),
    ("accumulated f16", lambda: str(_BACKENDS.cuda.matmul.allow_fp16_accumulation)),
    ("cudnn", lambda: [_BACKENDS.cudnn.enabled, _BACKENDS.cudnn.benchmark, _BACKENDS.cudnn.deterministic]),
    ("mkldnn", lambda: [_C._get_mkldnn_enabled(), _C._get_mkldnn_deterministic()]),
    ("nnpack", _C._get_nnpack_enabled),
    ("einsum", lambda: [_BACKENDS.opt_einsum.is_available(), _BACKENDS.opt_einsum.enabled, _BACKENDS.opt_einsum.strategy]),
    ("attention", lambda: [
        _BACKENDS.cuda.flash_sdp_enabled(), _BACKENDS.cuda.mem_efficient_sdp_enabled(), _BACKENDS.cuda.math_sdp_enabled(),
        _BACKENDS.cuda.cudnn_sdp_enabled(), _BACKENDS.cuda.fp16_bf16_reduction_math_sdp_allowed(),
        _C._get_overrideable_sdp_enabled(), _C._get_sdp_priority_order(),
    ]),
    ("vmap", lambda: _C._functorch._is_vmap_fallback_enabled()),
    ("random numbers", lambda: _TORCH._inductor.config.fallback_random),
    ("fusion", lambda: _TORCH._inductor.config.post_grad_fusion_options),
)  # fmt: skip
_PRECISIONS = [("generic", "all")] + [(b, op) for b in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")]
