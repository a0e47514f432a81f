"""Skeleton files: the round trip, defaults, and messages about invalid ones."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from posenet.errors import ConfigError
from posenet.skeleton import COCO
from posenet.skeleton.skeleton_file import (
    DEFAULT_SIGMA,
    load_skeleton,
    skeleton_from_table,
    skeleton_to_table,
    skeleton_to_toml,
)

SHORT_NAMES_FILE = Path(__file__).parents[1] / "fixtures" / "coco_short_names.toml"
CAT = """
keypoints = ["nose", "L_ear", "R_ear"]
left_right = [["L_ear", "R_ear"]]
parts = [["nose", "L_ear"], ["nose", "R_ear"]]
"""


def test_the_built_in_skeleton_survives_files_and_tables() -> None:
    assert skeleton_from_table(skeleton_to_table(COCO)) == COCO
    assert skeleton_from_table(tomllib.loads(skeleton_to_toml(COCO, {"sigmas": "one\ntwo"}))) == COCO
    assert load_skeleton("coco") is COCO


def test_the_built_in_skeleton_of_earlier_versions_is_that_of_today() -> None:
    """Its file, which copies, checkpoints, stores and exported files of those versions contain, has other names."""
    assert load_skeleton(SHORT_NAMES_FILE) == COCO
    table = tomllib.loads(SHORT_NAMES_FILE.read_text())
    assert skeleton_to_table(skeleton_from_table(table)) == skeleton_to_table(COCO)
    other = skeleton_from_table(table | {"file_names": [f"kp_{number}" for number in range(17)]})
    assert other.keypoints == COCO.keypoints and other.file_names[0] == "kp_0"
    assert skeleton_from_table(skeleton_to_table(other)) == other
    more = {"keypoints": ["head", "Rsho", "Lsho"], "parts": [["head", "Rsho"], ["head", "Lsho"]], "category": "clown"}
    assert "right_shoulder" in skeleton_from_table(more).keypoints, "as in stores and checkpoints of 0.6"
    car = {"keypoints": ["Front", "Rear"], "parts": [["Front", "Rear"]]}
    assert skeleton_from_table(car).keypoints == ("Front", "Rear"), "no right ear"
    plane = {"keypoints": ["nose", "Rear"], "parts": [["nose", "Rear"]], "category": "plane"}
    assert skeleton_from_table(plane).keypoints == ("nose", "Rear")


def test_a_file_has_its_keys_in_a_fixed_order_below_their_comments() -> None:
    table = tomllib.loads(CAT) | {"category": "cat", "sigmas": {"nose": 0.1}}
    text = skeleton_to_toml(skeleton_from_table(table), {"parts": "one\ntwo", "sigmas": "three"})
    assert text.startswith('category = "cat"\n\nkeypoints = ["nose", "L_ear", "R_ear"]\n\n# one\n# two\nparts = [\n')
    assert text.endswith('\n# three\n[sigmas]\n"nose" = 0.1\n"L_ear" = 0.05\n"R_ear" = 0.05\n')


def test_unusual_names_and_colours_survive_too() -> None:
    name = 'nöse "x" \x7f'
    layout = {name: [-1, 0.3], "L_ear": [0.5, 1], "R_ear": [0.5, 1]}
    table = {"keypoints": [name, "L_ear", "R_ear"], "parts": [[name, "L_ear"], [name, "R_ear"]]}
    table |= {"left_right": [["L_ear", "R_ear"]], "layout": layout, "colours": {"L_ear": "#12Ab34"}}
    skeleton = skeleton_from_table(table)
    assert skeleton_from_table(tomllib.loads(skeleton_to_toml(skeleton))) == skeleton
    assert skeleton.keypoints[0] == name and skeleton.layout["L_ear"] == (0.5, 1.0)


def test_keypoints_and_parts_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "cat.toml"
    path.write_text(CAT)
    skeleton = load_skeleton(path)
    assert skeleton.keypoints == skeleton.file_names == ("nose", "L_ear", "R_ear")
    assert skeleton.sigmas == (DEFAULT_SIGMA,) * 3 and not skeleton.layout
    assert skeleton.min_labelled_keypoints == 1 and COCO.min_labelled_keypoints == 5


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("keypoints", '["nose", "L_ear"]', "unknown keypoints: R_ear"),
        ("keypoints", '["nose", "L_ear", "R_ear", "nose"]', "appear twice: nose"),
        ("keypoints", "", "not valid TOML"),
        ("points", '["nose"]', "unknown key points"),
        ("channels", '["nose", "L_ear", "R_ear", "tail"]', "file nor derived: tail"),
        ("file_names", '["a"]', "differ in length"),
        ("parts", "[]", "parts is missing or empty"),
        ("parts", '[["nose", "L_ear"]]', "missing mirror images: nose-R_ear"),
        ("parts", '[["R_ear", "L_ear"]]', "no part joins R_ear to nose"),
        ("parts", '[["R_ear", "R_ear"]]', "join a keypoint to itself: R_ear-R_ear"),
        ("parts", '[["nose", "L_ear"], ["L_ear", "nose"]]', "that appear twice or"),
        ("left_right", '[["L_ear", "R_ear"], ["nose", "L_ear"]]', "left and right: L_ear"),
        ("left_right", '[["L_ear", "R_ear", "nose"]]', "left_right must be a list of 2 names"),
        ("left_right", '"L_ear"', "left_right must be a list"),
        ("category_id", "true", "category_id must be a whole number"),
        ("sigmas", "3", "sigmas must be a table"),
        ("sigmas", "{nose = -0.1}", "sigmas not above 0: nose"),
        ("sigmas", "{nose = inf}", "sigmas must contain numbers, not inf"),
        ("sigmas", "{tail = 0.1}", "sigmas names tail"),
        ("layout", "{nose = [0, 1]}", "the layout has other keypoints: L_ear, R_ear"),
        ("layout", "{nose = [0, 0], L_ear = [0, 1], R_ear = [0, 1]}", "layout not above 0: nose"),
        ("colours", '{nose = "red"}', "not of the form #rrggbb: red"),
        ("colours", "{nose = 7}", "colours must contain names, not 7"),
        ("derived", '{L_ear = ["nose", "R_ear"]}', "in the file and derived: L_ear"),
        ("derived", '{chin = ["nose", "R_ear"]}', "without a mirror image: chin"),
        ("derived", '{chin = ["L_ear", "R_ear"], lip = ["chin", "nose"]}', "derived one: lip"),
    ],
)
def test_the_message_of_an_invalid_file_names_the_fault(tmp_path: Path, key: str, value: str, message: str) -> None:
    path = tmp_path / "cat.toml"
    others = "".join(line + "\n" for line in CAT.splitlines() if not line.startswith(f"{key} ="))
    path.write_text(f"{key} = {value}\n{others}")
    with pytest.raises(ConfigError) as caught:
        load_skeleton(path)
    assert str(caught.value).startswith(str(path)) and message in str(caught.value)


def test_objects_are_called_by_their_category(tmp_path: Path) -> None:
    cat = skeleton_from_table(tomllib.loads('category = "cat"\n' + CAT))
    assert cat.count(1) == "1 x cat" and cat.count(3, "missed") == "3 x missed cat"
    assert [COCO.count(1), COCO.count(2, "tracked")] == ["1 person", "2 tracked people"]
    assert skeleton_from_table(tomllib.loads(skeleton_to_toml(cat))).category == "cat"
    same = skeleton_from_table(tomllib.loads(CAT))
    assert same == cat, "the name of the category does not matter to networks and stores"
    assert "category" not in skeleton_to_table(same)


def test_that_nothing_may_be_mirrored_is_kept_and_files_without_the_key_are_mirrored() -> None:
    cat = skeleton_from_table(tomllib.loads("mirror = false\n" + CAT))
    mirrored = replace(cat, mirror=True)
    assert not cat.mirror and not cat.changes_of_network(mirrored) and cat != mirrored
    assert skeleton_from_table(json.loads(json.dumps(skeleton_to_table(cat)))) == cat
    text = skeleton_to_toml(cat, {"mirror": "why"})
    assert skeleton_from_table(tomllib.loads(text)) == cat and "# why" in text
    assert COCO.mirror and "mirror" not in skeleton_to_table(COCO)
    with pytest.raises(ValueError, match="mirror.*'no'"):
        skeleton_from_table(skeleton_to_table(cat) | {"mirror": "no"})
