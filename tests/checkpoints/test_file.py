"""Checkpoint files: safe reading, damaged and foreign files, the checksum, atomic writing."""

from __future__ import annotations

import hashlib
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from posenet.checkpoints.file import COMMENT_LENGTH, read_checkpoint, write_checkpoint
from posenet.checkpoints.weights import load_weights
from posenet.errors import CheckpointError
from tests.helpers.networks import tiny_network

END_LENGTH = COMMENT_LENGTH + 22
"""Bytes of the comment and of the zip file's end record before it."""


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
        (lambda path: path.mkdir(), "is a folder; give a file in it, such as last.pth"),
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


def assert_detected(path: Path, damaged: bytes, damage: object) -> None:
    path.write_bytes(damaged)
    try:
        read_checkpoint(path)
    except CheckpointError as error:
        assert path.name in str(error) and "\n" not in str(error)
    else:
        pytest.fail(f"not detected: {damage}")


def flip_bit(content: bytes, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


@pytest.mark.parametrize("flips, cuts", [(100, 40), pytest.param(1000, 200, marks=pytest.mark.torture)])
def test_flipped_bits_and_truncations_are_detected(content: bytes, tmp_path: Path, flips: int, cuts: int) -> None:
    path = tmp_path / "damaged.pth"
    rng = random.Random(1)
    for bit in rng.sample(range(8 * len(content)), flips):
        assert_detected(path, flip_bit(content, bit), f"bit {bit} of {len(content)} bytes")
    for length in rng.sample(range(len(content)), cuts):
        assert_detected(path, content[:length], f"cut to {length} of {len(content)} bytes")


@pytest.mark.parametrize("tail, every", [(END_LENGTH, 5), pytest.param(1000, 1, marks=pytest.mark.torture)])
def test_damage_of_the_checksum_itself_is_detected(content: bytes, tmp_path: Path, tail: int, every: int) -> None:
    path = tmp_path / "damaged.pth"
    for bit in range(8 * (len(content) - tail), 8 * len(content), every):
        assert_detected(path, flip_bit(content, bit), bit)
    for length in range(len(content) - tail - 1, len(content)):
        assert_detected(path, content[:length], length)
    for appended in (b"\0", b"posenet-sha256:" + 64 * b"0", content):
        assert_detected(path, content + appended, appended[:20])


def test_a_flipped_bit_in_a_foreign_file_is_detected_by_the_checksums_of_zip(tmp_path: Path) -> None:
    path = tmp_path / "bit.pth"
    for save, message in ((torch.save, r"damaged \(entry"), (None, r"damaged \(its checksum")):
        state = {"model": tiny_network().state_dict()}
        save(state, path) if save else write_checkpoint(path, state)
        path.write_bytes(flip_bit(path.read_bytes(), 4 * path.stat().st_size))
        with pytest.raises(CheckpointError, match=message):
            read_checkpoint(path)


def test_the_last_64_characters_are_the_sha256_of_the_rest(content: bytes) -> None:
    assert hashlib.sha256(content[:-64]).hexdigest().encode() == content[-64:]


def test_pytorch_and_zip_tools_read_a_file_with_a_checksum(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "last.pth"
    path.write_bytes(content)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    for mmap in (False, True):
        assert torch.load(path, weights_only=True, mmap=mmap)["progress"] == {"epoch": 3, "best": 0.25}


def test_foreign_files_without_our_checksum_load(tmp_path: Path) -> None:
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
