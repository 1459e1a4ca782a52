"""Artifacts that run without torch and without a compiler: the file ``model.lowc``, and what reads, runs and links it.

``container`` is the format, ``manifest`` what is written in it, ``weights`` the tensors; ``loader`` makes a function on numpy
arrays of a file, ``shared`` a shared library.  Everything here works in a process that has numpy and nothing else: no file
imports torch or llvmlite (tests/test_layers.py).  ``lowc.package`` writes artifacts.
"""
