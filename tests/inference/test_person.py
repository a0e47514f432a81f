import numpy as np
import pytest

from posenet.inference.person import Person
from posenet.skeleton import COCO


def make(**points):
    keypoints = np.zeros((18, 3), np.float32)
    for name, value in points.items():
        keypoints[COCO.index(name)] = value
    return Person(keypoints, 0.5)


def test_to_coco_follows_the_file_order_and_leaves_out_the_neck():
    rows = make(nose=(1, 2, 0.9), neck=(5, 5, 0.8), Lsho=(3, 4, 0.7), Rank=(6, 7, 0.6)).to_coco()
    assert rows.shape == (17, 3)
    names = list(COCO.file_names)
    np.testing.assert_allclose(rows[names.index("nose")], (1, 2, 0.9))
    np.testing.assert_allclose(rows[names.index("left_shoulder")], (3, 4, 0.7))
    np.testing.assert_allclose(rows[names.index("right_ankle")], (6, 7, 0.6))
    assert np.count_nonzero(rows[:, 2]) == 3


def test_box_counts_only_what_was_found():
    np.testing.assert_array_equal(make(nose=(10, 20, 1), Rank=(40, 5, 0.1)).box(), (10, 5, 40, 20))
    np.testing.assert_array_equal(make().box(), (0, 0, 0, 0))


def test_people_are_equal_by_value():
    assert make(nose=(1, 2, 3)) == make(nose=(1, 2, 3))
    assert make(nose=(1, 2, 3)) != make(nose=(1, 2, 4))
    assert make() != "person"


def test_fields_cannot_be_replaced():
    with pytest.raises(AttributeError):
        make().score = 1.0
