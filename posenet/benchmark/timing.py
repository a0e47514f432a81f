"""Clocks: medians of callables that take turns, and the stages of a pipeline."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from tqdm import tqdm

Synchronize = Callable[[], None]
"""Waits for the device; called before every reading of the clock."""


def on_cpu() -> None:
    """The CPU has always finished when a call returns."""


def medians(
    tasks: Mapping[str, Callable[[], object]],
    repeats: int,
    synchronize: Synchronize = on_cpu,
    progress: bool = True,
    clock: Callable[[], float] | None = None,
) -> dict[str, float]:
    """Median seconds of every task.

    Each runs once untimed, then all take turns, so that a slow spell of the machine hits them alike.

    Args:
        repeats: timed runs of each task.
        progress: show a progress bar on a terminal.
        clock: tells seconds; None is the time of day, ``time.process_time`` leaves out what other programs take.
    """
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in tqdm(range(repeats + 1), desc="measure", leave=False, disable=None if progress else True):
        for name, task in tasks.items():
            elapsed = _time(task, synchronize, clock)
            if turn:
                seconds[name].append(elapsed)
    return {name: statistics.median(values) for name, values in seconds.items()}


def fastest(task: Callable[[], object], repeats: int, synchronize: Synchronize = on_cpu) -> float:
    """Least seconds of a task, after one untimed run; for physical limits."""
    _time(task, synchronize)
    return min(_time(task, synchronize) for _ in range(repeats))


def _time(task: Callable[[], object], synchronize: Synchronize, clock: Callable[[], float] | None = None) -> float:
    clock = clock or time.perf_counter
    synchronize()
    started = clock()
    result = task()
    synchronize()
    elapsed = clock() - started
    del result  # freeing it is not part of the task
    return elapsed


class Stopwatch:
    """Seconds of every stage of a pipeline that runs round after round.

    A stage may come several times in a round, for example once per image; its times then add up.
    """

    def __init__(self, synchronize: Synchronize = on_cpu) -> None:
        self._synchronize = synchronize
        self.clear()

    def clear(self) -> None:
        """Forget all rounds, such as the one that warmed up."""
        self._rounds: list[dict[str, float]] = []
        self._read = time.perf_counter()

    def start_round(self) -> None:
        self._rounds.append({})
        self.skip()

    def skip(self) -> None:
        """Leave out the time since the last reading."""
        self._synchronize()
        self._read = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Count the time since the last reading as ``stage``."""
        before = self._read
        self.skip()
        current = self._rounds[-1]
        current[stage] = current.get(stage, 0.0) + self._read - before

    def medians(self) -> dict[str, float]:
        """Median over the rounds of every stage's seconds, in the order in which the stages first came."""
        stages = list(dict.fromkeys(stage for current in self._rounds for stage in current))
        return {stage: statistics.median(current.get(stage, 0.0) for current in self._rounds) for stage in stages}

    def total(self) -> float:
        """Median seconds of a whole round."""
        return statistics.median(sum(current.values()) for current in self._rounds)
