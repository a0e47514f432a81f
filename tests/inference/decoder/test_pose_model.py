import numpy as np
import pytest

from posenet.inference.decoder.pose_model import LOSS, Anatomy
from posenet.skeleton import COCO

ANATOMY = Anatomy(COCO)
ALL = np.arange(COCO.num_keypoints)


def upright(x, y, torso, turn=0.0):
    """(K,) complex places of a body as the layout has it, its spread taken sideways, the head above."""
    side = np.array([-1 if name[0] == "R" else name[0] == "L" for name in COCO.keypoints])
    return x + 1j * y + torso * np.exp(1j * turn) * (1j * ANATOMY.height + side * ANATOMY.spread)


def test_measures_a_body():
    bodies = ANATOMY.measure(
        np.concatenate([upright(50, 60, 10), upright(20, 30, 4, 0.3)]), np.tile(ALL, 2), np.repeat([0, 1], 18)
    )
    np.testing.assert_allclose(bodies.scale, (10, 4), rtol=0.1)
    np.testing.assert_allclose(bodies.origin, (50 + 60j, 20 + 30j), atol=1)
    np.testing.assert_allclose(np.angle(bodies.axis), (np.pi / 2, np.pi / 2 + 0.3), atol=0.1)
    assert bodies.count.tolist() == [18, 18]


def test_a_single_keypoint_has_no_scale_and_stands_upright():
    bodies = ANATOMY.measure(np.array([5 + 5j]), np.array([0]), np.array([0]))
    assert bodies.scale[0] == 0 and bodies.origin[0] == 5 + 5j


@pytest.mark.filterwarnings("error")
def test_labels_need_not_be_consecutive():
    bodies = ANATOMY.measure(upright(50, 60, 10), ALL, np.full(18, 4))
    assert bodies.scale[4] > 8 and np.isfinite(bodies.origin).all()


def test_long_limbs_lose_by_the_body_s_scale():
    thigh = np.full(4, COCO.parts.index(("Lhip", "Lkne")))
    fit = ANATOMY.likely_length(np.array([4.0, 9, 30, 27]), thigh, np.array([10.0, 10, 10, 30]))
    assert fit[0] == fit[1] == fit[3] == 1
    assert fit[2] == pytest.approx(1 - LOSS)


def test_pieces_go_to_the_body_they_fit():
    """Two people side by side; each lacks a forearm, which lies nearest to its own."""
    arm = [COCO.index("Lelb"), COCO.index("Lwri")]
    place = np.concatenate([upright(30, 60, 10), upright(75, 60, 10)])
    keypoint = np.tile(ALL, 2)
    label = np.repeat([0, 18], 18)
    label[arm], label[[18 + k for k in arm]] = 1, 19
    found = ANATOMY.adopt(place, keypoint, np.ones(36), label)
    assert found.tolist() == [0] * 18 + [18] * 18


def test_what_does_not_fit_stays_alone():
    arm = [COCO.index("Lelb"), COCO.index("Lwri")]
    place, label = upright(30, 60, 10), np.zeros(18, int)
    label[arm] = 1
    for moved, scores in (
        (place + 80 * (label == 1), np.ones(18)),
        (place, np.where(label == 1, 0.2, 1)),
        (np.where(label == 1, place[arm[0]] + (place - place[arm[0]]) * 30, place), np.ones(18)),
    ):
        np.testing.assert_array_equal(ANATOMY.adopt(moved, ALL, scores, label), label)
    twice = np.where(COCO.index("Lelb") == ALL, COCO.index("Relb"), ALL)
    np.testing.assert_array_equal(ANATOMY.adopt(place, twice, np.ones(18), label), label)
