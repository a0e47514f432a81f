"""Files are written completely or not at all."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from posenet.errors import DataError
from posenet.files import atomic_replacement, is_standard_output, open_text_output, write_atomically
from tests.helpers.videos import full_disk


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


def test_the_error_of_a_full_disk_names_the_file(tmp_path):
    with full_disk(5), pytest.raises(OSError) as error:
        write_atomically(tmp_path / "file", b"too much")
    assert error.value.filename == str(tmp_path / "file") and os.listdir(tmp_path) == []


def test_a_leftover_link_is_removed_and_not_written_through(tmp_path):
    """A killed process with the same id may leave a temporary name that is a hard link to another file."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    os.link(precious, tmp_path / f".file.{os.getpid()}.tmp")
    write_atomically(tmp_path / "file", b"new")
    assert precious.read_bytes() == b"precious" and (tmp_path / "file").read_bytes() == b"new"


def write_text(path, data):
    with open_text_output(path) as file:
        file.write(data.decode())


WRITERS = pytest.mark.parametrize("write", [write_atomically, write_text])


@WRITERS
def test_a_symbolic_link_is_kept_and_its_target_replaced(tmp_path, write):
    (tmp_path / "folder").mkdir()
    for target in ("old", "folder/new"):
        link = tmp_path / f"link to {Path(target).name}"
        link.symlink_to(target)
        write(link, b"text")
        assert link.is_symlink() and (tmp_path / target).read_bytes() == b"text"


@WRITERS
def test_a_fifo_is_written_and_not_replaced(tmp_path, write):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    received = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()))
    reader.start()
    write(fifo, b"text")
    reader.join(10)
    assert received == [b"text"] and fifo.is_fifo()


@WRITERS
def test_a_device_is_written_and_not_replaced(tmp_path, write):
    device = tmp_path / "device"
    device.symlink_to(os.devnull)
    write(device, b"text")
    assert device.is_symlink() and not os.path.isfile(os.devnull)


@WRITERS
def test_a_dash_is_standard_output(tmp_path, monkeypatch, capsysbinary, write):
    monkeypatch.chdir(tmp_path)
    print("before")
    write("-", b"text")
    assert capsysbinary.readouterr().out == b"before\ntext" and not os.listdir(tmp_path)


@WRITERS
def test_a_closed_standard_output_is_an_error_with_a_remedy(monkeypatch, write):
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(DataError, match="write to a file"):
        write("-", b"text")


@pytest.mark.parametrize("redirected", [False, True])
def test_dev_stdout_is_standard_output_and_stays(tmp_path, redirected):
    """Redirected to a file, /dev/stdout leads to a regular file, which other output may follow."""
    code = "from posenet.files import write_atomically as w; print(1); w('/dev/stdout', b'2\\n'); print(3)"
    output = open(tmp_path / "file", "w+") if redirected else subprocess.PIPE
    result = subprocess.run([sys.executable, "-c", code], stdout=output, check=True, text=True)
    assert ((tmp_path / "file").read_text() if redirected else result.stdout) == "1\n2\n3\n"
    assert os.path.islink("/dev/stdout")


def test_other_files_are_not_standard_output(tmp_path):
    (tmp_path / "-").touch()
    assert is_standard_output("-")
    assert not is_standard_output(tmp_path / "-") and not is_standard_output(tmp_path / "missing")
