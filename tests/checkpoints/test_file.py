"""Checkpoint files: safe reading, damaged and foreign files, atomic writing."""

from __future__ import annotations

import errno
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from posenet.checkpoints.file import read_checkpoint, write_checkpoint
from posenet.checkpoints.weights import load_weights
from posenet.errors import CheckpointError, DamagedCheckpointError
from tests.helpers.networks import tiny_network
from tests.helpers.process_runs import find_differences

LIST_LENGTH = 2000
"""Bytes at the end of a checkpoint with the list of the zip file's entries."""


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a checkpoint."""
    path = tmp_path_factory.mktemp("checkpoint") / "last.pth"
    torch.manual_seed(0)
    model = {f"layer.{i}.weight": torch.randn(40, 40) for i in range(8)}
    write_checkpoint(path, {"format": 1, "model": model, "progress": {"epoch": 3, "best": 0.25}})
    return path.read_bytes()


def write_foreign_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello.txt", "hello")


@pytest.mark.parametrize(
    "make_file, message",
    [
        (lambda path: path.write_bytes(b""), "damaged or not a PyTorch checkpoint"),
        (lambda path: path.write_text("not a checkpoint"), "not a checkpoint of plain tensors"),
        (lambda path: path.write_bytes(bytes(range(256)) * 20), "not a checkpoint of plain tensors"),
        (write_foreign_zip, "damaged or not a PyTorch checkpoint"),
        (lambda path: torch.save([1, 2, 3], path), "does not contain a dictionary of weights"),
        (lambda path: torch.save({"model": {}}, path), "contains no weights"),
        (lambda path: torch.save({"format": 99}, path), "format 99, newer than this program's 1; update posenet"),
        (lambda path: path.mkdir(), "is a folder; give a file in it, such as .*foreign.pth/last.pth"),
        (lambda path: write_checkpoint(path / "best.pth", {}), "is a folder; .* such as .*foreign.pth/best.pth"),
        (lambda path: None, "is not a file; check the path"),
    ],
)
def test_the_error_of_a_foreign_file_names_it_and_the_fault_in_one_line(
    tmp_path: Path, make_file: Callable[[Path], None], message: str
) -> None:
    path = tmp_path / "foreign.pth"
    make_file(path)
    with pytest.raises(CheckpointError, match=f"foreign.pth .*{message}") as error:
        load_weights(tiny_network(), path)
    assert "\n" not in str(error.value)


def assert_detected_or_harmless(path: Path, content: bytes, damaged: bytes, damage: object) -> None:
    """A damaged file is refused, unless only bytes that nobody reads have changed, such as those between entries."""
    path.write_bytes(content)
    sound = read_checkpoint(path)
    path.write_bytes(damaged)
    try:
        state = read_checkpoint(path)
    except CheckpointError as error:
        assert path.name in str(error) and "\n" not in str(error)
    else:
        assert find_differences(state, sound) == [], f"not detected: {damage}"


def flip_bit(content: bytes, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


@pytest.mark.parametrize("flips, cuts", [(100, 40), pytest.param(1000, 200, marks=pytest.mark.torture)])
def test_flipped_bits_and_truncations_are_detected_or_harmless(
    content: bytes, tmp_path: Path, flips: int, cuts: int
) -> None:
    path = tmp_path / "damaged.pth"
    rng = random.Random(1)
    in_list = range(8 * (len(content) - LIST_LENGTH), 8 * len(content))
    for bit in rng.sample(range(8 * len(content)), flips) + rng.sample(in_list, flips):
        damage = f"bit {bit} of {len(content)} bytes"
        assert_detected_or_harmless(path, content, flip_bit(content, bit), damage)
    for length in rng.sample(range(len(content)), cuts):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=path.name):
            read_checkpoint(path)


def test_a_flipped_bit_in_a_tensor_is_detected(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bit.pth"
    path.write_bytes(flip_bit(content, 8 * (len(content) // 3)))
    with pytest.raises(DamagedCheckpointError, match=r"damaged \(entry"):
        read_checkpoint(path)


def test_files_of_other_programs_load(tmp_path: Path) -> None:
    path = tmp_path / "PoseNet_52_epoch.pth"
    for legacy in (False, True):
        torch.save({"weights": {"a": torch.ones(3)}}, path, _use_new_zipfile_serialization=not legacy)
        assert torch.equal(read_checkpoint(path)["weights"]["a"], torch.ones(3))
    torch.save({"weights": {"a": torch.ones(3)}}, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"made by hand"
    assert torch.equal(read_checkpoint(path)["weights"]["a"], torch.ones(3))


def test_a_compressed_file_is_refused_before_it_is_unpacked(content: bytes, tmp_path: Path) -> None:
    plain, path = tmp_path / "plain.pth", tmp_path / "compressed.pth"
    plain.write_bytes(content)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    with pytest.raises(CheckpointError, match="compressed.pth is compressed.*unpack it first"):
        read_checkpoint(path)


def write_with_comment(path: Path, comment: bytes) -> None:
    torch.save({"model": {"a": torch.ones(3)}}, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = comment


@pytest.mark.parametrize("comment", [b"PK\x05\x06tail", b"PK\x05\x06", b"text PK\x05\x06" + 17 * b"x"])
def test_a_comment_that_hides_the_zip_file_from_python_is_refused(tmp_path: Path, comment: bytes) -> None:
    """PyTorch would read it, and no compression and no damage would be noticed."""
    path = tmp_path / "hidden.pth"
    write_with_comment(path, comment)
    assert not zipfile.is_zipfile(path)
    assert torch.load(path, weights_only=True)["model"]["a"].tolist() == [1, 1, 1]
    with pytest.raises(DamagedCheckpointError, match="hidden.pth is damaged or not a PyTorch checkpoint"):
        read_checkpoint(path)


def test_two_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.pth"
    torch.save({"model": {"a": torch.ones(3)}}, path)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("twice/data/0", bytes(12))
    with pytest.raises(DamagedCheckpointError, match="not a zip file as PyTorch writes it"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "error, message",
    [
        (OSError(errno.EIO, "Input/output error"), r"cannot read .*a\.pth \(Input/output error\); try again"),
        (OSError(errno.ESTALE, "Stale file handle"), r"cannot read .*a\.pth \(Stale file handle\)"),
        (InterruptedError(errno.EINTR, "Interrupted"), r"cannot read .*a\.pth \(Interrupted\)"),
        (BlockingIOError(errno.EAGAIN, "Try again"), r"cannot read .*a\.pth \(Try again\)"),
        (PermissionError(errno.EACCES, "Permission denied"), r"cannot read .*a\.pth \(Permission denied\)"),
        (MemoryError(), r"too little memory to read .*a\.pth"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), r"too little memory to read .*a\.pth"),
        (RuntimeError("std::bad_alloc"), r"too little memory to read .*a\.pth"),
    ],
)
@pytest.mark.parametrize("place", ["torch.load", "zipfile.ZipFile"])
def test_what_says_nothing_about_the_file_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str, place: str
) -> None:
    path = tmp_path / "a.pth"
    torch.save({"a": torch.ones(3)}, path)

    def fail(*_args: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(place, fail)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_checkpoint(path)
    assert not isinstance(caught.value, DamagedCheckpointError) and "\n" not in str(caught.value)
