"""Repairs of annotation files: everything that other values or the image files determine, and nothing else."""
