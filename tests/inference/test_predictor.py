import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from posenet.errors import CheckpointError, ConfigError, DataError
from posenet.inference.predictor import Predictor
from posenet.model.posenet import PoseNet
from posenet.settings import config_from_dict, config_to_dict
from posenet.skeleton import COCO

NOSE, NECK = COCO.index("nose"), COCO.index("neck")


class Spotlights(nn.Module):
    """Finds noses where the image is red and necks where it is green, against black and padding."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def heatmaps(self, images):
        self.shapes.append(tuple(images.shape))
        maps = torch.zeros(len(images), 50, images.shape[2] // 4, images.shape[3] // 4)
        maps[:, COCO.part_channels] = 1
        for keypoint, channel in ((NOSE, 2), (NECK, 1)):
            others = [c for c in range(3) if c != channel]
            contrast = images[:, channel] - images[:, others].amax(1)
            maps[:, COCO.num_parts + keypoint] = F.avg_pool2d(contrast[:, None], 4)[:, 0]
        return maps


def picture(height, width, nose, neck, radius):
    """Black, with a soft red spot at ``nose`` and a green one at ``neck``, both (x, y)."""
    y, x = np.mgrid[:height, :width]
    image = np.zeros((height, width, 3))
    for channel, (u, v) in ((2, nose), (1, neck)):
        image[..., channel] = 255 * np.exp(-((x - u) ** 2 + (y - v) ** 2) / (2 * radius**2))
    return image.round().astype(np.uint8)


SIZES = {  # height, width: nose, neck, radius
    (480, 640): ((300.0, 100.0), (310.0, 250.0), 12),
    (427, 640): ((600.3, 80.0), (500.0, 300.7), 12),
    (640, 425): ((30.0, 100.2), (300.6, 280.0), 12),
    (97, 131): ((40.2, 20.0), (90.0, 60.4), 4),
    (1500, 1010): ((400.5, 300.0), (600.0, 700.5), 40),
}


@pytest.mark.parametrize(
    "settings",
    [
        dict(),
        dict(flip=True),
        dict(scales=(0.5, 1.0, 1.5)),
        dict(scales=(2.0, 1.0), flip=True),
        dict(height=320),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_keypoints_lie_in_the_pictures_pixels(size, settings):
    nose, neck, radius = SIZES[size]
    predictor = Predictor(Spotlights(), **{"height": 256} | settings)
    [person] = predictor(picture(*size, nose, neck, radius))
    tolerance = 0.5 * size[0] / 256 + 0.1
    np.testing.assert_allclose(person.keypoints[NOSE, :2], nose, atol=tolerance)
    np.testing.assert_allclose(person.keypoints[NECK, :2], neck, atol=tolerance)
    assert person.found.sum() == 2
    assert not person.keypoints[~person.found].any()


def test_alignment_of_scales_is_exact():
    """One lit pixel far from the origin, where a wrong half pixel or a wrong ratio shows."""
    nose, neck = (1900.0, 60.0), (1800.0, 220.0)
    image = picture(300, 2001, nose, neck, 8)
    one = Predictor(Spotlights(), height=512)(image)[0].keypoints
    several = Predictor(Spotlights(), height=256, scales=(0.7, 1.3, 2.0))(image)[0].keypoints
    np.testing.assert_allclose(several[[NOSE, NECK], :2], one[[NOSE, NECK], :2], atol=0.4)
    np.testing.assert_allclose(one[[NOSE, NECK], :2], (nose, neck), atol=0.3)


def test_batch_equals_single_whatever_the_company():
    images = [picture(*size, *spots) for size, spots in SIZES.items()]
    images += [images[0][:, ::-1].copy(), images[1], np.zeros((100, 100, 3), np.uint8)]
    predictor = Predictor(Spotlights(), height=192, scales=(1.0, 1.5), flip=True, batch_size=3)
    together = predictor.batch(images)
    assert together == [predictor(image) for image in images]
    assert [len(people) for people in together] == [1] * 7 + [0]
    assert predictor.batch([]) == []


def test_equal_inputs_share_a_batch_of_limited_size():
    model = Spotlights()
    Predictor(model, height=128, batch_size=4).batch(
        [np.zeros((480, 640, 3), np.uint8)] * 6 + [np.zeros((640, 480, 3), np.uint8)]
    )
    assert model.shapes == [(4, 3, 128, 192), (2, 3, 128, 192), (1, 3, 128, 128)]


def test_flip_swaps_left_and_right_channels():
    """Of a network that sees a mirrored image as the mirror image of the image, flipping changes nothing."""
    maps = torch.rand(1, 50, 32, 48, generator=torch.Generator().manual_seed(0)) ** 4

    class Mirrored(nn.Module):
        def heatmaps(self, images):
            straight = images[0, 0, 0, 0] > images[0, 0, 0, -1]
            return maps if straight else maps[:, COCO.flip_channels].flip(-1)

    image = np.zeros((128, 192, 3), np.uint8)
    image[:, :96] = 255
    plain = Predictor(Mirrored(), height=128)(image)
    assert plain and Predictor(Mirrored(), height=128, flip=True)(image) == plain


def test_input_is_padded_right_and_below_and_scaled_to_one():
    seen = []

    class Recorder(nn.Module):
        def heatmaps(self, images):
            seen.append(images)
            return torch.zeros(len(images), 50, images.shape[2] // 4, images.shape[3] // 4)

    image = np.zeros((100, 70, 3), np.uint8)
    image[..., 0] = 255
    Predictor(Recorder(), height=100)(image)
    [inputs] = seen
    assert inputs.shape == (1, 3, 128, 128) and inputs.dtype == torch.float32
    assert (inputs[0, 0, :100, :70] == 1).all() and (inputs[0, 1:, :100, :70] == 0).all()
    assert (inputs[:, :, 100:] == 128 / 255).all() and (inputs[:, :, :, 70:] == 128 / 255).all()


@pytest.mark.parametrize("shape", [(4000, 6000), (50, 9000), (9000, 50), (1, 1), (2, 70000)])
def test_network_input_stays_below_the_limits(shape):
    model = Spotlights()
    people = Predictor(model, height=512, scales=(1.0, 4.0), max_height=600, max_width=700)(np.zeros(shape, np.uint8))
    assert people == []
    assert all(64 <= height <= 600 and 64 <= width <= 700 for _, _, height, width in model.shapes)


@pytest.mark.parametrize(
    "convert",
    [
        lambda image: image.astype(np.uint16) * 257,
        lambda image: cv2.cvtColor(image, cv2.COLOR_BGR2BGRA),
        lambda image: cv2.cvtColor(image, cv2.COLOR_BGR2BGRA).astype(np.uint16) * 257,
        lambda image: image[::-1][::-1],
    ],
    ids=["16-bit", "alpha", "16-bit alpha", "view"],
)
def test_other_kinds_of_pictures_give_the_same_people(convert):
    image = picture(97, 131, *SIZES[97, 131])
    predictor = Predictor(Spotlights(), height=128)
    assert predictor(convert(image)) == predictor(image) != []


def test_grey_pictures_are_taken():
    class Bright(nn.Module):
        def heatmaps(self, images):
            maps = torch.ones(1, 50, images.shape[2] // 4, images.shape[3] // 4)
            maps[:, COCO.keypoint_channels] = F.avg_pool2d(images[:, :1], 4) - 0.55
            return maps

    image = picture(128, 128, (40, 40), (90, 90), 6).max(axis=2)
    for grey in (image, image[..., None], image.astype(np.uint16) * 257):
        assert Predictor(Bright(), height=128)(grey)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((0, 5, 3), np.uint8),
        np.zeros((5, 5, 2), np.uint8),
        np.zeros((5, 5, 3)),
        np.zeros((5, 5, 3), bool),
        np.zeros(5, np.uint8),
        np.zeros((1, 5, 5, 3), np.uint8),
        None,
    ],
    ids=str,
)
def test_what_is_no_picture_is_refused(wrong):
    with pytest.raises(DataError, match="an image must be"):
        Predictor(Spotlights())(wrong)


def tiny_config(tables=None):
    return config_from_dict({"model": {"stacks": 1, "width": 16, "growth": 0}} | (tables or {}))


def test_from_checkpoint_uses_its_configuration_and_overrides(tmp_path):
    config = tiny_config({"inference": {"height": 64, "flip": True}})
    torch.manual_seed(0)
    model = PoseNet.from_config(config)
    path = tmp_path / "tiny.pth"
    torch.save({"format": 1, "model": model.state_dict(), "config": config_to_dict(config)}, path)
    predictor = Predictor.from_checkpoint(path, device="cpu", batch_size=2)
    assert (predictor.height, predictor.flip, predictor.batch_size) == (64, True, 2)
    assert not predictor.model.training
    images = torch.rand(1, 3, 64, 64)
    predictor = Predictor.from_checkpoint(path, device="cpu", amp="off")
    torch.testing.assert_close(predictor.model.heatmaps(images), model.eval().heatmaps(images), rtol=1e-4, atol=1e-10)
    other = tiny_config({"inference": {"height": 128}})
    assert Predictor.from_checkpoint(path, config=other, device="cpu").height == 128
    with pytest.raises(ConfigError, match="scales"):
        Predictor.from_checkpoint(path, device="cpu", scales=(0.0,))
    with pytest.raises(CheckpointError):
        Predictor.from_checkpoint(tmp_path / "none.pth", device="cpu")


def test_half_precision_runs():
    model = PoseNet.from_config(tiny_config())
    assert Predictor(model, height=64, amp="bf16")(np.zeros((64, 64, 3), np.uint8)) == []


@pytest.mark.parametrize("settings", [dict(), dict(flip=True, scales=(1.0, 1.5))], ids=str)
def test_candidates_selected_on_the_device_give_the_same_people(settings):
    """Padding is not searched either: with the spots on the image's edge the map beyond is not empty."""
    images = [picture(*size, *spots) for size, spots in SIZES.items()]
    images.append(picture(480, 650, (649.0, 100.0), (300.0, 479.0), 15))
    host = Predictor(Spotlights(), height=256, **settings).batch(images)
    device = Predictor(Spotlights(), height=256, select="device", **settings).batch(images)
    assert [len(people) for people in device] == [len(people) for people in host] == [1] * 6
    for one, other in zip(host, device):
        np.testing.assert_allclose(other[0].keypoints, one[0].keypoints, atol=0.01)
        assert other[0].score == pytest.approx(one[0].score)


def test_a_stream_takes_pictures_as_they_are_needed():
    taken = []
    images = [picture(*size, *spots) for size, spots in SIZES.items() for _ in range(4)]

    def source():
        for image in images:
            taken.append(image)
            yield image

    predictor = Predictor(Spotlights(), height=128, batch_size=2)
    stream = predictor.stream(source())
    first = next(stream)
    assert len(taken) <= 10
    assert [first, *stream] == [predictor(image) for image in images]
    assert len(taken) == len(images)


def test_what_goes_wrong_on_a_thread_reaches_the_caller():
    class Broken(nn.Module):
        def heatmaps(self, images):
            return torch.zeros(len(images), 3, 8, 8)

    with pytest.raises(ValueError, match="maps must be"):
        Predictor(Broken(), height=64)(np.zeros((64, 64, 3), np.uint8))
    with pytest.raises(DataError):
        list(Predictor(Spotlights(), height=64).stream(iter([np.zeros((64, 64, 3), np.uint8), None])))
