"""Torch in, ``ir.graph.Graph`` out: tracing by AOTAutograd, decompositions, import of FX graphs; and callables back to torch."""
