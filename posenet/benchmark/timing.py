"""Clocks: the median times of functions, and of the stages of a pipeline."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from posenet.progress import progress_bar

Task = Callable[[], object]
"""A function to measure."""

Synchronize = Callable[[], None]
"""Waits until the device has finished; called before each reading of the clock. A CPU does not need it."""

Clock = Callable[[], float]
"""Returns seconds. None stands for wall-clock time; ``time.process_time`` excludes the time of other programs."""


def median_seconds(
    tasks: Mapping[str, Task],
    repeats: int,
    synchronize: Synchronize = lambda: None,
    progress: bool = True,
    clock: Clock | None = None,
) -> dict[str, float]:
    """Measure the median run time of each task.

    Each round runs all tasks once, so that a slow phase of the machine affects all of them. The first round warms up
    and is not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for round_index in progress_bar(range(repeats + 1), "measure", unit="round", leave=False, disable=not progress):
        for name, task in tasks.items():
            elapsed = _time(task, synchronize, clock)
            if round_index > 0:
                seconds[name].append(elapsed)
    return {name: statistics.median(values) for name, values in seconds.items()}


def minimum_seconds(task: Task, repeats: int, synchronize: Synchronize = lambda: None) -> float:
    """Measure the shortest run time of a task after one warm-up run. Used for physical limits."""
    _time(task, synchronize)
    return min(_time(task, synchronize) for _ in range(repeats))


def _time(task: Task, synchronize: Synchronize, clock: Clock | None = None) -> float:
    clock = clock or time.perf_counter
    synchronize()
    started = clock()
    result = task()
    synchronize()
    elapsed = clock() - started
    del result  # only here, so that freeing it is not timed
    return elapsed


class Stopwatch:
    """Measures the stages of a pipeline that runs in rounds.

    A stage may occur several times in a round, for example once per image; its times are added up.
    """

    def __init__(self, synchronize: Synchronize = lambda: None, clock: Clock | None = None) -> None:
        self._synchronize = synchronize
        self._clock = clock or time.perf_counter
        self.reset()

    def reset(self) -> None:
        """Discard all rounds so far, such as the one that warms up."""
        self._rounds: list[dict[str, float]] = []
        self._last_reading = self._clock()

    def start_round(self) -> None:
        """Start a round and its first stage."""
        self._rounds.append({})
        self.skip()

    def skip(self) -> None:
        """Discard the time since the last reading and start the next stage."""
        self._synchronize()
        self._last_reading = self._clock()

    def lap(self, stage: str) -> None:
        """Add the time since the last reading to ``stage`` and start the next stage."""
        started = self._last_reading
        self.skip()
        current = self._rounds[-1]
        current[stage] = current.get(stage, 0.0) + self._last_reading - started

    def stage_medians(self) -> dict[str, float]:
        """Median over the rounds of each stage's seconds, in the order in which the stages first occurred."""
        stages = list(dict.fromkeys(stage for current in self._rounds for stage in current))
        return {stage: statistics.median(current.get(stage, 0.0) for current in self._rounds) for stage in stages}

    def round_median(self) -> float:
        """Median over the rounds of the seconds of all stages together."""
        return statistics.median(sum(current.values()) for current in self._rounds)
