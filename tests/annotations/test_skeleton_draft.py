"""Drafting a skeleton: sides from names, parts from the category or the shortest ones, the layout, errors."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.annotations.reader import read_annotation_file
from posenet.annotations.skeleton_draft import COMMENTS, draft_skeleton, measure_layout
from posenet.cli.main import run_tool
from posenet.errors import DataError
from posenet.skeleton import COCO, load_skeleton
from posenet.skeleton.skeleton_file import DEFAULT_SIGMA, skeleton_from_table, skeleton_to_toml
from tests.helpers.chairs import NAMES, SHAPE
from tests.helpers.changed_annotations import found
from tests.helpers.rooms import needs_checks


def write(path: Path, *categories: dict[str, Any], people: Sequence[Any] = ()) -> Path:
    """A file of one image with people, whose keypoints these are."""
    entries = [{"id": n, "image_id": 1, "category_id": 1, "keypoints": list(one)} for n, one in enumerate(people, 1)]
    image = {"id": 1, "file_name": "1.jpg", "height": 900, "width": 900}
    path.write_text(json.dumps({"images": [image], "annotations": entries, "categories": list(categories)}))
    return path


def category(
    number: int = 1, name: str = "cat", keypoints: tuple[str, ...] = ("nose", "left_ear", "right_ear"), **more: Any
) -> dict[str, Any]:
    return {"id": number, "name": name, "keypoints": list(keypoints)} | more


def test_known_keypoints_have_their_sigmas_and_edges_in_any_spelling(tmp_path: Path) -> None:
    """Not those of other keypoints, nor those of an object that only has a nose in common with a body."""
    names = ("Right Shoulder", "Left Shoulder", "Nose", "Right Hip", "Handle")
    skeleton = draft_skeleton(write(tmp_path / "a.json", category(keypoints=names)))
    of_coco = dict(zip(COCO.file_names, COCO.sigmas))
    sigmas = [of_coco[name] for name in ("right_shoulder", "left_shoulder", "nose", "right_hip")]
    assert skeleton.sigmas == (*sigmas, DEFAULT_SIGMA)
    drawn = list(map(set, skeleton.drawn))
    assert {names[0], names[1]} in drawn and {names[0], names[3]} in drawn
    rocket = draft_skeleton(write(tmp_path / "b.json", category(name="rocket", keypoints=("nose", "fin", "neck"))))
    assert rocket.sigmas == (DEFAULT_SIGMA,) * 3


def test_cocos_keypoints_in_another_spelling_and_order_are_cocos_skeleton(tmp_path: Path) -> None:
    names = tuple(name.replace("_", " ").title() for name in reversed(COCO.file_names))
    skeleton = draft_skeleton(write(tmp_path / "a.json", category(name="person", keypoints=names)))
    assert skeleton.file_names == names and not skeleton.different_channels(COCO)
    joints = np.random.default_rng(0).random((2, 17, 3)).astype(np.float32) + 1
    np.testing.assert_array_equal(skeleton.to_network_order(joints[:, ::-1]), COCO.to_network_order(joints))
    assert skeleton.sigmas == COCO.sigmas[::-1]


def test_a_single_keypoint_is_a_skeleton(tmp_path: Path) -> None:
    draft = draft_skeleton(write(tmp_path / "a.json", category(keypoints=("tip",))))
    assert (draft.parts, draft.mirror) == ((), True)
    (tmp_path / "a.toml").write_text(skeleton_to_toml(draft, COMMENTS))
    assert load_skeleton(tmp_path / "a.toml") == draft


@pytest.mark.parametrize("is_labelled", [False, True])
def test_the_number_of_parts_grows_with_the_keypoints(tmp_path: Path, is_labelled: bool) -> None:
    count = 200
    names = tuple(f"kpt-{number}" for number in range(count))
    values = np.random.default_rng(0).uniform(0, 100, (3, count, 3)).round(1)
    values[..., 2] = 2 * (is_labelled | (np.arange(count) < 5))
    people = values.reshape(3, -1).tolist()
    draft = draft_skeleton(write(tmp_path / "a.json", category(keypoints=names), people=people))
    assert count - 1 <= draft.num_parts <= 2 * count
    (tmp_path / "a.toml").write_text(skeleton_to_toml(draft, COMMENTS))
    assert load_skeleton(tmp_path / "a.toml") == draft


@pytest.mark.parametrize("edges", [[[1, 2]], [[0, 1]], [[1, 2], [2, 1], [1, 3]], [[1, 1], [1, 2]]])
def test_parts_are_the_categorys_edges_and_their_mirror_images(tmp_path: Path, edges: list[list[int]]) -> None:
    draft = draft_skeleton(write(tmp_path / "a.json", category(skeleton=edges)))
    assert sorted(map(sorted, draft.drawn)) == [["left_ear", "nose"], ["nose", "right_ear"]]


def test_without_edges_the_shortest_parts_join_all_keypoints(tmp_path: Path) -> None:
    """A chain along which the names do not run: 0 - 2 - 1 - 3."""
    values = [10, 9, 2, 30, 9, 2, 20, 9, 2, 40, 9, 1]
    path = write(tmp_path / "a.json", category(keypoints=("a", "b", "c", "d")), people=[values])
    assert set(map(frozenset, draft_skeleton(path).drawn)) == set(map(frozenset, ("ac", "bc", "bd")))


def test_bridges_join_keypoints_two_parts_apart_and_are_not_drawn(tmp_path: Path) -> None:
    names = ("spine", "left_hip", "left_knee", "right_hip", "right_knee")
    path = write(tmp_path / "a.json", category(keypoints=names, skeleton=[[1, 2], [2, 3]]))
    skeleton = draft_skeleton(path)
    bridges = (("left_hip", "right_hip"), ("spine", "left_knee"), ("spine", "right_knee"))
    assert skeleton.parts == (*skeleton.drawn, *bridges), "in this order, that of the channels"
    assert len(skeleton.drawn) == 4


def test_the_layout_is_measured_whatever_the_examples_size_and_position() -> None:
    rng = np.random.default_rng(0)
    joints = np.full((40, 10, 3), 2.0)
    joints[..., :2] = SHAPE * rng.uniform(20, 200, (40, 1, 1)) + rng.uniform(0, 500, (40, 1, 2))
    joints[rng.random((40, 10)) < 0.2] = 0
    layout = measure_layout(tuple(NAMES), joints)
    height = np.array([layout[name][0] for name in NAMES])
    expected = SHAPE[:, 1] - SHAPE[:, 1].mean()
    np.testing.assert_allclose(height / height.std(), expected / expected.std(), atol=0.02)
    spread = np.array([layout[name][1] for name in NAMES])
    np.testing.assert_allclose(spread / spread[0], np.abs(SHAPE[:, 0]) / 0.5, atol=0.02)
    of_coco = np.array(list(COCO.layout.values()))
    size, expected_size = (np.hypot(h.std(), np.sqrt((s**2).mean())) for h, s in ((height, spread), of_coco.T))
    assert size == pytest.approx(expected_size, abs=0.01), "in lengths of a torso"


def test_categories_with_different_keypoints_need_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dog = category(2, "dog")
    several = draft_skeleton(write(tmp_path / "a.json", category(), dog))
    assert several.category == "object"
    chosen = draft_skeleton(tmp_path / "a.json", "dog")
    assert (chosen.category, chosen.category_id) == ("dog", 2)
    assert draft_skeleton(write(tmp_path / "c.json", category())).category == "cat"
    other = write(tmp_path / "b.json", category(), category(2, "bird", ("beak", "tail")), {"id": 3, "name": "tree"})
    with pytest.raises(DataError, match=r"cat, bird.*--category NAME"):
        draft_skeleton(other)
    assert run_tool("annotations", ["skeleton", str(other), "--category", "bird"]) == 0
    assert skeleton_from_table(tomllib.loads(capsys.readouterr().out)).keypoints == ("beak", "tail")
    with pytest.raises(DataError, match=r"no category tree.*cat, bird"):
        draft_skeleton(other, "tree")


@needs_checks
def test_a_bad_file_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"id": 1, "name": "cat"})
    with pytest.raises(DataError, match=f"{path}.*no category has keypoints"):
        draft_skeleton(path)


@needs_checks
def test_an_identity_in_flip_idx_says_nothing_and_then_no_image_is_mirrored(tmp_path: Path) -> None:
    names = tuple(f"keypoint_{number}" for number in range(1, 5))
    for flip_idx in (None, [0, 1, 2, 3], [1, 1, 0, 0], "1, 0"):
        file = read_annotation_file(write(tmp_path / "a.json", category(keypoints=names, flip_idx=flip_idx)))
        skeleton = draft_skeleton(file)
        assert (skeleton.mirror, skeleton.left_right) == (False, ())
        assert found(file)["no-sides"] == ("warning", list(names))
    half = ("left_eye", "right_eye", *(f"spot-{number}" for number in range(5)))
    assert not draft_skeleton(write(tmp_path / "b.json", category(keypoints=half))).mirror


def test_flip_idx_pairs_the_keypoints_without_a_side_in_their_names(tmp_path: Path) -> None:
    names = ("left_eye", "right_eye", *(f"k{index}" for index in range(8)))
    path = write(tmp_path / "a.json", category(keypoints=names, flip_idx=[index ^ 1 for index in range(10)]))
    pairs = draft_skeleton(path).left_right
    assert set(map(frozenset, pairs)) == {frozenset(names[index : index + 2]) for index in range(0, 10, 2)}
    path = write(tmp_path / "b.json", category(keypoints=("tip", "fin-1", "fin-2"), flip_idx=[0, 2, 1]))
    assert draft_skeleton(path).left_right == (("fin-1", "fin-2"),), "the tip is its own twin, and in no pair"


def test_the_tool_shows_what_it_writes_and_replaces_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    annotations = write(tmp_path / "a.json", category(skeleton=[[1, 2], [1, 3]]))
    output = tmp_path / "cat.toml"
    words = ["skeleton", str(annotations), "--output", str(output)]
    assert run_tool("annotations", words) == 0
    assert load_skeleton(output) == draft_skeleton(annotations)
    assert run_tool("annotations", words) == 2
    assert run_tool("annotations", [*words, "--overwrite"]) == 0
    capsys.readouterr()
    assert run_tool("annotations", ["skeleton", "coco"]) == 0
    assert skeleton_from_table(tomllib.loads(capsys.readouterr().out)) == COCO
