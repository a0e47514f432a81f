"""Mutated input files: each is used correctly or refused by one clean line, in bounded time and memory.

Every input is a function of its number alone. ``make torture`` tries thousands, the other tests a few of them.
"""

from __future__ import annotations

import io
import json
import sys
import tomllib
import zipfile

import numpy as np
import pytest
import torch

from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.weights import config_of_checkpoint, load_model, require_fitting_weights
from posenet.settings import Config, config_from_dict, config_to_dict, load_config
from tests.helpers.malformed_inputs import ODD, Findings, mutate_bytes, mutate_tree, try_all
from tests.helpers.tiny_training import TINY, train_tiny

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are limited as on Linux")

SHORT, LONG = 24, 2000


def check(findings: Findings, name: str, record) -> None:
    """Fail on the faults; show the counts in a torture run."""
    record(name, str(findings))
    sys.__stdout__.write(f"\n{name}: {findings}\n")
    worst = "\n".join(f"input {number}: {text}" for number, text in list(findings.faults.items())[:5])
    assert not findings.faults, f"{len(findings.faults)} faults\n{worst}"
    assert findings.counts["refused"]


@pytest.fixture(params=[SHORT, pytest.param(LONG, marks=pytest.mark.torture)], ids=["short", "long"])
def count(request):
    return request.param


# Checkpoints


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


def test_checkpoints(stores, tmp_path, count, record_property):
    run = tmp_path / "run"
    train_tiny(stores, run, max_steps=2)
    sound_path, path = run / "last.pth", tmp_path / "mutated.pth"
    sound, state = sound_path.read_bytes(), read_checkpoint(sound_path)
    legacy = tmp_path / "legacy.pth"
    torch.save(state, legacy, _use_new_zipfile_serialization=False)
    old = legacy.read_bytes()

    def use(number: int, exact: bool) -> None:
        found = read_checkpoint(path)
        if exact:
            assert all(torch.equal(found["model"][n], state["model"][n]) for n in state["model"])
        require_fitting_weights(config_of_checkpoint(found, path) or Config(), found, path)
        if number % 5 == 0:
            load_model(path)
        if number % 8 == 2:  # resume from it; the next step is the run's third
            train_tiny(stores, tmp_path / f"resumed-{number}", resume=path, max_steps=3)

    def of_bytes(number: int) -> None:
        path.write_bytes(mutate_bytes(np.random.default_rng((4, number)), sound))
        use(number, exact=True)

    def of_content(number: int) -> None:
        rng = np.random.default_rng((5, number))
        if number % 4 == 0:
            path.write_bytes(rezipped(rng, sound))
        elif number % 4 == 1:
            path.write_bytes(mutate_bytes(rng, old, range(4096) if rng.random() < 0.8 else ()))
        else:
            torch.save(mutate_tree(rng, state, (*ODD, torch.zeros(2), torch.full((3,), float("nan")))), path)
        use(number, exact=False)

    check(try_all(count, of_bytes), "bytes of a checkpoint", record_property)
    # One of these takes as long as ten of the others: most are loaded.
    check(try_all(max(8, count // 4), of_content), "content of a checkpoint", record_property)


# Configuration


def toml(tree: dict) -> str:
    def value(x: object) -> str:
        if isinstance(x, str):
            return json.dumps(x)
        if isinstance(x, (list, tuple)):
            return f"[{', '.join(map(value, x))}]"
        if isinstance(x, dict):
            return "{" + ", ".join(f"{json.dumps(str(k))} = {value(v)}" for k, v in x.items()) + "}"
        return '""' if x is None else str(x).lower()

    return "\n".join(f"{json.dumps(str(key))} = {value(table)}" for key, table in tree.items())


def test_configurations(tmp_path, count, record_property):
    tables, path = config_to_dict(load_config(None, TINY)), tmp_path / "mutated.toml"
    assert tomllib.loads(toml(tables))

    def load(number: int) -> None:
        rng = np.random.default_rng((6, number))
        plain = json.loads(json.dumps(tables))
        text = toml(plain if number % 3 == 0 else mutate_tree(rng, plain) or {}).encode(errors="replace")
        path.write_bytes(text if number % 3 == 2 else mutate_bytes(rng, text))
        config = load_config(path, ["train.seed=1"])
        assert load_config(None, base=config) == config
        assert config_from_dict(config_to_dict(config)) == config

    check(try_all(count, load), "configurations", record_property)
