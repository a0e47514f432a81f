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

Document = dict[str, Any]


def many_images(count: int = 20) -> Document:
    """Image k has k % 3 people."""
    people = [
        person(10 * image + k, image, (20 + 20 * k, 20, 50, 60))
        for image in range(1, count + 1)
        for k in range(image % 3)
    ]
    return document(range(1, count + 1), people) | {"licenses": [{"id": 1, "name": "mine"}]}


def people_of_images(content: Document) -> dict[str, list[Any]]:
    """The keypoints and areas of every image, by its name."""
    names = {image["id"]: image["file_name"] for image in content["images"]}
    found: dict[str, list[Any]] = {name: [] for name in names.values()}
    for entry in content["annotations"]:
        found[names[entry["image_id"]]].append((entry["keypoints"], entry["area"]))
    return found


def test_parts_have_every_image_once_and_are_a_function_of_the_seed(tmp_path: Path) -> None:
    content = many_images()
    path = write_annotations(tmp_path / "a.json", content)
    parts = split_annotations(path, [0.7, 0.2, 0.1], seed=3)
    assert [len(part["images"]) for part in parts] == [14, 4, 2]
    assert parts == split_annotations(path, [0.7, 0.2, 0.1], seed=3)
    assert parts != split_annotations(path, [0.7, 0.2, 0.1], seed=4)
    found = [people_of_images(part) for part in parts]
    assert {name: people for part in found for name, people in part.items()} == people_of_images(content)
    assert sum(map(len, found)) == 20
    assert all(part["licenses"] == content["licenses"] for part in parts)
    ids = [image["id"] for image in parts[0]["images"]]
    assert ids == sorted(ids) and ids != list(range(1, 15)), "in file order, drawn from everywhere"


def test_copies_of_an_image_stay_together(tmp_path: Path) -> None:
    content = many_images(12)
    content["annotations"] = [person(image, image) for image in range(1, 13)]
    folder = write_images(tmp_path / "images", content)
    names = [image["file_name"] for image in content["images"]]
    for copy in names[1:6]:
        (folder / copy).write_bytes((folder / names[0]).read_bytes())
    path = write_annotations(tmp_path / "a.json", content)
    separated = 0
    for seed in range(5):
        parts = split_annotations(path, [0.5, 0.5], seed, folder)
        first = {image["file_name"] for image in parts[0]["images"]}
        assert len(first & set(names[:6])) in (0, 6)
        first = {image["file_name"] for image in split_annotations(path, [0.5, 0.5], seed)[0]["images"]}
        separated += len(first & set(names[:6])) not in (0, 6)
    assert separated
    (folder / names[0]).unlink()
    with pytest.raises(DataError, match=f"cannot read .*{names[0]}"):
        split_annotations(path, [0.5, 0.5], 0, folder)


@pytest.mark.parametrize(
    "shares, message",
    [([0.5, 0.6], "not above 0 with a sum of 1"), ([1, 0], "not above 0"), ([0.99, 0.01], "too few images")],
)
def test_shares_that_cannot_be_drawn_are_refused(tmp_path: Path, shares: list[float], message: str) -> None:
    path = write_annotations(tmp_path / "a.json", many_images())
    with pytest.raises(DataError, match=message):
        split_annotations(path, shares)


def test_the_tool_replaces_no_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_annotations(tmp_path / "a.json", many_images())

    def run(*words: object) -> tuple[int, str]:
        status = run_tool("annotations", [str(word) for word in words])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    train, val, few = (tmp_path / f"{name}.json" for name in ("train", "val", "few"))
    status, shown = run("split", path, "--shares", 0.5, 0.5, "--seed", 3, "--output", train, val)
    assert status == 0 and f"wrote {train}: 10 images, " in shown and f"wrote {val}: 10 images" in shown
    assert json.loads(val.read_text()) == split_annotations(path, [0.5, 0.5], 3)[1]
    assert "2 x --shares" in run("split", path, "--output", few)[1]
    assert run("split", path, "--output", train, val)[0] == 2
    assert run("split", path, "--output", path, val, "--overwrite")[0] == 2
    assert json.loads(path.read_text()) == many_images()
