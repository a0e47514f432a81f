"""File names in untrusted files never lead to a file outside the given folders."""

from pathlib import Path

import h5py
import pytest

from posenet.cli.main import run_tool
from posenet.data.store import Store
from tests.helpers.drawn_data import make_record, write_store


def test_file_names_in_a_store_are_never_opened_and_are_printed_safely(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_record(1)._replace(file_name="../../\x1b]0;owned\x07secret.jpg")
    path = write_store(tmp_path / "a.h5", [record])
    opened, real_open = [], open
    monkeypatch.setattr("builtins.open", lambda name, *rest: opened.append(name) or real_open(name, *rest))
    with Store(path) as store:
        store.read_record(0).decode_image()
    assert set(map(str, opened)) == {str(path)}
    monkeypatch.undo()
    with h5py.File(path, "r+") as file:
        file["images"][:] = 0
    assert run_tool("build-hdf5", ["--verify", "--output", str(path)]) == 2
    error = capsys.readouterr().err
    assert "secret.jpg" in error and "\x1b" not in error.splitlines()[-1] and "\x07" not in error
