"""A stand-in for the package wandb, which records what it receives."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np


class FakeRun:
    """The run that ``init`` returns."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.is_finished = False

    def log(self, values: dict[str, Any], step: int) -> None:
        assert not self.is_finished
        self.logged.append((step, values))

    def finish(self) -> None:
        self.is_finished = True


class FakeImage:
    def __init__(self, pixels: np.ndarray) -> None:
        assert pixels.dtype == np.uint8
        self.pixels = pixels


class FakeWandb(ModuleType):
    """The module; ``runs`` holds the runs that were started."""

    Image = FakeImage

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[FakeRun] = []

    def init(self, **settings: Any) -> FakeRun:
        self.runs.append(FakeRun(**settings))
        return self.runs[-1]
