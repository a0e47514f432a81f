"""Merging, splitting and reducing annotation files: every image keeps its annotations, and nothing is in two parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posenet.annotations.rules import lint_annotations
from posenet.annotations.split_and_merge import merge_annotations, select_images, split_annotations
from posenet.cli.main import run_tool
from posenet.errors import DataError
from tests.helpers.drawn_data import document, person, write_annotations, write_images

Document = dict[str, Any]


def many_images(count: int = 20) -> Document:
    """Image k has k % 3 people."""
    people = [person(10 * image + k, image) for image in range(1, count + 1) for k in range(image % 3)]
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
    with pytest.raises(DataError, match=f"cannot read .*{names[0]}.*fix --drop leaves out such images"):
        split_annotations(path, [0.5, 0.5], 0, folder)


@pytest.mark.parametrize(
    "shares, message",
    [([0.5, 0.6], "not above 0 with a sum of 1"), ([1, 0], "not above 0"), ([0.99, 0.01], "too few images")],
)
def test_shares_that_cannot_be_drawn_are_refused(tmp_path: Path, shares: list[float], message: str) -> None:
    path = write_annotations(tmp_path / "a.json", many_images())
    with pytest.raises(DataError, match=message):
        split_annotations(path, shares)


def test_a_subset_has_the_images_that_were_asked_for(tmp_path: Path) -> None:
    content = many_images()
    path = write_annotations(tmp_path / "a.json", content)
    everybody = people_of_images(content)
    chosen = select_images(path, [5, 2])
    assert [image["id"] for image in chosen["images"]] == [2, 5]
    assert people_of_images(chosen) == {name: everybody[name] for name in (f"{2:012d}.jpg", f"{5:012d}.jpg")}
    drawn = select_images(path, number=6, seed=1)
    assert len(drawn["images"]) == 6 and drawn == select_images(path, number=6, seed=1)
    assert drawn != select_images(path, number=6, seed=2)
    for options, message in (
        ({"ids": [2, 77]}, "has no image 77"),
        ({"number": 21}, "has 20 images, of which 21 cannot be taken"),
        ({"number": 0}, "of which 0 cannot be taken"),
    ):
        with pytest.raises(DataError, match=message):
            select_images(path, **options)


def test_merged_files_keep_all_people_under_new_ids(tmp_path: Path) -> None:
    first, second = many_images(4), many_images(3)
    for image in second["images"]:
        image["file_name"] = f"other_{image['file_name']}"
    second["categories"] = [{"id": 7, "name": "cow"}, second["categories"][0] | {"id": 9, "name": "horse"}]
    for entry in second["annotations"]:
        entry["category_id"] = 9
    paths = [write_annotations(tmp_path / name, content) for name, content in (("a.json", first), ("b.json", second))]
    merged = merge_annotations(paths)
    assert people_of_images(merged) == people_of_images(first) | people_of_images(second)
    assert [[entry["id"] for entry in merged[key]] for key in ("images", "annotations")] == [[*range(1, 8)]] * 2
    names = {category["id"]: category["name"] for category in merged["categories"]}
    assert names == {1: "person", 2: "cow", 3: "horse"}
    kinds = [names[entry["category_id"]] for entry in merged["annotations"]]
    assert kinds == ["person"] * 4 + ["horse"] * 3
    out = write_annotations(tmp_path / "all.json", merged)
    assert not [finding for finding in lint_annotations(out) if finding.severity == "error"]


def test_images_of_the_same_name_need_their_folders(tmp_path: Path) -> None:
    contents = [many_images(2), many_images(3)]
    folders = [write_images(tmp_path / "photos" / name, content) for name, content in zip("ab", contents)]
    paths = [write_annotations(tmp_path / f"{name}.json", content) for name, content in zip("ab", contents)]
    with pytest.raises(DataError, match=r"a.json and .*b.json both list 000000000001.jpg; .*name the folder of each"):
        merge_annotations(paths)
    merged = merge_annotations(paths, folders)
    assert [image["file_name"][:2] for image in merged["images"]] == ["a/"] * 2 + ["b/"] * 3
    out = tmp_path / "all.json"
    words = [*map(str, paths), "--images", *map(str, folders), "--output", str(out)]
    assert run_tool("annotations", ["merge", *words]) == 0 and json.loads(out.read_text()) == merged
    assert not [finding for finding in lint_annotations(out, tmp_path / "photos") if finding.severity == "error"]
    with pytest.raises(DataError, match="1 folder of images for 2 files of annotations"):
        merge_annotations(paths, folders[:1])


def test_other_keypoints_and_broken_references_are_refused(tmp_path: Path) -> None:
    first, other, broken = many_images(2), many_images(2), many_images(2)
    other["categories"][0]["keypoints"][0] = "beak"
    broken["annotations"][0]["image_id"] = 99
    contents = {"a.json": first, "b.json": other, "c.json": broken}
    a, b, c = (write_annotations(tmp_path / name, content) for name, content in contents.items())
    with pytest.raises(DataError, match=r"a.json and .*b.json have categories with different keypoints"):
        merge_annotations([a, b])
    for call in (lambda: merge_annotations([a, c]), lambda: split_annotations(c, [0.5, 0.5])):
        with pytest.raises(DataError, match="images that are not listed: 10"):
            call()


def test_the_tools_say_what_they_have_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_annotations(tmp_path / "a.json", many_images())

    def run(*words: object) -> tuple[int, str]:
        status = run_tool("annotations", [str(word) for word in words])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    train, val, all_, few = (tmp_path / f"{name}.json" for name in ("train", "val", "all", "few"))
    status, shown = run("split", path, "--output", train, val)
    assert status == 0 and f"wrote {train}: 18 images, " in shown and f"wrote {val}: 2 images" in shown
    assert json.loads(train.read_text()) == split_annotations(path, [0.9, 0.1])[0]
    run("split", path, "--shares", 0.5, 0.5, "--seed", 3, "--output", train, val, "--overwrite")
    assert json.loads(val.read_text()) == split_annotations(path, [0.5, 0.5], 3)[1]
    assert run("merge", train, val, "--output", all_) == (0, f"wrote {all_}: 20 images, 21 people\n")
    assert people_of_images(json.loads(all_.read_text())) == people_of_images(many_images())
    (tmp_path / "ids.txt").write_text("1, 2")
    assert run("subset", path, "--image-ids", tmp_path / "ids.txt", "--output", few)[1].endswith("2 images, 3 people\n")
    drawn = set()
    for seed in (1, 2):
        run("subset", path, "--number", 6, "--seed", seed, "--output", few, "--overwrite")
        drawn.add(few.read_text())
    assert len(drawn) == 2
    assert run("split", path, "--output", few, "--overwrite")[1].endswith(
        "1 file, --shares 2 shares; give one share for each\n"
    )
    assert run("split", path, "--output", train, val)[0] == 2
    status, shown = run("split", path, "--images", tmp_path, "--output", train, val, "--overwrite")
    assert status == 2 and "cannot read" in shown
    assert run("subset", path, "--number", 3, "--output", path, "--overwrite")[0] == 2
    assert json.loads(path.read_text()) == many_images()


def test_two_entries_of_one_file_are_not_put_in_two_parts(tmp_path: Path) -> None:
    content = many_images(10)
    content["images"][4]["file_name"] = "./" + content["images"][2]["file_name"]
    path = write_annotations(tmp_path / "a.json", content)
    with pytest.raises(DataError, match="several entries in images, .*: 000000000003.jpg; .*annotations lint"):
        split_annotations(path, [0.5, 0.5])
