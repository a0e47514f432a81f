"""Cores, and files that are replaced whole."""

import os

import pytest

from posenet.devices.cpu import usable_cores
from posenet.files import atomic_replacement, write_atomically


def test_usable_cores_are_some_of_the_machines():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "new" / "file"
    write_atomically(path, b"old")
    with atomic_replacement(path) as temporary:
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failed_write_leaves_the_old_file_alone(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(error), atomic_replacement(path) as temporary:
        temporary.write_bytes(b"half")
        raise error
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_a_failed_replacement_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "new" / "file"
    write_atomically(path, b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(path.parent) == ["file"]
