"""The build-hdf5 tool: its arguments, summary and errors, and a build that is interrupted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from posenet.cli.main import run_tool
from posenet.data.store import Store
from tests.helpers.chairs import write_chairs
from tests.helpers.drawn_data import write_coco

INPUTS = "--images images --annotations annotations.json"


@pytest.fixture(autouse=True)
def _working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with INPUTS: three images and their annotations."""
    assert write_coco(tmp_path) == (tmp_path / "images", tmp_path / "annotations.json")
    monkeypatch.chdir(tmp_path)


def tool(arguments: str) -> int:
    return run_tool("build-hdf5", arguments.split())


def build(path: str, arguments: str = "") -> int:
    return tool(f"{INPUTS} --output {path} --workers 1 {arguments}")


def test_a_built_store_is_summarized_and_verified(capsys: pytest.CaptureFixture[str]) -> None:
    Path("images/000000000002.jpg").unlink()
    assert build("new/folder/a.h5", "--verify") == 0
    output = capsys.readouterr().out
    for line in (
        "images        2",
        "people        2",
        "samples       2, each of a main person",
        "crowds        0",
        "skipped       1",
    ):
        assert line in output
    assert "000000000002.jpg (image 2): No such file" in output and "a.h5 is intact" in output
    assert tool("--output new/folder/a.h5 --verify") == 0
    assert "a.h5 is intact" in capsys.readouterr().out


def test_the_data_sets_of_a_run_are_inspected_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert build("a.h5", "--image-ids 1 2") == build("b.h5", "--image-ids 3") == 0
    sets = 'data.train=[{path="a.h5",name="first"},{path="b.h5",weight=2}]'
    assert tool(f"--stats --verify --preview drawn --set {sets}") == 0
    output = capsys.readouterr().out
    assert "== first: 2 samples, 2 of them per epoch\n" in output and "first is intact" in output
    assert "== b: 1 sample, 2 of them per epoch\n" in output
    assert len(list(Path("drawn").iterdir())) == 3


def test_objects_of_another_category_have_its_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    images, annotations = write_chairs(tmp_path / "drawn", "photos", 2, 1)
    assert run_tool("annotations", ["skeleton", str(annotations), "--output", "chair.toml"]) == 0
    words = ["--images", str(images), "--annotations", str(annotations), "--skeleton", "chair.toml", "--background"]
    capsys.readouterr()
    assert run_tool("build-hdf5", [*words, "--output", "chairs.h5", "--stats"]) == 0
    output = capsys.readouterr().out
    assert "chair         4\n" in output and "chair in an image" in output and "4 x chair without" in output
    assert not re.findall(r"(?i)\b(?:persons?|people)\b", output)


def test_statistics_are_printed_and_previews_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert build("a.h5", "--stats") == 0
    assert "== a.h5: 3 samples, 3 of them per epoch\n" in capsys.readouterr().out
    assert tool("--output a.h5 --stats --preview previews --set train.input_size=64") == 0
    assert "3 samples" in capsys.readouterr().out and len(list(Path("previews").iterdir())) == 3
    Path("previews/sample_002.jpg").write_text("mine")
    assert tool("--output a.h5 --preview previews") == 2
    assert "previews/sample_001.jpg exists" in capsys.readouterr().err
    assert Path("previews/sample_002.jpg").read_text() == "mine"
    assert tool("--output a.h5 --preview previews --set train.input_size=64 --overwrite") == 0


def test_images_without_annotations_are_stored_verified_and_inspected(capsys: pytest.CaptureFixture[str]) -> None:
    Path("images/000000000002.jpg").write_bytes(b"no image")
    arguments = "--images images --unlabelled --output a.h5 --max-unreadable 0.5"
    assert tool(f"{arguments} --verify --stats --preview drawn") == 0
    output = capsys.readouterr().out
    assert "images        2" in output and "a.h5 is intact" in output
    assert "samples       all images, which have no annotations" in output
    assert "== a.h5: 2 samples, 2 of them per epoch\n" in output
    assert "skipped       1 image of other proportions or unreadable" in output and "000000000002.jpg" in output


def test_images_are_selected_by_ids_in_arguments_or_in_a_file() -> None:
    Path("ids.txt").write_text("1\n3, 2")
    assert build("a.h5", "--image-ids 1 3") == build("b.h5", "--image-ids ids.txt --limit 2") == 0
    assert Store("a.h5").image_ids.tolist() == [1, 3]
    assert Store("b.h5").image_ids.tolist() == [1, 2]


def test_an_existing_store_needs_overwrite(capsys: pytest.CaptureFixture[str]) -> None:
    assert build("a.h5", "--limit 1") == 0
    assert build("a.h5") == 2
    assert "--overwrite" in capsys.readouterr().err
    assert Store("a.h5").num_images == 1
    assert build("a.h5", "--overwrite") == 0
    assert Store("a.h5").num_images == 3


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ("", "name the store with --output"),
        ("--output a.h5", "give both --images and --annotations"),
        ("--output none.h5 --verify", "none.h5 does not exist"),
        ("--output a.h5 --images nowhere --annotations annotations.json", "image folder nowhere"),
        ("--output a.h5 --images images --annotations nothing.json", "cannot read annotations"),
        ("--output a.h5 --unlabelled", "--unlabelled needs the folder of the images"),
        ("--output a.h5 --unlabelled --no-background --images nowhere", "image folder nowhere"),
        (f"--output a.h5 {INPUTS} --unlabelled", "leave out --unlabelled or --annotations"),
        (f"--output annotations.json {INPUTS} --overwrite", "is not an HDF5 file and is not overwritten"),
        (f"--output a.h5 {INPUTS} --image-ids 9", "has no image 9"),
        (f"--output a.h5 {INPUTS} --image-ids ids.txt", "cannot read image ids from ids.txt"),
        (f"--output a.h5 {INPUTS} --image-ids 1 two", "image ids are whole numbers"),
    ],
)
def test_bad_input_is_reported_in_one_line_with_status_2_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], arguments: str, expected: str
) -> None:
    before = sorted(Path().rglob("*"))
    assert tool(arguments) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert message.count("\n") == 1
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("arguments", ["--workers 0", "--limit 0", "--max-unreadable 2"])
def test_numbers_out_of_range_are_rejected(arguments: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        build("a.h5", arguments)
