"""Writing a store: the file is complete, or it does not exist."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import pytest

from posenet.data.build import StoreWriter
from posenet.data.store import Record, Store, writer
from posenet.errors import DataError
from tests.helpers.drawn_data import make_record, write_store


@pytest.fixture
def records() -> list[Record]:
    return [make_record(7, 3), make_record(3, 1), make_record(5, 2)]


@pytest.fixture
def path(tmp_path: Path, records: list[Record]) -> Path:
    return write_store(tmp_path / "tiny.h5", records)


class TestWriting:
    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    def test_an_interrupted_build_leaves_nothing(
        self, tmp_path: Path, records: list[Record], error: type[BaseException]
    ) -> None:
        with pytest.raises(error), StoreWriter(tmp_path / "new" / "a.h5") as store_writer:
            store_writer.add(records[0], [0])
            raise error
        assert list((tmp_path / "new").iterdir()) == []

    def test_an_interrupted_rebuild_keeps_the_old_store(self, path: Path, records: list[Record]) -> None:
        before = path.read_bytes()
        with pytest.raises(KeyboardInterrupt), StoreWriter(path, overwrite=True) as store_writer:
            store_writer.add(records[1], [0])
            assert path.read_bytes() == before
            raise KeyboardInterrupt
        assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]

    def test_a_build_interrupted_at_its_end_leaves_nothing(
        self, tmp_path: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(writer, "flush_to_disk", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_store(tmp_path / "a.h5", records)
        assert list(tmp_path.iterdir()) == []

    def test_an_existing_store_is_replaced_only_on_request(self, path: Path, records: list[Record]) -> None:
        before = path.read_bytes()
        with pytest.raises(DataError, match="tiny.h5 exists; .*--overwrite"):
            write_store(path, records[:1])
        assert path.read_bytes() == before
        write_store(path, records[:1], overwrite=True)
        assert Store(path).num_images == 1

    def test_a_file_that_appears_during_the_build_is_kept(self, tmp_path: Path, records: list[Record]) -> None:
        with pytest.raises(DataError, match="a.h5 exists"), StoreWriter(tmp_path / "a.h5") as store_writer:
            store_writer.add(records[0], [0])
            (tmp_path / "a.h5").write_text("another program's")
        assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.h5", "another program's")]

    def test_a_file_that_is_not_hdf5_is_never_overwritten(self, tmp_path: Path, records: list[Record]) -> None:
        (tmp_path / "notes.txt").write_text("years of work")
        with pytest.raises(DataError, match="notes.txt is not an HDF5 file and is not overwritten"):
            write_store(tmp_path / "notes.txt", records, overwrite=True)
        assert (tmp_path / "notes.txt").read_text() == "years of work"

    def test_a_link_to_a_store_is_kept(self, path: Path, records: list[Record]) -> None:
        link = path.with_name("link.h5")
        link.symlink_to(path.name)
        with StoreWriter(link, overwrite=True) as writer:
            writer.add(records[0], [0])
        assert link.is_symlink() and Store(path).num_images == 1

    def test_a_store_does_not_go_to_standard_output(self) -> None:
        with pytest.raises(DataError, match="standard output"), StoreWriter("-"):
            pass

    def test_an_output_that_cannot_be_written_is_an_error(self, tmp_path: Path, records: list[Record]) -> None:
        with pytest.raises(DataError, match="is a folder"):
            write_store(tmp_path, records)
        (tmp_path / "file").write_text("")
        with pytest.raises(DataError, match=f"cannot write {tmp_path}/file/a.h5: "):
            write_store(tmp_path / "file" / "a.h5", records)

    def test_a_store_without_images_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no readable image with a main person"):
            write_store(tmp_path / "a.h5", [])
        assert list(tmp_path.iterdir()) == []

    def test_every_image_needs_a_main_person(self, tmp_path: Path, records: list[Record]) -> None:
        for main in ([], [1], [-1]):
            with pytest.raises(ValueError, match="main persons"), StoreWriter(tmp_path / "a.h5") as store_writer:
                store_writer.add(records[1], main)

    @pytest.mark.parametrize("buffer", [1, 2**24])
    def test_a_full_disk_is_an_error(
        self, tmp_path: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch, buffer: int
    ) -> None:
        monkeypatch.setattr(writer, "BUFFER_BYTES", buffer)
        monkeypatch.setattr(writer.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**6))
        with pytest.raises(DataError, match="a.h5: the disk has 1 MB left; free some space"):
            write_store(tmp_path / "a.h5", records)
        assert list(tmp_path.iterdir()) == []

    def test_a_failing_write_is_an_error(self, tmp_path: Path, records: list[Record]) -> None:
        with pytest.raises(DataError, match="a.h5: File too large"), StoreWriter(tmp_path / "a.h5") as store_writer:
            store_writer.add(records[0], [0])
            raise OSError(errno.EFBIG, "unable to write")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.skipif(sys.platform == "win32", reason="locks forbid removal there")
    def test_files_of_killed_builds_are_removed_and_of_running_builds_kept(
        self, tmp_path: Path, records: list[Record]
    ) -> None:
        (tmp_path / "a.h5.123.partial").write_bytes(b"killed before anything was written")
        write_store(tmp_path / "a.h5.124.partial", records)
        (tmp_path / "other.h5.125.partial").write_bytes(b"another store's")
        code = "import h5py, sys; f = h5py.File(sys.argv[1], 'w'); print(flush=True); sys.stdin.read()"
        running = subprocess.Popen(
            [sys.executable, "-c", code, tmp_path / "a.h5.126.partial"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        running.stdout.readline()
        write_store(tmp_path / "a.h5", records)
        running.communicate()
        assert {p.name for p in tmp_path.iterdir()} == {"a.h5", "a.h5.126.partial", "other.h5.125.partial"}
        assert Store(tmp_path / "a.h5").num_images == 3

    def test_images_that_do_not_fit_into_memory_lie_in_chunks_of_a_mebibyte(self, tmp_path, records, monkeypatch):
        monkeypatch.setattr(writer, "BUFFER_BYTES", 1)
        with h5py.File(write_store(tmp_path / "a.h5", records)) as file:
            assert file["jpeg"].chunks == (2**20,)
