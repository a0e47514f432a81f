"""The checksum of a checkpoint: every flipped bit and every truncation is detected, and foreign files still load."""

from __future__ import annotations

import hashlib
import io
import random
import zipfile
from pathlib import Path

import pytest
import torch

from posenet.checkpoints.checksum import COMMENT_LENGTH, is_compressed, verify_checksum
from posenet.checkpoints.file import read_checkpoint, write_checkpoint
from posenet.errors import CheckpointError

END_LENGTH = COMMENT_LENGTH + 22
"""Bytes of the comment and of the zip file's end record before it."""


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a checkpoint."""
    path = tmp_path_factory.mktemp("checksum") / "last.pth"
    torch.manual_seed(0)
    write_checkpoint(
        path,
        {
            "format": 1,
            "model": {f"layer.{i}.weight": torch.randn(40, 40) for i in range(8)},
            "progress": {"epoch": 3, "best": 0.25},
        },
    )
    return path.read_bytes()


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


def assert_random_damage_is_detected(content: bytes, path: Path, flips: int, cuts: int) -> None:
    rng = random.Random(1)
    for bit in rng.sample(range(8 * len(content)), flips):
        assert_detected(path, flip_bit(content, bit), f"bit {bit} of {len(content)} bytes")
    for length in rng.sample(range(len(content)), cuts):
        assert_detected(path, content[:length], f"cut to {length} of {len(content)} bytes")


def test_flipped_bits_and_truncations_are_detected(content: bytes, tmp_path: Path) -> None:
    assert_random_damage_is_detected(content, tmp_path / "damaged.pth", flips=100, cuts=40)


def test_damage_of_the_checksum_itself_is_detected(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "damaged.pth"
    for bit in range(8 * (len(content) - END_LENGTH), 8 * len(content), 5):
        assert_detected(path, flip_bit(content, bit), bit)
    for length in range(len(content) - END_LENGTH - 1, len(content)):
        assert_detected(path, content[:length], length)
    for appended in (b"\0", b"posenet-sha256:" + 64 * b"0", content):
        assert_detected(path, content + appended, appended[:20])


@pytest.mark.torture
def test_a_thousand_flipped_bits_and_two_hundred_truncations_are_detected(content: bytes, tmp_path: Path) -> None:
    assert_random_damage_is_detected(content, tmp_path / "damaged.pth", flips=1000, cuts=200)


@pytest.mark.torture
def test_every_bit_and_every_truncation_near_the_end_is_detected(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "damaged.pth"
    for bit in range(8 * (len(content) - 1000), 8 * len(content)):
        assert_detected(path, flip_bit(content, bit), bit)
    for length in range(len(content) - 1000, len(content)):
        assert_detected(path, content[:length], length)


def test_the_last_64_characters_are_the_sha256_of_the_rest(content: bytes) -> None:
    assert hashlib.sha256(content[:-64]).hexdigest().encode() == content[-64:]


def test_pytorch_and_zip_tools_read_a_file_with_a_checksum(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "last.pth"
    path.write_bytes(content)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    for mmap in (False, True):
        assert torch.load(path, weights_only=True, mmap=mmap)["progress"] == {"epoch": 3, "best": 0.25}


@pytest.mark.parametrize("legacy", [False, True])
def test_foreign_files_without_a_checksum_load(tmp_path: Path, legacy: bool) -> None:
    path = tmp_path / "PoseNet_52_epoch.pth"
    torch.save({"weights": {"a": torch.ones(3)}}, path, _use_new_zipfile_serialization=not legacy)
    with open(path, "rb") as file:
        assert verify_checksum(file) is None
    assert torch.equal(read_checkpoint(path)["weights"]["a"], torch.ones(3))


def test_a_zip_file_with_another_comment_has_no_checksum() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.comment = b"made by hand"
    assert verify_checksum(file) is None


def test_a_zip_file_is_compressed_if_it_unpacks_to_more_bytes(content: bytes) -> None:
    assert not is_compressed(io.BytesIO(content))
    assert not is_compressed(io.BytesIO(b"no zip file"))
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", compression) as archive:
            archive.writestr("zeros", bytes(1000))
        assert is_compressed(file) == (compression == zipfile.ZIP_DEFLATED)
