"""Files are written completely or not at all."""

import contextlib
import errno
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from posenet.checkpoints.folder import run_lock
from posenet.errors import ConfigError, DataError
from posenet.files import (
    atomic_replacement,
    check_outputs,
    open_input,
    open_text_output,
    output_lock,
    parse_toml,
    read_toml,
    remove_leftovers,
    write_atomically,
)
from tests.helpers.videos import full_disk


def test_the_new_content_replaces_the_old_when_the_block_ends_without_an_error(tmp_path):
    path = tmp_path / "new" / "file"
    write_atomically(path, b"old")
    for error in (OSError, KeyboardInterrupt):
        with pytest.raises(error), atomic_replacement(path) as temporary:
            temporary.write_bytes(b"half")
            raise error
        assert path.read_bytes() == b"old" and os.listdir(path.parent) == ["file"]
    with atomic_replacement(path) as temporary:
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and os.listdir(path.parent) == ["file"]


def test_the_error_of_a_full_disk_names_the_file(tmp_path):
    with full_disk(5), pytest.raises(OSError) as error:
        write_atomically(tmp_path / "file", b"too much")
    assert error.value.filename == str(tmp_path / "file") and os.listdir(tmp_path) == []


def test_a_symbolic_link_is_kept_and_its_target_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    for target in ("old", "folder/new"):
        link = tmp_path / f"link to {Path(target).name}"
        link.symlink_to(target)
        write_atomically(link, b"text")
        assert link.is_symlink() and (tmp_path / target).read_bytes() == b"text"


def test_a_fifo_is_written_and_not_replaced(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    received = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()))
    reader.start()
    write_atomically(fifo, b"text")
    reader.join(10)
    assert received == [b"text"] and fifo.is_fifo()


def test_text_keeps_its_line_ends_and_the_bytes_of_names_that_are_no_text(tmp_path, monkeypatch, capsysbinary):
    """Also on standard output, after what was written there before."""
    monkeypatch.chdir(tmp_path)
    print("before")
    for path in ("file", "-"):
        with open_text_output(path) as file:
            file.write("Zoë\udce9\r\n\n")
    text = b"Zo\xc3\xab\xe9\r\n\n"
    assert Path("file").read_bytes() == text and capsysbinary.readouterr().out == b"before\n" + text
    assert os.listdir() == ["file"]


def test_a_closed_standard_output_is_an_error_with_a_remedy(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(DataError, match="write to a file"):
        write_atomically("-", b"text")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device without space")
def test_a_full_disk_behind_standard_output_is_named(monkeypatch):
    full = open("/dev/full", "w")
    monkeypatch.setattr("sys.stdout", full)
    with pytest.raises(OSError, match="No space left on device: 'standard output'"):
        write_atomically("-", b"text")
    with contextlib.suppress(OSError):
        full.close()


def test_dev_stdout_is_standard_output_and_stays(tmp_path):
    """Redirected to a file, /dev/stdout leads to a regular file, which other output may follow."""
    code = "from posenet.files import write_atomically as w; print(1); w('/dev/stdout', b'2\\n'); print(3)"
    with open(tmp_path / "file", "w") as output:
        subprocess.run([sys.executable, "-c", code], stdout=output, check=True)
    assert (tmp_path / "file").read_text() == "1\n2\n3\n"


def test_only_regular_files_are_inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    os.symlink("fifo", "link")
    os.symlink("/dev/zero", "zero")
    for name in ("fifo", "link", "zero"):
        with pytest.raises(OSError, match=f"not a regular file: '{name}'"):
            open_input(name)
    with pytest.raises(IsADirectoryError):
        open_input(".")


def test_what_the_shell_has_opened_is_an_input(tmp_path):
    (tmp_path / "file").write_text("text")
    code = "import sys; from posenet.files import read_input; print(read_input(sys.argv[1]))"
    for source in ("<(echo text)", "/dev/null"):
        command = f'"{sys.executable}" -c "{code}" {source}'
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        assert result.stdout == ("b''\n" if source == "/dev/null" else "b'text\\n'\n")


@pytest.mark.parametrize(
    "text, problem",
    [
        ("a = 1\na = 2", "overwrite"),
        ("a = " + "[" * 50000 + "]" * 50000, "nested|recursion"),
        ("a = " + "1" * 5000, "digits"),
        (r'a = "C:\Users"', "single quotes"),
    ],
)
def test_toml_that_is_no_table_of_settings_is_refused(text, problem):
    with pytest.raises(ValueError, match=problem):
        parse_toml(text)


def test_a_toml_file_that_cannot_be_read_is_named_with_the_remedy(tmp_path):
    for name in (tmp_path, "/dev/zero"):
        with pytest.raises(ConfigError, match=f"{name}.*give another"):
            read_toml(name, "configuration", "give another")


def test_temporary_files_of_killed_processes_are_removed_and_no_others(tmp_path):
    kept = [
        "a.json",
        ".a.json.tmp",
        ".b.json.7.tmp",
        "xa.json.7.tmp",
        ".aXjson.7.tmp",
        "a.json.7.tmp",
        ".a.json.2.7.tmp",
    ]
    for name in (*kept, ".a.json.7.tmp", ".a.json.12-2.tmp", ".a.json.7.tmp.png"):
        (tmp_path / name).touch()
    longest = [tmp_path / ("a" * 255), tmp_path / ("ä" * 127)]
    for path in longest:
        with atomic_replacement(path) as temporary:
            temporary.with_name(re.sub(r"\d+\.tmp", "7.tmp", temporary.name)).touch()
    remove_leftovers(tmp_path / "a.json", tmp_path / os.fsdecode(b"b\xff.json"), *longest)  # one is not in UTF-8
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, *(path.name for path in longest)])


def test_a_file_that_exists_is_refused_without_overwrite_and_an_input_always(tmp_path):
    output, source = (write_file(tmp_path / name) for name in ("output", "input"))
    (tmp_path / "link").symlink_to(source)
    os.link(source, tmp_path / "hard")
    os.link(output, tmp_path / "other")
    check_outputs([tmp_path / "new" / "file"], [source])
    assert (tmp_path / "new").is_dir()
    with pytest.raises(DataError, match=r"output exists; .* --overwrite"):
        check_outputs([output], [source])
    check_outputs([output], [source], overwrite=True)
    for name in ("input", "link", "hard"):
        with pytest.raises(DataError, match=f"{name} would replace an input"):
            check_outputs([output, tmp_path / name], [tmp_path / "missing", source], overwrite=True)
    with open(tmp_path / "other") as file:
        for alias in (tmp_path / "other", file.fileno()):
            with pytest.raises(DataError, match="output would replace an input"):
                check_outputs([output], [alias], overwrite=True)


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, caplog):
    """Such as NFS without its lock service: training must run there, too."""
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    with output_lock(tmp_path / "a"), run_lock(tmp_path / "run"):
        assert caplog.text.count("has no locks (No locks available)") == 2


def test_a_lock_that_the_folder_does_not_allow_is_an_ordinary_error(tmp_path):
    with pytest.raises(OSError), output_lock(write_file(tmp_path / "file") / "a"):
        pass


def test_files_in_a_folder_of_outputs_count_as_outputs(tmp_path):
    folder = tmp_path / "sheets"
    check_outputs([], folders=[folder])
    folder.mkdir()
    os.link(write_file(tmp_path / "image"), folder / "000001.jpg")
    with pytest.raises(DataError, match="000001.jpg exists"):
        check_outputs([], folders=[folder])
    check_outputs([], overwrite=True, folders=[folder])
    with pytest.raises(DataError, match="would replace an input"):
        check_outputs([], [tmp_path / "image"], overwrite=True, folders=[folder])
    with pytest.raises(DataError, match="cannot write .*image: Not a directory"):
        check_outputs([], folders=[tmp_path / "image"])


def test_outputs_that_cannot_be_written_are_refused_in_one_line(tmp_path):
    file = write_file(tmp_path / "file")
    for outputs, message in (
        ([tmp_path], "is a folder"),
        ([file / "a"], "cannot write .*file: File exists"),
        ([tmp_path / ("a" * 300)], "cannot write .*: File name too long"),
        ([tmp_path / "a\0b"], "cannot write .*null"),
        ([tmp_path / "new" / "a", tmp_path / "new" / ".." / "new" / "a"], "written twice"),
        (["-", "-"], "- would be written twice"),
    ):
        with pytest.raises(DataError, match=message) as error:
            check_outputs(outputs, overwrite=True)
        assert "\n" not in str(error.value)
    assert sorted(os.listdir(tmp_path)) == ["file"], "no folder is made for outputs that are refused"


def test_fifos_devices_and_standard_output_may_exist(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "null").symlink_to(os.devnull)
    check_outputs([tmp_path / "fifo", tmp_path / "null", "-", "/dev/stdout"], [tmp_path / "fifo"])


def write_file(path):
    path.write_text("text")
    return path


def test_a_folder_in_which_nothing_may_be_written_is_an_error_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr("posenet.files.os.access", lambda path, mode: False)
    write_file(tmp_path / "old")
    (tmp_path / "null").symlink_to(os.devnull)
    check_outputs([tmp_path / "null", "-"])
    for name in ("new", "old"):
        with pytest.raises(DataError, match=f"cannot write .*{name}: Permission denied"):
            check_outputs([tmp_path / name], overwrite=True)
