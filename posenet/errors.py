"""Errors that a user can fix.

Each message is one line that names the faulty file or value and the remedy. The command line prints it without a
traceback and exits with status 2.
"""


class PosenetError(Exception):
    """Base class of all errors that the user, not the programmer, can fix."""


class ConfigError(PosenetError):
    """A configuration file, key or value that cannot be used."""


class DataError(PosenetError):
    """An image, annotation file or .h5 store that cannot be used."""


class CheckpointError(PosenetError):
    """A checkpoint that is damaged, is not one of ours, or does not fit the network."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint whose bytes are not those that were written; an older one may be intact."""


class TrainingError(PosenetError):
    """A training run that cannot continue, for example because its loss explodes repeatedly."""


class ConnectError(TrainingError):
    """The processes of a run did not find or did not reach each other; it may work later."""


class OtherRankError(PosenetError):
    """Another process of the run has failed and reports why; this one ends without a message."""
