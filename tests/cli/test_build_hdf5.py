"""The build-hdf5 tool: its arguments, summary and errors, and a build that is interrupted."""

from pathlib import Path

import pytest

from posenet.cli.main import run_tool
from posenet.data.store import Store
from tests.helpers.drawn_data import HEIGHT, WIDTH, crowd, document, person, write_annotations, write_coco, write_images
from tests.helpers.image_bytes import with_orientation

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


def test_a_build_prints_what_was_stored_and_what_was_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    people = [person(number, number, labelled=17 if number < 6 else 0) for number in range(1, 7)]
    people[0]["segmentation"] = []
    people[2] = person(3, 3, (80, 80, 200, 240))
    content = document(range(1, 8), [*people, crowd(10, 1, (0, 90, 40, 20))])
    content["images"][2].update(height=2 * HEIGHT, width=2 * WIDTH)
    images = write_images(Path("photos"), content)
    paths = [images / image["file_name"] for image in content["images"]]
    content["images"][2].update(height=4 * HEIGHT, width=4 * WIDTH)
    write_annotations(Path("annotations.json"), content)
    paths[1].unlink()
    paths[4].write_bytes(with_orientation(paths[4].read_bytes(), 3))

    flags = "--images photos --annotations annotations.json --output new/a.h5 --verify --max-side 160 --workers 1"
    assert tool(flags) == 0
    printed = capsys.readouterr().out
    for text in (
        "images        4\npeople        4\nsamples       4\n",
        "left out: 1 image without any annotation ",
        "left out: 1 image without a main person\n1 person without a sample of their own: 1 without labelled",
        f"left out: cannot read {paths[1]}: ",
        "[exif-by-setting]\n1 image of another size than annotated, to which the annotations were scaled\n",
        "1 image made smaller\nnew/a.h5 is intact\n",
    ):
        assert text in printed
    assert tool(f"{flags} --overwrite --background") == 0
    printed = capsys.readouterr().out
    assert "images        5" in printed and "\nbackground    1 image without people\n" in printed
    assert "without any annotation" not in printed
    assert tool("--output new/a.h5 --verify") == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "images        5" and last == "new/a.h5 is intact"


def test_a_preview_is_drawn_as_the_settings_say_and_replaces_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert build("a.h5", "--stats") == 0
    assert "nose " in capsys.readouterr().out
    preview = Path("previews/a.jpg")
    drawn = set()
    noise = "train.seed=7 data.transform='tests.data.test_dataset:add_noise'"
    for setting in ("train.seed=7", "train.seed=7 augment.person_height=0.3", "augment.person_height=0.3", noise):
        assert tool(f"--output a.h5 --preview {preview} --set train.input_size=64 {setting} --overwrite") == 0
        drawn.add(preview.read_bytes())
    assert len(drawn) == 4
    assert tool(f"--output a.h5 --preview {preview}") == 2
    assert "previews/a.jpg exists" in capsys.readouterr().err
    preview.unlink()
    preview.hardlink_to("images/000000000003.jpg")
    for arguments in (INPUTS, "--images images --unlabelled"):
        assert tool(f"{arguments} --output b.h5 --preview {preview} --overwrite") == 2
        assert "would replace an input, images/000000000003.jpg" in capsys.readouterr().err
    assert tool(f"{INPUTS} --output b.h5 --preview previews") == 2
    assert "give FILE.jpg" in capsys.readouterr().err
    assert not Path("b.h5").exists()


def test_images_without_annotations_are_stored_verified_and_inspected(capsys: pytest.CaptureFixture[str]) -> None:
    Path("images/000000000002.jpg").write_bytes(b"no image")
    arguments = "--images images --unlabelled --output a.h5 --max-unreadable 0.5"
    assert tool(f"{arguments} --verify --stats --preview drawn.jpg") == 0
    output = capsys.readouterr().out
    assert "images        2" in output and "a.h5 is intact" in output
    assert "samples       2" in output
    assert "left out: images/000000000002.jpg" in output and Path("drawn.jpg").is_file()


def test_images_are_selected_by_ids_in_arguments_or_in_a_file() -> None:
    Path("ids.txt").write_text("1\n3, 2")
    assert build("a.h5", "--image-ids 1 3") == build("b.h5", "--image-ids ids.txt --limit 2") == 0
    assert Store("a.h5").image_ids.tolist() == [1, 3]
    assert Store("b.h5").image_ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ("--output a.h5", "give --images and one of"),
        ("--output a.h5 --images images --verify", "give --images and one of"),
        ("--output a.h5 --annotations annotations.json --verify", "give --images and one of"),
        ("--output a.h5 --images images --unlabelled --background", "nor --background"),
        ("--output none.h5 --verify", "none.h5 does not exist"),
        ("--output a.h5 --images nowhere --annotations annotations.json", "image folder nowhere"),
        ("--output a.h5 --images images --annotations nothing.json", "cannot read annotations"),
        ("--output a.h5 --unlabelled", "give --images and one of"),
        ("--output a.h5 --unlabelled --images nowhere", "image folder nowhere"),
        (f"--output a.h5 {INPUTS} --unlabelled", "neither --annotations"),
        (f"--output annotations.json {INPUTS} --overwrite", "would replace an input"),
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
