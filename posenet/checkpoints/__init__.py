"""Checkpoint files and the weights in them: writing, reading, loading, converting, and the folder of a run."""
