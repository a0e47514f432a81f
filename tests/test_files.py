"""Files are written completely or not at all."""

import os

import pytest

from posenet.files import atomic_replacement, write_atomically


def test_the_new_content_replaces_the_old_when_the_block_ends(tmp_path):
    path = tmp_path / "new" / "file"
    write_atomically(path, b"old")
    with atomic_replacement(path) as temporary:
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failed_write_keeps_the_old_file(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(error), atomic_replacement(path) as temporary:
        temporary.write_bytes(b"half")
        raise error
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_a_leftover_link_is_removed_and_not_written_through(tmp_path):
    """A killed process with the same id may leave a temporary name that is a hard link to another file."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    os.link(precious, tmp_path / f".file.{os.getpid()}.tmp")
    write_atomically(tmp_path / "file", b"new")
    assert precious.read_bytes() == b"precious" and (tmp_path / "file").read_bytes() == b"new"
