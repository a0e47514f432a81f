"""Linting: every problem is found and its remedy named, and a valid file has no findings."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.annotations.people import read_annotations, read_split
from posenet.annotations.rules import RULES, Finding, lint_annotations
from posenet.annotations.skeleton_draft import draft_skeleton
from posenet.cli.main import run_tool
from posenet.errors import DataError
from posenet.skeleton import COCO
from posenet.skeleton.skeleton_file import skeleton_from_table, skeleton_to_table
from tests.helpers.chairs import NAMES, SIDE, write_chairs
from tests.helpers.drawn_data import document, person, write_annotations
from tests.helpers.image_bytes import encode, jpeg_declaring
from tests.helpers.oriented_images import OrientedImage, oriented_image

Document = dict[str, Any]
Lint = Callable[..., list[Finding]]
Codes = Callable[..., dict[str, str]]
NINE = [str(number) for number in range(1, 10)]
ALL = [str(number) for number in range(1, 29)]
"""The ids of the first annotations, and of all."""


@pytest.fixture(scope="module")
def chairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_chairs(tmp_path_factory.mktemp("lint"), "train", 14, seed=1)


@pytest.fixture
def lint(chairs: tuple[Path, Path], tmp_path: Path) -> Lint:
    """Lints the chairs after a change."""

    def lint(change: Callable[[Document], Any], **options: Any) -> list[Finding]:
        content = json.loads(chairs[1].read_text())
        change(content)
        return lint_annotations(write_annotations(tmp_path / "changed.json", content), **options)

    return lint


@pytest.fixture
def codes(lint: Lint) -> Codes:
    """Lints the chairs after a change; returns the severity of every code found."""
    return lambda change, **options: {finding.code: finding.severity for finding in lint(change, **options)}


@pytest.fixture
def real(coco_sample: Path) -> Document:
    """150 images of COCO."""
    content: Document = json.loads(
        (coco_sample / "annotations" / "person_keypoints_val2017_oracle150.json").read_text()
    )
    return content


def setting(section: str, index: int = 3, **values: Any) -> Callable[[Document], None]:
    return lambda content: content[section][index].update(values)


def moved(keypoint: int, *values: float) -> Callable[[Document], None]:
    """Writes x, y, visibility of a keypoint of the first chair in which it is labelled."""

    def change(content: Document) -> None:
        entry = next(e for e in content["annotations"] if e["keypoints"][3 * keypoint + 2] == 2)
        entry["keypoints"][3 * keypoint : 3 * keypoint + 3] = values
        entry["num_keypoints"] = sum(v > 0 for v in entry["keypoints"][2::3])

    return change


def transform(
    content: Document, keypoints: float = 1, boxes: float = 1, sizes: float = 1, first: int | None = None
) -> None:
    """Multiplies the coordinates of the first annotations, or all, and the sizes of all images."""
    for entry in content["annotations"][:first]:
        entry["keypoints"] = [v if i % 3 == 2 else v * keypoints for i, v in enumerate(entry["keypoints"])]
        entry["bbox"] = [value * boxes for value in entry["bbox"]]
    for image in content["images"]:
        image.update(width=int(image["width"] * sizes), height=int(image["height"] * sizes))


def in_another_category(content: Document) -> None:
    content["categories"].append({"id": 7, "name": "mat"})
    content["annotations"][3]["category_id"] = 7


def percentages(boxes: bool) -> Callable[[Document], None]:
    """Coordinates become percentages, as if the chairs were in large images."""

    def change(content: Document) -> None:
        for image in content["images"]:
            image.update(width=640, height=480)
        transform(content, 100 / SIDE, 100 / SIDE if boxes else 1)

    return change


def fractions_beside_boxes_in_pixels(content: Document) -> None:
    percentages(boxes=False)(content)
    transform(content, 1 / 100)


def one_place_in_each_box(content: Document) -> None:
    percentages(boxes=True)(content)
    for entry in content["annotations"]:
        x, y, width, height = entry["bbox"]
        entry.update(keypoints=[x + width / 2, y + height / 2, 2] * len(NAMES), num_keypoints=len(NAMES))


def boolean_visibilities(content: Document) -> None:
    for entry in content["annotations"]:
        entry["keypoints"] = [bool(v) if i % 3 == 2 else v for i, v in enumerate(entry["keypoints"])]


def text_id_in_references_too(content: Document) -> None:
    content["images"][0]["id"] = "one"
    for entry in content["annotations"]:
        if entry["image_id"] == 1:
            entry["image_id"] = "one"


def swap_pair(entries: slice) -> Callable[[Document], None]:
    """Exchanges left and right of one pair of keypoints."""

    def change(content: Document) -> None:
        for entry in content["annotations"][entries]:
            points = np.array(entry["keypoints"]).reshape(-1, 3)
            points[[4, 5]] = points[[5, 4]]
            entry["keypoints"] = points.ravel().tolist()

    return change


def test_a_valid_file_has_no_findings(codes: Codes, chairs: tuple[Path, Path]) -> None:
    assert codes(lambda content: None, images=chairs[0], skeleton=draft_skeleton(chairs[1]).skeleton) == {}


def test_real_annotations_have_no_errors(coco_sample: Path) -> None:
    for path in sorted((coco_sample / "annotations").glob("person_keypoints_*.json")):
        found = lint_annotations(path, skeleton=COCO)
        assert {finding.code for finding in found} <= {"swapped-here"}, path


@pytest.mark.parametrize(
    "change, places",
    [
        (
            lambda d: [e.update(bbox=[1, 1, 4, 4]) for e in d["annotations"][:9]],
            {"box-elsewhere": NINE, "far-from-box": NINE},
        ),
        (
            lambda d: [e.update(segmentation=[[1, 1, 9, 1, 9, 9]]) for e in d["annotations"][:9]],
            {"outline-elsewhere": NINE},
        ),
        (setting("images", file_name="./1.jpg"), {"duplicate-file": ["1.jpg"]}),
        (lambda d: d["categories"][0]["keypoints"].__setitem__(0, NAMES[4]), {"keypoint-name": [repr(NAMES[4])]}),
        (lambda d: d["categories"][0]["keypoints"].__setitem__(0, ""), {"keypoint-name": ["''"]}),
        (lambda d: d["categories"][0]["keypoints"].__setitem__(0, "seat "), {"keypoint-name": ["'seat '"]}),
        (one_place_in_each_box, {"one-place": ALL}),
        (lambda d: transform(d, 1 / SIDE, first=3), {"normalised": ["1", "2", "3"]}),
        (fractions_beside_boxes_in_pixels, {"normalised": ALL}),
        (moved(0, 500, 50, 2), {"outside": ["1"], "far-from-box": ["1"]}),
        (moved(0, 50, -5, 1), {"outside": ["1"]}),
    ],
)
def test_errors(lint: Lint, change: Callable[[Document], Any], places: dict[str, list[str]]) -> None:
    """Those that both readers refuse are in ``test_people``."""
    found = lint(change)
    assert {finding.code: finding.places for finding in found} == places and found[0].severity == "error"


@pytest.mark.parametrize(
    "change, code, places",
    [
        (setting("annotations", num_keypoints=1), "num-keypoints", ["4"]),
        (lambda d: [e.update(keypoints=[0] * 30, num_keypoints=0) for e in d["annotations"]], "nothing-labelled", []),
        (setting("annotations", area=0.05), "tiny-area", ["4"]),
        (moved(0, 50, 50, 0), "unlabelled-place", ["1"]),
        (moved(0, 0, 0, 2), "labelled-at-zero", ["1"]),
        (setting("annotations", segmentation=[1, 1, 9, 1, 9, 9]), "damaged-outline", ["4"]),
        (setting("annotations", segmentation={"size": [9, 9], "counts": [81]}), "damaged-outline", ["4"]),
        (
            lambda d: [
                e.update(keypoints=[0, 0, 0, *e["keypoints"][3:]], num_keypoints=None) for e in d["annotations"]
            ],
            "never-labelled",
            [f"{NAMES[0]} in none of 28 annotations"],
        ),
        (setting("annotations", bbox=[1, 1, 4, 4]), "far-from-box", ["4"]),
        (in_another_category, "no-category", ["4"]),
        (swap_pair(slice(3, 4)), "swapped-here", [f"4 ({NAMES[4]}, {NAMES[5]})"]),
        (lambda d: d["annotations"].append(d["annotations"][0] | {"id": 999}), "same-keypoints", ["999"]),
    ],
)
def test_warnings(lint: Lint, change: Callable[[Document], Any], code: str, places: list[str]) -> None:
    found = lint(change)
    assert ("warning", code, places) in [(finding.severity, finding.code, finding.places) for finding in found]
    assert {finding.severity for finding in found} == {"warning"}


def test_the_same_keypoints_in_another_image_are_no_copy(codes: Codes) -> None:
    assert codes(lambda d: d["annotations"].append(d["annotations"][0] | {"id": 999, "image_id": 14})) == {}


def test_a_pair_that_is_swapped_in_half_of_the_annotations_shows_nothing(codes: Codes) -> None:
    assert codes(swap_pair(slice(14))) == {}


def test_small_coordinates_in_small_images_are_not_percentages(codes: Codes) -> None:
    assert codes(lambda d: transform(d, 0.5, 0.5)) == {}
    few = codes(lambda d: (percentages(boxes=True)(d), d["annotations"].__delitem__(slice(9, None))))
    assert few == {}, "nine people are no evidence"


@pytest.mark.parametrize(
    "change, found",
    [
        (setting("images", 0, width=None), ["image-size"]),
        (setting("images", 0, id=1.0), ["image-id"]),
        (setting("images", 0, file_name="../1.jpg"), ["file-name"]),
        (setting("categories", 0, keypoints="nose"), ["no-keypoints"]),
        (text_id_in_references_too, ["image-id"]),
        (setting("annotations", category_id=99), ["no-such-category"]),
        (boolean_visibilities, ["keypoint-values"]),
        (percentages(boxes=False), ["percent"]),
        (percentages(boxes=True), ["percent"]),
        (
            setting("annotations", id=None, image_id=0, area=None, bbox=None, iscrowd="no", keypoints=[1]),
            ["annotation-id", "no-image", "no-area", "no-box", "crowd-flag", "keypoint-values"],
        ),
    ],
)
def test_every_fault_leads_to_one_finding(codes: Codes, change: Callable[[Document], Any], found: list[str]) -> None:
    """Annotations that refer to a bad image or category are not reported as well."""
    assert codes(change) == dict.fromkeys(found, "error")


def test_a_reference_of_another_type_is_wrong_also_where_its_image_is_listed_twice(codes: Codes) -> None:
    def change(content: Document) -> None:
        content["images"].append(content["images"][0] | {"file_name": "copy.jpg"})
        content["annotations"][0]["image_id"] = float(content["images"][0]["id"])

    assert codes(change) == {"image-id": "error", "no-image": "error"}


def test_a_person_whose_keypoints_are_empty_has_none(codes: Codes) -> None:
    for nothing in (None, []):
        assert codes(setting("annotations", keypoints=nothing, num_keypoints=0)) == {}


@pytest.mark.parametrize("exif_frame", ["stored", "displayed"])
@pytest.mark.parametrize("orientation, annotated", [(1, "stored"), (3, "displayed"), (6, "stored")])
def test_images_whose_frame_a_setting_decides_are_named(
    tmp_path: Path, orientation: int, annotated: str, exif_frame: str
) -> None:
    drawn = oriented_image(orientation)
    (tmp_path / "a.jpg").write_bytes(drawn.data)
    path = write_annotations(tmp_path / "a.json", annotate(drawn, annotated, size_of=annotated))
    found = lint_annotations(path, tmp_path, exif_frame=exif_frame)
    if orientation == 3:  # the others show it by their size, or have nothing to show
        [finding] = found
        assert (finding.severity, finding.code) == ("warning", "exif-by-setting")
        assert finding.places == [f"a.jpg (orientation 3, {exif_frame} frame by setting)"]
    else:
        assert found == []


@pytest.mark.parametrize("orientation", [6, 7])
def test_keypoints_of_one_frame_with_the_size_of_the_other_are_an_error(tmp_path: Path, orientation: int) -> None:
    """Label Studio exports this. The remedy must not be to delete the keypoints outside."""
    drawn = oriented_image(orientation, corner={6: (200, 40), 7: (20, 40)}[orientation])
    (tmp_path / "a.jpg").write_bytes(drawn.data)
    path = write_annotations(tmp_path / "a.json", annotate(drawn, "displayed", size_of="stored"))
    [finding] = lint_annotations(path, tmp_path)
    assert finding.code == "exif-swapped" and finding.can_drop


def annotate(drawn: OrientedImage, frame: str, size_of: str) -> Document:
    """One person around the lit block of a.jpg."""
    x, y = drawn.centres[frame]
    height, width = drawn.sizes[size_of]
    content = document([1], [person(1, 1, (x - 16, y - 16, 32, 32))])
    content["images"][0].update(file_name="a.jpg", height=height, width=width)
    return content


def test_names_are_shown_harmless(
    chairs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads(chairs[1].read_text())
    content["categories"][0]["keypoints"][0] = "\x1b[2J"
    content["annotations"][0]["id"] = "\x1b]0;mine\x07\n"
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert run_tool("annotations", ["lint", str(tmp_path / "a.json")]) == 2
    assert run_tool("annotations", ["skeleton", str(tmp_path / "a.json")]) == 0
    shown = capsys.readouterr().out
    assert "?]0;mine?" in shown and "?[2J" in shown and all(line.isprintable() for line in shown.splitlines())


@pytest.mark.parametrize(
    "pairs, code",
    [
        ([[NAMES[0], NAMES[3]], [NAMES[2], NAMES[1]]], {"flip-pair": "error"}),
        ([[NAMES[0], NAMES[1]]], {"flip-missing": "warning"}),
        ([[NAMES[1], NAMES[2]]], {"flip-pair": "error"}),
    ],
)
def test_pairs_are_compared_with_names(
    codes: Codes, chairs: tuple[Path, Path], pairs: list[list[str]], code: dict[str, str]
) -> None:
    table = skeleton_to_table(draft_skeleton(chairs[1]).skeleton)
    rest = list(table["left_right"][2:])
    every = [[a, b] for i, a in enumerate(NAMES) for b in NAMES[i + 1 :]]
    skeleton = skeleton_from_table(table | {"left_right": pairs + rest, "parts": every})
    found = codes(lambda content: None, skeleton=skeleton)
    assert {k: v for k, v in found.items() if k.startswith("flip")} == code


def test_a_category_with_other_keypoints_beside_that_of_the_skeleton_is_left_out(
    codes: Codes, chairs: tuple[Path, Path]
) -> None:
    bird = {"id": 1, "name": "bird", "keypoints": ["beak"]}
    found = codes(lambda content: content["categories"].append(bird), skeleton=draft_skeleton(chairs[1]).skeleton)
    assert found == {"other-keypoints": "warning"}


def test_categories_with_different_keypoints_are_checked_by_their_own(codes: Codes) -> None:
    def change(count: int) -> Callable[[Document], None]:
        def add_a_stool(content: Document) -> None:
            content["categories"].append({"id": 7, "name": "stool", "keypoints": NAMES[:4]})
            chair = content["annotations"][3]
            stool = {"id": 999, "category_id": 7, "keypoints": chair["keypoints"][:count], "num_keypoints": None}
            content["annotations"].append(chair | stool)

        return add_a_stool

    assert codes(change(12)) == {}
    assert codes(change(30)) == {"keypoint-values": "error"}


def test_without_keypoints_in_any_category_a_skeleton_is_not_compared(codes: Codes, chairs: tuple[Path, Path]) -> None:
    skeleton = draft_skeleton(chairs[1]).skeleton
    found = codes(lambda content: content["categories"][0].pop("keypoints"), skeleton=skeleton)
    assert "no-keypoints" in found and "no-such-keypoints" not in found


def test_almost_the_names_of_the_skeleton_are_compared_in_full(codes: Codes, chairs: tuple[Path, Path]) -> None:
    skeleton = draft_skeleton(chairs[1]).skeleton
    content = json.loads(chairs[1].read_text())
    content["categories"][0]["keypoints"][6] = NAMES[6].title()
    path = write_annotations(chairs[1].with_name("changed.json"), content)
    [finding] = lint_annotations(path, skeleton=skeleton)
    assert finding.code == "no-such-keypoints"
    assert finding.places == [f"it has {NAMES[6].title()!r} instead of {NAMES[6]!r}"]


def test_image_files_are_compared_with_the_annotations(tmp_path: Path) -> None:
    folder, annotations = write_chairs(tmp_path, "images", 14, seed=1)
    content = json.loads(annotations.read_text())
    content["images"][6]["file_name"] = too_long = 5000 * "n"
    write_annotations(annotations, content)
    (folder / "1.jpg").unlink()
    (folder / "2.jpg").write_bytes(b"")
    (folder / "3.jpg").write_bytes((folder / "3.jpg").read_bytes()[:40])
    (folder / "4.jpg").write_bytes(jpeg_declaring(20000, 20000))
    (folder / "5.jpg").write_bytes(encode(np.zeros((SIDE, SIDE + 10, 3), np.uint8)))
    (folder / "6.jpg").write_bytes(encode(np.zeros((2 * SIDE, 2 * SIDE, 3), np.uint8)))
    found = {finding.code: finding.places for finding in lint_annotations(annotations, folder)}
    assert found.keys() == {"missing-file", "unreadable-file", "wrong-size", "resized"}
    empty, cut, vast = found["unreadable-file"]
    assert (found["missing-file"], empty, vast) == (["1.jpg", too_long], "2.jpg (is empty)", "4.jpg (is too large)")
    assert cut.startswith("3.jpg (")
    assert found["wrong-size"] == [f"5.jpg ({SIDE + 10} x {SIDE}, annotated {SIDE} x {SIDE})"]
    assert found["resized"] == [f"6.jpg ({2 * SIDE} x {2 * SIDE}, annotated {SIDE} x {SIDE})"]


def test_the_tool_names_places_and_remedies_and_fails_on_errors_alone(
    chairs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads(chairs[1].read_text())
    content["annotations"][2]["num_keypoints"] = 1
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    assert run_tool("annotations", ["lint", str(path)], prog="lint") == 0
    out = capsys.readouterr().out
    assert "warning: annotations with a num_keypoints" in out and ": 3\n  fix: count" in out

    for entry in content["annotations"]:
        entry["area"] = 0
    path.write_text(json.dumps(content))
    assert run_tool("annotations", ["lint", str(path)], prog="lint") == 2
    captured = capsys.readouterr()
    assert "1, 2, 3, 4, 5 ... (+23 more)" in captured.out and "zero-area" in captured.err
    assert run_tool("annotations", ["lint", str(path), "--json"], prog="lint") == 2
    first = json.loads(capsys.readouterr().out)[0]
    assert list(first) == ["severity", "code", "message", "remedy", "places", "can_repair", "can_drop"]
    assert first["severity"] == "error" and len(first["places"]) == 28


def exchange_axes(content: Document) -> None:
    for entry in content["annotations"]:
        entry["keypoints"] = np.reshape(entry["keypoints"], (-1, 3))[:, [1, 0, 2]].ravel().tolist()


def write_boxes(convert: Callable[[float, float, float, float], list[float]]) -> Callable[[Document], None]:
    def change(content: Document) -> None:
        for entry in content["annotations"]:
            entry["bbox"] = convert(*entry["bbox"])

    return change


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda d: transform(d, sizes=0.95), "keypoints outside their image.*if images were resized, scale"),
        (lambda d: transform(d, sizes=0.75), "outside their image"),
        (lambda d: transform(d, keypoints=0.75), "keypoints outside their own box"),
        (lambda d: transform(d, boxes=0.75), "keypoints outside their own box"),
        (exchange_axes, "outside their image"),
        (write_boxes(lambda x, y, w, h: [x, y, x + w, y + h]), "but are inside if they are two corners.*; write bbox"),
        (write_boxes(lambda x, y, w, h: [x + w / 2, y + h / 2, w, h]), "keypoints outside their own box"),
        (lambda d: [i.update(width=i["height"], height=i["width"]) for i in d["images"]], "outside their image"),
    ],
    ids=["95 %", "75 %", "keypoints", "boxes", "axes", "corners", "centres", "sizes"],
)
def test_real_annotations_in_another_frame_are_refused(
    real: Document, tmp_path: Path, change: Callable[[Document], Any], message: str
) -> None:
    """Such files would be trained on and evaluated, with wrong results."""
    change(real)
    path = write_annotations(tmp_path / "a.json", real)
    for reader in (read_annotations, lambda path: read_split(path, skeleton=COCO)):
        with pytest.raises(DataError, match=message):
            reader(path)


def test_boxes_that_are_not_cut_off_at_the_border_are_no_error_and_two_corners_are_one(
    real: Document, tmp_path: Path
) -> None:
    large, corners = copy.deepcopy(real), real
    write_boxes(lambda x, y, w, h: [x - w / 10, y - h / 10, 1.2 * w, 1.2 * h])(large)
    write_boxes(lambda x, y, w, h: [x, y, x + w, y + h])(corners)
    for content, expected in ((large, []), (corners, ["box-corners"])):
        found = lint_annotations(write_annotations(tmp_path / "a.json", content))
        assert [finding.code for finding in found if finding.code.startswith("box")] == expected


def test_flip_idx_says_which_keypoints_without_sides_in_their_names_have_sides(
    codes: Codes, chairs: tuple[Path, Path], tmp_path: Path
) -> None:
    names = [f"k{index}" for index in range(len(NAMES))]

    def change(flip_idx: list[int]) -> Callable[[Document], None]:
        return lambda content: content["categories"][0].update(keypoints=names, flip_idx=flip_idx)

    with_sides, without = (change([index ^ sides for index in range(len(NAMES))]) for sides in (1, 0))
    assert "no-sides" not in codes(with_sides)
    assert "no-sides" in codes(without), "an identity says nothing, and these chairs do not either"
    content = json.loads(chairs[1].read_text())
    without(content)
    skeleton = draft_skeleton(write_annotations(tmp_path / "without.json", content)).skeleton
    assert not skeleton.mirror
    assert "no-sides" not in codes(with_sides, skeleton=skeleton), "it lets nothing be mirrored"
    assert "no-sides" in codes(with_sides, skeleton=dataclasses.replace(skeleton, mirror=True))


@pytest.mark.parametrize(
    "fault, message, of_300",
    [
        ({"keypoints": [-5, 20, 2, *[0] * 48]}, "outside their image", 15),
        ({"bbox": [500, 500, 50, 60]}, "far beyond their image", 15),
        ({"bbox": [20, 20, 50, 0]}, "without a width or a height", 3),
        ({"area": 0}, "with area 0, which no evaluation can match", 3),
    ],
)
def test_single_faults_are_read_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Document, message: str, of_300: int
) -> None:
    """Two in a file of any size, and a share of many."""
    for count, limit in ((10, 2), (300, of_300)):
        content = document([1], [person(number, 1, (number % 99, 20, 50, 60)) for number in range(1, count + 1)])
        for entry in content["annotations"][:limit]:
            entry.update(fault)
        caplog.clear()
        assert len(read_annotations(write_annotations(tmp_path / "a.json", content)).people[1]) == count
        assert f"{message}: 1, 2" in caplog.text
        content["annotations"][limit].update(fault)
        with pytest.raises(DataError, match=f"{message}: 1, 2, 3[,;] "):
            read_annotations(write_annotations(tmp_path / "a.json", content))


class TestExchangedSides:
    """Left and right exchanged in all pairs of all people: only faces show it."""

    def swapped(self, folder: Path, content: Document, *codes: str) -> dict[str, list[str]]:
        path = write_annotations(folder / "a.json", content)
        found = lint_annotations(path, skeleton=COCO)
        assert not [finding.code for finding in found if finding.severity == "error"]
        return {finding.code: finding.places for finding in found if finding.code in codes}

    def exchange(self, entries: list[Document]) -> None:
        names = COCO.file_names
        twins = [name.replace("left", "?").replace("right", "left").replace("?", "right") for name in names]
        order = [names.index(name) for name in twins]
        for entry in entries:
            entry["keypoints"] = np.reshape(entry["keypoints"], (-1, 3))[order].ravel().tolist()

    def test_in_real_annotations(self, tmp_path: Path, real: Document) -> None:
        assert self.swapped(tmp_path, real, "swapped-sides") == {}
        self.exchange(real["annotations"][::10])
        assert self.swapped(tmp_path, real, "swapped-sides") == {}, "a few people may be wrong"
        self.exchange([entry for row, entry in enumerate(real["annotations"]) if row % 10])
        assert self.swapped(tmp_path, real, "swapped-sides") == {"swapped-sides": ["in 191 of 192 faces"]}

    def test_exchanged_eyes_alone_are_a_pair_like_others(self, tmp_path: Path) -> None:
        """Their faces look exchanged, but all other pairs are right; only who differs from most people is reported."""
        heights = {"nose": 35, "left_eye": 30, "right_eye": 30}
        for side in (1, -1):
            content = document([1], [person(number, 1) for number in range(1, 41)])
            for number, entry in enumerate(content["annotations"]):
                eyes = -side if number == 7 else side
                entry["keypoints"] = []
                for k, name in enumerate(COCO.file_names):
                    direction = ("left" in name) - ("right" in name)
                    x = 45 + 12 * direction * (eyes if "eye" in name else 1)
                    entry["keypoints"] += [x, heights.get(name, 40 + k), 2]
            found = self.swapped(tmp_path, content, "swapped-here", "swapped-sides")
            assert found == {"swapped-here": ["8 (left_eye, right_eye)"]}

    def test_in_drawn_faces_however_the_heads_are_tilted(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        in_profile = (4, -2.9)  # the nose between the eyes does not tell the sides
        exchanged = {"swapped-sides": ["in 40 of 40 faces"]}
        for side, nose, expected in ((1, (0, 5), {}), (-1, (0, 5), exchanged), (-1, in_profile, {})):
            content = document([1], [person(number, 1) for number in range(1, 41)])
            for entry in content["annotations"]:
                turn = rng.uniform(-np.pi, np.pi)
                rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
                face = np.array([nose, [8 * side, -3], [-8 * side, -3]]) @ rotation + (45, 50)
                entry["keypoints"] = [value for x, y in face.tolist() for value in (x, y, 2)] + [0] * 42
                entry["num_keypoints"] = 3
            assert self.swapped(tmp_path, content, "swapped-sides") == expected


def test_every_rule_says_how_to_fix_what_it_finds() -> None:
    assert all(" " in rule.remedy and rule.code.islower() for rule in RULES)
    assert len({rule.code for rule in RULES}) == len(RULES)


def test_a_file_in_the_place_of_another_kind_is_named(
    chairs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(chairs[1])
    output = ["--output", str(tmp_path / "out.json")]
    for words, message in {
        ("lint", file, "--skeleton", file): "is JSON, not a skeleton file",
        ("lint", file, "--images", file): "is not a folder",
        ("import", file, "--split", "val", *output): "has no splits, which only YOLO-pose has",
        ("import", "data.yaml", "--images", str(chairs[0]), *output): "cannot read annotations data.yaml",
    }.items():
        assert run_tool("annotations", list(words)) == 2
        assert re.search(message, capsys.readouterr().err)


def test_people_who_reach_no_border_are_reported(real: Document, tmp_path: Path) -> None:
    transform(real, sizes=1.3)
    entry = next(entry for entry in real["annotations"] if entry["num_keypoints"] and not entry["iscrowd"])
    for left, is_reported in ((entry["bbox"][0], True), (2000, False)):  # a box beyond the border is enough
        entry["bbox"][0] = left
        found = lint_annotations(write_annotations(tmp_path / "a.json", real))
        assert ("unreached" in {finding.code for finding in found}) == is_reported
