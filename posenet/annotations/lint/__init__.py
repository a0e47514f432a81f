"""The linter of annotation files: what harms training or evaluation, and how to mend it."""
