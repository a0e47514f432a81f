"""Units of work that ranks share through files."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from posenet.errors import DataError
from posenet.inference import shared_work
from posenet.inference.shared_work import ItemFormat, Team, UnitItem, share_units

FORMAT = ItemFormat[int](encode=lambda item: [item], decode=lambda stored: stored[0])
UNITS = range(3, 12)


def compute(units: Sequence[int]) -> Generator[UnitItem[int], None, None]:
    """Unit n has n % 3 items."""
    for unit in units:
        for item in range(unit % 3):
            yield UnitItem(unit, 10 * unit + item)
        yield UnitItem(unit, None)


def run_rank(rank: int, folder: Path, world_size: int = 3, timeout: float = 20) -> list[UnitItem[int]]:
    return list(share_units(UNITS, compute, Team(rank, world_size, folder, timeout), FORMAT))


def test_rank_0_receives_what_one_process_computes_and_the_files_are_gone(tmp_path: Path) -> None:
    others = [threading.Thread(target=run_rank, args=(rank, tmp_path)) for rank in (1, 2)]
    for thread in others:
        thread.start()
    received = run_rank(0, tmp_path)
    for thread in others:
        thread.join()
    assert received == list(share_units(UNITS, compute, None, FORMAT)) and len(received) == len(UNITS) + 9
    assert not list(tmp_path.glob("*.jsonl")) and not list(tmp_path.glob("*.tmp"))


def test_files_of_an_earlier_run_are_used(tmp_path: Path) -> None:
    for unit in UNITS:
        if unit != 4:
            (tmp_path / f"{unit}.jsonl").write_text("[7]\n")
    received = run_rank(0, tmp_path, world_size=1)
    assert [item for unit, item in received if item is not None] == [7, 40, *[7] * 7]


def test_a_rank_without_a_sign_of_life_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="rank 1 has shown no sign of life"):
        run_rank(0, tmp_path, world_size=2, timeout=0.3)


def test_the_error_of_another_rank_is_reported(tmp_path: Path) -> None:
    (tmp_path / "rank-1.json").write_text(json.dumps({"ended": True, "error": "disk full"}))
    with pytest.raises(DataError, match="rank 1 has failed: disk full"):
        run_rank(0, tmp_path, world_size=2)


def test_a_rank_that_fails_leaves_its_error_and_no_torn_file(tmp_path: Path) -> None:
    def fail(units: Sequence[int]) -> Generator[UnitItem[int], None, None]:
        yield UnitItem(units[0], 1)
        raise DataError("disk full")

    with pytest.raises(DataError):
        list(share_units(UNITS, fail, Team(1, 2, tmp_path, 20), FORMAT))
    assert [path.name for path in tmp_path.iterdir()] == ["rank-1.json"]
    assert json.loads((tmp_path / "rank-1.json").read_text())["error"] == "disk full"


def test_rank_0_ends_after_the_last_complete_unit_when_another_rank_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(units: Sequence[int]) -> Generator[UnitItem[int], None, None]:
        yield from compute(units[:2])

    list(share_units(UNITS, stop, Team(1, 2, tmp_path, 20), FORMAT))
    units = [unit for unit, item in run_rank(0, tmp_path, world_size=2) if item is None]
    assert units == [3, 4, 5, 6, 7]  # 8 would be the third unit of rank 1


def test_a_rank_that_works_shows_that_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_work, "HEARTBEAT_SECONDS", 0.05)
    release = threading.Event()

    def work(units: Sequence[int]) -> Generator[UnitItem[int], None, None]:
        release.wait(20)
        yield from compute(units)

    thread = threading.Thread(target=lambda: list(share_units(UNITS, work, Team(1, 2, tmp_path, 20), FORMAT)))
    thread.start()
    threading.Timer(1.5, release.set).start()
    assert len(run_rank(0, tmp_path, world_size=2, timeout=1.0)) == len(UNITS) + 9
    thread.join()
