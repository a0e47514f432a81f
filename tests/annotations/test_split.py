"""Splitting annotation files: every image keeps its annotations, and nothing is in two parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posenet.annotations.split import split_annotations
from posenet.errors import DataError
from tests.helpers.changed_annotations import read
from tests.helpers.drawn_data import document, person, write_images

CONTENT = document(range(1, 21), [person(image, image, (image, 20, 50, 60)) for image in range(1, 21)])


def split(content: dict[str, Any], share: float, folder: Path = Path()) -> list[dict[str, Any]]:
    return [part.document for part in split_annotations(read(content), share, folder, ())]


def boxes_of_images(content: dict[str, Any]) -> dict[str, Any]:
    names = {image["id"]: image["file_name"] for image in content["images"]}
    return {names[entry["image_id"]]: entry["bbox"] for entry in content["annotations"]}


def test_every_image_is_in_the_part_that_its_name_gives(tmp_path: Path) -> None:
    content = CONTENT | {"licenses": [{"id": 1, "name": "mine"}]}
    new = CONTENT["images"][0] | {"id": 99, "file_name": "new.jpg"}
    more = content | {"images": [*content["images"], new]}
    folder = write_images(tmp_path, more)
    parts = split(content, 0.2, folder)
    assert [len(part["images"]) for part in parts] == [16, 4]
    first, second = map(boxes_of_images, parts)
    assert first | second == boxes_of_images(CONTENT)
    assert all(part["licenses"] == content["licenses"] for part in parts)
    again = split(more, 0.2, folder)
    assert [image["file_name"] for image in again[0]["images"]][-1] == "new.jpg", "it shows nobody"
    assert again[1:] == parts[1:]


def test_no_part_is_empty(tmp_path: Path) -> None:
    few = document([1, 2, 3], [person(image, image) for image in (1, 2, 3)])
    folder = write_images(tmp_path, few)
    for share, count in ((0.01, 1), (0.99, 2)):
        assert [len(part["images"]) for part in split(few, share, folder)] == [3 - count, count]
    with pytest.raises(DataError, match="keypoints in 1 image"):
        split(document([1], [person(1, 1)]), 0.1, folder)


def test_copies_of_an_image_stay_together(tmp_path: Path) -> None:
    content = document(range(1, 13), [person(image, image) for image in range(1, 13)])
    folder = write_images(tmp_path / "images", content)
    names = [image["file_name"] for image in content["images"]]

    def copies_in_first_part() -> int:
        part = split(content, 0.5, folder)[0]
        return len({image["file_name"] for image in part["images"]} & set(names[:6]))

    assert copies_in_first_part() not in (0, 6)
    for copy in names[1:6]:
        (folder / copy).write_bytes((folder / names[0]).read_bytes())
    assert copies_in_first_part() in (0, 6)
    (folder / names[0]).unlink()
    with pytest.raises(DataError, match=f"cannot read .*{names[0]}"):
        copies_in_first_part()
