"""Every format is recognised by its content, and its keypoints, visibilities and coordinates are those of the set."""

import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.annotations.importing.formats import read_annotations, recognise
from posenet.annotations.importing.imported import ImportedAnnotations
from posenet.cli.main import run_tool
from posenet.errors import ConfigError, DataError
from posenet.images import read_image, write_image
from tests.helpers.drawn_data import document, person, write_images
from tests.helpers.malformed_inputs import mutate_bytes, mutate_tree
from tests.helpers.other_formats import (
    Document,
    normal_file,
    write_aic,
    write_crowdpose,
    write_cvat_xml,
    write_deeplabcut,
    write_label_studio_json,
    write_labelme,
    write_lsp,
    write_mpii,
    write_mpii_list,
    write_yolo_pose,
)

CONTENT = document([1, 2], [person(1, 1, (10, 20, 50, 60)), person(2, 1, (90, 20, 50, 60), labelled=9), person(3, 2)])
for _entry in CONTENT["annotations"]:
    for _place in (5, 47):  # the left eye and the left ankle are hidden, where they are labelled
        _entry["keypoints"][_place] = min(_entry["keypoints"][_place], 1)
CONTENT["categories"][0]["skeleton"] = [[16, 14], [14, 12], [1, 2]]


def write(folder: Path, writer: Callable[..., Path], *arguments: Any, **options: Any) -> Path:
    return writer(folder / "set", write_images(folder / "drawn", CONTENT), CONTENT, *arguments, **options)


def people_of(imported: ImportedAnnotations) -> dict[str, list[dict[str, tuple[float, float, int]]]]:
    """The labelled keypoints by name of the people of every image."""
    names = imported.document["categories"][0]["keypoints"]
    people: dict[str, list[dict[str, tuple[float, float, int]]]] = {}
    name_of = {image["id"]: image["file_name"] for image in imported.document["images"]}
    for entry in imported.document["annotations"]:
        rows = np.reshape(entry["keypoints"], (-1, 3)).tolist()
        named = {name: tuple(row) for name, row in zip(names, rows, strict=True) if row[2]}
        people.setdefault(name_of[entry["image_id"]], []).append(named)
    return people


def compare(found: ImportedAnnotations, hidden: bool = True, first_only: bool = False) -> None:
    """Compare the keypoints that both have with those that were written.

    Args:
        hidden: whether the format says what is hidden.
        first_only: whether it has one person for each image.
    """
    names = set(found.document["categories"][0]["keypoints"]) & set(CONTENT["categories"][0]["keypoints"])
    images = [list(filter(None, people)) for people in people_of(found).values() if any(people)]
    for people, truth in zip(images, people_of(ImportedAnnotations(CONTENT, Path(), ())).values(), strict=True):
        for own, true in zip(people, truth[:1] if first_only else truth, strict=True):
            labelled = {name for name in true if name in names}
            assert {name for name in own if name in names} == labelled
            for name in labelled:
                assert own[name][:2] == pytest.approx(true[name][:2], abs=0.01)
                assert own[name][2] == (true[name][2] if hidden else 2)
    for image in found.document["images"]:
        assert (found.folder / image["file_name"]).is_file() and image["height"] and image["width"]


def needs_yaml(writer: Callable[..., Path]) -> None:
    if writer is write_yolo_pose:
        pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'simplepose[yolo]'")


@pytest.mark.parametrize(
    "writer, name, hidden, options",
    [
        (write_aic, "AIC", True, {}),
        (write_mpii, "MPII", True, {}),
        (write_mpii_list, "MPII", False, {}),
        (write_mpii_list, "MPII", True, {"form": "joint_self"}),
        (write_crowdpose, "COCO", True, {}),
        (write_labelme, "Labelme", False, {}),
        (write_cvat_xml, "CVAT", True, {}),
        (write_cvat_xml, "CVAT", True, {"kind": "points"}),
        (write_deeplabcut, "DeepLabCut", False, {"individuals": True}),
        (write_label_studio_json, "Label Studio", False, {}),
        (write_yolo_pose, "YOLO-pose", True, {}),
    ],
)
def test_keypoints_are_those_that_were_labelled(
    tmp_path: Path, writer: Callable[..., Path], name: str, hidden: bool, options: dict[str, Any]
) -> None:
    needs_yaml(writer)
    path = write(tmp_path, writer, **options)
    assert recognise(path)[0].name == name
    compare(read_annotations(path), hidden)


def test_a_flag_of_leeds_sports_pose_means_hidden_and_in_the_extended_set_visible(tmp_path: Path) -> None:
    plain = read_annotations(write(tmp_path / "plain", write_lsp))
    compare(plain, first_only=True)
    assert {entry[2] for people in people_of(plain).values() for entry in people[0].values()} == {1, 2}
    extended = read_annotations(write(tmp_path / "extended", write_lsp, 2))
    points = people_of(extended)["im00002.jpg"][0]
    truth = people_of(ImportedAnnotations(CONTENT, Path(), ()))["000000000002.jpg"][0]
    # This writer leaves out the shift of Matlab.
    assert points["left_knee"] == pytest.approx((truth["left_knee"][0] - 1, truth["left_knee"][1] - 1, 2), abs=0.01)
    assert "neck" not in points


def test_a_box_of_corners_becomes_one_of_a_corner_and_sides(tmp_path: Path) -> None:
    for writer in (write_aic, write_cvat_xml, write_labelme):
        found = read_annotations(write(tmp_path / writer.__name__, writer)).document["annotations"]
        boxes = [entry["bbox"] for entry in found if any(entry["keypoints"])]
        np.testing.assert_allclose(boxes, [entry["bbox"] for entry in CONTENT["annotations"]], atol=0.01)


def whole_body(content: Document) -> Document:
    """The people with feet, a face and one hand, as COCO-WholeBody has them."""
    changed: Document = json.loads(json.dumps(content))
    for number, entry in enumerate(changed["annotations"]):
        entry["foot_kpts"] = [value for index in range(6) for value in (index, 10, 2)]
        entry["face_kpts"] = [value for index in range(68) for value in (index, 20, 1.0)]
        entry["lefthand_kpts"] = [0.0] * 63
        entry["righthand_kpts"] = [value for index in range(21) for value in (index, 30, 0.25)]
        entry |= {"face_box": [5, 6, 7, 8], "lefthand_box": [0.0] * 4, "righthand_box": [1, 2, 3, 4]}
        entry |= {"face_valid": True, "lefthand_valid": False, "righthand_valid": True}
        entry["id"] = number + 1
    return changed


def write_coco(folder: Path, content: Document) -> Path:
    write_images(folder / "images", CONTENT)
    (folder / "annotations").mkdir()
    path = folder / "annotations" / "train.json"
    path.write_text(json.dumps(content))
    return path


def drafted(imported: ImportedAnnotations, folder: Path) -> set[tuple[str, ...]]:
    """The pairs of left and right of the skeleton that is drafted."""
    draft_skeleton = pytest.importorskip("posenet.annotations.skeleton_draft").draft_skeleton
    return set(draft_skeleton(normal_file(imported)).left_right)


def test_whole_body_has_133_keypoints_in_one(tmp_path: Path) -> None:
    path = write_coco(tmp_path, whole_body(CONTENT))
    found = read_annotations(path)
    [category] = found.document["categories"]
    names = category["keypoints"]
    assert len(names) == len(set(names)) == 133
    points = people_of(found._replace(document=normal_file(found).document))["000000000001.jpg"][0]
    assert [names.index(name) for name in ("left_big_toe", "face-0", "left_hand_root", "right_hand_root")] == [
        17, 23, 91, 112,
    ]  # fmt: skip
    assert (points["right_heel"], points["face-67"]) == ((5, 10, 2), (67, 20, 1))
    assert points["right_pinky_finger4"] == (20, 30, 2) and "left_hand_root" not in points
    pairs = drafted(found, tmp_path)
    assert len(pairs) == 61 and {("face-36", "face-45"), ("left_hand_root", "right_hand_root")} <= pairs


def test_a_split_is_for_yolo_pose_alone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="leave out --split NAME"):
        read_annotations(write(tmp_path, write_aic), split="train")


@pytest.mark.parametrize(
    "count, last, num_pairs",
    [(136, "right_pinky_finger4", 61), (26, "right_heel", 11), (133, "right_pinky_finger4", 61)],
)
def test_keypoints_without_names_are_those_of_a_known_set_of_this_number(
    tmp_path: Path, count: int, last: str, num_pairs: int
) -> None:
    content = json.loads(json.dumps(CONTENT))
    content["categories"][0]["keypoints"] = []
    for entry in content["annotations"]:
        entry["keypoints"] = (entry["keypoints"] + [1, 2, 2] * count)[: 3 * count]
    found = read_annotations(write_coco(tmp_path, content))
    [category] = found.document["categories"]
    assert len(category["keypoints"]) == count and category["keypoints"][-1] == last
    assert len(drafted(found, tmp_path)) == num_pairs


def test_the_21_keypoints_of_humanart_are_read(tmp_path: Path) -> None:
    content = json.loads(json.dumps(CONTENT))
    content["categories"][0]["keypoints"] += ["left_finger", "right_finger", "left_toe", "right_toe"]
    for entry in content["annotations"]:
        entry["keypoints_21"] = [*entry["keypoints"], *[0] * 9, 7, 8, 2]
    found = read_annotations(write_coco(tmp_path, content))
    assert people_of(found._replace(document=normal_file(found).document))["000000000001.jpg"][0]["right_toe"] == (
        7,
        8,
        2,
    )


def posetrack(folder: Path) -> Path:
    """A file for each of two videos, whose frames have the same names."""
    for number in (1, 2):
        write_images(folder / "images" / "val" / f"video{number}", document([1, 2], []))
        content = json.loads(json.dumps(CONTENT))
        for image in content["images"]:
            image["file_name"] = f"images/val/video{number}/{image['file_name']}"
            image |= {"is_labeled": image["id"] == 1, "vid_id": str(number)}
        content["images"][0] |= {"ignore_regions_x": [[0, 9, 9], [1]], "ignore_regions_y": [[0, 0, 9], [1]]}
        content["annotations"] = [entry | {"iscrowd": False} for entry in content["annotations"][:2]]
        (folder / "annotations" / "val").mkdir(parents=True, exist_ok=True)
        (folder / "annotations" / "val" / f"video{number}.json").write_text(json.dumps(content))
    return folder / "annotations" / "val"


def test_the_videos_of_posetrack_are_one_set_without_frames_that_nobody_labelled(tmp_path: Path) -> None:
    found = read_annotations(posetrack(tmp_path))
    read = normal_file(found).document
    names = [image["file_name"] for image in read["images"]]
    assert names == [f"images/val/video{number}/000000000001.jpg" for number in (1, 2)] and found.folder == tmp_path
    crowds = [entry for entry in read["annotations"] if entry["iscrowd"]]
    assert [entry["segmentation"] for entry in crowds] == [[[0, 0, 9, 0, 9, 9]]] * 2
    assert len({entry["id"] for entry in read["annotations"]}) == 6


def test_images_are_found_by_the_ends_of_their_paths(tmp_path: Path) -> None:
    """Of names that lack sub-folders, or that begin with folders which are not there."""
    for folder, prefix in (("S1/walk", ""), ("art", "HumanArt/images/art/")):
        root = tmp_path / folder.replace("/", "_")
        write_images(root / folder, CONTENT)
        images = [image | {"file_name": prefix + image["file_name"]} for image in CONTENT["images"]]
        (root / "train.json").write_text(json.dumps(CONTENT | {"images": images}))
        compare(read_annotations(root / "train.json"))
        compare(read_annotations(root / "train.json", images=root))


def test_labels_of_deeplabcut_stay_with_their_images_where_some_are_missing(tmp_path: Path) -> None:
    root = write(tmp_path, write_deeplabcut)
    (root / "labeled-data" / "video" / "000000000001.jpg").unlink()
    for path in (root, root / "config.yaml", root / "labeled-data" / "video" / "CollectedData_Ann.csv"):
        found = read_annotations(path)
        expected = people_of(ImportedAnnotations(CONTENT, Path(), ()))["000000000002.jpg"][0]
        [[points]] = people_of(found).values()
        assert (
            points["left_knee"][:2] == pytest.approx(expected["left_knee"][:2], abs=0.01)
            and "000000000001.jpg" in found.notes[0]
        )
    assert found.document["categories"][0]["keypoints"] == CONTENT["categories"][0]["keypoints"]


@pytest.mark.parametrize("delimiter, point", [(";", "."), (";", ","), ("\t", ".")])
def test_tables_of_deeplabcut_that_a_spreadsheet_has_saved_are_read(tmp_path: Path, delimiter: str, point: str) -> None:
    root = write(tmp_path, write_deeplabcut, individuals=True)
    table = root / "labeled-data" / "video" / "CollectedData_Ann.csv"
    lines = table.read_text().replace(",", delimiter).splitlines(keepends=True)
    table.write_text("".join([*lines[:4], *(re.sub(r"(\d)\.(\d)", rf"\1{point}\2", line) for line in lines[4:])]))
    compare(read_annotations(root), hidden=False)
    compare(read_annotations(table), hidden=False)
    table.write_text(re.sub(rf"[^{delimiter}\n]+", r'"\g<0>"', table.read_text()))
    compare(read_annotations(root), hidden=False)


def test_a_mistyped_label_is_named_and_another_spelling_is_taken(tmp_path: Path) -> None:
    content = document(range(1, 6), [person(number, number) for number in range(1, 6)])
    root = write_labelme(tmp_path / "set", write_images(tmp_path / "drawn", content), content)
    first, second, *_ = sorted(root.glob("*.json"))
    first.write_text(first.read_text().replace('"left_knee"', '"left_kne"', 1))
    second.write_text(second.read_text().replace('"left_knee"', '"Left Knee"', 1))
    found = read_annotations(root)
    knees = [people[0].get("left_knee") for people in people_of(found).values()]
    assert [knee is not None for knee in knees] == [False, True, True, True, True]
    assert set(found.document["categories"][0]["keypoints"]) == {*content["categories"][0]["keypoints"], "left_kne"}
    assert any("mistyped" in note and "'left_kne'" in note for note in found.notes)
    assert any("'Left Knee' is 'left_knee'" in note for note in found.notes)


def test_images_may_have_been_saved_in_another_format_or_spelling(tmp_path: Path) -> None:
    path = write(tmp_path, write_cvat_xml)
    first, second = sorted((path.parent / "images").iterdir())
    write_image(first.with_suffix(".PNG"), read_image(first))
    first.unlink()
    second.rename(second.with_name("Über (2).JPG"))
    path.write_text(path.read_text().replace(second.name, unicodedata.normalize("NFD", "über_2.jpg")), "utf-8")
    compare(read_annotations(path))


def test_interhand_is_read_with_its_cameras(tmp_path: Path) -> None:
    """A camera one metre away, which looks along z and is turned by a quarter."""
    write_images(tmp_path / "images" / "Capture0" / "cam1", document([1], []))
    image = {"id": 5, "file_name": "Capture0/cam1/000000000001.jpg", "width": 160, "height": 120}
    place = {"capture": 0, "camera": "1", "frame_idx": 7}
    hand = {"id": 1, "image_id": 5, "bbox": [10, 10, 90, 90], "joint_valid": [[1]] * 21 + [[0]] * 21}
    camera = {"campos": {"1": [0, 0, -1000]}, "camrot": {"1": [[0, 1, 0], [-1, 0, 0], [0, 0, 1]]}}
    camera |= {"focal": {"1": [100, 200]}, "princpt": {"1": [80, 60]}}
    joints = {"0": {"7": {"world_coord": [[100 + number, 50, 0] for number in range(42)]}}}
    path = tmp_path / "InterHand2.6M_train_data.json"
    path.write_text(json.dumps({"images": [image | place], "annotations": [hand]}))
    (tmp_path / "InterHand2.6M_train_camera.json").write_text(json.dumps({"0": camera}))
    with pytest.raises(DataError, match="InterHand2.6M_train_joint_3d.json"):
        read_annotations(path)
    (tmp_path / "InterHand2.6M_train_joint_3d.json").write_text(json.dumps(joints))
    found = read_annotations(path)
    [[points]] = people_of(found).values()
    assert len(points) == 21 and len(found.document["categories"][0]["keypoints"]) == 42
    assert points["right_thumb4"] == (85, 40, 2) and points["right_hand_root"] == (85, 36, 2)
    assert len(drafted(found, tmp_path)) == 21


def test_a_group_of_points_in_a_rectangle_without_the_group_is_one_person(tmp_path: Path) -> None:
    """A box of its own would be a place that training ignores, in the midst of the person."""
    root = write(tmp_path, write_labelme)
    for path in root.glob("*.json"):
        content = json.loads(path.read_text())
        for shape in content["shapes"]:
            shape["group_id"] = None if shape["shape_type"] == "rectangle" else shape["group_id"]
        path.write_text(json.dumps(content))
    found = read_annotations(root)
    compare(found, hidden=False)
    assert len(found.document["annotations"]) == 3
    boxes = [entry["bbox"] for entry in found.document["annotations"]]
    np.testing.assert_allclose(boxes, [entry["bbox"] for entry in CONTENT["annotations"]], atol=0.01)


def test_an_object_of_labelme_without_a_rectangle_is_of_the_only_kind(tmp_path: Path) -> None:
    root = write(tmp_path, write_labelme)
    for path in root.glob("*.json"):
        path.write_text(path.read_text().replace('"person"', '"kite"'))
    content = json.loads(min(root.glob("*.json")).read_text())
    content["shapes"] = [
        shape for shape in content["shapes"] if shape["group_id"] == 1 or shape["shape_type"] == "point"
    ]
    min(root.glob("*.json")).write_text(json.dumps(content))
    found = read_annotations(root)
    compare(found, hidden=False)
    assert [category["name"] for category in found.document["categories"]] == ["kite"]


def test_points_of_cvat_without_groups_belong_to_the_box_around_them(tmp_path: Path) -> None:
    path = write(tmp_path, write_cvat_xml, kind="points")
    path.write_text(path.read_text().replace('group_id="1"', "").replace('group_id="2"', ""))
    compare(read_annotations(path))


def test_several_points_in_one_shape_of_cvat_are_numbered_keypoints(tmp_path: Path) -> None:
    write_images(tmp_path / "images", CONTENT)
    shape = '<points label="kite" occluded="0" points="1.5,2;3,4.25;5,6"/>'
    path = tmp_path / "annotations.xml"
    path.write_text(
        f'<annotations><image id="0" name="000000000001.jpg" width="9" height="9">{shape}</image></annotations>'
    )
    found = read_annotations(path)
    [category] = found.document["categories"]
    assert (category["name"], category["keypoints"]) == ("kite", ["keypoint_1", "keypoint_2", "keypoint_3"])
    assert found.document["annotations"][0]["keypoints"] == [1.5, 2, 2, 3, 4.25, 2, 5, 6, 2]


def test_the_order_and_the_edges_of_cvat_are_those_of_its_skeleton(tmp_path: Path) -> None:
    [category] = read_annotations(write(tmp_path, write_cvat_xml)).document["categories"]
    assert category["keypoints"] == CONTENT["categories"][0]["keypoints"]
    assert category["skeleton"] == CONTENT["categories"][0]["skeleton"]


BOMB = "<!DOCTYPE a [<!ENTITY b0 'many'>" + "".join(f"<!ENTITY b{n} '{f'&b{n - 1};' * 10}'>" for n in range(1, 10))


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.xml", "<annotations><image name='a'>"),
        ("a.xml", "<html></html>"),
        ("a.xml", BOMB + "]><annotations>&b9;</annotations>"),
        ("a.xml", "<annotations></annotations>"),
        ("a.json", '{"images": ['),
        ("a.json", "7"),
        ("a.json", '[{"image": "a.jpg", "annotation_id": 1}]'),
        ("notes.json", '{"categories": [], "info": {}}'),
        (
            "a.json",
            '{"images": [{"id": 1, "file_name": "a.jpg"}], "categories": [], "annotations": [{"image_id": 1}, '
            '{"image_id": 1}], "info": {"contributor": "Label Studio"}}',
        ),
        ("a.json", '[{"image_id": 1, "keypoints": [1, 2, 3], "score": 0.5, "category_id": 1}]'),
        ("a.json", '[{"image_id": "a", "keypoint_annotations": {"human1": [1, 2]}}]'),
        ("a.json", '[{"joints": [[1, 2]], "joints_vis": [1], "image": "a.jpg"}]'),
        ("a.json", '{"shapes": [{"label": "nose", "points": [1]}], "imagePath": "a.jpg"}'),
        ("a.mat", "MATLAB 5.0 MAT-file, cut off"),
        ("joints.mat", ""),
        ("a.slp", "\x89HDF"),
        ("CollectedData_A.csv", "scorer,A\nbodyparts,nose\n"),
        ("a.txt", "hello"),
    ],
)
def test_what_is_damaged_or_unknown_is_one_line(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="latin-1")
    write_images(tmp_path, document([1], []))
    (tmp_path / "000000000001.jpg").rename(tmp_path / "a.jpg")
    with pytest.raises((DataError, ConfigError)) as caught:
        read_annotations(path)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)
    assert run_tool("annotations", ["import", str(path), "--output", str(tmp_path / "out.json")]) == 2
    assert not (tmp_path / "out.json").exists()


def read_or_refuse(path: Path) -> None:
    try:
        read_annotations(path)
    except DataError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000


@pytest.mark.parametrize(
    "writer, name",
    [
        (write_aic, "*.json"),
        (write_mpii_list, "*.json"),
        (write_cvat_xml, "*.xml"),
        (write_deeplabcut, "labeled-data/video/*.csv"),
        (write_lsp, "*.mat"),
        (write_yolo_pose, "data.yaml"),
        (write_yolo_pose, "labels/train/*1.txt"),
        (write_yolo_pose, "train.txt"),
    ],
)
def test_any_damage_is_read_or_refused_in_one_line(tmp_path: Path, writer: Callable[..., Path], name: str) -> None:
    needs_yaml(writer)
    path = write(tmp_path, writer)
    if name == "train.txt":
        path.write_text(path.read_text().replace("images/train", name))
        (path.parent / name).write_text("".join(f"./images/train/{n:012d}.jpg\n" for n in (1, 2)))
    [file] = (path if path.is_dir() else path.parent).glob(name)
    content = file.read_bytes()
    for seed in range(40):
        file.write_bytes(mutate_bytes(np.random.default_rng(seed), content))
        read_or_refuse(path)


def test_any_wrong_value_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    """What the reader of COCO files checks may stay as it is."""
    coco, labelme = write_coco(tmp_path, whole_body(CONTENT)), write(tmp_path, write_labelme)
    video = next(posetrack(tmp_path / "track").iterdir())
    studio = write(tmp_path / "studio", write_label_studio_json)
    for path in (coco, min(labelme.glob("*.json")), video, studio):
        content = json.loads(path.read_text())
        for seed in range(60):
            path.write_text(json.dumps(mutate_tree(np.random.default_rng(seed), content)))
            read_or_refuse(path)
