"""Letterboxes, resampled maps, and the average of the maps of all scales and the flip."""

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from posenet.inference.averaging import InputBatch, Letterbox, start_network
from posenet.inference.networks import TorchNetwork
from posenet.inference.predictor import Predictor
from posenet.person import Person
from posenet.settings import InferenceConfig
from posenet.skeleton import COCO
from tests.helpers.spot_networks import LinearSpotNetwork

SIZES = [(480, 640), (480, 620), (427, 569)]
"""(height, width) of images with inputs of one size but different ratios of the scales, in the width."""
DECODED = COCO.num_parts + COCO.num_keypoints


def resample(maps: np.ndarray, source: Letterbox, target: Letterbox) -> np.ndarray:
    """PyTorch's cubic convolution of (C, h, w) maps of one inference scale, to the decoded cells of another one."""
    rows, columns = target.decoded_cells
    zoom = [new / old for new, old in zip(target.resized, source.resized)]
    repeated = F.pad(torch.from_numpy(maps).double()[None], (0, columns, 0, rows), mode="replicate")
    resampled: np.ndarray = F.interpolate(repeated, scale_factor=zoom, mode="bicubic")[0].numpy()
    return resampled[:, :rows, :columns]


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
        ((0.5, 1.0, 1.5, 2.0), {"max_height": 150}),
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
        target = Letterbox.fit(size, settings, max(scales))
        passes = []
        for scale in scales:
            letterbox = Letterbox.fit(size, settings, scale)
            images = np.zeros((len(SIZES), *letterbox.padded, 3), np.uint8)
            passes.append(resample(noise_maps(images)[number], letterbox, target))
            if flip:
                images[:, :, 0] = 255
                mirrored = noise_maps(images)[number][COCO.flip_channels, :, ::-1]
                passes.append(resample(mirrored, letterbox, target))
        expected = np.mean(passes, axis=0)
        maps = with_all.start_network(batch)()[number]
        assert maps.dtype == np.float32
        np.testing.assert_allclose(maps, expected, atol=1e-5)
        np.testing.assert_array_equal(predictor.start_network(batch)()[number], maps[:DECODED])


@pytest.mark.parametrize("settings", [{}, {"scales": (0.5, 1.0, 1.5, 1.501), "flip": True}], ids=str)
def test_pytorch_averages_like_numpy(settings: dict[str, Any]) -> None:
    """The operations are those of any device; here it is the CPU."""
    network = LinearSpotNetwork()
    nn.init.normal_(network.colours.weight, generator=torch.Generator().manual_seed(0))
    options = InferenceConfig(height=100, **settings)
    predictor = Predictor(network, options, device="cpu", amp="off")
    images = [np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8) for size in SIZES]
    batch = predictor.prepare_inputs(images)
    expected = predictor.start_network(batch)()
    assert isinstance(predictor.network, TorchNetwork)
    predictor.network.averages = True
    for maps, maps_of_numpy in zip(predictor.start_network(batch)(), expected, strict=True):
        np.testing.assert_allclose(maps, maps_of_numpy, atol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"flip": True}, {"scales": (0.5, 1.0), "flip": True}], ids=str)
def test_a_function_may_write_to_the_same_arrays_again_which_are_not_changed(settings: dict[str, object]) -> None:
    arrays: dict[tuple[int, ...], np.ndarray] = {}
    computed: dict[tuple[int, ...], np.ndarray] = {}

    def network(images: np.ndarray) -> np.ndarray:
        maps = noise_maps(images)
        kept = arrays.setdefault(maps.shape, np.empty_like(maps))
        kept[:] = computed[maps.shape] = maps
        return kept

    options = InferenceConfig(height=100, **settings)  # type: ignore[arg-type]
    predictor = Predictor(network, options)
    batch = prepare(predictor)
    pending = predictor.start_network(batch)
    for shape, kept in arrays.items():
        np.testing.assert_array_equal(kept, computed[shape])
        kept[:] = np.nan
    for maps, expected in zip(pending(), Predictor(noise_maps, options).start_network(batch)(), strict=True):
        np.testing.assert_array_equal(maps, expected)


@pytest.mark.parametrize("convert", [torch.from_numpy, np.ndarray.tolist, np.float16, np.float64])
def test_a_function_may_compute_other_numbers_than_float32(convert: Callable[[np.ndarray], Any]) -> None:
    def rounded_maps(images: np.ndarray) -> np.ndarray:
        return noise_maps(images).astype(np.float16).astype(np.float32)

    options = InferenceConfig(height=100, scales=(0.5, 1.0), flip=True)
    batch = prepare(Predictor(rounded_maps, options))
    found = Predictor(lambda images: convert(rounded_maps(images)), options).start_network(batch)()
    for maps, expected in zip(found, Predictor(rounded_maps, options).start_network(batch)(), strict=True):
        np.testing.assert_array_equal(maps, expected)


def test_the_outer_pixel_edges_of_image_and_input_coincide():
    """Keypoints outside the image move to its edge."""
    keypoints = np.zeros((18, 3), np.float32)
    keypoints[:5] = (0, 1, 1), (79, 99, 1), (9.5, 19.5, 0.5), (-3, -5, 1), (82, 110, 1)
    letterbox = Letterbox(resized=(100, 80), padded=(128, 128))
    person = Person(keypoints.copy(), 0.7)
    [mapped] = letterbox.map_back([person], (300, 160))
    expected = [(0.5, 4, 1), (158.5, 298, 1), (19.5, 59.5, 0.5), (0.001, 0, 1), (159, 299, 1)]
    np.testing.assert_allclose(mapped.keypoints[:5], expected)
    assert not mapped.keypoints[5:].any()
    assert mapped.score == 0.7 and mapped.skeleton is COCO
    np.testing.assert_array_equal(person.keypoints, keypoints)


@pytest.mark.parametrize("factor", [2, 3, 4, 8])  # 3: a side of 99 pixels cannot be halved
def test_a_much_larger_image_is_averaged_over_areas(factor):
    image = np.random.default_rng(0).integers(0, 256, (33 * factor, 33 * factor, 3), np.uint8)
    shrunken = Letterbox(resized=(33, 33), padded=(64, 64)).apply(image)[:33, :33]
    np.testing.assert_allclose(
        shrunken, image.reshape(33, factor, 33, factor, 3).mean((1, 3)), atol=1.51
    )  # rounded up to 3 times


@pytest.mark.parametrize("size", [(40, 60), (16, 24)])
def test_other_images_are_interpolated_by_cubic_polynomials(size):
    height, width = size
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    resized = Letterbox(resized=size, padded=(64, 64)).apply(image)[:height, :width]
    np.testing.assert_array_equal(resized, cv2.resize(image, (width, height), interpolation=cv2.INTER_CUBIC))


def test_the_decoder_receives_one_more_cell_on_each_side_where_there_is_padding():
    assert Letterbox((97, 131), (128, 192)).decoded_cells == (26, 34)
    assert Letterbox((128, 192), (128, 192)).decoded_cells == (32, 48)
    assert Letterbox((100, 81), (128, 128)).image_cells == (25, 21)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (Letterbox((320, 213), (320, 256)), Letterbox((416, 277), (448, 320))),  # the source has no padding below
        (Letterbox((128, 128), (128, 128)), Letterbox((131, 131), (192, 192))),
        (Letterbox((64, 1), (64, 64)), Letterbox((640, 7), (640, 64))),
        (Letterbox((128, 1984), (128, 1984)), Letterbox((129, 2000), (192, 2048))),
    ],
    ids=str,
)
def test_maps_are_resampled_by_the_ratio_of_the_images(source, target):
    """Noise is the hardest case: every weight of every cell shows."""

    def network(images: np.ndarray) -> np.ndarray:
        maps = np.zeros((len(images), COCO.num_channels, images.shape[1] // 4, images.shape[2] // 4), np.float32)
        if images[0, 0, 0, 0]:
            maps[:] = cells
        return maps

    cells = np.random.default_rng(0).random((1, source.padded[0] // 4, source.padded[1] // 4), dtype=np.float32)
    inputs = [np.full((1, *letterbox.padded, 3), number, np.uint8) for number, letterbox in enumerate((target, source))]
    batch = InputBatch([[target], [source]], inputs)
    [maps] = start_network(network, batch, COCO, flip=False, all_channels=False)()
    np.testing.assert_allclose(2 * maps[:1], resample(cells, source, target), rtol=0, atol=1e-5)
