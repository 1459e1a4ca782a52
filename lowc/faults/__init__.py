"""Which part of lowc is at fault where a compiled function is wrong, raises or crashes: ``lowc bisect`` and ``lowc reduce``.

    captured   the graphs of the user's function, with right inputs for each: they are run op by op in torch
    reference  a graph op by op in torch, as eager and in float64
    judge      whether results are as near to float64 as eager's
    isolated   a process for each trial, which may die
    cut        a part of a graph as a graph of its own
    trial      a graph compiled and called
    modules    a module of any level in the interpreter
    stages     the first stage after which the interpreter, or the code, is wrong
    kernels    the first kernel that fails by itself
    smaller    a smaller graph that fails in the same way
    bisect     the kernel and the stage
    script     that graph as a Python file
"""
