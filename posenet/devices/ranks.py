"""The processes of a run, and what they tell each other, implemented for a single process.

This module does not import PyTorch: a single process predicts with an exported file without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from posenet.errors import OtherRankError, PosenetError

DEFAULT_TIMEOUT_MINUTES = 10.0
"""Time for which a rank waits for the others in a collective call."""
SHARE_TIMEOUT_MINUTES = 24 * 60.0
"""Time for which a rank that has predicted its share waits for the others: a launcher ends all if one fails."""

Result = TypeVar("Result")
Item = TypeVar("Item")


class Ranks:
    """All processes of a run, as one of them sees them."""

    rank = 0  # index of this process among all processes of the run
    world_size = 1  # number of processes of the run
    local_rank = 0  # index of this process among those of this machine

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone writes the files of a run."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """The part of this rank: the parts of all ranks, in rank order, are of about equal size, and are the whole."""
        rank, count = self.rank, self.world_size
        return items[len(items) * rank // count : len(items) * (rank + 1) // count]

    def gather_objects(self, value: Any) -> list[Any]:
        """The values of all ranks, in rank order."""
        return [value]

    def broadcast_object(self, value: Any) -> Any:
        """The value of rank 0."""
        return value

    def raise_on_all(self, error: Exception | None) -> None:
        """End all ranks if one of them has an error. All ranks call this at the same point; None means no error.

        Raises:
            Exception: ``error``, on the first rank that has one.
            OtherRankError: on all other ranks.
        """
        failed = [rank for rank, has_error in enumerate(self.gather_objects(error is not None)) if has_error]
        if not failed:
            return
        if error is not None and self.rank == failed[0]:
            raise error
        raise OtherRankError(f"rank {failed[0]} has failed and reports why")

    def run_on_all(self, function: Callable[[], Result]) -> Result:
        """The result of a function that every rank calls. If it fails on one, all ranks end; see ``raise_on_all``.

        Errors are ``PosenetError`` and ``OSError``. Any other exception is a fault of the program: it is not shared,
        and ends the other ranks when this one ends.
        """
        error = None
        try:
            result = function()
        except (PosenetError, OSError) as caught:
            error = caught
        self.raise_on_all(error)
        return result

    def run_on_main(self, function: Callable[[], Result]) -> Result | None:
        """The result of a function that rank 0 calls; None on the other ranks. Errors: see ``run_on_all``."""
        return self.run_on_all(lambda: function() if self.is_main else None)

    def close(self) -> None:
        """Leave the processes, at the end of a run."""
