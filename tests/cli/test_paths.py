"""File names in untrusted files never lead to a file outside the given folders."""

from __future__ import annotations

from pathlib import Path, PureWindowsPath

import h5py
import pytest
import torch

from posenet.annotations.people import read_dataset, read_split
from posenet.checkpoints.weights import load_model
from posenet.cli.main import run_tool
from posenet.data.store import Store
from posenet.errors import CheckpointError, DataError
from tests.helpers.drawn_data import document, make_record, person, write_annotations, write_store

OUTSIDE = [
    "../secret.jpg",
    "/etc/passwd",
    "a/../../secret.jpg",
    "C:\\secret.jpg",
    "..\\secret.jpg",
    "\\\\host\\share",
    "a\0b.jpg",
    "a\x1b[31m.jpg",
    "",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_file_name_in_annotations_leads_out_of_the_image_folder(tmp_path: Path, name: str) -> None:
    content = document([1], [person(1, 1)])
    content["images"][0]["file_name"] = name
    path = write_annotations(tmp_path / "a.json", content)
    for read in (read_dataset, read_split):
        try:
            [image] = read(path).images
        except DataError as error:
            assert "file-name" in str(error)
        else:  # as labelling tools write paths on their server: the end of the path
            inside = PureWindowsPath(image.file_name)
            assert image.file_name.isprintable() and not inside.anchor and ".." not in inside.parts


def test_a_checkpoint_whose_skeleton_is_a_file_name_is_refused(tmp_path: Path) -> None:
    torch.save({"model": {"a": torch.zeros(1)}, "config": {"model": {"skeleton": "/etc/passwd"}}}, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match="has a file name as its skeleton"):
        load_model(tmp_path / "a.pth")


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
