"""The reader of annotations: what is determined is derived, single faults are left out, contradictions stop.

``lint``, ``fix``, ``train`` and ``build-hdf5`` show the same list, because all of them use this reader.
"""

import copy
import json
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
import pytest

from posenet.annotations.adjustments import MAX_LINE, Adjustments
from posenet.annotations.reader import read_annotation_file
from posenet.cli.main import run_tool
from posenet.skeleton import COCO
from tests.helpers.chairs import NAMES, SIDE, write_chairs
from tests.helpers.changed_annotations import (
    Change,
    Document,
    changed,
    each,
    found,
    kinds,
    people_document,
    read,
    setting,
)
from tests.helpers.drawn_data import HEIGHT, WIDTH, document, person, write_annotations, write_images
from tests.helpers.image_bytes import encode, jpeg_declaring
from tests.helpers.oriented_images import oriented_image
from tests.helpers.rooms import needs_checks


def test_a_file_in_the_normal_form_is_not_changed() -> None:
    file = read(people_document())
    assert not file.adjustments and file.document == people_document()


def test_real_annotations_are_in_the_normal_form(coco_sample: Path) -> None:
    for path in sorted((coco_sample / "annotations").glob("person_keypoints_*.json")):
        file = read_annotation_file(path, COCO)
        assert kinds(file).keys() <= {"swapped-here", "many-people"}, path
        assert file.document == json.loads(path.read_text())


@pytest.mark.parametrize(
    "change, code",
    [
        (each("annotations", lambda entry: entry.pop("num_keypoints")), None),
        (setting("annotations", num_keypoints=3), "num-keypoints"),
        (setting("annotations", bbox=None), "no-box"),
        (setting("annotations", bbox=[70, 80, -50, -60]), "no-box"),
        (setting("annotations", 6, bbox=[]), "no-box"),
        (setting("annotations", bbox=["20", "20", "50", "60"]), None),
        (setting("annotations", area="2250"), None),
        (setting("annotations", 6, area=None), None),
        (setting("images", width=float(WIDTH), height=str(HEIGHT)), None),
        (setting("annotations", iscrowd=False), None),
        (each("images", lambda image: image.update(id=f"{image['id']:06d}")), None),
        (each("annotations", lambda entry: entry.update(image_id=float(entry["image_id"]))), None),
        (each("annotations", lambda entry: entry.pop("category_id")), None),
        (each("annotations", lambda entry: entry.update(category_id=7)), "same-category"),
        (lambda d: d["categories"][0]["keypoints"].__setitem__(0, " nose "), None),
        (lambda d: d["annotations"].append(d["annotations"][0] | {"id": 99}), "same-keypoints"),
        (lambda d: d["annotations"].append({"id": 99, "image_id": 1, "category_id": 1}), "empty-annotation"),
        (lambda d: d["images"].append(dict(d["images"][0])), "repeated-image"),
        (lambda d: d["images"].append(d["images"][0] | {"id": 9, "file_name": f"./{1:012d}.jpg"}), "copies"),
    ],
)  # fmt: skip
def test_what_other_values_determine_is_restored(change: Change, code: str | None) -> None:
    file = read(changed(change))
    assert kinds(file).keys() == ({code} if code else set())
    expected = people_document()
    assert file.document["images"] == expected["images"]
    assert file.document["categories"] == expected["categories"]
    assert [e | {"id": 0} for e in file.document["annotations"]] == [e | {"id": 0} for e in expected["annotations"]]


def test_ids_that_are_texts_are_numbered() -> None:
    content = people_document()
    for section in ("images", "annotations", "categories"):
        for entry in content[section]:
            entry.update(
                {key: f"text {value}" for key, value in entry.items() if key in ("id", "image_id", "category_id")}
            )
    file = read(content)
    assert [image.id for image in file.images] == [1, 2, 3]
    assert [entry["image_id"] for entry in file.document["annotations"]] == [1, 1, 2, 2, 3, 3, 3]
    assert file.columns.ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert set(kinds(file).values()) == {"derived"}
    assert kinds(read(changed(setting("images", id=None))))["image-id"] == "left out"


def test_of_images_with_one_id_none_gets_the_annotations() -> None:
    content = document([1, 2, 3, 4], [person(number, number, (20, 20, 50, 60)) for number in (1, 2, 3, 4)])
    content["images"] += [content["images"][0] | {"file_name": "b.jpg"}, dict(content["images"][1])]
    file = read(content)
    assert found(file)["image-id"] == ("left out", [f"{1:012d}.jpg", "b.jpg"])
    assert [image.id for image in file.images] == [2, 3, 4] and file.columns.ids.tolist() == [2, 3, 4]


@pytest.mark.parametrize("shape, columns", [((17, 3), 3), ((17, 2), 2), ((-1,), 2)])
def test_nested_lists_and_lists_without_visibility_are_read(shape: tuple[int, ...], columns: int) -> None:
    content = changed(lambda d: d["annotations"][0]["keypoints"].__setitem__(slice(0, 3), [0, 0, 0]))
    content["annotations"][0]["num_keypoints"] = 16
    expected = read(copy.deepcopy(content)).columns.keypoints
    for entry in content["annotations"]:
        entry["keypoints"] = np.reshape(entry["keypoints"], (17, 3))[:, :columns].reshape(shape).tolist()
    file = read(content)
    assert np.array_equal(file.columns.keypoints, expected)
    assert kinds(file).keys() == ({"no-visibility"} if columns == 2 else set())


def test_a_confidence_counts_as_labelled_and_null_does_not() -> None:
    content = people_document()
    values = content["annotations"][0]["keypoints"]
    values[2], values[5], values[8], values[9], values[12], values[15:18] = 0.3, 0.0, -1, None, float("nan"), [0, 0, 2]
    file = read(content)
    assert file.columns.keypoints[0, :6, 2].tolist() == [2, 0, 0, 0, 0, 0]
    assert {"visibility", "no-number", "labelled-at-zero"} <= kinds(file).keys()
    assert not file.adjustments.contradictions


@pytest.mark.parametrize("names", [[], None, "no text"])
@needs_checks
def test_names_of_keypoints_come_from_the_skeleton_or_are_numbered(names: Any) -> None:
    content = changed(lambda d: d["categories"][0].update(keypoints=names))
    file = read(content)
    assert file.categories.parsed[0].keypoints == tuple(f"keypoint_{number}" for number in range(1, 18))
    assert kinds(file) == {"numbered-keypoints": "derived", "no-sides": "warning"}
    file = read(content, skeleton=COCO)
    assert file.categories.parsed[0].keypoints == COCO.file_names
    assert kinds(file) == {"names-of-skeleton": "derived"}


def test_annotations_of_no_listed_category_are_of_one() -> None:
    file = read(changed(lambda d: d["categories"].clear()), skeleton=COCO)
    assert kinds(file) == {"no-categories": "derived", "names-of-skeleton": "derived"}
    assert file.document["annotations"] == people_document()["annotations"]


@needs_checks
def test_keypoints_in_another_order_and_spelling_are_those_of_the_skeleton_if_the_names_tell() -> None:
    content, expected = people_document(), read(people_document(), skeleton=COCO)
    order = [*range(16, 4, -1), 0, 2, 1, 4, 3]
    names = [COCO.file_names[number].title().replace("_", " ") for number in order]
    content["categories"][0].update(keypoints=names, skeleton=[[17, 15]], flip_idx=list(range(17)))
    for entry in content["annotations"]:
        values = np.reshape(entry["keypoints"], (17, 3))
        entry["keypoints"] = values[order].ravel().tolist()
    file = read(content, skeleton=COCO)
    assert kinds(file)["keypoint-order"] == "derived" and not file.adjustments.contradictions
    assert np.array_equal(file.columns.keypoints, expected.columns.keypoints)
    [category] = file.document["categories"]
    assert category["keypoints"] == list(COCO.file_names) and category["skeleton"] == [[4, 2]]
    assert "flip_idx" not in category
    content["categories"][0]["keypoints"] = ["other", *names[1:]]
    assert "no-such-keypoints" in kinds(read(content, skeleton=COCO))


def test_edges_that_lead_nowhere_are_left_out_as_in_crowdpose() -> None:
    """Its category has COCO's 19 edges for 14 names."""
    content = people_document()
    content["categories"][0].update(keypoints=list(COCO.file_names[:14]), skeleton=[[16, 14], [1, 2], [2, 2], [3, "x"]])
    for entry in content["annotations"]:
        entry.update(keypoints=entry["keypoints"][:42], num_keypoints=min(entry["num_keypoints"], 14))
    file = read(content)
    assert found(file) == {"edges": ("derived", ["person 16-14", "person 3-x"])}
    assert file.document["categories"][0]["skeleton"] == []


def four_people(*changes: Change) -> tuple[list[float], dict[str, str]]:
    """The areas of four people with boxes of 50 x 60, and what was adjusted."""
    content = document([1], [person(number, 1, (20 * number, 20, 50, 60)) for number in (1, 2, 3, 4)])
    file = read(changed(*changes, content=content))
    return file.columns.areas.tolist(), kinds(file)


@pytest.mark.parametrize("area", [None, 0, -1, "", 3000, 0.01])
def test_areas_are_those_of_outlines(area: Any) -> None:
    areas, codes = four_people(setting("annotations", area=area, segmentation=[[20, 20, 70, 20, 70, 80]]))
    assert areas[0] == pytest.approx(1500, rel=0.05) and codes == {"outline-area": "derived"}


@pytest.mark.parametrize(
    "export", [{"area": 3000}, {"area": 3000, "segmentation": []}, {"area": 0, "segmentation": []}]
)
def test_areas_are_the_same_whatever_a_tool_exports(export: Document) -> None:
    """The whole box, with the box as the outline or without, and no area at all."""
    assert four_people(each("annotations", lambda entry: entry.update(export))) == (
        [0.53 * 3000] * 4, {"box-area": "derived"},
    )  # fmt: skip


def test_areas_of_boxes_around_keypoints_are_larger() -> None:
    content = document([1], [person(1, 1, bbox=None, area=None, segmentation=None)])
    points = np.reshape(content["annotations"][0]["keypoints"], (-1, 3))[:, :2]
    file = read(content)
    assert file.columns.boxes[0].tolist() == pytest.approx([*points.min(0), *np.ptp(points, axis=0)])
    assert file.columns.areas[0] == pytest.approx(0.84 * np.ptp(points, axis=0).prod())


def test_estimated_areas_are_those_of_real_people(real: Document) -> None:
    real["annotations"] = [entry for entry in real["annotations"] if not entry["iscrowd"]]
    expected = np.array([entry["area"] for entry in real["annotations"]])
    file = read(changed(each("annotations", lambda entry: entry.update(segmentation=[], area=None)), content=real))
    assert np.median(file.columns.areas / expected) == pytest.approx(1, abs=0.05)


def test_small_coordinates_in_large_images_are_not_taken_for_percentages_without_proof() -> None:
    people = [person(number, 1, (number, 10, 20, 30)) for number in range(1, 41)]
    content = changed(setting("images", width=640, height=480), content=document([1], people))
    assert kinds(read(copy.deepcopy(content)))["percent"] == "contradiction"
    few = changed(lambda d: d["annotations"].__delitem__(slice(9, None)), content=content)
    assert not kinds(read(few))


def test_a_head_above_the_frame_is_kept_and_a_keypoint_far_outside_is_not_labelled() -> None:
    content = changed(setting("images", height=600, width=800), content=document([1], [person(1, 1)]))
    content["annotations"][0]["keypoints"][:3] = [30, -25, 2]
    file = read(content)
    assert file.columns.keypoints[0, 0].tolist() == [30, -25, 2] and not file.adjustments
    file = read(changed(lambda d: d["annotations"][0]["keypoints"].__setitem__(slice(0, 3), [5000, 30, 2])))
    assert file.columns.num_labelled[:2].tolist() == [16, 17] and found(file)["outside"] == ("left out", ["10"])


def test_sets_that_label_what_is_outside_are_used() -> None:
    people = [person(number, 1, (20, 20, 50, 60)) for number in range(1, 11)]
    for entry in people:
        entry["keypoints"][:3] = [-5 - entry["id"] / 10, 30, 2]
    assert not read(document([1], people)).adjustments


SINGLE_FAULTS: dict[str, Document] = {
    "keypoint-values": {"keypoints": [1, 2]},
    "outside": {"keypoints": [5000, 30, 2] * 17, "num_keypoints": 17},
    "no-image": {"image_id": 99},
    "normalised": {"keypoints": [0.5, 0.4, 2] * 17},
}


class TestSingleFaults:
    @pytest.mark.parametrize("code", SINGLE_FAULTS)
    @pytest.mark.parametrize(
        "number, count, is_left_out",
        [(2, 7, True), (3, 7, False), (3, 60, True), (4, 60, False), (2, 3, False), (14, 14, False)],
    )
    def test_are_left_out_and_those_of_the_whole_file_are_not(
        self, code: str, number: int, count: int, is_left_out: bool
    ) -> None:
        content = document([1], [person(number, 1, (number, 20, 50, 60)) for number in range(1, count + 1)])
        for entry in content["annotations"][:number]:
            entry.update(copy.deepcopy(SINGLE_FAULTS[code]))
        file = read(content)
        kind = "left out" if is_left_out else "contradiction"
        assert found(file)[code] == (kind, [str(number) for number in range(1, number + 1)])

    def test_an_image_of_which_no_annotation_is_left_does_not_become_one_of_nobody(self) -> None:
        content = changed()
        for entry in content["annotations"][:2]:
            entry.update(keypoints=[], bbox=None, segmentation=None)
        content["images"].append(content["images"][0] | {"id": 4, "file_name": "nobody.jpg"})
        file = read(content)
        assert [image.id for image in file.images] == [2, 3, 4]
        assert found(file)["emptied-image"] == ("left out", [f"{1:012d}.jpg"])


def people_and_a_stool() -> Document:
    """Of four keypoints."""
    content = people_document()
    content["categories"].append({"id": 7, "name": "stool", "keypoints": NAMES[:4]})
    content["annotations"].append(person(99, 1, category_id=7, keypoints=[20, 20, 2, 30, 30, 2, 40, 50, 2, 0, 0, 0]))
    return content


@needs_checks
def test_categories_with_other_keypoints_are_said() -> None:
    assert found(read(people_and_a_stool()))["several-skeletons"] == ("warning", ["person", "stool"])
    file = read(people_and_a_stool(), skeleton=COCO)
    assert found(file)["other-keypoints"] == ("left out", ["stool: 1 annotations"])
    assert "num-keypoints" not in kinds(file), "what is not read is not counted"
    assert file.columns.is_used.tolist() == [True] * 7 + [False]


@needs_checks
def test_keypoints_of_categories_without_names_are_left_out() -> None:
    content = people_and_a_stool()
    content["categories"][1]["keypoints"] = []
    content["annotations"][-1]["keypoints"] = [0] * 12
    assert found(read(content))["no-category"] == ("left out", ["99"])


def test_unlisted_categories_are_determined_where_all_have_the_same_keypoints() -> None:
    content = changed(each("annotations", lambda entry: entry.update(category_id=4)))
    content["categories"].append(content["categories"][0] | {"id": 2, "name": "bird"})
    file = read(content)
    assert found(file)["same-category"] == ("derived", ["4"]) and file.columns.is_used.all()


def test_unlabelled_frames_of_posetrack_are_left_out_and_ignored_regions_are_crowds() -> None:
    content = people_document()
    content["images"][0] |= {
        "is_labeled": True, "ignore_regions_x": [[0, 30, 30], []], "ignore_regions_y": [[90, 90, 119], []],
    }  # fmt: skip
    content["images"][1]["is_labeled"] = False
    content["annotations"] = [entry for entry in content["annotations"] if entry["image_id"] != 2]
    file = read(content)
    assert [image.id for image in file.images] == [1, 3]
    assert found(file)["unlabelled-frame"] == ("left out", [f"{2:012d}.jpg"])
    assert found(file)["ignored-regions"] == ("derived", [f"{1:012d}.jpg"])
    region = file.document["annotations"][-1]
    assert (region["iscrowd"], region["bbox"], region["image_id"]) == (1, [0, 90, 30, 29], 1)
    assert read(file.document).document == file.document, "regions are not added again"


class TestImages:
    def test_names_are_those_of_files_in_the_folder(self, tmp_path: Path) -> None:
        folder = write_images(tmp_path / "images", people_document())
        names = [image["file_name"] for image in people_document()["images"]]
        (folder / "sub").mkdir()
        (folder / names[2]).rename(folder / "sub" / names[2])
        for written in (
            [f"../../label-studio/upload/1/{names[0]}", f"C:\\data\\{names[1]}", f"images\\sub\\{names[2]}"],
            [f"/data/{names[0]}", names[1], names[2]],
        ):
            content = people_document()
            for image, name in zip(content["images"], written):
                image["file_name"] = name
            file = read(content, folder=folder)
            assert [image.file_name for image in file.images] == [names[0], names[1], f"sub/{names[2]}"]
            assert kinds(file) == {"paths": "derived"}

    def test_no_name_leads_out_of_the_folder(self, tmp_path: Path) -> None:
        folder = write_images(tmp_path / "images", people_document())
        (tmp_path / "secret.jpg").write_bytes(b"")
        others = ["", "C:\\secret.jpg", "\\\\host\\share", "a\0b.jpg", "a\x1b[31m.jpg"]
        for name in ("../secret.jpg", str(tmp_path / "secret.jpg"), "a\\..\\..\\secret.jpg", *others):
            for options in ({"folder": folder}, {}):
                file = read(changed(setting("images", file_name=name)), **options)
                for image in file.images:
                    inside = PureWindowsPath(image.file_name)
                    assert image.file_name.isprintable() and not inside.anchor and ".." not in inside.parts
        two = changed(setting("images", 0, file_name="../a.jpg"), setting("images", 1, file_name="a.jpg"))
        assert found(read(two))["file-name"] == ("left out", ["1"]), "it is not taken for the other one"

    @pytest.mark.parametrize("exif_frame", ["stored", "displayed"])
    @pytest.mark.parametrize("orientation", [1, 3, 6])
    def test_a_missing_size_is_read_from_the_file(self, tmp_path: Path, orientation: int, exif_frame: Any) -> None:
        drawn = oriented_image(orientation)
        (tmp_path / "a.jpg").write_bytes(drawn.data)
        x, y = drawn.centres[exif_frame]
        content = document([1], [person(1, 1, (x - 16, y - 16, 32, 32))])
        content["images"][0] = {"id": 1, "file_name": "a.jpg", "height": 0}
        file = read(content, folder=tmp_path, exif_frame=exif_frame, opens_images=True)
        assert (file.images[0].height, file.images[0].width) == drawn.sizes["displayed"]
        assert file.columns.boxes[0, :2] + 16 == pytest.approx(drawn.centres["displayed"], abs=1)
        assert ("exif-by-setting" in kinds(file)) == (orientation == 3) and kinds(file)["size"] == "derived"
        assert "image-size" in kinds(read(content))

    def test_annotations_of_the_stored_pixels_are_turned(self, tmp_path: Path) -> None:
        file = read(self.annotated_as_stored(tmp_path, 6, (20, 20, 50, 60)), folder=tmp_path)
        assert file.columns.boxes[0].tolist() == [80, 20, 60, 50] and "exif-turned" in kinds(file)

    @pytest.mark.parametrize("num_others", [0, 60])
    def test_keypoints_that_fit_only_the_displayed_image_contradict_the_stored_size(
        self, tmp_path: Path, num_others: int
    ) -> None:
        """Label Studio exports this in COCO's format; turned, the people would be in wrong places."""
        content = self.annotated_as_stored(tmp_path, 6, (20, 20, 60, 200))
        others = document(range(2, 2 + num_others), [person(n, n) for n in range(2, 2 + num_others)])
        for key in ("images", "annotations"):
            content[key] += others[key]
        assert found(read(content, folder=tmp_path))["exif-size"] == ("contradiction", ["a.jpg"])

    def test_annotations_that_are_not_read_are_left_out_where_others_are_turned(self, tmp_path: Path) -> None:
        content = self.annotated_as_stored(tmp_path, 6, (20, 20, 50, 60))
        content["categories"].append({"id": 2, "name": "cat", "keypoints": ["tail"], "skeleton": []})
        content["annotations"].append(person(2, 1, (90, 20, 30, 30)) | {"category_id": 2, "keypoints": [100, 30, 2]})
        file = read(content, folder=tmp_path, skeleton=COCO)
        assert found(file)["exif-other"] == ("left out", ["2"]) and len(file.document["annotations"]) == 1

    def test_what_only_the_setting_decides_can_be_decided_otherwise_later(self, tmp_path: Path) -> None:
        content = self.annotated_as_stored(tmp_path, 3, (20, 20, 50, 60))
        first = read(content, folder=tmp_path)
        later = read(first.document, folder=tmp_path, exif_frame="stored")
        assert first.columns.boxes[0].tolist() == [20, 20, 50, 60]
        assert later.columns.boxes[0].tolist() == [240 - 70, 160 - 80, 50, 60]
        again = read(later.document, folder=tmp_path, exif_frame="stored")
        assert again.columns.boxes[0].tolist() == later.columns.boxes[0].tolist()

    def test_mirrored_images_of_nobody_stay(self, tmp_path: Path) -> None:
        content = self.annotated_as_stored(tmp_path, 7, (20, 20, 50, 60))
        content["annotations"] = []
        file = read(content, folder=tmp_path)
        assert [(image.height, image.width) for image in file.images] == [(240, 160)] and not kinds(file)

    def test_proportions_tell_the_frame_of_a_resized_image(self, tmp_path: Path) -> None:
        content = self.annotated_as_stored(tmp_path, 6, (20, 20, 50, 60))
        content["images"][0].update(height=80, width=120)
        file = read(content, folder=tmp_path, opens_images=True)
        assert (file.images[0].height, file.images[0].width) == (120, 80) and "exif-turned" in kinds(file)

    @staticmethod
    def annotated_as_stored(folder: Path, orientation: int, box: tuple[float, ...]) -> Document:
        """An image whose stored pixels, 160 x 240, are annotated with a person."""
        drawn = oriented_image(orientation)
        (folder / "a.jpg").write_bytes(drawn.data)
        content = document([1], [person(1, 1, box)])
        height, width = drawn.sizes["stored"]
        content["images"][0].update(file_name="a.jpg", height=height, width=width)
        return content

    def test_files_are_opened_and_single_ones_left_out(self, tmp_path: Path) -> None:
        folder, annotations = write_chairs(tmp_path, "images", 14, seed=1)
        content = json.loads(annotations.read_text())
        content["images"][6]["file_name"] = "n" * 5000
        (folder / "4.jpg").write_bytes(jpeg_declaring(20000, 20000))
        (folder / "5.jpg").write_bytes(encode(np.zeros((SIDE, SIDE + 10, 3), np.uint8)))
        (folder / "6.jpg").write_bytes(encode(np.zeros((2 * SIDE, 2 * SIDE, 3), np.uint8)))
        file = read(content, folder=folder, opens_images=True)
        assert kinds(file) == {"unreadable-file": "left out", "wrong-size": "left out", "resized": "derived"}
        assert found(file)["unreadable-file"][1] == ["4.jpg (is too large)", f"{'n' * 5000} (missing)"]
        assert [image.id for image in file.images] == [1, 2, 3, 6, 8, 9, 10, 11, 12, 13, 14]
        (folder / "1.jpg").unlink()
        assert kinds(read(content, folder=folder, opens_images=True))["unreadable-file"] == "contradiction"

    def test_copies_with_other_annotations_become_one_image(self, tmp_path: Path) -> None:
        """The left and the right hand of one photograph, each in a copy, would teach that the other is not there."""
        content = people_document()
        folder = write_images(tmp_path / "images", content)
        names = [image["file_name"] for image in content["images"]]
        (folder / names[1]).write_bytes((folder / names[0]).read_bytes())
        content["annotations"] = [
            person(1, 1, (20, 20, 50, 60)),
            person(2, 2, (90, 20, 50, 60)),
            person(3, 2, (20, 20, 50, 60)),  # the first one again
            person(4, 3),
        ]
        file = read(copy.deepcopy(content), folder=folder)
        assert [image.id for image in file.images] == [1, 3]
        assert file.columns.ids.tolist() == [1, 2, 4] and file.columns.image_rows.tolist() == [0, 0, 1]
        assert found(file)["copies"] == ("derived", [names[1]])
        assert not read(copy.deepcopy(content)).adjustments, "names alone do not show it"
        (folder / names[2]).write_bytes((folder / names[0]).read_bytes())
        file = read(copy.deepcopy(content), folder=folder)
        assert found(file)["copies"] == ("derived", names[1:]) and not file.columns.image_rows.any()
        content["annotations"] = [person(number, number) for number in (1, 2, 3)]
        assert not read(content, folder=folder).adjustments, "copies with the same people stay"


def test_lines_are_short_and_safe_for_a_terminal() -> None:
    said = Adjustments()
    said.add("warning", "far-from-box", [f"\x1b[2J{number}" for number in range(1000)])
    said.add("left out", "unreadable-file", [f"{'a long folder/' * 5}{number}.jpg" for number in range(3)])
    assert all(len(str(one)) <= MAX_LINE and str(one).isprintable() for one in said) and "1000" in str(said[0])
    assert "folder/0.jpg, ...); check" in str(said.pop()), "the first place is shown, then what to do, if there is room"


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = run_tool("annotations", list(map(str, words)), prog="tool")
    return status, *capsys.readouterr()


def test_lint_prints_what_fix_does_and_the_fixed_file_needs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = changed(setting("annotations", num_keypoints=3), setting("annotations", 2, keypoints=[1, 2]))
    content["annotations"][1]["area"] = None
    path, out = write_annotations(tmp_path / "a.json", content), tmp_path / "fixed.json"
    status, linted, _ = run(capsys, "lint", path)
    assert status == 0 and "num-keypoints" in linted and "keypoint-values" in linted
    status, fixed, _ = run(capsys, "fix", path, "--output", out)
    assert status == 0 and fixed.startswith(linted)
    assert not read(json.loads(out.read_text())).adjustments
    assert path.read_text() == json.dumps(content)
    status, text, _ = run(capsys, "lint", path, "--json")
    assert status == 0 and {entry["code"] for entry in json.loads(text)} == kinds(read(content)).keys()
    assert all(len(line) <= MAX_LINE for line in linted.splitlines()[:-1])


def test_contradictions_end_with_status_2_and_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = changed(each("annotations", lambda entry: entry.update(keypoints=[1, 2])))
    path, out = write_annotations(tmp_path / "a.json", content), tmp_path / "fixed.json"
    for words in (["lint", path], ["fix", path, "--output", out]):
        status, printed, error = run(capsys, *words)
        assert status == 2 and "keypoint-values" in printed and str(path) in error and not out.exists()


def test_neither_the_file_nor_an_image_is_ever_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_annotations(tmp_path / "a.json", people_document())
    folder = write_images(tmp_path / "images", people_document())
    image = folder / people_document()["images"][0]["file_name"]
    (tmp_path / "link.json").symlink_to(path)
    before = path.read_bytes(), image.read_bytes()
    for output in (path, tmp_path / "link.json", image, "-"):
        words = ["fix", path, "--images", folder, "--output", output, "--overwrite"]
        assert run(capsys, *words)[0] == 2
    assert (path.read_bytes(), image.read_bytes()) == before


def test_the_area_of_an_outline_that_is_the_box_is_computed_once() -> None:
    corners = [10 + 10j + 1j**side * complex(step - 6, -6) for side in range(4) for step in range(0, 12, 2)]
    outline = [value for corner in corners for value in (corner.real, corner.imag)]
    first = read(changed(setting("annotations", bbox=[4, 4, 12, 12], area=0, segmentation=[outline])))
    assert "outline-area" in kinds(first) and "outline-area" not in kinds(read(first.document))
