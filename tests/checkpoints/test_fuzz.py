"""Mutated checkpoints: each is used correctly or refused by one clean line, in bounded time and memory.

Every input is a function of its number alone. ``make torture`` tries thousands, the other tests a few of them.
"""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.weights import config_of_checkpoint, load_model, require_fitting_weights
from posenet.settings import Config
from tests.helpers.malformed_inputs import ODD, mutate_bytes, mutate_tree, try_all
from tests.helpers.tiny_training import train_tiny

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are limited as on Linux")


def rezipped(rng: np.random.Generator, data: bytes) -> bytes:
    """The archive anew, its checksums fitting, with one entry mutated."""
    source, result = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    names = source.namelist()
    chosen = next(n for n in names if n.endswith("data.pkl")) if rng.random() < 0.8 else str(rng.choice(names))
    with zipfile.ZipFile(result, "w") as target:
        for name in names:
            content = source.read(name)
            target.writestr(name, mutate_bytes(rng, content) if name == chosen else content)
    return result.getvalue()


@pytest.mark.parametrize("count", [10, pytest.param(500, marks=pytest.mark.torture)])
def test_checkpoints(stores: Mapping[str, Path], tmp_path: Path, count: int) -> None:
    run = tmp_path / "run"
    train_tiny(stores, run, max_steps=2)
    path, legacy = tmp_path / "mutated.pth", tmp_path / "legacy.pth"
    sound, state = (run / "last.pth").read_bytes(), read_checkpoint(run / "last.pth")
    torch.save(state, legacy, _use_new_zipfile_serialization=False)
    old = legacy.read_bytes()

    def use(number: int) -> None:
        rng = np.random.default_rng((5, number))
        if number % 4 == 0:
            path.write_bytes(rezipped(rng, sound))
        elif number % 4 == 1:
            path.write_bytes(mutate_bytes(rng, old, range(4096) if rng.random() < 0.8 else ()))
        else:
            torch.save(mutate_tree(rng, state, (*ODD, torch.zeros(2), torch.full((3,), float("nan")))), path)
        found = read_checkpoint(path)
        require_fitting_weights(config_of_checkpoint(found, path) or Config(), found, path)
        if number % 5 == 0:
            load_model(path)
        if number % 8 == 2:  # resume from it; the next step is the run's third
            train_tiny(stores, tmp_path / f"resumed-{number}", resume=path, max_steps=3)

    findings = try_all(count, use)
    assert not findings.faults
    assert findings.counts["refused"]
