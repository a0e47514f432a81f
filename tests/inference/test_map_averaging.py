"""The network stage of prediction on the host: inputs at all scales, and the average of the maps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from posenet.inference.map_averaging import InputBatch
from posenet.inference.predictor import Predictor
from posenet.settings import InferenceConfig
from posenet.skeleton import COCO
from tests.helpers.cubic_convolution import resample

SIZES = [(480, 640), (480, 620), (427, 569)]
"""(height, width) of images with inputs of one size but different ratios of the scales, in the width."""
DECODED = COCO.num_parts + COCO.num_keypoints


def noise_maps(images: np.ndarray) -> np.ndarray:
    """Maps of noise that is another one for every shape of the input and for mirrored images."""
    is_mirrored = bool((images[0, 0, 0] == 255).all())
    count, height, width, _ = images.shape
    rng = np.random.default_rng([height, width, is_mirrored])
    return rng.random((count, COCO.num_channels, height // 4, width // 4), dtype=np.float32)


def prepare(predictor: Predictor, sizes: list[tuple[int, int]] = SIZES) -> InputBatch:
    """Black images whose right side is white, in the input too, so that mirrored inputs are recognized."""
    batch = predictor.prepare_inputs([np.zeros((*size, 3), np.uint8) for size in sizes])
    for inputs in batch.inputs:
        inputs[:, :, -1] = 255
    return batch


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(
    "scales, limits",
    [
        ((1.0,), {}),
        ((0.5, 1.0, 1.5, 2.0), {}),
        ((2.0, 0.7), {}),
        ((1.0, 1.01), {}),
        ((0.5, 1.0, 1.5, 2.0), {"max_height": 150, "max_width": 300}),
    ],
    ids=str,
)
def test_maps_are_the_average_of_all_scales_and_mirrored_images(
    scales: tuple[float, ...], limits: dict[str, int], flip: bool
) -> None:
    settings = InferenceConfig(height=100, scales=scales, flip=flip, **limits)
    predictor = Predictor(noise_maps, settings)
    with_all = Predictor(noise_maps, settings, keep_maps=True)
    batch = prepare(predictor)
    for number, size in enumerate(SIZES):
        target = predictor.letterbox(size, max(scales))
        passes = []
        for scale in scales:
            letterbox = predictor.letterbox(size, scale)
            images = np.zeros((len(SIZES), *letterbox.padded, 3), np.uint8)
            passes.append(resample(noise_maps(images)[number], letterbox, target))
            if flip:
                images[:, :, 0] = 255
                mirrored = noise_maps(images)[number][COCO.flip_channels, :, ::-1]
                passes.append(resample(mirrored, letterbox, target))
        rows, columns = target.decoded_cells
        expected = np.mean(passes, axis=0)[:, :rows, :columns]
        maps = with_all.run_network(batch)[number]
        assert maps.dtype == np.float32
        np.testing.assert_allclose(maps, expected, atol=1e-5)
        np.testing.assert_array_equal(predictor.run_network(batch)[number], maps[:DECODED])


def test_maps_of_one_scale_are_those_of_the_network() -> None:
    predictor = Predictor(noise_maps, height=100)
    batch = prepare(predictor)
    [inputs] = batch.inputs
    expected = noise_maps(inputs)
    for maps, expected_maps, letterbox in zip(predictor.run_network(batch), expected, batch.map_letterboxes):
        rows, columns = letterbox.decoded_cells
        np.testing.assert_array_equal(maps, expected_maps[:DECODED, :rows, :columns])


@pytest.mark.parametrize(
    "convert",
    [
        lambda maps: maps.astype(np.float64),
        lambda maps: np.ascontiguousarray(maps.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
        lambda maps: maps[:, :, ::-1].copy()[:, :, ::-1],
        lambda maps: maps.tolist(),
    ],
    ids=["float64", "channels last", "view", "list"],
)
def test_a_function_may_return_maps_of_any_type_and_layout(convert: Callable[[np.ndarray], np.ndarray]) -> None:
    settings = InferenceConfig(height=100, scales=(0.5, 1.0), flip=True)
    expected = Predictor(noise_maps, settings)
    other = Predictor(lambda images: convert(noise_maps(images)), settings)
    batch = prepare(expected)
    for maps, expected_maps in zip(other.run_network(batch), expected.run_network(batch), strict=True):
        np.testing.assert_array_equal(maps, expected_maps)


@pytest.mark.parametrize("settings", [{}, {"flip": True}, {"scales": (0.5, 1.0), "flip": True}], ids=str)
def test_a_function_may_write_to_the_same_arrays_again(settings: dict[str, object]) -> None:
    arrays: dict[tuple[int, ...], np.ndarray] = {}

    def network(images: np.ndarray) -> np.ndarray:
        maps = noise_maps(images)
        kept = arrays.setdefault(maps.shape, np.empty_like(maps))
        kept[:] = maps
        return kept

    options = InferenceConfig(height=100, **settings)  # type: ignore[arg-type]
    predictor = Predictor(network, options)
    batch = prepare(predictor)
    pending = predictor.start_network(batch)
    for kept in arrays.values():
        kept[:] = np.nan
    for maps, expected in zip(pending.wait(), Predictor(noise_maps, options).run_network(batch), strict=True):
        np.testing.assert_array_equal(maps, expected)


@pytest.mark.parametrize("scales", [(1.0,), (0.5, 1.0)])
def test_the_networks_array_is_not_changed(scales: tuple[float, ...]) -> None:
    maps = {side: np.ones((1, COCO.num_channels, side // 4, side // 4), np.float32) for side in (64, 128)}
    predictor = Predictor(lambda images: maps[images.shape[1]], InferenceConfig(height=128, scales=scales, flip=True))
    [averages] = predictor.run_network(prepare(predictor, [(128, 128)]))
    np.testing.assert_allclose(averages, 1, atol=1e-6)
    assert all((array == 1).all() for array in maps.values())
