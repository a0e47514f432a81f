"""Writing a store: the file is complete, or it does not exist. Builds that are killed: ``test_build``."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from posenet.data.store import Record, Store
from posenet.data.store_writer import open_store_writer
from posenet.errors import DataError
from tests.helpers.drawn_data import write_store


@pytest.mark.parametrize(
    "error, raised, message",
    [
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (OSError(errno.EFBIG, "unable to write"), DataError, "a.h5: File too large"),
    ],
)
def test_an_interrupted_build_leaves_nothing(
    tmp_path: Path, records: list[Record], error: BaseException, raised: type[BaseException], message: str | None
) -> None:
    with pytest.raises(raised, match=message), open_store_writer(tmp_path / "new" / "a.h5", 10**6) as writer:
        writer.add(records[0], [0])
        raise error
    assert list((tmp_path / "new").iterdir()) == []


def test_an_existing_store_is_replaced_only_on_request(path: Path, records: list[Record]) -> None:
    before = path.read_bytes()
    with pytest.raises(DataError, match="tiny.h5 exists; .*--overwrite"):
        write_store(path, records[:1])
    assert path.read_bytes() == before
    link = path.with_name("link.h5")
    link.symlink_to(path.name)
    write_store(link, records[:1], overwrite=True)
    assert link.is_symlink() and Store(path).num_images == 1
    notes = path.with_name("notes.txt")
    notes.write_text("mine")
    with pytest.raises(DataError, match="notes.txt is not an HDF5 file"):
        write_store(notes, records[:1], overwrite=True)
    assert notes.read_text() == "mine"


@pytest.mark.parametrize("name, fault", [("-", "standard output"), ("", "is a folder"), ("notes/a.h5", "notes cannot")])
def test_outputs_that_are_no_store_are_errors(tmp_path: Path, records: list[Record], name: str, fault: str) -> None:
    (tmp_path / "notes").write_text("years of work")
    with pytest.raises(DataError, match=fault):
        write_store(Path("-") if name == "-" else tmp_path / name, records)


def test_what_stops_a_build_is_named_and_leaves_nothing(tmp_path: Path, records: list[Record]) -> None:
    path = tmp_path / "a.h5"
    with pytest.raises(DataError, match="no readable image with a main person"):
        write_store(path, [])
    with pytest.raises(DataError, match="has grown while the store was built"):
        with open_store_writer(path, len(records[0].image_bytes)) as writer:
            writer.add(records[0], [0])
            writer.add(records[1], [0])
    assert list(tmp_path.iterdir()) == []


def test_files_of_killed_builds_are_removed_and_others_kept(tmp_path: Path, records: list[Record]) -> None:
    kept = {".other.h5.125.tmp", ".a.h5.mine.tmp"}
    for name in (".a.h5.123.tmp", ".a.h5.124-2.tmp", ".a.h5.lock", *kept):
        (tmp_path / name).write_bytes(b"")
    path = write_store(tmp_path / "a.h5", records)
    assert {p.name for p in tmp_path.iterdir()} == {"a.h5", *kept}
    assert Store(path).num_images == 3


def test_two_processes_do_not_build_one_store(tmp_path: Path, records: list[Record]) -> None:
    """Also where HDF5's own locks are off, as on many clusters."""
    code = (
        "import sys; from posenet.data.store_writer import open_store_writer\n"
        "with open_store_writer(sys.argv[1], 1): print(flush=True); sys.stdin.read(); raise KeyboardInterrupt"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.h5")]
    no_locks = os.environ | {"HDF5_USE_FILE_LOCKING": "FALSE"}
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=no_locks, **pipes) as running:
        assert running.stdout is not None
        running.stdout.readline()
        before = sorted(tmp_path.iterdir())
        with pytest.raises(DataError, match="a.h5 is being written by another process; wait"):
            write_store(tmp_path / "a.h5", records)
        assert sorted(tmp_path.iterdir()) == before
        running.communicate()
    path = write_store(tmp_path / "a.h5", records)
    assert Store(path).num_images == 3 and list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1000, 20_000, 100_000])
def test_a_write_that_fails_ends_the_program_with_an_error_and_no_crash(tmp_path: Path, limit: int) -> None:
    """HDF5 crashes at the end of a program that has closed a file with writes that cannot succeed."""
    code = (
        "import resource, sys\n"
        "import numpy as np\n"
        "from posenet.data.store_writer import open_store_writer\n"
        "from posenet.errors import DataError\n"
        "from tests.helpers.drawn_data import make_record\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)\n"
        "try:\n"
        "    with open_store_writer(sys.argv[1], 10**7) as writer:\n"
        "        for number in range(100):\n"
        "            writer.add(make_record(number)._replace(image_bytes=np.ones(50_000, np.uint8)), [0])\n"
        "except DataError as error:\n"
        "    sys.exit(str(error))\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "a.h5"), str(limit)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        f"cannot write {tmp_path / 'a.h5'}: File too large; free disk space, or choose another folder\n",
    )
    assert os.listdir(tmp_path) == []
