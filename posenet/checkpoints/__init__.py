"""Checkpoint files: written atomically with a checksum, read safely, one run folder for one writer."""
