"""Splitting annotation files: every image keeps its annotations, and nothing is in two parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posenet.annotations.split import split_annotations
from posenet.cli.main import run_tool
from posenet.errors import DataError
from tests.helpers.drawn_data import document, person, write_annotations, write_images

CONTENT = document(range(1, 21), [person(image, image, (image, 20, 50, 60)) for image in range(1, 21)])


def boxes_of_images(content: dict[str, Any]) -> dict[str, Any]:
    names = {image["id"]: image["file_name"] for image in content["images"]}
    return {names[entry["image_id"]]: entry["bbox"] for entry in content["annotations"]}


def test_parts_have_every_image_once_and_are_a_function_of_the_seed(tmp_path: Path) -> None:
    licenses = {"licenses": [{"id": 1, "name": "mine"}]}
    path = write_annotations(tmp_path / "a.json", CONTENT | licenses)
    parts = split_annotations(path, [0.7, 0.2, 0.1], seed=3)
    assert [len(part["images"]) for part in parts] == [14, 4, 2]
    assert parts == split_annotations(path, [0.7, 0.2, 0.1], seed=3)
    assert parts != split_annotations(path, [0.7, 0.2, 0.1], seed=4)
    first, second, third = map(boxes_of_images, parts)
    assert first | second | third == boxes_of_images(CONTENT)
    assert all(part["licenses"] == licenses["licenses"] for part in parts)
    ids = [image["id"] for image in parts[0]["images"]]
    assert ids == sorted(ids) and ids != list(range(1, 15)), "in file order, drawn from everywhere"


def test_copies_of_an_image_stay_together(tmp_path: Path) -> None:
    content = document(range(1, 13), [person(image, image) for image in range(1, 13)])
    folder = write_images(tmp_path / "images", content)
    names = [image["file_name"] for image in content["images"]]
    for copy in names[1:6]:
        (folder / copy).write_bytes((folder / names[0]).read_bytes())
    path = write_annotations(tmp_path / "a.json", content)

    def copies_in_first_part(seed: int, *images: Path) -> int:
        part = split_annotations(path, [0.5, 0.5], seed, *images)[0]
        return len({image["file_name"] for image in part["images"]} & set(names[:6]))

    assert all(copies_in_first_part(seed, folder) in (0, 6) for seed in range(5))
    assert not all(copies_in_first_part(seed) in (0, 6) for seed in range(5))
    (folder / names[0]).unlink()
    with pytest.raises(DataError, match=f"cannot read .*{names[0]}"):
        split_annotations(path, [0.5, 0.5], 0, folder)


@pytest.mark.parametrize(
    "shares, message", [([0.5, 0.6], "a sum of 1"), ([1, 0], "not above 0"), ([0.99, 0.01], "too few images")]
)
def test_shares_that_cannot_be_drawn_are_refused(tmp_path: Path, shares: list[float], message: str) -> None:
    path = write_annotations(tmp_path / "a.json", CONTENT)
    with pytest.raises(DataError, match=message):
        split_annotations(path, shares)


def test_the_tool_replaces_no_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_annotations(tmp_path / "a.json", CONTENT)
    train, val = tmp_path / "train.json", tmp_path / "val.json"

    def run(*words: object) -> tuple[int, str]:
        status = run_tool("annotations", ["split", str(path), *map(str, words)])
        return status, "".join(capsys.readouterr())

    status, shown = run("--shares", 0.5, 0.5, "--seed", 3, "--output", train, val)
    assert status == 0 and f"wrote {train}: 10 images, " in shown and f"wrote {val}: 10 images" in shown
    assert json.loads(val.read_text()) == split_annotations(path, [0.5, 0.5], 3)[1]
    assert "2 x --shares" in run("--output", tmp_path / "few.json")[1]
    assert run("--output", train, val)[0] == run("--output", path, val, "--overwrite")[0] == 2
    assert json.loads(path.read_text()) == CONTENT
