"""The linter of annotation files: it finds problems that harm training or evaluation, and proposes fixes."""
