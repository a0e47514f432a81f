"""Benchmarks: one module for each measured part, and the clocks, reports and inputs that they share."""
