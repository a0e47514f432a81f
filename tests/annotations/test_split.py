"""Splitting annotation files: every image keeps its annotations, and nothing is in two parts."""

import json
from pathlib import Path
from typing import Any

import pytest

from posenet.annotations.split import split_annotations
from posenet.cli.main import run_tool
from posenet.errors import DataError
from tests.helpers.changed_annotations import read
from tests.helpers.drawn_data import document, person, write_annotations, write_images

CONTENT = document(range(1, 21), [person(image, image, (image, 20, 50, 60)) for image in range(1, 21)])


def split(content: dict[str, Any], *arguments: Any, **options: Any) -> list[dict[str, Any]]:
    return [part.document for part in split_annotations(read(content), *arguments, **options)]


def boxes_of_images(content: dict[str, Any]) -> dict[str, Any]:
    names = {image["id"]: image["file_name"] for image in content["images"]}
    return {names[entry["image_id"]]: entry["bbox"] for entry in content["annotations"]}


def test_every_image_is_in_the_part_that_its_name_gives() -> None:
    content = CONTENT | {"licenses": [{"id": 1, "name": "mine"}]}
    parts = split(content, [0.5, 0.3, 0.2])
    assert [len(part["images"]) for part in parts] == [11, 5, 4]
    first, second, third = map(boxes_of_images, parts)
    assert first | second | third == boxes_of_images(CONTENT)
    assert all(part["licenses"] == content["licenses"] for part in parts)
    new = CONTENT["images"][0] | {"id": 99, "file_name": "new.jpg"}
    more = content | {"images": [*content["images"], new]}
    again = split(more, [0.5, 0.3, 0.2])
    assert [image["file_name"] for image in again[0]["images"]][-1] == "new.jpg", "it shows nobody"
    assert again[1:] == parts[1:]


def test_no_part_is_empty() -> None:
    few = document([1, 2, 3], [person(image, image) for image in (1, 2, 3)])
    for shares in ([0.98, 0.01, 0.01], [0.01, 0.98, 0.01], [0.01, 0.01, 0.98]):
        assert [len(part["images"]) for part in split(few, shares)] == [1, 1, 1]


def test_copies_of_an_image_stay_together(tmp_path: Path) -> None:
    content = document(range(1, 13), [person(image, image) for image in range(1, 13)])
    folder = write_images(tmp_path / "images", content)
    names = [image["file_name"] for image in content["images"]]
    for copy in names[1:6]:
        (folder / copy).write_bytes((folder / names[0]).read_bytes())

    def copies_in_first_part(*images: Path) -> int:
        part = split(content, [0.5, 0.5], *images)[0]
        return len({image["file_name"] for image in part["images"]} & set(names[:6]))

    assert copies_in_first_part(folder) in (0, 6) and copies_in_first_part() not in (0, 6)
    (folder / names[0]).unlink()
    with pytest.raises(DataError, match=f"cannot read .*{names[0]}"):
        copies_in_first_part(folder)


@pytest.mark.parametrize(
    "shares, message", [([0.5, 0.6], "a sum of 1"), ([1, 0], "not above 0"), ([0.04] * 25, "keypoints in 20 images")]
)
def test_shares_that_cannot_be_drawn_are_refused(shares: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        split(CONTENT, shares)


def test_the_tool_replaces_no_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_annotations(tmp_path / "a.json", CONTENT)
    train, val = tmp_path / "train.json", tmp_path / "val.json"

    def run(*words: object) -> tuple[int, str]:
        status = run_tool("annotations", ["split", str(path), *map(str, words)])
        return status, "".join(capsys.readouterr())

    status, shown = run("--shares", 0.5, 0.5, "--output", train, val)
    parts = split(CONTENT, [0.5, 0.5])
    assert status == 0 and f"wrote {train}: {len(parts[0]['images'])} images, " in shown
    assert json.loads(val.read_text()) == parts[1]
    assert "2 x --shares" in run("--output", tmp_path / "few.json")[1]
    assert run("--output", train, val)[0] == run("--output", path, val, "--overwrite")[0] == 2
    assert json.loads(path.read_text()) == CONTENT
