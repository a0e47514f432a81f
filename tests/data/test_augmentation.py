"""Augmentation: the matrix, one lit pixel through image, masks and joints, borders, colours and draws."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from posenet.annotations import run_lengths as rle
from posenet.data.augmentation import DRAWS, Augmentation, draws
from posenet.data.warping import (
    BORDER_COLOUR,
    crop_visible,
    from_reduced,
    recolour,
    reduction,
    warp_image,
    warp_joints,
    warp_mask,
)
from posenet.images.decoding import decode_image_bytes
from posenet.settings import AugmentConfig
from posenet.skeleton import COCO

MEASURED = json.loads((Path(__file__).parents[1] / "fixtures" / "affine.json").read_text())
SIZE = (256, 192)
"""Network input, (width, height)."""
IDENTITY = np.eye(2, 3)


def augmentations(count: int, config: AugmentConfig = AugmentConfig()) -> list[Augmentation]:
    rng = np.random.default_rng(0)
    return [Augmentation.sample(rng.random(DRAWS), config) for _ in range(count)]


def plain(colour: tuple[int, int, int], width: int = 90, height: int = 60) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def warp_pixels(mask: np.ndarray, matrix: np.ndarray, border: int) -> np.ndarray:
    """``warp_mask`` of a (H, W) mask of 0 and 1."""
    return warp_mask(rle.unpack(rle.encode(mask)), mask.shape, matrix, SIZE, border)


def centroid(weights: np.ndarray) -> np.ndarray:
    """x, y of the centre of mass."""
    y, x = np.indices(weights.shape)
    return np.array([(x * weights).sum(), (y * weights).sum()]) / weights.sum()


@pytest.mark.parametrize("case", MEASURED["cases"], ids=lambda case: f"{case['degree']:.1f}")
def test_matrices_are_the_measured_ones(case: dict[str, Any]) -> None:
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


def test_the_framed_person_stands_in_the_middle_at_the_configured_height() -> None:
    matrix = Augmentation(person_height=0.5).matrix(center=(300, 200), person_scale=0.8, size=SIZE)
    np.testing.assert_allclose(matrix @ [300, 200, 1], [(256 - 1) / 2, (192 - 1) / 2])
    head, feet = (matrix @ [300, 200 + end * 0.8 * 192 / 2, 1] for end in (-1, 1))
    np.testing.assert_allclose(feet - head, [0, 0.5 * 191], atol=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_one_lit_pixel_lands_alike_in_image_mask_and_joints(seed: int) -> None:
    rng = np.random.default_rng(seed)
    config = AugmentConfig(jitter_probability=0.0, shift=20.0)
    augmentation = dataclasses.replace(Augmentation.sample(rng.random(DRAWS), config), flip=bool(seed % 2))
    # The image is blown up some ten times, so that even a map cell is smaller than the lit pixel.
    matrix = augmentation.matrix(tuple(rng.uniform(60, 100, 2)), person_scale=0.06, size=SIZE)
    wanted = rng.uniform([50, 50], [206, 142])
    x, y = np.rint(np.linalg.solve(matrix[:, :2], wanted - matrix[:, 2])).astype(int)
    image, mask = plain(BORDER_COLOUR, 160, 160), np.zeros((160, 160), np.uint8)
    image[y, x], mask[y, x] = 255, 1
    joints = np.zeros((1, 18, 3), np.float32)
    joints[0, COCO.index("Lwri")] = (x, y, 2)

    warped = warp_joints(joints, augmentation, matrix)
    joint = warped[0, COCO.index("Rwri" if augmentation.flip else "Lwri")]
    assert joint[2] == 2 and np.count_nonzero(warped[..., 2]) == 1
    lit = warp_image(image, augmentation, matrix, SIZE).astype(float) - BORDER_COLOUR
    np.testing.assert_allclose(centroid(lit.sum(-1)), joint[:2], atol=0.2)
    cells = warp_pixels(mask, matrix, border=0)
    assert cells.shape == (48, 64) and cells.dtype == np.uint8
    np.testing.assert_allclose(4 * centroid(cells) + 1.5, joint[:2], atol=0.4)
    np.testing.assert_array_equal(warp_pixels(1 - mask, matrix, border=1), 255 - cells)


def test_a_flip_swaps_left_and_right_names() -> None:
    joints = np.zeros((1, 18, 3), np.float32)
    joints[0, COCO.index("Lsho")] = (10, 20, 1)
    joints[0, COCO.index("nose")] = (30, 40, 2)
    mirror = np.array([[-1.0, 0, 99], [0, 1, 0]])
    warped = warp_joints(joints, Augmentation(flip=True), mirror)
    np.testing.assert_array_equal(warped[0, COCO.index("Rsho")], [89, 20, 1])
    np.testing.assert_array_equal(warped[0, COCO.index("nose")], [69, 40, 2])
    assert np.count_nonzero(warped[..., 2]) == 2


def test_joints_outside_stay_labelled_and_unlabelled_ones_stay_at_zero() -> None:
    joints = np.zeros((2, 18, 3), np.float32)
    joints[0, 0] = (10, 20, 1)
    joints[1, 3] = (10, 20, 0)
    before = joints.copy()
    warped = warp_joints(joints, Augmentation(), np.array([[1.0, 0, -500], [0, 1, 900]]))
    assert warped.dtype == np.float32
    np.testing.assert_array_equal(warped[0, 0], [-490, 920, 1])
    assert np.count_nonzero(warped) == 3
    np.testing.assert_array_equal(joints, before)


def test_a_picture_without_people_is_no_error() -> None:
    assert warp_joints(np.zeros((0, 18, 3), np.float32), Augmentation(flip=True), IDENTITY).shape == (0, 18, 3)


@pytest.mark.parametrize("image_size", [(640, 480), (480, 640), (256, 192), (100, 30), (31, 99)])
@pytest.mark.parametrize("flip", [False, True])
def test_image_framing_shows_the_whole_picture_as_large_as_it_fits(image_size: tuple[int, int], flip: bool) -> None:
    matrix = Augmentation(flip=flip).image_matrix(image_size, SIZE)
    width, height = image_size
    edges = np.array([[-0.5, -0.5, 1], [width - 0.5, height - 0.5, 1]])
    low, high = np.sort(edges @ matrix.T, axis=0)
    gaps = np.concatenate([low + 0.5, np.array(SIZE) - 0.5 - high])
    assert gaps.min() == pytest.approx(0, abs=1e-9)
    np.testing.assert_allclose(gaps[:2], gaps[2:], atol=1e-9)


def test_image_framing_follows_the_draw() -> None:
    augmentation = Augmentation(degrees=30, shift=(7, -3), scale=1.2)
    matrix = augmentation.image_matrix((640, 480), SIZE)
    assert np.sqrt(np.linalg.det(matrix[:, :2])) == pytest.approx(1.2 * 192 / 480)
    np.testing.assert_allclose(matrix @ [319.5, 239.5, 1], [127.5 + 7, 95.5 - 3])


def test_positive_degrees_turn_the_x_axis_towards_negative_y() -> None:
    matrix = Augmentation(degrees=90).image_matrix(SIZE, SIZE)
    np.testing.assert_allclose(matrix[:, :2] @ [1, 0], [0, -1], atol=1e-12)


@pytest.mark.parametrize("jitter", [None, (10.0, 60.0, 40.0)])
def test_outside_the_picture_all_is_border(jitter: tuple[float, float, float] | None) -> None:
    augmentation = Augmentation(degrees=20, scale=0.5, jitter=jitter)
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


@pytest.mark.parametrize("border", [0, 1])
@pytest.mark.parametrize("value", [0, 1])
def test_a_mask_of_one_value_ends_at_the_border_alone(value: int, border: int) -> None:
    matrix = np.array([[1.0, 0, 40], [0, 1, 20]])
    plain_warp = cv2.warpAffine(
        np.full((90, 120), value * 255, np.uint8),
        np.array([[0.25, 0, 9.625], [0, 0.25, 4.625]]),
        (64, 48),
        borderValue=255 * border,
    )
    mask = np.full((90, 120), value, np.uint8)
    np.testing.assert_array_equal(warp_pixels(mask, matrix, border), plain_warp)


@pytest.mark.parametrize("seed", range(6))
def test_masks_go_straight_from_run_lengths_to_cells(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = Augmentation.sample(rng.random(DRAWS), AugmentConfig()).matrix((60, 50), person_scale=0.3, size=SIZE)
    mask = cv2.resize(rng.integers(0, 2, (9, 12), np.uint8), (121, 93), interpolation=cv2.INTER_NEAREST)
    to_cells = np.column_stack([matrix[:, :2] / 4, (matrix[:, 2] - 1.5) / 4])
    for border in (0, 1):
        expected = cv2.warpAffine(mask * 255, to_cells, (64, 48), borderValue=255 * border)
        found = warp_pixels(mask, matrix, border).astype(int)
        assert np.abs(found - expected).max() <= 3 and np.abs(found - expected).mean() < 0.05


def blurred_noise(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    return cv2.GaussianBlur(rng.integers(0, 256, (height, width, 3), np.uint8), None, 3) * 3


@pytest.mark.parametrize("seed", range(6))
def test_what_the_warp_does_not_show_is_not_needed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    image = blurred_noise(rng, 320, 240)
    augmentation = Augmentation.sample(rng.random(DRAWS), AugmentConfig(jitter_probability=0.0))
    matrix = augmentation.matrix(tuple(rng.uniform(0, 240, 2)), person_scale=float(rng.uniform(0.2, 0.6)), size=SIZE)
    part, from_part = crop_visible(image, matrix, SIZE)
    assert part.size < image.size
    options = {"flags": cv2.INTER_LINEAR, "borderValue": BORDER_COLOUR}
    whole = cv2.warpAffine(image, matrix, SIZE, **options).astype(int)
    assert np.abs(whole - cv2.warpAffine(part, from_part, SIZE, **options)).max() <= 1
    assert np.abs(whole - warp_image(image, augmentation, matrix, SIZE)).max() <= 2


def test_a_warp_that_shows_nothing_of_the_picture_is_all_border() -> None:
    matrix = np.array([[1.0, 0, -900], [0, 1, 0]])
    for jitter in (None, (5.0, 5.0, 5.0)):
        image = warp_image(plain((1, 2, 3)), Augmentation(jitter=jitter), matrix, SIZE)
        assert (image == BORDER_COLOUR).all() and image.shape == (192, 256, 3)


def test_a_picture_is_reduced_only_as_far_as_the_warp_shrinks_it() -> None:
    factors = [reduction(np.array([[zoom, 0, 0], [0, zoom, 0]])) for zoom in (2, 0.51, 0.5, 0.26, 0.25, 0.12, 0.01)]
    assert factors == [1, 1, 2, 2, 4, 8, 8]


@pytest.mark.parametrize("by", [2, 4, 8])
def test_a_picture_decoded_at_reduced_size_lands_where_the_whole_one_does(by: int) -> None:
    rng = np.random.default_rng(by)
    width, height = 1021, 767
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    centre = rng.uniform((300, 250), (700, 500))
    image = (10 + 240 * np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / 2 / 60**2)).astype(np.uint8)
    jpeg = cv2.imencode(".jpg", cv2.merge([image] * 3), [cv2.IMWRITE_JPEG_QUALITY, 95])[1].ravel()
    augmentation = Augmentation(degrees=25, flip=True, scale=0.99 / by, shift=(3.0, -2.0))
    matrix = augmentation.image_matrix((width, height), (width, height))
    assert reduction(matrix) == by
    assert decode_image_bytes(jpeg, height, width, by).shape == (-(-height // by), -(-width // by), 3)
    matrix[:, 2] -= (np.array([width, height]) - SIZE) / 2  # the same warp, to the middle of a smaller input
    pictures = [
        warp_image(decode_image_bytes(jpeg, height, width, f), augmentation, from_reduced(matrix, f), SIZE)
        for f in (1, by)
    ]
    for picture in pictures:
        blob = np.clip(picture[..., 0].astype(float) - 140, 0, None)
        np.testing.assert_allclose(centroid(blob), matrix @ (*centre, 1), atol=0.03)
    difference = np.abs(pictures[0].astype(int) - pictures[1])[20:-20, 20:-20]
    assert difference.mean() < 2


def test_the_identity_changes_no_pixel() -> None:
    image = np.random.default_rng(0).integers(0, 256, (192, 256, 3), np.uint8)
    np.testing.assert_array_equal(warp_image(image, Augmentation(), IDENTITY, SIZE), image)


def test_a_jitter_of_nothing_changes_little() -> None:
    image = np.random.default_rng(0).integers(0, 256, (192, 256, 3), np.uint8)
    before = image.copy()
    jittered = warp_image(image, Augmentation(jitter=(0, 0, 0)), IDENTITY, SIZE)
    difference = np.abs(jittered.astype(int) - image)
    assert difference.mean() < 2 and difference.max() <= 8
    np.testing.assert_array_equal(image, before)


def jittered(colour: tuple[int, int, int], jitter: tuple[float, float, float]) -> np.ndarray:
    """Hue, saturation and value of a BGR colour after a jitter."""
    image = warp_image(plain(colour), Augmentation(jitter=jitter), IDENTITY, (90, 60))
    return cv2.cvtColor(image, cv2.COLOR_BGR2HSV)[30, 45].astype(int)


def test_hue_is_an_angle() -> None:
    red, blue = (0, 0, 255), (255, 0, 0)
    np.testing.assert_allclose(jittered(red, (-10, 0, 0)), [170, 255, 255], atol=1)
    np.testing.assert_array_equal(jittered(red, (-10, 0, 0)), jittered(red, (170, 0, 0)))
    np.testing.assert_allclose(jittered(blue, (70, 0, 0)), [10, 255, 255], atol=1)


def test_saturation_and_value_stop_at_the_ends_of_their_range() -> None:
    assert jittered((0, 0, 200), (0, 60, 40))[1:].tolist() == [255, 240]
    assert jittered((250, 250, 250), (0, -20, 40))[1:].tolist() == [0, 255]
    assert jittered((5, 5, 5), (0, 0, -20))[2] == 0
    assert jittered((100, 100, 200), (0, -20, -20))[1:] == pytest.approx([128 - 20, 180], abs=2)


def test_draws_stay_in_range_and_fill_it() -> None:
    samples = augmentations(4000)
    jitters = np.array([a.jitter for a in samples if a.jitter is not None])
    values = {
        "degrees": ([a.degrees for a in samples], -40, 40),
        "dx": ([a.shift[0] for a in samples], -50, 50),
        "dy": ([a.shift[1] for a in samples], -50, 50),
        "scale": ([a.scale for a in samples if a.scale != 1], 0.7, 1.3),
        "hue": (jitters[:, 0], -10, 10),
        "saturation": (jitters[:, 1], -20, 60),
        "value": (jitters[:, 2], -20, 40),
    }
    for name, (drawn, low, high) in values.items():
        quantiles = (np.quantile(drawn, [0, 0.25, 0.5, 0.75, 1]) - low) / (high - low)
        assert quantiles[0] >= 0 and quantiles[4] <= 1, name
        np.testing.assert_allclose(quantiles, [0, 0.25, 0.5, 0.75, 1], atol=0.06, err_msg=name)
    together = np.corrcoef([values[name][0] for name in ("degrees", "dx", "dy")])
    assert np.abs(together - np.eye(3)).max() < 0.06


def test_draws_hit_their_probabilities() -> None:
    samples = augmentations(4000)
    shares = [
        np.mean([a.flip for a in samples]),
        np.mean([a.scale != 1 for a in samples]),
        np.mean([a.jitter is not None for a in samples]),
    ]
    np.testing.assert_allclose(shares, [0.5, 0.8, 0.2], atol=0.03)


def test_a_configuration_without_any_change_draws_the_default() -> None:
    off = AugmentConfig(jitter_probability=0, scale_probability=0, flip_probability=0, degrees=0, shift=0)
    assert set(augmentations(20, off)) == {Augmentation()}
    assert augmentations(1, dataclasses.replace(off, person_height=0.4))[0].person_height == 0.4


def test_the_same_numbers_draw_the_same_and_the_global_generator_is_left_alone() -> None:
    before = np.random.get_state()
    assert augmentations(5) == augmentations(5) and len(set(augmentations(5))) == 5
    for old, new in zip(before, np.random.get_state()):
        np.testing.assert_array_equal(old, new)


def test_what_one_number_decides_changes_no_other() -> None:
    never, always = (
        Augmentation.sample(draws(0), AugmentConfig(jitter_probability=p, scale_probability=p, flip_probability=p))
        for p in (0.0, 1.0)
    )
    assert (never.degrees, never.shift) == (always.degrees, always.shift)
    assert (never.jitter, never.scale, never.flip) == (None, 1.0, False) and always.flip


def test_numbers_are_uniform_and_depend_on_the_key_alone() -> None:
    keys = [(seed, epoch, index) for seed in (0, 1, 2**70) for epoch in range(20) for index in range(50)]
    numbers = np.array([draws(*key) for key in keys])
    np.testing.assert_array_equal(numbers, [draws(*key) for key in keys])
    assert draws(1, 2, 3) == draws(*np.array([1, 2, 3]))
    assert numbers.shape == (len(keys), DRAWS) and len(np.unique(numbers)) > 0.999 * numbers.size
    assert numbers.min() >= 0 and numbers.max() < 1
    for column in numbers.T:
        counts = np.histogram(column, 10, (0, 1))[0]
        assert abs(counts - 300).max() < 5 * math.sqrt(270)
    assert abs(np.corrcoef(numbers.T) - np.eye(DRAWS)).max() < 5 / math.sqrt(len(keys))


def test_jitter_of_many_colours_is_that_of_each() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8)
    images = [noise, *(noise[3 : 3 + height, 5 : 5 + width] for height in range(1, 6) for width in range(1, 6))]
    levels = np.arange(256)
    for hue, saturation, value in ((10, 60, 40), (-10, -20, -20), (90, 0, 0), (-179, 300, -300)):
        tables = np.stack([(levels + hue) % 180, np.clip(levels + saturation, 0, 255), np.clip(levels + value, 0, 255)])
        for image in images:
            hsv = cv2.LUT(cv2.cvtColor(image, cv2.COLOR_BGR2HSV), tables.T[:, None].astype(np.uint8))
            np.testing.assert_array_equal(
                recolour(image, (hue, saturation, value))[..., :3], cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)
            )
