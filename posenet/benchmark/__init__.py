"""Benchmarks: one module for each measured part, and the clocks, tables and baselines that they share."""
