import threading

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from posenet.inference.backends import torch_backend
from posenet.inference.backends.backend import DeviceCandidates, HostMaps
from torch import nn

from posenet.devices.device_copy import DeviceCopies
from posenet.errors import CheckpointError, ConfigError, DataError
from posenet.inference.letterbox import Letterbox
from posenet.inference.predictor import Predictor
from posenet.model.posenet import PoseNet
from posenet.settings import InferenceConfig, config_from_dict, config_to_dict
from posenet.skeleton import COCO
from tests.helpers.image_bytes import encode, with_orientation
from tests.helpers.spot_networks import NECK, NOSE, SpotNetwork, spot_image

SPOTS = {  # height, width: nose, neck, radius
    (480, 640): ((300.0, 100.0), (310.0, 250.0), 12),
    (427, 640): ((600.3, 80.0), (500.0, 300.7), 12),
    (640, 425): ((30.0, 100.2), (300.6, 280.0), 12),
    (97, 131): ((40.2, 20.0), (90.0, 60.4), 4),
    (1500, 1010): ((400.5, 300.0), (600.0, 700.5), 40),
}


def spot_predictor(select=None, **settings):
    return Predictor(SpotNetwork(), InferenceConfig(**settings), select=select)


def make_image(size):
    """The image of SPOTS of this (height, width)."""
    return spot_image(*size, *SPOTS[size])


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
@pytest.mark.parametrize("size", SPOTS, ids=str)
def test_keypoints_are_in_pixels_of_the_image(size, settings):
    nose, neck, radius = SPOTS[size]
    predictor = spot_predictor(**{"height": 256} | settings)
    [person] = predictor(spot_image(*size, nose, neck, radius))
    tolerance = 0.5 * size[0] / 256 + 0.1
    np.testing.assert_allclose(person.keypoints[NOSE, :2], nose, atol=tolerance)
    np.testing.assert_allclose(person.keypoints[NECK, :2], neck, atol=tolerance)
    assert person.found.sum() == 2
    assert not person.keypoints[~person.found].any()


def test_maps_of_several_scales_are_aligned():
    """The spots are far from the origin, where a wrong half pixel or a wrong ratio shows."""
    nose, neck = (1900.0, 60.0), (1800.0, 220.0)
    image = spot_image(300, 2001, nose, neck, 8)
    one = spot_predictor(height=512)(image)[0].keypoints
    several = spot_predictor(height=256, scales=(0.7, 1.3, 2.0))(image)[0].keypoints
    np.testing.assert_allclose(several[[NOSE, NECK], :2], one[[NOSE, NECK], :2], atol=0.4)
    np.testing.assert_allclose(one[[NOSE, NECK], :2], (nose, neck), atol=0.3)
    # Peaks that do not coincide would lower the average.
    np.testing.assert_allclose(several[[NOSE, NECK], 2], one[[NOSE, NECK], 2], rtol=0.1)


def test_people_do_not_depend_on_the_other_images_of_a_batch():
    images = [make_image(size) for size in SPOTS]
    images += [images[0][:, ::-1].copy(), images[1], np.zeros((100, 100, 3), np.uint8)]
    predictor = spot_predictor(height=192, scales=(1.0, 1.5), flip=True, batch_size=3)
    together = predictor.batch(images)
    assert together == [predictor(image) for image in images]
    assert [len(people) for people in together] == [1] * 7 + [0]
    assert predictor.batch([]) == []


def test_equal_inputs_run_together_up_to_the_batch_size():
    network = SpotNetwork()
    images = [np.zeros((480, 640, 3), np.uint8)] * 6 + [np.zeros((640, 480, 3), np.uint8)]
    Predictor(network, InferenceConfig(height=128, batch_size=4)).batch(images)
    assert network.shapes == [(4, 3, 128, 192), (2, 3, 128, 192), (1, 3, 128, 128)]


def test_images_are_copied_to_the_device_outside_of_inference_mode(monkeypatch):
    """A copy that is still queued may be completed by a thread without inference mode."""
    copies = []

    class RecordedCopies(DeviceCopies):
        def __init__(self, *args):
            super().__init__(*args)
            copies.extend(self.tensors)

    monkeypatch.setattr(torch_backend, "DeviceCopies", RecordedCopies)
    spot_predictor(height=64)(np.zeros((64, 64, 3), np.uint8))
    assert copies
    assert not any(tensor.is_inference() for tensor in copies)


def test_flip_swaps_left_and_right_channels():
    """Averaging changes nothing if the maps of the mirrored image are the mirrored maps."""
    maps = torch.rand(1, 50, 32, 48, generator=torch.Generator().manual_seed(0)) ** 4

    class SymmetricNetwork(nn.Module):
        def heatmaps(self, images):
            is_mirrored = images[0, 0, 0, 0] < images[0, 0, 0, -1]
            return maps[:, COCO.flip_channels].flip(-1) if is_mirrored else maps

    image = np.zeros((128, 192, 3), np.uint8)
    image[:, :96] = 255
    plain = Predictor(SymmetricNetwork(), InferenceConfig(height=128))(image)
    assert plain and Predictor(SymmetricNetwork(), InferenceConfig(height=128, flip=True))(image) == plain


def test_the_input_is_padded_on_the_right_and_below_and_scaled_to_one():
    seen = []

    class Recorder(nn.Module):
        def heatmaps(self, images):
            seen.append(images)
            return torch.zeros(len(images), 50, images.shape[2] // 4, images.shape[3] // 4)

    image = np.zeros((100, 70, 3), np.uint8)
    image[..., 0] = 255
    Predictor(Recorder(), InferenceConfig(height=100))(image)
    [inputs] = seen
    assert inputs.shape == (1, 3, 128, 128) and inputs.dtype == torch.float32
    assert (inputs[0, 0, :100, :70] == 1).all() and (inputs[0, 1:, :100, :70] == 0).all()
    assert (inputs[:, :, 100:] == 128 / 255).all() and (inputs[:, :, :, 70:] == 128 / 255).all()


@pytest.mark.parametrize("shape", [(4000, 6000), (50, 9000), (9000, 50), (1, 1), (2, 70000)])
def test_the_network_input_stays_below_the_limits(shape):
    network = SpotNetwork()
    settings = InferenceConfig(height=512, scales=(1.0, 4.0), max_height=600, max_width=700)
    assert Predictor(network, settings)(np.zeros(shape, np.uint8)) == []
    assert all(64 <= height <= 600 and 64 <= width <= 700 for _, _, height, width in network.shapes)


def test_an_image_is_resized_to_the_height_times_the_scale():
    predictor = spot_predictor(height=128, max_width=2000)
    assert predictor.letterbox((480, 640)) == Letterbox(resized=(128, 171), padded=(128, 192))
    assert predictor.letterbox((480, 640), 0.5) == Letterbox(resized=(64, 85), padded=(64, 128))
    assert predictor.letterbox((2, 70000)) == Letterbox(resized=(1, 1984), padded=(64, 1984))


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
def test_images_of_other_types_yield_the_same_people(convert):
    image = make_image((97, 131))
    predictor = spot_predictor(height=128)
    assert predictor(convert(image)) == predictor(image) != []


def test_grey_images_are_accepted():
    class BrightnessNetwork(nn.Module):
        def heatmaps(self, images):
            maps = torch.ones(1, 50, images.shape[2] // 4, images.shape[3] // 4)
            maps[:, COCO.keypoint_channels] = F.avg_pool2d(images[:, :1], 4) - 0.55
            return maps

    image = spot_image(128, 128, (40, 40), (90, 90), 6).max(axis=2)
    for grey in (image, image[..., None], image.astype(np.uint16) * 257):
        assert Predictor(BrightnessNetwork(), InferenceConfig(height=128))(grey)


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
def test_arrays_that_are_no_images_are_refused(wrong):
    with pytest.raises(DataError, match="an image must be"):
        spot_predictor()(wrong)


def tiny_config(tables=None):
    return config_from_dict({"model": {"stacks": 1, "width": 16, "growth": 0}} | (tables or {}))


def test_from_checkpoint_uses_the_configuration_and_overrides(tmp_path):
    config = tiny_config({"inference": {"height": 64, "flip": True}})
    torch.manual_seed(0)
    model = PoseNet.from_config(config)
    path = tmp_path / "tiny.pth"
    torch.save({"format": 1, "model": model.state_dict(), "config": config_to_dict(config)}, path)
    predictor = Predictor.from_checkpoint(path, device="cpu", batch_size=2)
    assert predictor.settings == InferenceConfig(height=64, flip=True, batch_size=2)
    assert not predictor.backend.network.training
    images = torch.rand(1, 3, 64, 64)
    predictor = Predictor.from_checkpoint(path, device="cpu", amp="off")
    torch.testing.assert_close(
        predictor.backend.network.heatmaps(images), model.eval().heatmaps(images), rtol=1e-4, atol=1e-10
    )
    other = tiny_config({"inference": {"height": 128}})
    assert Predictor.from_checkpoint(path, config=other, device="cpu").settings.height == 128
    with pytest.raises(ConfigError, match="scales"):
        Predictor.from_checkpoint(path, device="cpu", scales=(0.0,))
    with pytest.raises(CheckpointError):
        Predictor.from_checkpoint(tmp_path / "none.pth", device="cpu")


def test_the_network_runs_in_half_precision():
    model = PoseNet.from_config(tiny_config())
    assert Predictor(model, InferenceConfig(height=64), amp="bf16")(np.zeros((64, 64, 3), np.uint8)) == []


@pytest.mark.parametrize("select", ["host", "device"])
def test_the_thresholds_of_the_settings_are_used(select):
    class WeakPartsNetwork(SpotNetwork):
        def heatmaps(self, images):
            maps = super().heatmaps(images)
            maps[:, COCO.part_channels] = 0.5
            return maps

    def keypoints_of_people(**settings):
        predictor = Predictor(WeakPartsNetwork(), InferenceConfig(height=256, **settings), select=select)
        return [person.found.sum() for person in predictor(make_image((480, 640)))]

    assert keypoints_of_people() == [2]
    assert keypoints_of_people(part_threshold=0.6) == [1, 1]
    assert keypoints_of_people(keypoint_threshold=0.999) == []


@pytest.mark.parametrize(("select", "output"), [("host", HostMaps), ("device", DeviceCandidates), (None, HostMaps)])
def test_candidates_are_selected_where_it_was_asked_for_and_else_on_the_cpu_host(select, output):
    predictor = spot_predictor(select, height=128)
    [image] = predictor.run_network(predictor.prepare_inputs([make_image((97, 131))])).fetch()
    assert isinstance(image, output)


@pytest.mark.parametrize("settings", [dict(), dict(flip=True, scales=(1.0, 1.5))], ids=str)
def test_candidates_selected_on_the_device_yield_the_same_people(settings):
    """Nor does either form search the padding: the spots of the last image lie on its edge and reach into it."""
    images = [make_image(size) for size in SPOTS]
    images.append(spot_image(480, 650, (649.0, 100.0), (300.0, 479.0), 15))
    host = spot_predictor(height=256, **settings).batch(images)
    device = spot_predictor(height=256, **settings, select="device").batch(images)
    assert [len(people) for people in device] == [len(people) for people in host] == [1] * 6
    for one, other in zip(host, device):
        np.testing.assert_allclose(other[0].keypoints, one[0].keypoints, atol=0.01)
        assert other[0].score == pytest.approx(one[0].score)


def test_a_stream_reads_images_as_they_are_needed():
    taken = []
    images = [make_image(size) for size in SPOTS for _ in range(4)]

    def source():
        for image in images:
            taken.append(image)
            yield image

    predictor = spot_predictor(height=128, batch_size=2)
    stream = predictor.stream(source())
    first = next(stream)
    assert len(taken) <= 10
    assert [first, *stream] == [predictor(image) for image in images]
    assert len(taken) == len(images)


def test_a_stream_runs_as_many_batches_at_the_same_time_as_the_backend_can():
    class WaitingNetwork(SpotNetwork):
        """Waits until another batch runs too."""

        parallel_runs = 2
        both_run = threading.Barrier(2, timeout=20)

        def heatmaps(self, images):
            self.both_run.wait()
            return super().heatmaps(images)

    images = [make_image(size) for size in SPOTS for _ in range(2)]
    predictor = Predictor(WaitingNetwork(), InferenceConfig(height=128, batch_size=2))
    one_by_one = spot_predictor(height=128, batch_size=2)
    assert list(predictor.stream(images[:8])) == list(one_by_one.stream(images[:8]))


def test_an_error_on_another_thread_reaches_the_caller():
    class WrongChannelsNetwork(nn.Module):
        def heatmaps(self, images):
            return torch.zeros(len(images), 3, 8, 8)

    with pytest.raises(ValueError, match="maps must be"):
        Predictor(WrongChannelsNetwork(), InferenceConfig(height=64))(np.zeros((64, 64, 3), np.uint8))
    with pytest.raises(DataError):
        list(spot_predictor(height=64).stream(iter([np.zeros((64, 64, 3), np.uint8), None])))


def test_paths_pil_images_and_rgb_arrays_yield_the_same_people(tmp_path):
    pil = pytest.importorskip("PIL.Image")
    image = make_image((97, 131))
    path = tmp_path / "a.png"
    cv2.imwrite(str(path), image)
    predictor = spot_predictor(height=128)
    rgb = image[..., ::-1]
    expected = predictor(image)
    assert len(expected) == 1 and expected[0].found.sum() == 2
    assert predictor.batch([path, str(path), pil.open(path), pil.fromarray(rgb)]) == [expected] * 4
    assert predictor(rgb, channels="rgb") == expected != predictor(rgb)
    assert list(predictor.stream([rgb, path], channels="rgb")) == [expected] * 2
    with pytest.raises(DataError, match="missing.png"):
        predictor("missing.png")


def test_a_file_is_read_upright_and_a_pil_image_as_it_is(tmp_path):
    pil = pytest.importorskip("PIL.Image")
    path = tmp_path / "a.jpg"
    path.write_bytes(with_orientation(encode(np.rot90(make_image((97, 131))).copy()), 6))
    predictor = spot_predictor(height=128)
    [upright], [stored] = predictor.batch([path, pil.open(path)])
    nose = SPOTS[97, 131][0]
    np.testing.assert_allclose(upright.keypoints[NOSE, :2], nose, atol=0.5)
    np.testing.assert_allclose(stored.keypoints[NOSE, :2], (nose[1], 131 - 1 - nose[0]), atol=0.5)
