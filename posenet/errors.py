"""Errors that a user can act on.

Each message is one line that names the file or value at fault and the remedy. The command line prints
it without a traceback and exits with status 2.
"""

from __future__ import annotations


class PosenetError(Exception):
    """Base of every error that the user, not the programmer, can mend."""


class ConfigError(PosenetError):
    """A configuration file, key or value that cannot be used."""


class DataError(PosenetError):
    """An image, annotation file or .h5 store that cannot be used."""


class CheckpointError(PosenetError):
    """A checkpoint that is damaged, foreign or does not fit the network."""


class TrainingError(PosenetError):
    """A run that cannot go on, for example because its loss explodes again and again."""
