"""Files made to harm: nothing in them is run, nothing outside the stated folders is touched, memory stays bounded."""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.weights import load_model
from posenet.cli.main import run_tool
from posenet.errors import CheckpointError
from posenet.settings import config_to_dict, load_config
from tests.helpers.malformed_inputs import try_all

TINY = config_to_dict(load_config(None, ["model.stacks=1", "model.width=16", "model.growth=2"]))
needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are limited as on Linux")


class Call:
    """Pickled, it is a call of any function; unpickled, that call is made."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.filterwarnings("ignore:Detected pickle protocol", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_no_code_in_a_checkpoint_is_run(tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / "evil.pth"
    refused = "evil.pth .*code"
    system = Call(os.system, f"touch {trace}")
    for evil in (system, Call(pickle.loads, pickle.dumps(system)), Call(Path.touch, trace)):
        for zipped in (True, False):
            torch.save({"model": {"stem.weight": evil}}, path, _use_new_zipfile_serialization=zipped)
            with pytest.raises(CheckpointError, match=refused):
                read_checkpoint(path)
        assert run_tool("predict", ["--checkpoint", str(path), str(path), "--output", str(tmp_path / "out")]) == 2
        path.write_bytes(pickle.dumps(evil))
        with pytest.raises(CheckpointError, match=refused):
            read_checkpoint(path)
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
    with pytest.raises(CheckpointError):
        read_checkpoint(path)
    assert not trace.exists()


# Bombs: a child has MAX_GROWTH_BYTES more than this process; what unpacks to more is refused before it does

MAX_GROWTH_BYTES = 200 * 2**20


def refused(attempt) -> None:
    """``attempt`` ends in a ``PosenetError`` within ``MAX_GROWTH_BYTES`` of memory."""
    findings = try_all(1, lambda _: attempt(), max_growth=MAX_GROWTH_BYTES)
    assert findings.counts == {"refused": 1}, findings.faults or findings


def zip_bomb(path: Path) -> None:
    torch.save({"model": {"a": torch.zeros(3)}, "config": TINY}, path)
    source = zipfile.ZipFile(io.BytesIO(path.read_bytes()))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, content + bytes(2**28) if "/data/" in name else content)


def huge_tensor(path: Path) -> None:
    torch.save({"model": {"a": torch.zeros(1).expand(2**40)}, "config": TINY}, path)


def huge_legacy_storage(path: Path) -> None:
    torch.save({"model": {"a": torch.zeros(1000003)}}, path, _use_new_zipfile_serialization=False)
    count, huge = (b"J" + struct.pack("<I", number) for number in (1000003, 2**31 - 1))
    data = path.read_bytes()
    assert count in data
    path.write_bytes(data.replace(count, huge))


def laughs() -> list[Any]:
    """A list of ten lists of ten lists, and so on: a billion words, of which one exists."""
    laugh: list[Any] = ["ha"] * 10
    for _ in range(9):
        laugh = [laugh] * 10
    return laugh


def billion_laughs(path: Path) -> None:
    torch.save({"model": {"a": torch.zeros(1)}, "format": laughs(), "config": {"model": {"stacks": laughs()}}}, path)


@needs_linux
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "bomb",
    [zip_bomb, huge_tensor, huge_legacy_storage, billion_laughs],
    ids=lambda bomb: bomb.__name__,
)
def test_a_checkpoint_takes_no_more_memory_than_it_has(tmp_path, bomb):
    path = tmp_path / "bomb.pth"
    bomb(path)
    assert path.stat().st_size < 10 * 2**20
    refused(lambda: load_model(path))
