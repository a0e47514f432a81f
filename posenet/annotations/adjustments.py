"""What reading a file of annotations did: the list that ``lint`` prints, and that every tool says in short."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from posenet.errors import DataError
from posenet.messages import to_single_line

Kind = Literal["derived", "left out", "warning", "contradiction"]
"""Determined by other values; not used; used, but perhaps wrong; without a right reading, so that tools stop."""
Ids = Sequence[object] | np.ndarray
"""What names the rows of a section: ids or file names."""
KINDS: tuple[Kind, ...] = ("contradiction", "warning", "left out", "derived")
"""In the order in which they are listed."""
MAX_LINE = 160
"""Characters of a line; places that do not fit are left away."""
SINGLE_PLACES = 2
"""So many places are single faults, in files of any size."""
SINGLE_SHARE = 0.05
"""Share of the entries that may have a fault of their own. If more have, the fault is that of the whole file."""
DROPPED_SHARE = 0.5
"""The same where the user asks to leave out what contradicts itself."""


@dataclass(frozen=True)
class Adjustment:
    """One thing that the reader did or found, at all its places."""

    kind: Kind
    code: str
    """Short name, for programs."""
    message: str
    """The entries that it concerns, in the plural: "images without a file"."""
    consequence: str
    """What follows from it, or what to do."""
    places: list[str] = field(default_factory=list)
    """Ids of images or annotations, file names or keypoints; empty if it concerns the whole file."""

    @property
    def line(self) -> str:
        """What was done, how often, as many places as fit into one line, and the consequence."""
        count = f": {len(self.places)}" if self.places else ""
        message, consequence = to_single_line(self.message + count), to_single_line(self.consequence)
        room = MAX_LINE - len(message) - len(consequence) - len("contradiction: ") - len(f" ();  [{self.code}]")
        shown: list[str] = []
        for place in map(to_single_line, self.places):
            if len(place) + 2 > room - len("..."):
                shown.append("..." if shown else f"{place[: max(room - 3, 0)]}...")
                break
            room -= len(place) + 2
            shown.append(place)
        places = f" ({', '.join(shown)})" if shown else ""
        return f"{message}{places}; {consequence}"

    def __str__(self) -> str:
        return f"{self.kind}: {self.line} [{self.code}]"


class Adjustments(list[Adjustment]):
    """All of one reading.

    Args:
        drop: leave out faulty entries as long as they are not most of the file; else only single ones.
    """

    def __init__(self, drop: bool = False) -> None:
        super().__init__()
        self._share = DROPPED_SHARE if drop else SINGLE_SHARE

    def add(self, kind: Kind, code: str, message: str, consequence: str, places: Iterable[object] = ()) -> None:
        """Add one that concerns the whole file, or some places."""
        self.append(Adjustment(kind, code, message, consequence, [str(place) for place in places]))

    def add_rows(self, kind: Kind, code: str, message: str, consequence: str, is_concerned: Any, ids: Ids) -> None:
        """Add one for the rows of a (rows,) bool array, unless there are none. The places are the ``ids``."""
        if is_concerned.any():
            self.add(kind, code, message, consequence, [ids[row] for row in np.flatnonzero(is_concerned).tolist()])

    def leave_out_few(self, code: str, message: str, remedy: str, is_faulty: Any, ids: Ids, total: int = 0) -> Any:
        """The rows to leave out: the faulty ones if they are few of ``total`` rows; else none, and a contradiction."""
        total = total or len(is_faulty)
        count = int(is_faulty.sum())
        are_few = count <= max(SINGLE_PLACES, self._share * total) and 2 * count <= total
        if are_few:
            self.add_rows("left out", code, message, remedy, is_faulty, ids)
            return is_faulty
        self.add_rows("contradiction", code, message, remedy, is_faulty, ids)
        return np.zeros_like(is_faulty)

    def sorted(self) -> list[Adjustment]:
        """All, what stops first."""
        return sorted(self, key=lambda adjustment: KINDS.index(adjustment.kind))

    @property
    def contradictions(self) -> list[Adjustment]:
        return [adjustment for adjustment in self if adjustment.kind == "contradiction"]

    def refuse(self, path: object, only: Collection[str] | None = None) -> None:
        """Raise ``DataError`` for the first contradiction; with ``only``, for the first with one of these codes."""
        found = [one for one in self.contradictions if only is None or one.code in only]
        if found:
            others = f"; and {len(found) - 1} more" if len(found) > 1 else ""
            raise DataError(f"{path}: {found[0].line} [{found[0].code}]{others} (posenet annotations lint lists all)")

    def report_lines(self) -> list[str]:
        """The warnings and what was left out, in short, for the end of a run beside its score."""
        return [str(adjustment) for adjustment in self.sorted() if adjustment.kind in ("warning", "left out")]
