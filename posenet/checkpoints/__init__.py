"""Checkpoint files, the weights in them, weights by name, and the folder of a run."""
