"""The checksum inside a checkpoint: every flipped bit and every cut is found, and files from elsewhere still load."""

from __future__ import annotations

import hashlib
import io
import random
import zipfile
from pathlib import Path

import pytest
import torch

from posenet.checkpoints.checksum import COMMENT_LENGTH, verify_checksum
from posenet.checkpoints.file import read_checkpoint, write_checkpoint
from posenet.errors import CheckpointError

END = COMMENT_LENGTH + 22
"""The seal and the zip's end record before it."""


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("seal") / "last.pth"
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


def assert_found(path: Path, damaged: bytes, what: object) -> None:
    path.write_bytes(damaged)
    try:
        read_checkpoint(path)
    except CheckpointError as error:
        assert path.name in str(error) and "\n" not in str(error)
    else:
        pytest.fail(f"not noticed: {what}")


def flipped(content: bytes, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def try_damage(content: bytes, path: Path, flips: int, cuts: int) -> None:
    rng = random.Random(1)
    for bit in rng.sample(range(8 * len(content)), flips):
        assert_found(path, flipped(content, bit), f"bit {bit} of {len(content)} bytes")
    for length in rng.sample(range(len(content)), cuts):
        assert_found(path, content[:length], f"cut to {length} of {len(content)} bytes")


def test_flips_and_cuts_are_found(content, tmp_path):
    try_damage(content, tmp_path / "damaged.pth", flips=100, cuts=40)


def test_the_seal_itself_is_watched(content, tmp_path):
    path = tmp_path / "damaged.pth"
    for place in range(8 * (len(content) - END), 8 * len(content), 5):
        assert_found(path, flipped(content, place), place)
    for length in range(len(content) - END - 1, len(content)):
        assert_found(path, content[:length], length)
    for more in (b"\0", b"posenet-sha256:" + 64 * b"0", content):
        assert_found(path, content + more, more[:20])


@pytest.mark.torture
def test_a_thousand_flips_and_two_hundred_cuts_are_found(content, tmp_path):
    try_damage(content, tmp_path / "damaged.pth", flips=1000, cuts=200)


@pytest.mark.torture
def test_every_bit_of_the_end_and_every_length_near_it(content, tmp_path):
    for bit in range(8 * (len(content) - 1000), 8 * len(content)):
        assert_found(tmp_path / "damaged.pth", flipped(content, bit), bit)
    for length in range(len(content) - 1000, len(content)):
        assert_found(tmp_path / "damaged.pth", content[:length], length)


def test_what_the_page_says_of_checking_by_hand(content):
    assert hashlib.sha256(content[:-64]).hexdigest().encode() == content[-64:]


def test_pytorch_and_zip_tools_read_a_sealed_file(content, tmp_path):
    path = tmp_path / "last.pth"
    path.write_bytes(content)
    assert zipfile.ZipFile(path).testzip() is None
    for mmap in (False, True):
        assert torch.load(path, weights_only=True, mmap=mmap)["progress"] == {"epoch": 3, "best": 0.25}


@pytest.mark.parametrize("legacy", [False, True])
def test_files_from_elsewhere_have_no_seal_and_load(tmp_path, legacy):
    path = tmp_path / "PoseNet_52_epoch.pth"
    torch.save({"weights": {"a": torch.ones(3)}}, path, _use_new_zipfile_serialization=not legacy)
    with open(path, "rb") as file:
        assert verify_checksum(file) is None
    assert torch.equal(read_checkpoint(path)["weights"]["a"], torch.ones(3))


def test_a_zip_with_another_comment_is_not_taken_for_ours():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.comment = b"made by hand"
    assert verify_checksum(file) is None
