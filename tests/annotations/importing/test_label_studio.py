"""Importing the JSON export of Label Studio: who a keypoint belongs to, files, and messages for bad exports."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.annotations.importing.formats import read_annotations
from posenet.errors import DataError
from posenet.skeleton import COCO
from tests.helpers.changed_annotations import found as adjustments_of
from tests.helpers.drawn_data import document, person, write_images
from tests.helpers.other_formats import imported, normal_file, write_label_studio_json

CONTENT = document([1, 2], [person(1, 1, (10, 20, 50, 60)), person(2, 1, (90, 20, 50, 60), labelled=9), person(3, 2)])


def export(folder: Path, content: dict[str, Any] = CONTENT, **options: Any) -> tuple[Path, Path]:
    """The export and its image folder."""
    root = folder / "export"
    path = write_label_studio_json(root, write_images(folder / "drawn", content), content, **options)
    return path, root / "images"


def change(path: Path, edit: Any) -> None:
    tasks = json.loads(path.read_text())
    edit(tasks)
    path.write_text(json.dumps(tasks))


@pytest.mark.parametrize("parents", [True, False])
def test_keypoints_belong_to_their_rectangle_or_to_the_only_one_around_them(tmp_path: Path, parents: bool) -> None:
    path, images = export(tmp_path, parents=parents)
    assert read_annotations(path, images=images) == (imported(CONTENT), images, ())


def test_the_label_of_a_rectangle_is_the_category(tmp_path: Path) -> None:
    path, images = export(tmp_path)

    def edit(tasks: list[dict[str, Any]]) -> None:
        first, second = (task["annotations"][0]["result"] for task in tasks)
        first[0]["value"]["rectanglelabels"] = ["bird"]
        second[0]["value"]["rectanglelabels"] = []
        second.insert(0, {"id": "weather", "type": "choices", "value": {"choices": ["rain"]}})

    change(path, edit)
    expected = imported(CONTENT)
    [coco] = expected["categories"]
    expected["categories"] = [coco | {"name": "bird"}, coco | {"id": 2}]
    for entry in expected["annotations"][1:]:
        entry["category_id"] = 2
    assert read_annotations(path, images=images) == (expected, images, ())


def test_a_keypoint_beside_one_rectangle_alone_belongs_to_it(tmp_path: Path) -> None:
    """By at most a tenth of the rectangle's sides; a rectangle around the keypoint comes first."""
    content = document(
        [1], [person(number, 1, (x, y, 50, 60), labelled=0) for number, x, y in ((1, 40, 20), (2, 92, 30))]
    )
    path, images = export(tmp_path, content, parents=False)
    places = {
        1: [(36, 50), (60, 15), (60, 85), (89, 50), (91, 22)],
        2: [(146, 50), (100, 95)],
        None: [(34, 50), (60, 13), (60, 87), (148, 50), (100, 97), (91, 50)],
    }  # of each annotation, and of none
    points = [(owner, x, y) for owner, owned in places.items() for x, y in owned]

    def label(tasks: list[dict[str, Any]]) -> None:
        for name, (_, x, y) in zip(COCO.file_names, points):
            value = {"x": 100 * x / 160, "y": 100 * y / 120, "width": 0.5, "keypointlabels": [name]}
            tasks[0]["annotations"][0]["result"].append({"id": name, "type": "keypointlabels", "value": value})

    change(path, label)
    found, _, notes = read_annotations(path, images=images)
    for entry in found["annotations"]:
        own = [(x, y, 2) if owner == entry["id"] else (0, 0, 0) for owner, x, y in points]
        assert entry["keypoints"] == [value for point in own for value in point] + [0] * (51 - 3 * len(points))
    assert len(notes) == 1 and re.search(r"belong to no rectangle.*: 6 \(task 1\)$", notes[0])


@pytest.mark.parametrize("parents", [True, False])
def test_without_rectangles_all_keypoints_are_one_person(tmp_path: Path, parents: bool) -> None:
    """Also if they name a rectangle that was deleted."""
    content = document([1], [person(1, 1)])
    path, images = export(tmp_path, content, parents=parents)
    change(path, lambda tasks: tasks[0]["annotations"][0]["result"].pop(0))
    [entry] = normal_file(read_annotations(path, images=images)).document["annotations"]
    np.testing.assert_allclose(entry["keypoints"], content["annotations"][0]["keypoints"], atol=1e-3)
    points = np.reshape(entry["keypoints"], (-1, 3))[:, :2]
    np.testing.assert_allclose(entry["bbox"], [*points.min(0), *np.ptp(points, axis=0)], atol=1e-2)
    assert entry["area"] == pytest.approx(0.84 * np.prod(entry["bbox"][2:]), rel=1e-3)


@pytest.mark.parametrize(
    "address",
    [
        "/data/upload/1/0123abcd-{}",
        "http://localhost:8080/data/upload/1/{}",
        "/data/local-files/?d=photos/{}",
        "C:\\photos\\{}",
        "photos/{}",
        "http://localhost/00000000000%31.jpg",
    ],
)
def test_images_are_found_by_their_names_at_any_depth(tmp_path: Path, address: str) -> None:
    path, images = export(tmp_path)
    (images / "deep").mkdir()
    name = "000000000001.jpg"
    (images / name).rename(images / "deep" / name)
    change(path, lambda tasks: tasks[0]["data"].update(image=address.format(name)))
    found = read_annotations(path, images=images).document
    assert [image["file_name"] for image in found["images"]] == [f"deep/{name}", "000000000002.jpg"]


def test_names_are_those_of_coco_or_in_order_of_appearance(tmp_path: Path) -> None:
    path, images = export(tmp_path)
    assert read_annotations(path, images=images).document["categories"][0]["keypoints"] == list(COCO.file_names)
    path.write_text(path.read_text().replace('"nose"', '"muzzle"'))
    names = read_annotations(path, images=images).document["categories"][0]["keypoints"]
    assert names == ["muzzle", *COCO.file_names[1:]]


@pytest.mark.parametrize("is_before", [True, False])
def test_of_two_keypoints_with_one_name_the_one_of_the_rectangle_counts(tmp_path: Path, is_before: bool) -> None:
    path, images = export(tmp_path, document([1], [person(1, 1)]))
    expected = read_annotations(path, images=images).document["annotations"]

    def label_again(tasks: list[dict[str, Any]]) -> None:
        regions = tasks[0]["annotations"][0]["result"]
        other = json.loads(json.dumps(regions[2]))
        other["value"]["x"] += 1
        if is_before:
            del other["parentID"]
        regions.insert(1 if is_before else len(regions), other)

    change(path, label_again)
    found, _, notes = read_annotations(path, images=images)
    assert found["annotations"] == expected
    assert len(notes) == 1 and "has already" in notes[0] and notes[0].endswith(": 1 (task 1)")


def test_several_objects_without_rectangles_are_refused(tmp_path: Path) -> None:
    """Their keypoints cannot be told apart: one of them would be trained as background."""
    people = [
        person(2 * number + second, number, (10 + 80 * second, 20, 50, 60)) for number in (1, 2) for second in (0, 1)
    ]
    path, images = export(tmp_path, document([1, 2, 3], [*people, person(9, 3)]), parents=False)

    def leave_out_rectangles(tasks: list[dict[str, Any]]) -> None:
        for task in tasks[:2]:
            regions = task["annotations"][0]["result"]
            regions[:] = [region for region in regions if region["type"] != "rectanglelabels"]

    change(path, leave_out_rectangles)
    with pytest.raises(DataError, match="twice in 2 of 3 images, such as task 1: .* draw a rectangle"):
        read_annotations(path, images=images)


def test_a_rotated_rectangle_leaves_the_box_to_the_keypoints(tmp_path: Path) -> None:
    path, images = export(tmp_path)
    change(path, lambda tasks: tasks[1]["annotations"][0]["result"][0]["value"].update(rotation=30))
    entry = read_annotations(path, images=images).document["annotations"][2]
    assert any(entry["keypoints"]) and "bbox" not in entry


def test_tasks_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    path, images = export(tmp_path, document(range(1, 12), [person(number, number) for number in range(1, 12)]))
    (images / "000000000009.jpg").write_bytes(b"no image")

    def edit(tasks: list[dict[str, Any]]) -> None:
        for task in (tasks[0], tasks[7]):
            task["annotations"] = []
        tasks[1]["annotations"][0]["was_cancelled"] = True
        tasks[2]["annotations"] *= 2
        tasks[3]["data"]["image"] = "other.jpg"
        tasks[4]["annotations"][0]["result"][0]["image_rotation"] = 90
        tasks.insert(7, tasks[5])  # another task with the same image
        tasks[11]["annotations"][0]["result"][2]["value"].pop("keypointlabels")

    change(path, edit)
    imported = read_annotations(path, images=images)
    file, notes = normal_file(imported), imported.notes
    assert [image.file_name for image in file.images] == [f"{n:012d}.jpg" for n in (3, 6, 7, 10, 11)]
    assert adjustments_of(file)["unreadable-file"] == ("left out", ["000000000009.jpg (cannot be decoded)"])
    for what, example in {
        "without an annotation": ": 3 (task 1, task 2, task 8)",
        "several annotations": ": 1 (task 3)",
        "not in the folder": ": 1 (other.jpg)",
        "rotated": ": 1 (task 5)",
        "of an earlier task": ": 1 (task 6)",
        "without a label": ": 1 (task 11)",
    }.items():
        assert any(what in note and example in note for note in notes), what


@pytest.mark.parametrize(
    "damaged, reason",
    [
        (7, "task 2 cannot be read .AttributeError"),
        ({"id": 9, "annotations": 7}, "task 9 cannot be read .TypeError"),
        ({"annotations": [{"result": [{"type": "rectanglelabels"}]}], "data": {"image": "a.jpg"}}, "KeyError: 'x'"),
    ],
)
def test_a_few_damaged_tasks_are_left_out_and_named(tmp_path: Path, damaged: Any, reason: str) -> None:
    path, images = export(tmp_path, document([1, 2, 3], [person(number, number) for number in (1, 2, 3)]))
    change(path, lambda tasks: tasks.__setitem__(1, damaged))
    found, _, notes = read_annotations(path, images=images)
    assert [image["file_name"] for image in found["images"]] == ["000000000001.jpg", "000000000003.jpg"]
    assert len(notes) == 1 and re.search(f"that cannot be read, left out: 1 .*{reason}", notes[0])
    change(path, lambda tasks: tasks.__setitem__(2, damaged))
    with pytest.raises(DataError, match=rf"{reason}.*and 1 more"):
        read_annotations(path, images=images)
    change(path, lambda tasks: tasks.__setitem__(slice(None), [{"annotations": [7], "data": {"image": "a.jpg"}}]))
    with pytest.raises(DataError, match="task 1 cannot be read"):
        read_annotations(path, images=images)


def test_an_image_is_that_of_a_task_only_if_no_other_one_may_have_its_name(tmp_path: Path) -> None:
    """Label Studio changes the names of uploads, and two cameras name their photographs alike."""
    path, images = export(tmp_path, document(range(1, 9), [person(number, number) for number in range(1, 9)]))
    names = ["a bird (1).jpg", "Owl.JPG", "an owl.jpg", "an_owl.jpg", "IMG_5.jpg"]
    for number, name in enumerate(names, 1):
        (images / f"{number:012d}.jpg").rename(images / name)
    uploads = ["/data/upload/1/0123abcd-a_bird_1.jpg", "/data/upload/1/4567abcd-owl.jpg"]
    uploads += ["/data/upload/1/89ababcd-an_owl.jpg", "/data/an_owl.jpg", "/data/local-files/?d=a/IMG_5.jpg"]
    uploads += ["/data/local-files/?d=b/IMG_5.jpg"]

    def edit(tasks: Any) -> None:
        for task, name in zip(tasks, uploads):
            task["data"]["image"] = name
        tasks[6]["data"] = {"page": "a.html", "number": 7, "note": "http://["} | tasks[6]["data"]
        tasks[7]["data"]["other"] = "b.jpg"

    change(path, edit)
    found, _, notes = read_annotations(path, images=images)
    assert {image["file_name"] for image in found["images"]} == {names[0], names[1], names[3], "000000000007.jpg"}
    assert any("a/IMG_5.jpg, b/IMG_5.jpg" in note and "89ababcd" in note for note in notes)
    assert any("task 8" in note and "2 images" in note for note in notes)


def test_an_export_without_images_or_keypoints_is_refused(tmp_path: Path) -> None:
    path, images = export(tmp_path)

    def leave_rectangles(tasks: Any) -> None:
        for task in tasks:
            del task["annotations"][0]["result"][1:]

    change(path, leave_rectangles)
    with pytest.raises(DataError, match="has no keypoints"):
        read_annotations(path, images=images)
    path, _ = export(tmp_path / "other")
    change(path, lambda tasks: [task["data"].update(image="x.jpg") for task in tasks])
    with pytest.raises(DataError, match="--images DIR"):
        read_annotations(path)
    change(path, lambda tasks: [task.update(annotations=[]) for task in tasks])
    with pytest.raises(DataError, match="submit"):
        read_annotations(path)
