"""Random programs of torch calls, compared with eager; see ``python -m tests.property.graphs --help``.

``program``: what a program is (lines of Python over inputs that are made from numbers); ``ops``, ``views``, ``writes``: the lines
that there are; ``generate``: a program from a seed; ``judge``: compiled and compared; ``shrink``: a smaller program that fails in
the same way; ``repro``: a file that shows the failure on its own.
"""
