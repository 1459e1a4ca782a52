"""Benchmarks of lowc against eager and Inductor; ``python -m benchmarks.run`` runs them all."""
