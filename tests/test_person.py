import dataclasses
import json

import numpy as np
import pytest
import torch

from posenet.person import Person, require_people
from posenet.skeleton import COCO


def make_person(**points):
    """A person with some keypoints (x, y, score)."""
    keypoints = np.zeros((18, 3), np.float32)
    for name, value in points.items():
        keypoints[COCO.index(name)] = value
    return Person(keypoints, 0.5)


def test_to_coco_has_the_order_of_the_file_and_no_neck():
    person = make_person(nose=(1, 2, 0.9), neck=(5, 5, 0.8), left_shoulder=(3, 4, 0.7), right_ankle=(6, 7, 0.6))
    rows = person.to_coco()
    assert rows.shape == (17, 3)
    names = list(COCO.file_names)
    np.testing.assert_allclose(rows[names.index("nose")], (1, 2, 0.9))
    np.testing.assert_allclose(rows[names.index("left_shoulder")], (3, 4, 0.7))
    np.testing.assert_allclose(rows[names.index("right_ankle")], (6, 7, 0.6))
    assert np.count_nonzero(rows[:, 2]) == 3


def test_from_coco_is_the_inverse_of_to_coco():
    person = dataclasses.replace(make_person(nose=(1, 2, 0.9), left_wrist=(3, 4, 0.7)), id=3)
    assert Person.from_coco(person.to_coco(), person.score, person.skeleton, person.id) == person
    assert Person.from_coco(person.to_coco().ravel().tolist(), 0.5, id=3) == person, "the list of a results file"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((17, 3)), r"^keypoints must be \(18, 3\), x, y and score, not \(17, 3\)"),
        ([[1, 2, 3], [1, 2]], r"must be \(18, 3\) numbers, x, y and score, not \[\[1, 2, 3\], \[1, 2\]\]"),
        (np.full((18, 3), "a"), "must be .* numbers"),
        (None, "must be .* numbers, x, y and score, not None"),
        (torch.zeros(18, 3, requires_grad=True), "must be .* numbers"),
    ],
)
def test_keypoints_of_another_shape_or_type_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        Person(values, 0.5)


def test_other_wrong_values_are_refused():
    with pytest.raises(ValueError, match=r"must be \(17, 3\), x, y and score, not \(18, 3\)"):
        Person.from_coco(np.zeros((18, 3)), 0.5)
    with pytest.raises(ValueError, match=r"must be \(17, 3\) numbers, x, y and score, not 'abc'"):
        Person.from_coco("abc", 0.5)
    with pytest.raises(ValueError, match=r"estimates must be \(18, 2\), x and y, not \(18, 3\)"):
        Person(np.zeros((18, 3)), 0.5, estimates=np.zeros((18, 3)))
    with pytest.raises(ValueError, match="score must be finite, not nan"):
        Person(np.zeros((18, 3)), float("nan"))
    with pytest.raises(TypeError):
        Person(np.zeros((18, 3)), 0.5, id=1.5)


def test_numbers_of_other_types_are_converted():
    person = Person(np.ones((18, 3), np.int64).tolist(), np.float32(0.5), id=np.int64(7))
    assert person.keypoints.dtype == np.float32
    assert json.loads(json.dumps(person.to_dict()))["id"] == 7
    keypoints = np.zeros((18, 3), np.float32)
    assert Person(keypoints, 1).keypoints is keypoints


def test_the_box_encloses_the_keypoints_found():
    np.testing.assert_array_equal(make_person(nose=(10, 20, 1), right_ankle=(40, 5, 0.1)).box, (10, 5, 40, 20))
    np.testing.assert_array_equal(make_person().box, (0, 0, 0, 0))
    assert make_person(nose=(10, 20, 1)).box.dtype == np.float32


@pytest.mark.parametrize(
    "lost", [(np.nan, 2, 0.5), (1, -np.inf, 0.5), (1, 2, np.nan), (0, 0, 0.9), (2e6, 1, 0.5)], ids=str
)
def test_keypoints_that_are_not_finite_in_the_corner_or_far_away_are_not_found(lost):
    person = make_person(nose=lost, left_hip=(1, 2, 0.5))
    assert list(person.named()) == ["left_hip"] and person.box.tolist() == [1, 2, 1, 2]
    assert np.isfinite(person.keypoints).all()
    shoulders = np.zeros((17, 3))
    shoulders[5], shoulders[6], shoulders[11] = lost, (4, 5, 0.5), (1, 2, 0.5)
    assert set(Person.from_coco(shoulders, 0.5).named()) == {"right_shoulder", "left_hip"}, "no neck of half a pair"
    for text in (json.dumps(person.to_dict()), json.dumps(person.to_coco_result(1, fill_missing=True))):
        assert "NaN" not in text and "Infinity" not in text


FOUND = make_person(nose=(1, 2, 0.5), left_wrist=(3, 4, 0.25), right_ankle=(6, 7, 0.75))


@pytest.mark.parametrize(
    "values", [None, 7, np.array(3), "people.json", np.zeros((2, 17, 3)), {"score": 1}, [FOUND, [1, 2]]]
)
def test_what_are_no_people_is_named(values):
    with pytest.raises(ValueError, match=r"must be Person objects, not \w+; Person.from_coco"):
        require_people(values)


def test_people_are_compared_by_value():
    assert make_person(nose=(1, 2, 3)) == make_person(nose=(1, 2, 3))
    assert make_person(nose=(1, 2, 3)) != make_person(nose=(1, 2, 4))
    assert make_person() != "person"
    for change in ({"id": 1}, {"score": 0.6}, {"skeleton": dataclasses.replace(COCO, left_right=())}):
        assert dataclasses.replace(make_person(), **change) != make_person()


def test_a_person_as_a_dictionary_can_be_written_as_json():
    person = make_person(nose=(10, 20, 0.5), right_ankle=(40, 5, 0.25))
    expected = {
        "score": 0.5,
        "box": [10, 5, 40, 20],
        "keypoints": {"nose": [10, 20, 0.5], "right_ankle": [40, 5, 0.25]},
    }
    assert json.loads(json.dumps(person.to_dict())) == expected
    assert person.named() == {"nose": (10, 20, 0.5), "right_ankle": (40, 5, 0.25)}


@pytest.mark.parametrize(
    "estimates, options, elsewhere",
    [(False, {}, (0, 0)), (False, {"fill_missing": True}, (20.0, 40.25)), (True, {"fill_missing": True}, (7, 0.125))],
    ids=["not filled", "mean", "estimates"],
)
def test_a_result_for_coco_may_have_positions_for_the_keypoints_that_were_not_found(estimates, options, elsewhere):
    person = make_person(nose=(10.0004, 20.25, 0.5), left_ankle=(30, 60.25, 0.12345))
    if estimates:
        person = dataclasses.replace(person, estimates=np.tile(np.float32([7, 0.125]), (18, 1)))
    rows = [[10, 20.25, 0.5], *[[*elsewhere, 0]] * 14, [30, 60.25, 0.123], [*elsewhere, 0]]
    expected = {"image_id": 7, "category_id": 3, "keypoints": [value for row in rows for value in row], "score": 0.5}
    result = person.to_coco_result(np.int64(7), 3, **options)
    assert json.loads(json.dumps(result)) == expected
    assert make_person().to_coco_result("a.jpg", fill_missing=True) == {
        "image_id": "a.jpg", "category_id": 1, "keypoints": [0] * 51, "score": 0.5
    }  # fmt: skip


def test_equal_people_have_the_same_hash_also_after_their_array_was_changed():
    person, same, other = make_person(nose=(1, 2, 0.9)), make_person(nose=(1, 2, 0.9)), make_person(nose=(3, 2, 0.9))
    assert len({person, same, other}) == 2
    found = {person: "one"}
    person.keypoints[COCO.index("nose"), 0] = 8
    assert found[person] == "one"
