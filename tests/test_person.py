import json

import numpy as np
import pytest

from posenet.person import Person
from posenet.skeleton import COCO


def make_person(**points):
    """A person with some keypoints (x, y, score)."""
    keypoints = np.zeros((18, 3), np.float32)
    for name, value in points.items():
        keypoints[COCO.index(name)] = value
    return Person(keypoints, 0.5)


def test_to_coco_has_the_order_of_the_file_and_no_neck():
    person = make_person(nose=(1, 2, 0.9), neck=(5, 5, 0.8), Lsho=(3, 4, 0.7), Rank=(6, 7, 0.6))
    rows = person.to_coco()
    assert rows.shape == (17, 3)
    names = list(COCO.file_names)
    np.testing.assert_allclose(rows[names.index("nose")], (1, 2, 0.9))
    np.testing.assert_allclose(rows[names.index("left_shoulder")], (3, 4, 0.7))
    np.testing.assert_allclose(rows[names.index("right_ankle")], (6, 7, 0.6))
    assert np.count_nonzero(rows[:, 2]) == 3


def test_keypoints_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"must be \(17, 3\), not \(18, 3\)"):
        Person.from_coco(np.zeros((18, 3)), 0.5)


def test_the_box_encloses_the_keypoints_found():
    np.testing.assert_array_equal(make_person(nose=(10, 20, 1), Rank=(40, 5, 0.1)).box(), (10, 5, 40, 20))
    np.testing.assert_array_equal(make_person().box(), (0, 0, 0, 0))


def test_people_are_compared_by_value():
    assert make_person(nose=(1, 2, 3)) == make_person(nose=(1, 2, 3))
    assert make_person(nose=(1, 2, 3)) != make_person(nose=(1, 2, 4))
    assert make_person() != "person"


def test_fields_cannot_be_replaced():
    with pytest.raises(AttributeError):
        make_person().score = 1.0


def test_a_person_as_a_dictionary_can_be_written_as_json():
    person = make_person(nose=(10, 20, 0.5), Rank=(40, 5, 0.25))
    expected = {"score": 0.5, "box": [10, 5, 40, 20], "keypoints": {"nose": [10, 20, 0.5], "Rank": [40, 5, 0.25]}}
    assert json.loads(json.dumps(person.to_dict())) == expected
    assert person.named() == {"nose": (10, 20, 0.5), "Rank": (40, 5, 0.25)}
