"""Drawings of the network's maps."""

import numpy as np
import pytest

from posenet.images import read_image
from posenet.inference.media.outputs import output_paths
from posenet.inference.media.sources import CameraSource, Frame, find_sources
from posenet.inference.predictor import Predictor
from posenet.settings import InferenceConfig
from posenet.skeleton import COCO
from posenet.visualization.heatmaps import (
    HeatmapSheetWriter,
    channel_names,
    compute_heatmaps,
    dim_image,
    draw_heatmap_sheet,
    heatmap_sheet_suffix,
    overlay_heatmap,
)
from tests.helpers.spot_networks import SpotNetwork, spot_image

CAMERA = CameraSource(2)
IMAGE = spot_image(97, 131, (40, 20), (90, 60), 4)


@pytest.fixture
def predictor():
    return Predictor(SpotNetwork(), InferenceConfig(height=128, flip=True))


def test_maps_show_the_image_without_its_padding(predictor):
    maps = compute_heatmaps(predictor, IMAGE)
    assert maps.shape == (50, 32, 44)
    row, column = np.unravel_index(maps[30].argmax(), maps[30].shape)
    assert abs(4 * row + 1.5 - 20 * 128 / 97) < 4 and abs(4 * column + 1.5 - 40 * 128 / 97) < 4


def test_every_channel_has_a_name():
    names = channel_names(COCO)
    assert len(names) == 50
    assert (names[0], names[30], names[48], names[49]) == ("neck-nose", "nose", "person", "any keypoint")


def test_a_map_covers_the_background_where_it_is_high():
    background = dim_image(np.full((40, 60, 3), 100, np.uint8))
    heatmap = np.zeros((10, 15), np.float32)
    heatmap[:, 10:] = 1.5
    overlay = overlay_heatmap(background, heatmap)
    assert (overlay[:, :36] == 60).all()
    blue, green, red = overlay[20, 50].astype(int)
    assert min(red, green) > blue + 100, "yellow"


def test_sheets_of_images_are_files_and_those_of_videos_are_folders(predictor, tmp_path):
    sources = [*find_sources(["-"], ["a.png", "x/A.jpg", "a.mp4"]), CAMERA]
    paths = output_paths(sources, tmp_path, heatmap_sheet_suffix)
    assert [path.name for path in paths.values()] == ["a.jpg", "A-2.jpg", "a", "camera-2"]
    writer = HeatmapSheetWriter(predictor, paths)
    writer.write(Frame(sources[0], IMAGE), [], IMAGE)
    writer.write(Frame(CAMERA, IMAGE, 12, 1.0, 5.0), [], IMAGE)
    expected = draw_heatmap_sheet(IMAGE, compute_heatmaps(predictor, IMAGE), COCO)
    assert 1200 < expected.shape[1] < 2400 and expected.dtype == np.uint8
    for path in (tmp_path / "a.jpg", tmp_path / "camera-2" / "000012.jpg"):
        sheet = read_image(path)
        assert sheet.shape == expected.shape and abs(sheet.astype(int) - expected).mean() < 3


@pytest.mark.parametrize("height, width", [(1, 1), (2, 3000), (3000, 2), (700, 500)])
def test_an_image_of_any_size_has_a_sheet(height, width):
    image = np.full((height, width, 3), 90, np.uint8)
    assert draw_heatmap_sheet(image, np.zeros((50, -(-height // 4), -(-width // 4)), np.float32), COCO).size
