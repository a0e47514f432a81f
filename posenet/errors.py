"""Errors that a user can act on.

Each message is one line that names the file or value at fault and the remedy. The command line prints
it without a traceback and exits with status 2.
"""

from __future__ import annotations

import reprlib

_short = reprlib.Repr()
_short.maxlevel = 2
_short.maxstring = _short.maxother = _short.maxlong = 60


def shown(value: object) -> str:
    """``repr`` of what a file holds, cut short: a value that holds itself many times over would fill the memory."""
    return _short.repr(value)


def without_traceback(message: str) -> str:
    """A message; of one that PyTorch has carried over from a data worker what the error itself said, its last line."""
    if message.startswith("Caught ") and "Traceback" in message:
        return message.strip().splitlines()[-1].partition(": ")[2]
    return message


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
