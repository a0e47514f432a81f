"""The annotation linter: every fault is found, named and told how to mend; sound files have none."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.annotations.coco_file import read_annotations
from posenet.annotations.lint.linter import lint_annotations
from posenet.annotations.skeleton_draft import draft_skeleton
from posenet.cli.main import run_tool
from posenet.errors import DataError
from posenet.skeleton import COCO
from posenet.skeleton.skeleton_file import skeleton_from_table, skeleton_to_table
from tests.checkpoints.test_security import jpeg
from tests.helpers.chairs import NAMES, write_chairs

Document = dict[str, Any]


@pytest.fixture(scope="module")
def chairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_chairs(tmp_path_factory.mktemp("lint"), "train", 14, seed=1)


@pytest.fixture
def codes(chairs: tuple[Path, Path], tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Lints the chairs after a change; gives the severity of every code found."""

    def lint(change: Callable[[Document], Any], **options: Any) -> dict[str, str]:
        document = json.loads(chairs[1].read_text())
        change(document)
        path = tmp_path / "changed.json"
        path.write_text(json.dumps(document))
        return {finding.code: finding.severity for finding in lint_annotations(path, **options)}

    return lint


def setting(where: str, index: int = 3, **values: Any) -> Callable[[Document], None]:
    return lambda document: document[where][index].update(values)


def moved(place: int, *values: float) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        entry = next(e for e in document["annotations"] if e["keypoints"][3 * place + 2] == 2)
        entry["keypoints"][3 * place : 3 * place + 3] = values
        entry["num_keypoints"] = sum(v > 0 for v in entry["keypoints"][2::3])

    return change


def test_a_sound_file_has_no_findings(codes: Callable[..., dict[str, str]], chairs: tuple[Path, Path]) -> None:
    assert codes(lambda document: None, images=chairs[0], skeleton=draft_skeleton(chairs[1]).skeleton) == {}


def test_the_real_annotations_have_no_errors(coco_sample: Path) -> None:
    for path in sorted((coco_sample / "annotations").glob("person_keypoints_*.json")):
        found = lint_annotations(path, skeleton=COCO)
        assert {finding.code for finding in found} <= {"swapped-here"}, path


@pytest.mark.parametrize(
    "change, code",
    [
        (setting("annotations", id=1), "duplicate-annotation-id"),
        (setting("annotations", id="x"), "annotation-id"),
        (setting("images", id=1), "duplicate-image-id"),
        (setting("images", file_name="../1.jpg"), "file-name"),
        (setting("images", width=0), "image-size"),
        (setting("annotations", image_id=999), "no-image"),
        (setting("annotations", category_id=999), "no-such-category"),
        (setting("annotations", keypoints=None), "keypoint-count"),
        (setting("annotations", area=0), "zero-area"),
        (setting("annotations", area=None), "no-area"),
        (setting("annotations", bbox=[1, 2, 3]), "no-box"),
        (setting("annotations", bbox=[50, 50, 0, 4]), "empty-box"),
        (setting("annotations", iscrowd=2), "crowd-flag"),
        (setting("annotations", keypoints=[1, 2, 2]), "keypoint-count"),
        (setting("annotations", keypoints=[float("nan")] * 30), "not-a-number"),
        (moved(0, 50, 50, 3), "visibility"),
        (moved(0, 500, 50, 2), "outside"),
        (moved(0, 50, -5, 1), "outside"),
        (lambda d: d["categories"][0].pop("keypoints"), "no-keypoints"),
        (lambda d: d["categories"][0]["keypoints"].__setitem__(0, NAMES[4]), "keypoint-twice"),
        (lambda d: [e.update(keypoints=[0] * 30) for e in d["annotations"]], "nothing-labelled"),
    ],
)
def test_errors(codes: Callable[..., dict[str, str]], change: Callable[[Document], Any], code: str) -> None:
    assert codes(change)[code] == "error"


@pytest.mark.parametrize(
    "change, code",
    [
        (setting("annotations", num_keypoints=1), "num-keypoints"),
        (moved(0, 50, 50, 0), "unlabelled-place"),
        (moved(0, 0, 0, 2), "labelled-at-zero"),
        (setting("annotations", area=20), "small"),
        (setting("annotations", bbox=[100, 100, 150, 160]), "box-outside"),
        (setting("images", file_name="1.jpg"), "duplicate-file"),
        (
            lambda d: [d["categories"].append({"id": 7, "name": "mat"}), setting("annotations", category_id=7)(d)],
            "no-category",
        ),
        (lambda d: d["annotations"].append(d["annotations"][0] | {"id": 999}), "same-keypoints"),
        (lambda d: d["categories"].append({"id": 3, "name": "hat", "keypoints": ["top", "brim"]}), "mixed-categories"),
        (lambda d: d["categories"][0].update(keypoints=[f"k{i}" for i in range(10)]), "no-sides"),
    ],
)
def test_warnings(codes: Callable[..., dict[str, str]], change: Callable[[Document], Any], code: str) -> None:
    found = codes(change)
    assert code in found and set(found.values()) == {"warning"}


ODD = [None, [], {}, "x", True, -1, 0, 1.5, [1], [{}] * 30, [10**400] * 30, 10**400, 2**63, float("nan"), float("inf")]


@pytest.mark.parametrize("where", ["images", "annotations", "categories"])
def test_whatever_stands_there_is_reported_if_it_stops_the_reader(
    chairs: tuple[Path, Path], tmp_path: Path, where: str
) -> None:
    document = json.loads(chairs[1].read_text())
    document = {key: entries[:6] for key, entries in document.items()}
    images = {image["id"] for image in document["images"]}
    document["annotations"] = [entry for entry in document["annotations"] if entry["image_id"] in images]
    path, skeleton = tmp_path / "odd.json", draft_skeleton(chairs[1]).skeleton
    for key in document[where][0]:
        for value in [*ODD, KeyError]:
            changed = copy.deepcopy(document)
            if value is KeyError:
                del changed[where][0][key]
            else:
                changed[where][0][key] = value
            path.write_text(json.dumps(changed))
            severities = {finding.severity for finding in lint_annotations(path, skeleton=skeleton)}
            try:
                read_annotations(path, skeleton)
            except DataError:
                assert "error" in severities, (key, value)


def test_no_name_commands_the_terminal(
    chairs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(chairs[1].read_text())
    document["categories"][0]["keypoints"][0] = "\x1b[2J"
    document["annotations"][0]["id"] = "\x1b]0;mine\x07\n"
    (tmp_path / "a.json").write_text(json.dumps(document))
    assert run_tool("lint-annotations", [str(tmp_path / "a.json")]) == 2
    assert run_tool("skeleton", ["--from-annotations", str(tmp_path / "a.json")]) == 0
    shown = capsys.readouterr().out
    assert "?]0;mine?" in shown and "?[2J" in shown and all(line.isprintable() for line in shown.splitlines())


def swap(document: Document, pair: tuple[int, int], entries: slice) -> None:
    for entry in document["annotations"][entries]:
        points = np.array(entry["keypoints"]).reshape(-1, 3)
        points[list(pair)] = points[list(pair)[::-1]]
        entry["keypoints"] = points.ravel().tolist()


def test_a_pair_swapped_everywhere_is_an_error(codes: Callable[..., dict[str, str]]) -> None:
    assert codes(lambda d: swap(d, (4, 5), slice(None))) == {"swapped-pair": "error"}


def test_a_pair_swapped_once_is_a_warning(codes: Callable[..., dict[str, str]]) -> None:
    assert codes(lambda d: swap(d, (4, 5), slice(3, 4))) == {"swapped-here": "warning"}


@pytest.mark.parametrize(
    "pairs, code",
    [
        ([[NAMES[0], NAMES[3]], [NAMES[2], NAMES[1]]], {"flip-pair": "error"}),
        ([[NAMES[1], NAMES[0]], [NAMES[2], NAMES[3]]], {"flip-order": "warning"}),
        ([[NAMES[0], NAMES[1]]], {"flip-missing": "warning"}),
    ],
)
def test_the_skeletons_pairs_are_held_against_the_names(
    codes: Callable[..., dict[str, str]], chairs: tuple[Path, Path], pairs: list[list[str]], code: dict[str, str]
) -> None:
    table = skeleton_to_table(draft_skeleton(chairs[1]).skeleton)
    rest = list(table["left_right"][2:])
    every = [[a, b] for i, a in enumerate(NAMES) for b in NAMES[i + 1 :]]
    skeleton = skeleton_from_table(table | {"left_right": pairs + rest, "parts": every})
    found = codes(lambda document: None, skeleton=skeleton)
    assert {k: v for k, v in found.items() if k.startswith("flip")} == code


def test_another_skeleton_is_an_error(codes: Callable[..., dict[str, str]]) -> None:
    assert codes(lambda document: None, skeleton=COCO) == {
        "other-keypoints": "warning",
        "no-such-keypoints": "error",
        "no-category": "warning",
    }


def test_files_are_held_against_the_images(tmp_path: Path, codes: Callable[..., dict[str, str]]) -> None:
    folder, _ = write_chairs(tmp_path, "pictures", 14, seed=1)
    (folder / "1.jpg").unlink()
    (folder / "2.jpg").write_bytes(b"")
    (folder / "3.jpg").write_bytes((folder / "3.jpg").read_bytes()[:40])
    assert codes(setting("images", 4, width=161), images=folder) == dict.fromkeys(
        ["missing-file", "unreadable-file", "wrong-size"], "error"
    )


def test_a_picture_that_claims_gigabytes_is_not_decoded(tmp_path: Path) -> None:
    folder, annotations = write_chairs(tmp_path, "pictures", 2, seed=1)
    (folder / "1.jpg").write_bytes(jpeg(20000, 20000))
    [finding] = [f for f in lint_annotations(annotations, folder) if f.severity == "error"]
    assert (finding.code, finding.places) == ("unreadable-file", ["1.jpg"])


@pytest.mark.parametrize("content", ["{", "[]", '{"images": [], "annotations": 3, "categories": []}'])
def test_what_is_no_coco_file_at_all_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"a\.json.*give a COCO keypoint file"):
        lint_annotations(path)


def test_the_tool_names_places_and_remedies_and_fails_on_errors_alone(
    chairs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(chairs[1].read_text())
    document["annotations"][2]["num_keypoints"] = 1
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    assert run_tool("lint-annotations", [str(path)], prog="lint") == 0
    out = capsys.readouterr().out
    assert "warning: annotations whose num_keypoints" in out and ": 3\n  mend it: count" in out

    broken = copy.deepcopy(document)
    for entry in broken["annotations"]:
        entry["area"] = 0
    path.write_text(json.dumps(broken))
    assert run_tool("lint-annotations", [str(path)], prog="lint") == 2
    captured = capsys.readouterr()
    assert "1, 2, 3, 4, 5 ... (+23 more)" in captured.out and "zero-area" in captured.err
    assert run_tool("lint-annotations", [str(path), "--json"], prog="lint") == 2
    first = json.loads(capsys.readouterr().out)[0]
    assert first["severity"] == "error" and len(first["places"]) == 28
