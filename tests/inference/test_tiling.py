"""Very wide and very tall images are cut into tiles, and everyone is found once."""

import numpy as np
import pytest

from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.inference.tiling import Tiling, choose_tiling
from posenet.settings import InferenceConfig
from posenet.skeleton import COCO
from tests.helpers.spot_networks import NECK, NOSE, SpotNetwork, spot_image

SHORT = 64
SETTINGS = InferenceConfig(height=128, max_width=1024)
WIDTH = SHORT * 40
"""Does not fit: resized to the height, the image is 5120 pixels wide."""
LEFTS = np.linspace(10, WIDTH - 40, 12)


def panorama(lefts=LEFTS, width=WIDTH):
    """An image with a nose at every x of ``lefts`` and a neck 24 pixels to the right, at any of the tiles' ends."""
    parts = [spot_image(SHORT, width, (left, 20), (left + 24, 40), 3) for left in lefts]
    return np.max(parts, axis=0)


def noses(people):
    return np.array(sorted(person.keypoints[NOSE, :2].tolist() for person in people))


@pytest.mark.parametrize("settings", [{}, {"flip": True}, {"scales": (0.8, 1.5)}], ids=str)
def test_everyone_in_a_panorama_is_found_once(settings):
    image = panorama()
    people = Predictor(SpotNetwork(), InferenceConfig(height=128, max_width=1024, **settings))(image)
    assert [person.found.sum() for person in people] == [2] * len(LEFTS)
    np.testing.assert_allclose(noses(people), [(left, 20) for left in LEFTS], atol=0.5)
    scores = [person.score for person in people]
    assert scores == sorted(scores, reverse=True)


def test_everyone_in_a_tall_strip_is_found_once():
    image = np.ascontiguousarray(panorama().transpose(1, 0, 2))
    people = Predictor(SpotNetwork(), SETTINGS)(image)
    assert [person.found.sum() for person in people] == [2] * len(LEFTS)
    np.testing.assert_allclose(sorted(noses(people)[:, 1]), LEFTS, atol=0.5)


def test_tiles_and_other_images_share_a_stream():
    plain = spot_image(SHORT, 100, (20, 20), (60, 40), 3)
    predictor = Predictor(SpotNetwork(), SETTINGS)
    images = [plain, panorama(), plain, panorama()[::-1].copy(), panorama()]
    assert list(predictor.stream(images)) == [predictor(image) for image in images]
    assert [len(people) for people in predictor.batch(images)] == [1, 12, 1, 12, 12]


@pytest.mark.parametrize(
    "shape", [(SHORT, 512), (128 * 4, 128), (1024, 512), (SHORT, SHORT * 4), (20, 4000), (4000, 20)], ids=str
)
def test_an_image_that_fits_or_shows_nobody_is_not_cut(shape):
    network = SpotNetwork()
    Predictor(network, SETTINGS)(np.zeros((*shape, 3), np.uint8))
    assert len(network.shapes) == 1 and network.shapes[0][0] == 1


def test_a_moderately_wide_image_that_does_not_fit_is_resized_as_before():
    assert choose_tiling((100, 400), fits=False, tolerance=0.1) is None
    assert choose_tiling((100, 401), fits=False, tolerance=0.1) is not None


@pytest.mark.parametrize("size", [(100, 401), (401, 100), (64, 100_001), (33, 1000)], ids=str)
def test_tiles_cover_the_image_and_overlap(size):
    tiling = choose_tiling(size, fits=False, tolerance=0.1)
    shorter, longer = min(size), max(size)
    assert tiling.starts[0] == 0 and tiling.starts[-1] + tiling.length == longer
    assert max(np.diff(tiling.starts)) <= tiling.length - shorter // 2
    image = np.zeros((*size, 3), np.uint8)
    tiles = tiling.cut(image)
    assert {tile.shape for tile in tiles} == {tiles[0].shape} and len(tiles) == len(tiling.starts)


TILING = Tiling(axis=1, starts=[0, 100], length=200, tolerance=5)


def make_person(score, **points):
    keypoints = np.zeros((18, 3), np.float32)
    for name, (x, y) in points.items():
        keypoints[COCO.index(name)] = x, y, score
    return Person(keypoints, score)


def test_a_person_that_a_tile_cuts_off_gets_its_other_keypoints_from_the_next():
    left = make_person(0.8, nose=(90, 10), neck=(120, 10), Rsho=(180, 10))
    right = make_person(0.6, neck=(22, 11), Rsho=(81, 10), Relb=(150, 10))
    [person] = TILING.join([[left], [right]])
    assert set(person.named()) == {"nose", "neck", "Rsho", "Relb"}
    assert person.named()["neck"][:2] == (120, 10) and person.named()["Relb"][:2] == (250, 10)
    assert person.score == pytest.approx((3 * 0.8 + 0.6) / np.sqrt(4 * 18))


def test_people_at_other_positions_stay_apart():
    left = make_person(0.8, nose=(130, 10), neck=(130, 40))
    right = make_person(0.6, nose=(50, 10), neck=(50, 40), Rsho=(40, 40))
    assert len(TILING.join([[left], [right]])) == 2


def test_a_fragment_at_the_end_of_a_tile_is_left_to_the_other_tile():
    fragment = make_person(0.6, Rank=(195, 10))
    assert TILING.join([[fragment], []]) == []
    assert len(TILING.join([[], [make_person(0.6, Rank=(95, 10))]])) == 1
    assert len(TILING.join([[make_person(0.6, Rank=(149, 10))], []])) == 1


def test_the_network_sees_noses_and_necks():
    [person] = Predictor(SpotNetwork(), SETTINGS)(panorama([30], 200))
    assert set(person.found.nonzero()[0]) == {NOSE, NECK}
