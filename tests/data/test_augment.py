"""Augmentation: its random numbers and parameters, the matrix, and the warp of image, masks and joints."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from posenet.annotations.outlines import encode_mask
from posenet.data.augment import (
    BORDER_COLOUR,
    Augmentation,
    cover_square,
    largest_reduction,
    matrix_for_reduced_image,
    random_numbers,
    warp_image,
    warp_joints,
    warp_mask,
)
from posenet.data.dataset import PoseDataset
from posenet.images import decode_checked_image
from posenet.settings import AugmentConfig
from posenet.skeleton import COCO
from tests.helpers.drawn_data import make_record, write_store

MEASURED = json.loads((Path(__file__).parents[1] / "fixtures" / "affine.json").read_text())
SIZE = (256, 192)
"""Network input, (width, height)."""
IDENTITY = np.eye(2, 3)


def augmentations(count: int, config: AugmentConfig = AugmentConfig()) -> list[Augmentation]:
    """Random augmentations, always the same ones."""
    return [Augmentation.draw(config, seed=0, epoch=0, index=index) for index in range(count)]


@pytest.mark.parametrize("case", MEASURED["cases"], ids=lambda case: f"{case['degree']:.1f}")
def test_matrices_equal_the_measured_ones(case: dict[str, Any]) -> None:
    augmentation = Augmentation(
        flip=case["flip"],
        degrees=case["degree"],
        shift=tuple(case["shift"]),
        scale=case["scale"],
        person_height=MEASURED["target_dist"],
    )
    matrix = augmentation.matrix(tuple(case["center"]), case["scale_provided"], (MEASURED["width"], MEASURED["height"]))
    assert matrix.shape == (2, 3)
    np.testing.assert_allclose(matrix, case["matrix"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("image_size", [(640, 480), (480, 640), (256, 192), (100, 30), (31, 99)])
@pytest.mark.parametrize("flip", [False, True])
def test_image_framing_shows_the_whole_image_as_large_as_it_fits(image_size: tuple[int, int], flip: bool) -> None:
    matrix = Augmentation(flip=flip).image_matrix(image_size, SIZE)
    width, height = image_size
    edges = np.array([[-0.5, -0.5, 1], [width - 0.5, height - 0.5, 1]])
    low, high = np.sort(edges @ matrix.T, axis=0)
    gaps = np.concatenate([low + 0.5, np.array(SIZE) - 0.5 - high])
    assert gaps.min() == pytest.approx(0, abs=1e-9)
    np.testing.assert_allclose(gaps[:2], gaps[2:], atol=1e-9)


def test_parameters_follow_their_probabilities_and_fill_their_ranges() -> None:
    samples = augmentations(4000, AugmentConfig(cutout_probability=0.3))
    jitters = np.array([a.jitter for a in samples if a.jitter is not None])
    cutouts = np.array([a.cutout for a in samples if a.cutout is not None])
    values = {
        "degrees": ([a.degrees for a in samples], -40, 40),
        "dx": ([a.shift[0] for a in samples], -50, 50),
        "dy": ([a.shift[1] for a in samples], -50, 50),
        "scale": ([a.scale for a in samples if a.scale != 1], 0.7, 1.3),
        "hue": (jitters[:, 0], -10, 10),
        "saturation": (jitters[:, 1], -20, 60),
        "value": (jitters[:, 2], -20, 40),
        "x of the square": (cutouts[:, 0], 0, 1),
        "side of the square": (cutouts[:, 2], 0.1, 0.3),
    }
    for name, (drawn, low, high) in values.items():
        quantiles = (np.quantile(drawn, [0, 0.25, 0.5, 0.75, 1]) - low) / (high - low)
        assert quantiles[0] >= 0 and quantiles[4] <= 1, name
        np.testing.assert_allclose(quantiles, [0, 0.25, 0.5, 0.75, 1], atol=0.06, err_msg=name)
    together = np.corrcoef([values[name][0] for name in ("degrees", "dx", "dy")])
    assert np.abs(together - np.eye(3)).max() < 0.06
    shares = np.mean([[a.flip, a.scale != 1, a.jitter is not None, a.cutout is not None] for a in samples], axis=0)
    np.testing.assert_allclose(shares, [0.5, 0.8, 0.2, 0.3], atol=0.03)


def test_a_configuration_without_augmentation_changes_nothing() -> None:
    off = AugmentConfig(jitter_probability=0, scale_probability=0, flip_probability=0, degrees=0, shift=0)
    assert set(augmentations(20, off)) == {Augmentation()}
    assert augmentations(1, dataclasses.replace(off, person_height=0.4))[0].person_height == 0.4


def test_random_numbers_depend_on_seed_epoch_and_index_alone_and_never_change() -> None:
    """A run of an earlier version is repeated to the bit."""
    assert random_numbers(1, 2, 3)[:3] == [0.8207390403840691, 0.03710386389866471, 0.8490529025439173]
    assert random_numbers(*np.array([1, 2, 3])) == random_numbers(1, 2, 3)
    numbers = np.array([random_numbers(2**70, epoch, index) for epoch in range(20) for index in range(50)])
    assert numbers.min() >= 0 and numbers.max() < 1 and len(np.unique(numbers)) > 0.999 * numbers.size


def test_a_square_of_the_drawn_size_is_covered_and_cut_off_at_the_border() -> None:
    for cutout, covered in (((0.5, 0.25, 0.5), np.s_[0:32, 48:80]), ((0.0, 1.0, 0.5), np.s_[48:64, 0:16])):
        image = np.zeros((64, 128, 3), np.uint8)
        cover_square(image, cutout)
        expected = np.zeros_like(image)
        expected[covered] = BORDER_COLOUR
        np.testing.assert_array_equal(image, expected)


def test_a_covered_square_changes_the_image_alone(tmp_path: Path) -> None:
    path = write_store(tmp_path / "a.h5", [make_record(number, 3) for number in range(2)])
    plain = PoseDataset(path, (64, 128), augment=AugmentConfig())[1, 2]
    covered = PoseDataset(path, (64, 128), augment=AugmentConfig(cutout_probability=1.0))[1, 2]
    differs = (plain.images != covered.images).any(dim=3)[0].numpy()
    rows, columns = np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
    assert len(rows) and max(np.ptp(rows), np.ptp(columns)) <= 32
    for name in ("joints", "person_mask", "mask_miss", "image_ids"):
        assert torch.equal(getattr(plain, name), getattr(covered, name))


def random_augmentation(rng: np.random.Generator, config: AugmentConfig = AugmentConfig()) -> Augmentation:
    return Augmentation.draw(config, 0, 0, int(rng.integers(1000)))


def plain(colour: tuple[int, int, int], width: int = 90, height: int = 60) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def warp_pixels(mask: np.ndarray, matrix: np.ndarray, border: int) -> np.ndarray:
    """``warp_mask`` of a (H, W) mask of 0 and 1."""
    out = np.empty((SIZE[1] // 4, SIZE[0] // 4), np.uint8)
    warp_mask(encode_mask(mask), mask.shape[::-1], matrix, border, out)
    return out


def warp(image: np.ndarray, augmentation: Augmentation, matrix: np.ndarray, size: tuple[int, int] = SIZE) -> np.ndarray:
    out = np.empty((size[1], size[0], 3), np.uint8)
    warp_image(image, augmentation, matrix, out)
    return out


def centroid(weights: np.ndarray) -> np.ndarray:
    """x, y of the centre of mass."""
    y, x = np.indices(weights.shape)
    return np.array([(x * weights).sum(), (y * weights).sum()]) / weights.sum()


@pytest.mark.parametrize("seed", range(4))
def test_image_mask_and_joints_of_one_lit_pixel_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    config = AugmentConfig(jitter_probability=0.0, shift=20.0)
    augmentation = dataclasses.replace(random_augmentation(rng, config), flip=bool(seed % 2))
    # The image is blown up some ten times, so that even a map cell is smaller than the lit pixel.
    matrix = augmentation.matrix(tuple(rng.uniform(60, 100, 2)), person_scale=0.06, size=SIZE)
    wanted = rng.uniform([50, 50], [206, 142])
    x, y = np.rint(np.linalg.solve(matrix[:, :2], wanted - matrix[:, 2])).astype(int)
    image, mask = plain(BORDER_COLOUR, 160, 160), np.zeros((160, 160), np.uint8)
    image[y, x], mask[y, x] = 255, 1
    joints = np.zeros((1, 18, 3), np.float32)
    joints[0, COCO.index("left_wrist")] = (x, y, 2)

    warped = warp_joints(joints, augmentation, matrix, COCO)
    joint = warped[0, COCO.index("right_wrist" if augmentation.flip else "left_wrist")]
    assert joint[2] == 2 and np.count_nonzero(warped[..., 2]) == 1
    lit = warp(image, augmentation, matrix).astype(float) - BORDER_COLOUR
    np.testing.assert_allclose(centroid(lit.sum(-1)), joint[:2], atol=0.2)
    cells = warp_pixels(mask, matrix, border=0)
    assert cells.shape == (48, 64) and cells.dtype == np.uint8
    np.testing.assert_allclose(4 * centroid(cells) + 1.5, joint[:2], atol=0.4)
    # Some versions of OpenCV round the two differently.
    np.testing.assert_allclose(warp_pixels(1 - mask, matrix, border=1), 255.0 - cells, atol=1)


def test_joints_outside_stay_labelled_unlabelled_ones_stay_at_zero_and_a_flip_swaps_sides() -> None:
    joints = np.zeros((2, 18, 3), np.float32)
    joints[0, COCO.index("left_shoulder")] = (10, 20, 1)
    joints[0, COCO.index("nose")] = (30, 40, 2)
    joints[1, 3] = (10, 20, 0)
    warped = warp_joints(joints, Augmentation(flip=True), np.array([[-1.0, 0, -500], [0, 1, 900]]), COCO)
    assert warped.dtype == np.float32
    np.testing.assert_array_equal(warped[0, COCO.index("right_shoulder")], [-510, 920, 1])
    np.testing.assert_array_equal(warped[0, COCO.index("nose")], [-530, 940, 2])
    assert np.count_nonzero(warped) == 6


def test_everything_outside_the_image_is_border() -> None:
    augmentation = Augmentation(degrees=20, scale=0.5, jitter=(10.0, 60.0, 40.0))
    matrix = augmentation.image_matrix((90, 60), SIZE)
    inside = warp_pixels(np.ones((60, 90), np.uint8), matrix, border=0)
    assert BORDER_COLOUR == (124, 127, 127)
    image = warp(plain((10, 200, 30)), augmentation, matrix)
    assert image.shape == (192, 256, 3) and image.dtype == np.uint8
    for row, column in ((0, 0), (0, -1), (-1, 0), (-1, -1), (0, 128), (96, 0)):
        assert tuple(image[row, column]) == BORDER_COLOUR
        assert inside[row // 4, column // 4] == 0
    assert tuple(image[96, 128]) != BORDER_COLOUR and inside[24, 32] == 255
    supervised = warp_pixels(np.zeros((60, 90), np.uint8), matrix, border=1)
    np.testing.assert_array_equal(supervised, 255 - inside)
    nothing = warp(plain((1, 2, 3)), augmentation, np.array([[1.0, 0, -900], [0, 1, 0]]))
    assert (nothing == BORDER_COLOUR).all() and nothing.shape == (192, 256, 3)


def test_an_image_is_reduced_only_as_far_as_the_warp_shrinks_it() -> None:
    factors = [
        largest_reduction(np.array([[zoom, 0, 0], [0, zoom, 0]])) for zoom in (2, 0.51, 0.5, 0.26, 0.25, 0.12, 0.01)
    ]
    assert factors == [1, 1, 2, 2, 4, 8, 8]


@pytest.mark.parametrize("by", [2, 4, 8])
def test_an_image_decoded_at_reduced_size_is_warped_to_the_same_place(by: int) -> None:
    rng = np.random.default_rng(by)
    width, height = 1021, 767
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    centre = rng.uniform((300, 250), (700, 500))
    image = (10 + 240 * np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / 2 / 60**2)).astype(np.uint8)
    jpeg = cv2.imencode(".jpg", cv2.merge([image] * 3), [cv2.IMWRITE_JPEG_QUALITY, 95])[1].ravel()
    augmentation = Augmentation(degrees=25, flip=True, scale=0.99 / by, shift=(3.0, -2.0))
    matrix = augmentation.image_matrix((width, height), (width, height))
    assert largest_reduction(matrix) == by
    assert decode_checked_image(jpeg, height, width, by).shape == (-(-height // by), -(-width // by), 3)
    matrix[:, 2] -= (np.array([width, height]) - SIZE) / 2  # the same warp, to the middle of a smaller input
    images = [
        warp(decode_checked_image(jpeg, height, width, f), augmentation, matrix_for_reduced_image(matrix, f))
        for f in (1, by)
    ]
    for warped in images:
        blob = np.clip(warped[..., 0].astype(float) - 140, 0, None)
        np.testing.assert_allclose(centroid(blob), matrix @ (*centre, 1), atol=0.03)
    difference = np.abs(images[0].astype(int) - images[1])[20:-20, 20:-20]
    assert difference.mean() < 2


def test_a_jitter_changes_the_colours_of_a_copy() -> None:
    red = plain((0, 0, 255))
    image = warp(red, Augmentation(jitter=(-10, -20, -30)), IDENTITY, (90, 60))
    hue, saturation, value = cv2.cvtColor(image, cv2.COLOR_BGR2HSV)[30, 45].tolist()
    assert (hue, saturation, value) == pytest.approx((170, 235, 225), abs=1)
    np.testing.assert_array_equal(red, plain((0, 0, 255)))
