"""Checkpoint files: safe reading, damaged and foreign files, atomic writing."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from posenet.checkpoints.file import read_checkpoint, write_checkpoint
from posenet.checkpoints.weights import load_weights
from posenet.errors import CheckpointError
from tests.helpers.networks import tiny_network


class Malicious:
    """An object that creates a folder when it is unpickled without protection."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (self.target,)


@pytest.mark.parametrize("legacy", [False, True])
def test_code_in_a_checkpoint_is_never_run(tmp_path: Path, legacy: bool) -> None:
    path, trace = tmp_path / "evil.pth", tmp_path / "executed"
    torch.save({"model": Malicious(str(trace))}, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(CheckpointError, match="never run"):
        read_checkpoint(path)
    assert not trace.exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_code_in_a_plain_pickle_is_never_run(tmp_path: Path) -> None:
    path, trace = tmp_path / "evil.pkl", tmp_path / "executed"
    path.write_bytes(pickle.dumps(Malicious(str(trace))))
    with pytest.raises(CheckpointError):
        read_checkpoint(path)
    assert not trace.exists()


def write_foreign_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello.txt", "hello")


@pytest.mark.parametrize(
    "make_file",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("not a checkpoint"),
        lambda path: path.write_bytes(os.urandom(5000)),
        lambda path: torch.save([1, 2, 3], path),
        lambda path: torch.save({"model": {}}, path),
        lambda path: torch.save({"format": 99, "model": {}}, path),
        write_foreign_zip,
        lambda path: path.mkdir(),
        lambda path: None,
    ],
)
def test_the_error_of_a_foreign_file_names_it_in_one_line(tmp_path: Path, make_file: Callable[[Path], None]) -> None:
    path = tmp_path / "foreign.pth"
    make_file(path)
    with pytest.raises(CheckpointError) as error:
        load_weights(tiny_network(), path)
    assert "foreign.pth" in str(error.value) and "\n" not in str(error.value)


def test_a_folder_and_a_missing_file_have_different_errors(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a folder; give a file in it, such as last.pth"):
        read_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="none.pth is not a file; check the path"):
        read_checkpoint(tmp_path / "none.pth")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_checkpoint_is_detected(tmp_path: Path, share: float) -> None:
    path = tmp_path / "cut.pth"
    write_checkpoint(path, {"model": tiny_network().state_dict()})
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError):
        read_checkpoint(path)


@pytest.mark.parametrize("foreign", [False, True])
def test_a_flipped_bit_in_a_tensor_is_detected_with_and_without_our_checksum(tmp_path: Path, foreign: bool) -> None:
    path = tmp_path / "bit.pth"
    state = {"model": tiny_network().state_dict()}
    torch.save(state, path) if foreign else write_checkpoint(path, state)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"damaged \(entry" if foreign else r"damaged \(its checksum"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "error, reason",
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (RuntimeError("[enforce fail at inline_container.cc:672] . PytorchStreamWriter failed"), "is the disk full?"),
    ],
)
def test_a_failed_write_keeps_the_old_file_and_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    path = tmp_path / "last.pth"
    write_checkpoint(path, {"step": 1})

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(CheckpointError) as caught:
        write_checkpoint(path, {"step": 2})
    assert reason in str(caught.value) and "free disk space" in str(caught.value) and "\n" not in str(caught.value)
    assert read_checkpoint(path) == {"step": 1}
    assert os.listdir(tmp_path) == ["last.pth"]
