"""Work that several processes share: units of work, whose results rank 0 receives in order through files.

There are no collective calls. A rank writes the results of each of its units to a file in a folder that all ranks see,
and rank 0 reads these files in the order of the units and deletes them. So rank 0 receives exactly what one process
would have computed, and no process holds more than a few results. A file is complete if it has its final name, also
after a kill, so that another run can use it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TextIO, TypeVar

from posenet.errors import DataError
from posenet.files import atomic_replacement

HEARTBEAT_SECONDS = 5.0
"""How often a rank shows that it is alive."""
POLL_SECONDS = 0.1
"""How often rank 0 looks for the next file while it has no work left."""

Item = TypeVar("Item")


class UnitItem(NamedTuple, Generic[Item]):
    """One result of a unit of work."""

    unit: int
    item: Item | None
    """None after the last item of the unit."""


Compute = Callable[[Sequence[int]], Generator[UnitItem[Item], None, None]]
"""Computes the items of some units, unit after unit. It may end early, within a unit, if the program is to stop."""


@dataclass(frozen=True)
class Team:
    """The processes that share the work, and where they exchange results."""

    rank: int
    world_size: int
    folder: Path
    """An existing folder that all ranks see."""
    timeout: float
    """Seconds after which rank 0 gives up a rank that shows no sign of life."""


@dataclass(frozen=True)
class ItemFormat(Generic[Item]):
    """How items are stored as JSON."""

    encode: Callable[[Item], Any]
    decode: Callable[[Any], Item]


def share_units(
    units: Sequence[int],
    compute: Compute[Item],
    team: Team | None,
    item_format: ItemFormat[Item],
    stop_requested: Callable[[], bool] = lambda: False,
) -> Generator[UnitItem[Item], None, None]:
    """Compute units of work on all ranks. Rank 0 yields the items of all units in order, the other ranks yield nothing.

    Files of units that an earlier run has left in the folder are used.

    Args:
        team: None for a single process, which yields each item at once and stores nothing.
        stop_requested: checked while rank 0 waits for the others; true ends the items after the last complete unit.

    Raises:
        DataError: another rank has ended or hangs.
    """
    if team is None:
        yield from compute(units)
        return
    parts = _PartFiles(team.folder, item_format)
    mine = [unit for unit in units[team.rank :: team.world_size] if not parts.has(unit)]
    with _report_life(team):
        if team.rank > 0:
            for _ in parts.write(compute(mine)):
                pass
            return
        num_read = 0
        for _ in parts.write(compute(mine)):
            while num_read < len(units) and parts.has(units[num_read]):
                yield from parts.read(units[num_read])
                num_read += 1
        watch = _LifeWatch(team)
        while num_read < len(units):
            unit = units[num_read]
            has_ended = watch.has_ended(num_read % team.world_size)  # before the look at the file
            if parts.has(unit):
                yield from parts.read(unit)
                num_read += 1
            elif has_ended or stop_requested():
                return
            else:
                time.sleep(POLL_SECONDS)


class _PartFiles(Generic[Item]):
    """The files of complete units: one item per line, as JSON."""

    def __init__(self, folder: Path, item_format: ItemFormat[Item]) -> None:
        self._folder = folder
        self._format = item_format

    def _path(self, unit: int) -> Path:
        return self._folder / f"{unit}.jsonl"

    def has(self, unit: int) -> bool:
        return self._path(unit).exists()

    def write(self, items: Generator[UnitItem[Item], None, None]) -> Iterator[int]:
        """Write the items of each unit; yield the number of every unit that is complete."""
        file: TextIO | None = None
        with contextlib.closing(items):
            try:
                for unit, item in items:
                    temporary = self._folder / f"{unit}.{os.getpid()}.tmp"
                    if file is None:
                        file = open(temporary, "w", encoding="utf-8")  # noqa: SIM115
                    if item is not None:
                        file.write(json.dumps(self._format.encode(item)) + "\n")
                        continue
                    file.close()
                    file = None
                    os.replace(temporary, self._path(unit))
                    yield unit
            finally:
                if file is not None:
                    file.close()
                    Path(file.name).unlink(missing_ok=True)

    def read(self, unit: int) -> Iterator[UnitItem[Item]]:
        """Yield the items of a unit, then delete the file."""
        with open(self._path(unit), encoding="utf-8") as file:
            for line in file:
                yield UnitItem(unit, self._format.decode(json.loads(line)))
        yield UnitItem(unit, None)
        self._path(unit).unlink()


def _life_file(team: Team, rank: int) -> Path:
    return team.folder / f"rank-{rank}.json"


@contextlib.contextmanager
def _report_life(team: Team) -> Iterator[None]:
    """Within this context, write a file that changes every few seconds; at its end, how the rank has ended."""
    path = _life_file(team, team.rank)
    ended = threading.Event()

    def report(**state: Any) -> None:
        # Rank 0 may have removed the folder already, which must not come back.
        with atomic_replacement(path) as temporary:
            temporary.write_bytes(json.dumps({"time": time.time(), **state}).encode())

    def report_regularly() -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                report()

    report()
    thread = threading.Thread(target=report_regularly, daemon=True)
    thread.start()
    error = None
    try:
        yield
    except Exception as caught:
        error = str(caught) or type(caught).__name__
        raise
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(OSError):
            report(ended=True, error=error)


class _LifeWatch:
    """Detects that another rank has ended or hangs. It compares contents of files, not the clocks of machines."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._last_change: dict[int, tuple[Any, float]] = {}
        """For each rank, its last report and when it was first seen."""

    def has_ended(self, rank: int) -> bool:
        """Whether a rank has ended without an error: its work is done, or it was asked to stop.

        Raises:
            DataError: any rank has failed or hangs.
        """
        reports = {other: self._read(other) for other in range(1, self._team.world_size)}
        now = time.monotonic()
        for other, report in reports.items():
            if report.get("error"):
                raise DataError(f"rank {other} has failed: {report['error']}")
            last_report, since = self._last_change.get(other, (None, now))
            if report != last_report:
                since = now
            self._last_change[other] = report, since
            if now - since > self._team.timeout and not report.get("ended"):
                minutes = self._team.timeout / 60
                raise DataError(f"rank {other} has shown no sign of life for {minutes:g} minutes; its log may say why")
        # Rank 0 comes here when its own work is done or stopped.
        return rank == 0 or bool(reports[rank].get("ended"))

    def _read(self, rank: int) -> dict[str, Any]:
        try:
            return dict(json.loads(_life_file(self._team, rank).read_bytes()))
        except (OSError, ValueError):
            return {}
