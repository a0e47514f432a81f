"""Fixtures of the training tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from posenet.devices.runtime import Runtime
from posenet.settings import ModelConfig, OptimConfig
from posenet.training.trainer import Trainer
from tests.helpers.tiny_training import CPU, tiny_trainer

LEARNING = (
    f"model.conv_std={ModelConfig.conv_std}",
    f"optim.max_grad_norm={OptimConfig.max_grad_norm}",
    "optim.name='adamw'",
    "optim.lr=1e-3",
    "train.batch_size=2",
    "train.epochs=2",
    "log.every_steps=2",
)
"""Settings of two epochs in which the loss falls."""


@pytest.fixture
def make_trainer(stores: dict[str, Path], tmp_path: Path) -> Iterator[Callable[..., Trainer]]:
    """A function that makes a trainer of a tiny network, which learns for two epochs; it is closed after the test.

    Its arguments are settings; the folder of the run, "run" by default; and ``steps``, ``frozen`` and ``resume`` of
    ``tiny_trainer``.
    """
    with contextlib.ExitStack() as stack:

        def make(
            *overrides: str,
            folder: str = "run",
            steps: int = 0,
            frozen: tuple[str, ...] = (),
            resume: Path | None = None,
        ) -> Trainer:
            settings = (*LEARNING, *overrides)
            trainer = tiny_trainer(
                Runtime(CPU), stores, tmp_path / folder, *settings, steps=steps, frozen=frozen, resume=resume
            )
            return stack.enter_context(trainer)

        yield make
