"""The processes of a run, and the Python objects that they exchange, implemented for a single process.

This module does not import PyTorch: a single process predicts without it.
"""

from __future__ import annotations

from typing import Any

DEFAULT_TIMEOUT_MINUTES = 10.0
"""Time for which a rank waits for the others in a collective call."""


class Ranks:
    """All processes of a run, as one of them sees them."""

    rank = 0  # index of this process among all processes of the run
    world_size = 1  # number of processes of the run

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone logs and writes files."""
        return self.rank == 0

    def gather_objects(self, value: Any) -> list[Any]:
        """The values of all ranks, in rank order."""
        return [value]

    def broadcast_object(self, value: Any) -> Any:
        """The value of rank 0."""
        return value

    def close(self) -> None:
        """Leave the process group."""
