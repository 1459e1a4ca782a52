"""Running artifacts on NVIDIA GPUs, in the primary context that torch uses.

``driver``    the calls of the CUDA driver that lowc makes, each checked
``device``    a GPU: its context and facts, the error word, spare streams and events
``modules``   PTX (or a cubin) to kernels
``table``     the launch table of a run: records that one native function walks (``artifact.Record``)
``branches``  which kernels of a run go side by side, on streams of their own
``streams``   streams and events, and the spare ones of a device
``late``      what kernels report after the fact
``calls``     what happens around the native calls of one call: fork, join, streams, late errors
``host``      the host program's text
``program``   all of it bound together
``memory``    workspaces, and inputs that are misaligned
``graphs``    ``mode="reduce-overhead"``: captured calls that are replayed; ``results``: what those return
``nvtx``      native calls as ranges in Nsight
``seam``      what is asked of torch

    from lowc.runtime.cuda import program
    call = program.bind(artifact, walker_address, device_index, constants, options).call

CUDA is reached through ``cuda.bindings`` only; ``cuda.core`` is not used.
"""
