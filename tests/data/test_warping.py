"""Warping: one lit pixel through image, masks and joints; borders, crops, reduced images and colours."""

from __future__ import annotations

import dataclasses

import cv2
import numpy as np
import pytest

from posenet.annotations.outlines import encode_mask
from posenet.data.augment import (
    BORDER_COLOUR,
    Augmentation,
    crop_visible,
    largest_reduction,
    matrix_for_reduced_image,
    warp_image,
    warp_joints,
    warp_mask,
)
from posenet.images import decode_checked_image
from posenet.settings import AugmentConfig
from posenet.skeleton import COCO

SIZE = (256, 192)
"""Network input, (width, height)."""
IDENTITY = np.eye(2, 3)


def random_augmentation(rng: np.random.Generator, config: AugmentConfig = AugmentConfig()) -> Augmentation:
    return Augmentation.draw(config, 0, 0, int(rng.integers(1000)))


def plain(colour: tuple[int, int, int], width: int = 90, height: int = 60) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def warp_pixels(mask: np.ndarray, matrix: np.ndarray, border: int) -> np.ndarray:
    """``warp_mask`` of a (H, W) mask of 0 and 1."""
    return warp_mask(encode_mask(mask), mask.shape[::-1], matrix, SIZE, border)


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
    lit = warp_image(image, augmentation, matrix, SIZE).astype(float) - BORDER_COLOUR
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
    before = joints.copy()
    warped = warp_joints(joints, Augmentation(flip=True), np.array([[-1.0, 0, -500], [0, 1, 900]]), COCO)
    assert warped.dtype == np.float32
    np.testing.assert_array_equal(warped[0, COCO.index("right_shoulder")], [-510, 920, 1])
    np.testing.assert_array_equal(warped[0, COCO.index("nose")], [-530, 940, 2])
    assert np.count_nonzero(warped) == 6
    np.testing.assert_array_equal(joints, before)
    assert warp_joints(joints[:0], Augmentation(flip=True), IDENTITY, COCO).shape == (0, 18, 3)


def test_everything_outside_the_image_is_border() -> None:
    augmentation = Augmentation(degrees=20, scale=0.5, jitter=(10.0, 60.0, 40.0))
    matrix = augmentation.image_matrix((90, 60), SIZE)
    inside = warp_pixels(np.ones((60, 90), np.uint8), matrix, border=0)
    assert BORDER_COLOUR == (124, 127, 127)
    image = warp_image(plain((10, 200, 30)), augmentation, matrix, SIZE)
    assert image.shape == (192, 256, 3) and image.dtype == np.uint8
    for row, column in ((0, 0), (0, -1), (-1, 0), (-1, -1), (0, 128), (96, 0)):
        assert tuple(image[row, column]) == BORDER_COLOUR
        assert inside[row // 4, column // 4] == 0
    assert tuple(image[96, 128]) != BORDER_COLOUR and inside[24, 32] == 255
    supervised = warp_pixels(np.zeros((60, 90), np.uint8), matrix, border=1)
    np.testing.assert_array_equal(supervised, 255 - inside)
    nothing = warp_image(plain((1, 2, 3)), augmentation, np.array([[1.0, 0, -900], [0, 1, 0]]), SIZE)
    assert (nothing == BORDER_COLOUR).all() and nothing.shape == (192, 256, 3)


@pytest.mark.parametrize("seed", range(6))
def test_masks_warped_from_run_lengths_equal_the_plain_warp(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = random_augmentation(rng).matrix((60, 50), person_scale=0.3, size=SIZE)
    blocks = cv2.resize(rng.integers(0, 2, (9, 12), np.uint8), (121, 93), interpolation=cv2.INTER_NEAREST)
    to_cells = np.column_stack([matrix[:, :2] / 4, (matrix[:, 2] - 1.5) / 4])
    for border in (0, 1):
        for mask in (blocks, np.zeros_like(blocks), np.ones_like(blocks)):
            expected = cv2.warpAffine(mask * 255, to_cells, (64, 48), borderValue=255 * border)
            found = warp_pixels(mask, matrix, border).astype(int)
            assert np.abs(found - expected).max() <= 3 and np.abs(found - expected).mean() < 0.05


def blurred_noise(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    return cv2.GaussianBlur(rng.integers(0, 256, (height, width, 3), np.uint8), None, 3) * 3


@pytest.mark.parametrize("seed", range(6))
def test_pixels_that_the_warp_does_not_read_are_not_needed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    image = blurred_noise(rng, 320, 240)
    augmentation = random_augmentation(rng, AugmentConfig(jitter_probability=0.0))
    matrix = augmentation.matrix(tuple(rng.uniform(0, 240, 2)), person_scale=float(rng.uniform(0.1, 0.4)), size=SIZE)
    crop, crop_matrix = crop_visible(image, matrix, SIZE)
    assert crop.size < image.size
    options = {"flags": cv2.INTER_LINEAR, "borderValue": BORDER_COLOUR}
    whole = cv2.warpAffine(image, matrix, SIZE, **options).astype(int)
    assert np.abs(whole - cv2.warpAffine(crop, crop_matrix, SIZE, **options)).max() <= 1
    assert np.abs(whole - warp_image(image, augmentation, matrix, SIZE)).max() <= 2


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
        warp_image(
            decode_checked_image(jpeg, height, width, f), augmentation, matrix_for_reduced_image(matrix, f), SIZE
        )
        for f in (1, by)
    ]
    for warped in images:
        blob = np.clip(warped[..., 0].astype(float) - 140, 0, None)
        np.testing.assert_allclose(centroid(blob), matrix @ (*centre, 1), atol=0.03)
    difference = np.abs(images[0].astype(int) - images[1])[20:-20, 20:-20]
    assert difference.mean() < 2


def test_a_jitter_changes_the_colours_of_a_copy() -> None:
    red = plain((0, 0, 255))
    image = warp_image(red, Augmentation(jitter=(-10, -20, -30)), IDENTITY, (90, 60))
    hue, saturation, value = cv2.cvtColor(image, cv2.COLOR_BGR2HSV)[30, 45].tolist()
    assert (hue, saturation, value) == pytest.approx((170, 235, 225), abs=1)
    np.testing.assert_array_equal(red, plain((0, 0, 255)))
