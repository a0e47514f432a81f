"""Clocks of the benchmarks."""

from __future__ import annotations

import pytest

from posenet.benchmark import timing
from posenet.benchmark.timing import Stopwatch, median_seconds, minimum_seconds


class FakeClock:
    """A clock that shows the time that a test has set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(timing.time, "perf_counter", fake)
    return fake


def test_tasks_run_in_turn_and_the_first_round_is_not_counted(clock: FakeClock) -> None:
    durations = {"slow": [9.0, 4.0, 2.0, 3.0], "fast": [9.0, 1.0, 1.0, 1.0]}
    calls = []

    def run(name: str) -> None:
        calls.append(name)
        clock.now += durations[name].pop(0)

    seconds = median_seconds({"slow": lambda: run("slow"), "fast": lambda: run("fast")}, 3)
    assert seconds == {"slow": 3.0, "fast": 1.0}
    assert calls == ["slow", "fast"] * 4


def test_the_minimum_leaves_out_the_first_run(clock: FakeClock) -> None:
    durations = [0.5, 3.0, 2.0, 4.0]

    def run() -> None:
        clock.now += durations.pop(0)

    assert minimum_seconds(run, 3) == 2.0


def test_the_device_is_synchronized_before_each_reading(clock: FakeClock) -> None:
    def synchronize() -> None:
        clock.now += 10  # the device is still busy when a call returns

    assert median_seconds({"task": lambda: None}, 1, synchronize) == {"task": 10.0}
    watch = Stopwatch(synchronize)
    watch.start_round()
    watch.lap("task")
    assert watch.stage_medians() == {"task": 10.0}


def test_a_stopwatch_adds_up_the_times_of_a_stage_in_a_round(clock: FakeClock) -> None:
    watch = Stopwatch()
    for seconds in (1.0, 2.0, 5.0):
        watch.start_round()
        for stage in ("read", "decode", "read"):
            clock.now += seconds
            watch.lap(stage)
        clock.now += 100
        watch.skip()
    assert watch.stage_medians() == {"read": 4.0, "decode": 2.0}
    assert watch.round_median() == 6.0


def test_a_reset_discards_the_rounds_before_it(clock: FakeClock) -> None:
    watch = Stopwatch()
    for seconds in (100.0, 1.0):
        watch.reset()
        watch.start_round()
        clock.now += seconds
        watch.lap("read")
    assert watch.round_median() == 1.0
