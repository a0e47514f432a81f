"""Checkpoint files, the weights in them, and the folder in which a run keeps them."""
