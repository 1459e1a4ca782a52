"""Artifacts that run without torch and without a compiler: the file ``model.lowc``, and what reads, runs and links it.

``container`` is the format, ``manifest`` what is written in it (``launches`` for GPUs, ``trees`` for sizes), ``weights`` the
tensors; ``loader`` makes a ``function`` of a file, ``shared`` a shared library.  ``call`` is a call on the CPU, ``gpu`` one on a
GPU: ``gpu_choice`` and ``gpu_device`` say which, ``launcher`` does the launches, ``device_arrays`` and ``dlpack`` read and make
arrays there, ``gpu_memory`` is the rest.  Everything here works in a process that has numpy and nothing else (cuda.bindings for a
GPU): no file imports torch or llvmlite (tests/test_layers.py).  ``lowc.package`` writes artifacts.
"""
