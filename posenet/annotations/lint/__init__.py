"""The linter of annotation files: what harms training or evaluation, and how to fix it."""
