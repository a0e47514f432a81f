"""Benchmarks, one module for each part; ``tools/benchmark.py`` runs them."""
