"""Repairing annotation files: what can be derived is derived exactly, and everything else stays as it was."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.annotations.rules import fix_annotations, lint_annotations
from posenet.cli.main import run_tool
from posenet.errors import DataError
from tests.helpers.drawn_data import HEIGHT, WIDTH, crowd, document, person, write_annotations, write_images
from tests.helpers.image_bytes import encode
from tests.helpers.malformed_inputs import mutate_tree
from tests.helpers.oriented_images import oriented_image

Document = dict[str, Any]
Change = Callable[[Document], Any]


def valid_document() -> Document:
    """Three images with two people each, and a crowd."""
    people = [person(10 * number + k, number, (20 + 60 * k, 20, 50, 60)) for number in (1, 2, 3) for k in range(2)]
    return document([1, 2, 3], [*people, crowd(50, 3, (0, 90, 40, 20))])


def fix(folder: Path, content: Document, **options: Any) -> tuple[Document, dict[str, int]]:
    """The repaired document, and the counts of repairs and of what was left out."""
    path = write_annotations(folder / "in.json", content)
    before = path.read_bytes()
    repairs = fix_annotations(path, folder / "out.json", overwrite=True, **options)
    assert path.read_bytes() == before
    left_out = {finding.code: len(finding.places) for finding in repairs.left_out}
    return json.loads((folder / "out.json").read_text()), repairs.counts | left_out


def changed(change: Change) -> Document:
    content = valid_document()
    change(content)
    return content


def setting(section: str, index: int = 0, **values: Any) -> Change:
    return lambda content: content[section][index].update(values)


def without(section: str, key: str) -> Change:
    return lambda content: [entry.pop(key) for entry in content[section]]


def test_a_valid_file_is_not_changed(tmp_path: Path) -> None:
    assert fix(tmp_path, valid_document()) == (valid_document(), {})


@pytest.mark.parametrize(
    "change, kind, count",
    [
        (without("annotations", "num_keypoints"), "num_keypoints counted", 7),
        (setting("annotations", num_keypoints=3), "num_keypoints counted", 1),
        (lambda d: d["annotations"][0].pop("area"), "areas computed from outlines", 1),
        (setting("annotations", area=0), "areas computed from outlines", 1),
        (setting("annotations", area="3000"), "areas computed from outlines", 1),
        (lambda d: d["annotations"][0].pop("bbox"), "boxes computed from outlines", 1),
        (setting("annotations", bbox=[0, 0, 0, 0]), "boxes computed from outlines", 1),
        (setting("annotations", bbox=[70, 80, -50, -60]), "boxes computed from outlines", 1),
        (setting("annotations", 6, bbox=[]), "boxes computed from outlines", 1),
        (setting("annotations", 6, area=None), "areas computed from outlines", 1),
    ],
)
def test_a_value_that_others_determine_is_restored(tmp_path: Path, change: Change, kind: str, count: int) -> None:
    fixed, fixes = fix(tmp_path, changed(change))
    assert all(finding.can_repair for finding in lint_annotations(tmp_path / "in.json"))
    [(found, number)] = fixes.items()
    assert kind in found and number == count
    assert fixed == valid_document()


def test_missing_and_repeated_ids_of_annotations_become_free_numbers(tmp_path: Path) -> None:
    content = changed(setting("annotations", 2, id=None))
    content["annotations"][4]["id"] = [3]
    content["annotations"][5]["id"] = 10
    fixed, fixes = fix(tmp_path, content)
    assert [entry["id"] for entry in fixed["annotations"]] == [10, 11, 51, 21, 52, 53, 50]
    assert fixes == {"annotations numbered": 3}


def test_a_box_and_an_area_follow_from_keypoints_where_there_is_no_outline(tmp_path: Path) -> None:
    content = changed(lambda d: [d["annotations"][0].pop(key) for key in ("bbox", "area", "segmentation")])
    fixed, fixes = fix(tmp_path, content)
    entry = fixed["annotations"][0]
    points = np.reshape(entry["keypoints"], (-1, 3))[:, :2]
    assert entry["bbox"] == pytest.approx([*points.min(0), *(points.max(0) - points.min(0))])
    assert entry["area"] == pytest.approx(0.84 * entry["bbox"][2] * entry["bbox"][3])
    assert fixes.pop("boxes computed from keypoints") == 1
    assert "0.84 of the box around their keypoints" in next(iter(fixes))


def test_areas_of_whole_boxes_are_reduced_where_there_is_no_outline(tmp_path: Path) -> None:
    """Earlier imports and some tools write them."""
    content = valid_document()
    first, second, third, *others = content["annotations"]
    for entry in (first, second, third):
        entry["segmentation"] = []
    second["area"] = 1234.5
    points = np.reshape(third["keypoints"], (-1, 3))[:, :2]
    third["bbox"] = [*points.min(0).tolist(), *np.ptp(points, axis=0).tolist()]
    third["area"] = third["bbox"][2] * third["bbox"][3]
    path = write_annotations(tmp_path / "a.json", content)
    found = {finding.code: finding.places for finding in lint_annotations(path)}
    assert found == {"box-area": [str(first["id"])]}
    fixed, fixes = fix(tmp_path, content)
    assert [entry["area"] for entry in fixed["annotations"][:3]] == [0.53 * 50 * 60, 1234.5, third["area"]]
    assert fixed["annotations"][3:] == others and list(fixes.values()) == [1]


def test_the_estimated_areas_are_those_of_real_people(coco_sample: Path, tmp_path: Path) -> None:
    path = coco_sample / "annotations" / "person_keypoints_val2017_oracle150.json"
    content = json.loads(path.read_text())
    content["annotations"] = [entry for entry in content["annotations"] if not entry["iscrowd"]]
    expected = np.array([entry["area"] for entry in content["annotations"]])
    for entry in content["annotations"]:
        entry.update(segmentation=[], area=None)
    fixed, _ = fix(tmp_path, content)
    found = np.array([entry["area"] for entry in fixed["annotations"]])
    assert np.median(found / expected) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("labelled", [0, 1])
def test_a_box_of_too_few_keypoints_is_left_and_reported(tmp_path: Path, labelled: int) -> None:
    content = document([1], [person(1, 1), person(2, 1, labelled=labelled)])
    for key in ("bbox", "area", "segmentation"):
        content["annotations"][1].pop(key)
    fixed, fixes = fix(tmp_path, content)
    assert fixed == content and fixes == {}
    assert {finding.code for finding in lint_annotations(tmp_path / "out.json")} == {"no-box", "no-area"}


def test_keypoints_a_pixel_outside_are_at_the_edge(tmp_path: Path) -> None:
    content = valid_document()
    content["annotations"][0]["keypoints"][:12] = [-1, 30, 2, 40, HEIGHT + 1, 1, WIDTH + 1, 30, 2, -0.5, 30, 2]
    content["annotations"][2]["keypoints"][:3] = [-1.5, 30, 2]
    findings = lint_annotations(write_annotations(tmp_path / "a.json", content))
    assert [finding.places for finding in findings if finding.code == "outside"] == [["20"]]


def test_sizes_are_read_from_the_files(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", valid_document())
    content = changed(without("images", "width"))
    content["images"][0].update(height="120")
    content["images"][1]["height"] = 7  # contradicts the file: which is wrong?
    content["images"][2]["width"] = 0
    fixed, fixes = fix(tmp_path, content, images=folder)
    sizes = [(image.get("width"), image.get("height")) for image in fixed["images"]]
    assert sizes == [(WIDTH, HEIGHT), (None, 7), (WIDTH, HEIGHT)]
    assert fixes == {"sizes of images read from the files": 2}
    (folder / content["images"][0]["file_name"]).write_bytes(b"no image")
    assert fix(tmp_path, content, images=folder)[0]["images"][0] == content["images"][0]


@pytest.mark.parametrize("exif_frame", ["stored", "displayed"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_missing_size_is_that_of_the_annotated_frame(
    tmp_path: Path, orientation: int, exif_frame: str, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = oriented_image(orientation)
    (tmp_path / "a.jpg").write_bytes(drawn.data)
    x, y = drawn.centres[exif_frame]
    content = document([1], [person(1, 1, (x - 16, y - 16, 32, 32))])
    content["images"][0] = {"id": 1, "file_name": "a.jpg"}
    path, out = write_annotations(tmp_path / "in.json", content), tmp_path / "out.json"
    words = ["--images", str(tmp_path), "--set", f"data.exif_frame={exif_frame}", "--json"]
    assert run_tool("annotations", ["fix", str(path), "--output", str(out), *words]) == 0
    [image] = json.loads(out.read_text())["images"]
    assert (image["height"], image["width"]) == drawn.sizes[exif_frame]
    printed = capsys.readouterr().out
    assert (f"{exif_frame} frame by setting" in printed) == (orientation == 3)
    codes = {finding["code"] for finding in json.loads(printed)}
    assert not codes & {"wrong-size", "outside", "image-size"}


def test_file_names_are_shortened_to_files_in_the_folder(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", valid_document())
    names = [image["file_name"] for image in valid_document()["images"]]
    (folder / "sub").mkdir()
    (folder / names[2]).rename(folder / "sub" / names[2])
    content = valid_document()
    written = [
        f"../../label-studio/data/media/upload/1/{names[0]}",
        f"C:\\data\\upload\\{names[1]}",
        f"images\\sub\\{names[2]}",
    ]
    for image, name in zip(content["images"], written):
        image["file_name"] = name
    fixed, fixes = fix(tmp_path, content, images=folder)
    assert [image["file_name"] for image in fixed["images"]] == [names[0], names[1], f"sub/{names[2]}"]
    assert list(fixes.values()) == [3]

    (tmp_path / names[0]).write_bytes(b"outside of the folder, where no path may lead")
    content["images"][0]["file_name"] = f"../{names[0]}"
    assert fix(tmp_path, content, images=folder)[0]["images"][0]["file_name"] == names[0]

    for name in (f"other/{names[0]}", "n" * 5000):  # the file of another image, and none
        content["images"][1]["file_name"] = name
        assert fix(tmp_path, content, images=folder)[0]["images"][1] == content["images"][1]


def test_neither_the_file_nor_an_image_is_ever_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = valid_document()
    path = write_annotations(tmp_path / "a.json", content)
    folder = write_images(tmp_path / "images", content)
    image = folder / content["images"][0]["file_name"]
    os.link(image, tmp_path / "hard.json")
    (tmp_path / "link.json").symlink_to(path)
    before = path.read_bytes(), image.read_bytes()
    for output in (path, tmp_path / "link.json", image, tmp_path / "hard.json"):
        words = ["fix", str(path), "--images", str(folder), "--output", str(output), "--overwrite"]
        assert run_tool("annotations", words) == 2
        assert "would replace an input" in capsys.readouterr().err
    assert run_tool("annotations", ["fix", str(path), "--output", "-"]) == 2
    with pytest.raises(DataError, match="a.json cannot be a folder"):
        fix_annotations(path, path / "b.json")
    assert (path.read_bytes(), image.read_bytes()) == before


def test_the_tool_names_repairs_what_is_left_out_and_what_to_do_about_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = changed(without("annotations", "id"))
    content["annotations"][1]["keypoints"] = [1, 2]
    content["annotations"][2]["num_keypoints"] = 3
    path, out = write_annotations(tmp_path / "a.json", content), tmp_path / "fixed.json"

    def run(*words: object) -> tuple[int, str, str]:
        status = run_tool("annotations", list(map(str, words)), prog="tool")
        return status, *capsys.readouterr()

    def shown(path: Path) -> str:
        return "".join(f"{finding}\n" for finding in lint_annotations(path))

    drop = "; posenet annotations fix --drop leaves out single entries that cannot be repaired\n"
    error = (
        f"tool: error: {path} has 2 kinds of errors (annotation-id, keypoint-values); fix them as the findings describe"
    )
    fixable = ", after posenet annotations fix has repaired what it can"
    assert run("lint", path) == (2, shown(path), error + fixable + drop)
    repairs = "fixed annotations numbered: 7\nfixed num_keypoints counted: 1\n"
    error = f"tool: error: {out} has 1 kind of error (keypoint-values); fix them as the findings describe"
    assert run("fix", path, "--output", out) == (2, f"{repairs}wrote {out}\n{shown(out)}", error + drop)
    status, found, messages = run("fix", path, "--output", out, "--overwrite", "--json")
    assert (status, messages) == (2, f"{repairs}wrote {out}\n{error}{drop}")
    [finding] = json.loads(found)
    assert (finding["code"], finding["places"]) == ("keypoint-values", ["2"])
    again = tmp_path / "again.json"
    error = error.replace(str(out), str(again))
    assert run("fix", out, "--output", again) == (2, f"nothing to repair\nwrote {again}\n{shown(again)}", error + drop)
    status, printed, refused = run("fix", path, "--output", out, "--drop")
    assert (status, printed) == (2, "") and "--overwrite" in refused
    left_out = f"left out 1: {finding['message']}: 2\n"
    done = f"{repairs}{left_out}wrote {out}\n{out}: no errors, no warnings\n"
    assert run("fix", path, "--output", out, "--drop", "--overwrite") == (0, done, "")
    write_annotations(path, changed(setting("annotations", num_keypoints=3)))
    assert run("lint", path) == (0, f"{shown(path)}{path}: no errors, 1 kind of warning\n", "")
    write_annotations(path, valid_document())
    assert run("lint", path, "--json") == (0, "[]\n", "")


def nan_keypoint(content: Document) -> None:
    content["annotations"][0]["keypoints"][3] = float("nan")


def one_corner_box(content: Document) -> None:
    content["annotations"][0].update(bbox=[20, 20, -5, 5], segmentation=[], keypoints=[30, 30, 2, *[0] * 48])


@pytest.mark.parametrize(
    "change, code, kept",
    [
        (nan_keypoint, "keypoint-values", (3, 7, 5)),
        (setting("annotations", keypoints=[1, 2]), "keypoint-values", (3, 7, 5)),
        (setting("annotations", keypoints=[500, 30, 2] * 17), "outside", (3, 7, 5)),
        (setting("annotations", image_id=99), "no-image", (3, 6, 5)),
        (lambda d: d["images"].pop(0), "no-image", (2, 5, 4)),
        (setting("annotations", category_id=99), "no-such-category", (3, 6, 5)),
        (setting("annotations", iscrowd=7), "crowd-flag", (3, 6, 5)),
        (one_corner_box, "no-box", (3, 6, 5)),
        (lambda d: (one_corner_box(d), d["annotations"][0].update(bbox=[20, 20, 0, 5])), "empty-box", (3, 6, 5)),
        (setting("images", file_name="../1.jpg"), "file-name", (2, 5, 4)),
        (setting("images", id=None), "image-id", (2, 5, 4)),
        (lambda d: d["images"].append(d["images"][0] | {"file_name": "b.jpg"}), "image-id", (2, 5, 4)),
        (setting("images", width=None), "image-size", (2, 5, 4)),
    ],
)
def test_what_cannot_be_repaired_is_left_out_alone(
    tmp_path: Path, change: Change, code: str, kept: tuple[int, int, int]
) -> None:
    """``kept`` counts images, annotations, and people with keypoints."""
    content = changed(change)
    fixed, fixes = fix(tmp_path, content)
    assert code not in fixes
    assert code in {finding.code for finding in lint_annotations(tmp_path / "out.json")}
    fixed, fixes = fix(tmp_path, content, drop=True)
    assert code in fixes
    people = [entry for entry in fixed["annotations"] if entry.get("keypoints") and entry["num_keypoints"]]
    assert (len(fixed["images"]), len(fixed["annotations"]), len(people)) == kept
    assert not [finding for finding in lint_annotations(tmp_path / "out.json") if finding.severity == "error"]


def test_files_that_cannot_be_used_are_left_out_with_their_people(tmp_path: Path) -> None:
    content = valid_document()
    folder = write_images(tmp_path / "images", content)
    names = [image["file_name"] for image in content["images"]]
    (folder / names[0]).unlink()
    (folder / names[2]).write_bytes(b"no image")
    fixed, fixes = fix(tmp_path, content, images=folder, drop=True)
    assert fixes == {"missing-file": 1, "unreadable-file": 1}
    assert [image["id"] for image in fixed["images"]] == [2]
    assert {entry["image_id"] for entry in fixed["annotations"]} == {2}
    others = [content["images"][0] | {"id": number, "file_name": f"{number}.jpg"} for number in range(4, 30)]
    content["images"] += others  # more images than annotations
    for name, size in (("4.jpg", (HEIGHT, WIDTH + 10)), ("5.jpg", (2 * HEIGHT, 2 * WIDTH))):
        (folder / name).write_bytes(encode(np.zeros((*size, 3), np.uint8)))
    fixed, fixes = fix(tmp_path, content, images=folder, drop=True)
    assert fixes == {"missing-file": 25, "unreadable-file": 1, "wrong-size": 1}
    assert [image["id"] for image in fixed["images"]] == [2, 5]
    (folder / names[1]).unlink()
    with pytest.raises(DataError, match=r"nothing of .* would be left; the first reason is images without a file"):
        fix(tmp_path, content, images=folder, drop=True)


def test_an_image_whose_people_are_left_out_does_not_become_one_of_nobody(tmp_path: Path) -> None:
    content = valid_document()
    content["images"].append(content["images"][0] | {"id": 4, "file_name": "nobody.jpg"})
    for entry in content["annotations"][:2]:
        entry["category_id"] = 99
    fixed, fixes = fix(tmp_path, content, drop=True)
    assert fixes == {"no-such-category": 2, "emptied-image": 1}
    assert [image["id"] for image in fixed["images"]] == [2, 3, 4]
    assert len(fixed["annotations"]) == 5
    assert fix(tmp_path, fixed, drop=True) == (fixed, {})


def test_a_fault_of_the_whole_file_is_not_left_out_in_part(tmp_path: Path) -> None:
    """In images that were made smaller, the keypoints inside are wrong, too."""
    content = valid_document()
    for image in content["images"]:
        image.update(width=75)
    fixed, fixes = fix(tmp_path, content, drop=True)
    assert fixes == {} and fixed == content
    faults: dict[str, Document] = {
        "outside": {"keypoints": [500, 30, 2] * 17},
        "visibility": {"keypoints": [30, 30, 7] * 17},
        "normalised": {"keypoints": [0.5, 0.4, 2] * 17},
        "box-outside": {"bbox": [500, 500, 50, 60]},
    }
    for number, count, can_drop in ((2, 7, True), (3, 7, False), (3, 60, True), (4, 60, False)):
        for code, fault in faults.items():
            content = document([1], [person(number, 1, (number, 20, 50, 60)) for number in range(1, count + 1)])
            for entry in content["annotations"][:number]:
                entry.update(fault)
            found = lint_annotations(write_annotations(tmp_path / "a.json", content))
            assert (code, number, can_drop) in [(item.code, len(item.places), item.can_drop) for item in found]


@pytest.mark.parametrize("seeds", [range(80), pytest.param(range(80, 3000), marks=pytest.mark.torture)], ids=str)
def test_any_damage_is_survived_and_a_second_repair_changes_nothing(tmp_path: Path, seeds: range) -> None:
    outcomes = Counter[str]()
    for seed in seeds:
        content = mutate_tree(np.random.default_rng(seed), valid_document())
        path = write_annotations(tmp_path / "in.json", content)
        folder = tmp_path if seed % 2 else None
        try:
            fixes = fix_annotations(path, tmp_path / "out.json", folder, overwrite=True).counts
        except DataError:
            outcomes["refused"] += 1
            continue
        before, after = (json.loads(file.read_text()) for file in (path, tmp_path / "out.json"))
        assert (json.dumps(before) != json.dumps(after)) == bool(fixes), seed
        outcomes["repaired" if fixes else "left"] += 1
        fixes = fix_annotations(tmp_path / "out.json", tmp_path / "again.json", folder, overwrite=True).counts
        assert fixes == {}, seed
        assert (tmp_path / "again.json").read_bytes() == (tmp_path / "out.json").read_bytes()
        keypoints = ([json.dumps(entry.get("keypoints")) for entry in file["annotations"]] for file in (before, after))
        assert next(keypoints) == next(keypoints), seed
        try:
            outcomes["dropped"] += bool(fix_annotations(path, tmp_path / "dropped.json", folder, drop=True).left_out)
        except DataError as error:
            assert "would be left" in str(error)
        for name in ("again.json", "dropped.json"):
            (tmp_path / name).unlink(missing_ok=True)
    assert min(outcomes[kind] for kind in ("refused", "repaired", "left", "dropped")) >= 0.05 * len(seeds), outcomes
