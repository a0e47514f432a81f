"""``Predictor``: what it accepts, and where it finds people."""

import dataclasses
import io
import math
import multiprocessing
import pickle
import re
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import cv2
import numpy as np
import pytest
import torch
from torch import nn

from posenet.errors import CheckpointError, ConfigError, DataError
from posenet.inference.averaging import Letterbox
from posenet.inference.predictor import Predictor
from posenet.model.fused import FusedNetwork
from posenet.settings import Config, InferenceConfig, load_config
from posenet.skeleton import COCO
from tests.helpers.image_bytes import encode
from tests.helpers.networks import random_network, tiny_network, write_checkpoint
from tests.helpers.spot_networks import NECK, NOSE, LinearSpotNetwork, SpotNetwork, spot_image, spot_people_image
from tests.helpers.videos import write_animation

SPOTS = {  # height, width: nose, neck, radius
    (480, 640): ((300.0, 100.0), (310.0, 250.0), 12),
    (427, 640): ((600.3, 80.0), (500.0, 300.7), 12),
    (640, 425): ((30.0, 100.2), (300.6, 280.0), 12),
    (97, 131): ((40.2, 20.0), (90.0, 60.4), 4),
    (1500, 1010): ((400.5, 300.0), (600.0, 700.5), 40),
}


def spot_predictor(**settings):
    return Predictor(SpotNetwork(), InferenceConfig(**settings), min_score=0)


def make_image(size):
    """The image of SPOTS of this (height, width)."""
    return spot_image(*size, *SPOTS[size])


@pytest.mark.parametrize(
    "settings",
    [dict(), dict(flip=True), dict(scales=(0.5, 1.0, 1.5)), dict(scales=(2.0, 1.0), flip=True), dict(height=320)],
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


def test_people_do_not_depend_on_the_other_images_of_a_batch():
    images = [make_image(size) for size in SPOTS]
    images += [images[0][:, ::-1].copy(), images[1], np.zeros((100, 100, 3), np.uint8)]
    predictor = spot_predictor(height=192, scales=(1.0, 1.5), flip=True, batch_size=3)
    together = list(predictor.stream(images))
    assert together == [predictor(image) for image in images]
    assert [len(people) for people in together] == [1] * 7 + [0]
    assert list(predictor.stream([])) == []


def test_a_skeleton_that_lets_nothing_be_mirrored_turns_flip_off_and_says_so_when_it_is_asked_for(caplog):
    still = dataclasses.replace(COCO, mirror=False)
    network = SpotNetwork()
    for options, warnings in ((dict(settings=InferenceConfig(flip=True)), 0), (dict(flip=True), 1)):
        caplog.clear()
        predictor = Predictor(network, skeleton=still, **options)
        assert not predictor.settings.flip and len(caplog.records) == warnings
    assert Predictor(network, flip=True).settings.flip


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
def test_the_network_input_stays_below_the_limits(shape, monkeypatch):
    monkeypatch.setattr("posenet.inference.averaging.MAX_WIDTH", 700)
    network = SpotNetwork()
    settings = InferenceConfig(height=512, scales=(1.0, 4.0), max_height=600)
    assert Predictor(network, settings)(np.zeros(shape, np.uint8)) == []
    assert all(64 <= height <= 600 and 64 <= width <= 700 for _, _, height, width in network.shapes)


def test_an_image_is_resized_to_the_height_times_the_scale(monkeypatch):
    monkeypatch.setattr("posenet.inference.averaging.MAX_WIDTH", 2000)
    settings = InferenceConfig(height=128)
    assert Letterbox.fit((480, 640), settings) == Letterbox(resized=(128, 171), padded=(128, 192))
    assert Letterbox.fit((480, 640), settings, 0.5) == Letterbox(resized=(64, 85), padded=(64, 128))
    assert Letterbox.fit((2, 70000), settings) == Letterbox(resized=(1, 1984), padded=(64, 1984))


def test_one_image_may_be_streamed_and_an_array_of_images_is_several(tmp_path):
    pil = pytest.importorskip("PIL.Image")
    predictor = spot_predictor(height=64)
    image = make_image((97, 131))
    path = tmp_path / "a.png"
    cv2.imwrite(str(path), image)
    expected = predictor(image)
    rgb = image[..., ::-1]
    assert predictor(rgb, channels="rgb") == expected != predictor(rgb)
    assert predictor([rgb], "rgb") == list(predictor.stream([rgb], "rgb")) == [expected]
    for one in (image, path, str(path), [image], (path,), pil.open(path)):
        assert list(predictor.stream(one)) == [expected]
    for several in (np.stack([image] * 3), np.array([str(path)] * 3), (path for _ in range(3))):
        assert list(predictor.stream(several)) == [expected] * 3
    assert predictor([image, str(path)]) == [expected] * 2 and predictor([]) == []
    with pytest.raises(DataError, match="missing.png"):
        predictor("missing.png")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (bytearray(b"\xff\xd8\xff"), "cannot be decoded"),
        (np.ones((40, 60, 3)), r"astype\(.uint8.\)"),
        ("x" * 300 + ".png", "File name too long"),
    ],
)
def test_what_is_no_input_is_refused_and_among_others_a_result(wrong, message):
    predictor = spot_predictor(height=64)
    with pytest.raises(DataError, match=message):
        predictor(wrong)
    with pytest.raises(DataError, match=message):
        next(predictor.stream(wrong))
    image = make_image((97, 131))
    results = list(predictor.stream([wrong, image]))
    assert re.search(message, str(results[0].error)) and results[1] == predictor(image)


def test_a_checkpoint_has_its_configuration_and_overrides_change_it(tmp_path):
    path = write_checkpoint(tmp_path / "tiny.pth", "inference.height=64", "inference.flip=true")
    predictor = Predictor(path, device=torch.device("cpu"), batch_size=2, backend="torch")
    assert predictor.settings == InferenceConfig(height=64, flip=True, batch_size=2)
    images = torch.rand(1, 3, 64, 64)
    predictor = Predictor(str(path), device="cpu", amp="off", backend="torch")
    expected = random_network(1).eval().heatmaps(images)
    torch.testing.assert_close(predictor.network.network.heatmaps(images), expected, rtol=1e-4, atol=1e-4)
    other = load_config(None, ["model.stacks=1", "model.width=16", "model.growth=2", "inference.height=128"])
    assert Predictor(path, config=other, device="cpu", backend="torch").settings.height == 128
    with pytest.raises(CheckpointError):
        Predictor(tmp_path / "none.pth", device="cpu")


@pytest.mark.parametrize("shape", [(1, 3, 16, 16), (2, 50, 16, 16), (1, 50, 8, 8), (1, 50, 16)])
def test_maps_of_another_shape_are_refused(shape):
    predictor = Predictor(lambda images: np.zeros(shape, np.float32), InferenceConfig(height=64))
    with pytest.raises(ValueError, match=r"\(1, 50, 16, 16\)"):
        predictor(np.zeros((64, 64, 3), np.uint8))


def test_a_network_that_overflows_is_an_error_and_not_an_image_without_people():
    predictor = Predictor(lambda images: np.full((1, 50, 32, 32), np.inf, np.float32), InferenceConfig(height=128))
    image = np.zeros((128, 128, 3), np.uint8)
    for predict in (predictor, lambda image: list(predictor.stream([image]))):
        with pytest.raises(DataError, match="NaN or infinite.*amp off"):
            predict(image)


def test_a_module_with_a_parameter_that_is_not_finite_is_refused():
    network = tiny_network(stacks=1)
    with torch.no_grad():
        network.stem.entry.conv.weight[0, 0, 0, 0] = np.nan
    for module in (network, FusedNetwork(network)):
        with pytest.raises(CheckpointError, match=r"stem\.entry\.conv\.weight"):
            Predictor(module)


@pytest.mark.parametrize("amp, expected", [(None, "off"), ("auto", "bf16"), ("fp16", "fp16")])
def test_a_module_computes_in_float32_unless_told_otherwise(monkeypatch, amp, expected):
    monkeypatch.setattr("posenet.devices.precision.computes_in_bf16", lambda device: device.type == "cpu")
    assert Predictor(SpotNetwork(), amp=amp).network.amp == expected


def test_people_with_low_scores_are_left_out():
    image = make_image((480, 640))
    [person] = spot_predictor(height=128)(image)
    assert not spot_predictor(height=128, keypoint_threshold=0.999)(image)
    for min_score, count in ((person.score - 1e-6, 1), (person.score + 1e-6, 0)):
        assert len(Predictor(SpotNetwork(), InferenceConfig(height=128), min_score=min_score)(image)) == count
    for wrong in (math.nan, -0.1, 1.1, "0.5", None):
        with pytest.raises(ConfigError, match="min_score"):
            Predictor(SpotNetwork(), min_score=wrong)


def test_maps_are_those_of_the_image_without_its_padding():
    maps = Predictor(SpotNetwork(), InferenceConfig(height=100), keep_maps=True)(make_image((97, 131))).maps
    assert maps.shape == (50, 25, 34)
    y, x = np.unravel_index(maps[COCO.keypoint_channels][NOSE].argmax(), maps.shape[1:])
    np.testing.assert_allclose((x * 4 + 1.5, y * 4 + 1.5), np.array(SPOTS[97, 131][0]) * 100 / 97, atol=2.5)


@pytest.mark.parametrize(
    "overrides, message",
    [
        ({"scale": 1.0}, "inference.scale .did you mean scales"),
        ({"conf": 0.5}, "min_score.*inference.conf"),
        ({"height": "large"}, "inference.height must be of type int, not 'large'"),
        ({"height": 60_000, "config": Config()}, "inference.max_height"),
        ({"scales": [1, [2]]}, "scales"),
    ],
)
def test_wrong_overrides_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        Predictor("not-read.pth", device="cpu", **overrides)


@pytest.mark.parametrize("name", ["a\0b.jpg", "x" * 100_000, ""])
def test_a_text_that_is_no_name_of_a_file_is_refused_in_short(name: str) -> None:
    with pytest.raises(DataError) as caught:
        Predictor(SpotNetwork())(name)
    assert len(str(caught.value)) < 1000


def test_a_height_may_be_above_the_default_limit_where_the_settings_raise_it() -> None:
    """Those of the caller, or those of the file, which are not known before it is read."""
    config = load_config(None, ["inference.max_height=4000"])
    assert Predictor(SpotNetwork(), config=config, height=3000).settings.height == 3000
    with pytest.raises(CheckpointError, match="not-there.pth"):
        Predictor("not-there.pth", height=3000)
    with pytest.raises(ConfigError, match="inference.max_height 2600"):
        Predictor(SpotNetwork(), height=3000)


@pytest.mark.parametrize("backend", ["torch", "openvino", "onnxruntime"])
def test_threads_share_a_predictor(request, backend):
    """Each of several threads predicts its own image again and again, all at the same time."""
    pytest.importorskip(backend)
    options = {"height": 64, "flip": True, "device": "cpu", "amp": "off", "min_score": 0, "backend": backend}
    network = LinearSpotNetwork() if backend == "torch" else request.getfixturevalue("spot_file")
    predictor = Predictor(network, **options)
    images = [
        spot_people_image(height, width, num_people, seed)
        for seed, (height, width, num_people) in enumerate([(192, 256, 1), (192, 256, 2), (128, 300, 3), (256, 192, 1)])
    ]
    expected = [predictor(image) for image in images]
    assert [len(people) for people in expected] == [1, 2, 3, 1]
    with ThreadPoolExecutor(4) as threads:
        futures = [threads.submit(predictor, images[number % len(images)]) for number in range(40)]
    for number, future in enumerate(futures):
        assert future.result() == expected[number % len(images)]


def test_what_is_no_network_is_refused_at_once():
    for network, message in ((None, "NoneType"), ({"weights": 1}, "dict"), (nn.Conv2d(3, 50, 1), "Conv2d.*heatmaps")):
        with pytest.raises(ConfigError, match=message):
            Predictor(network)
    with pytest.raises(ConfigError, match="openvino"):
        Predictor(SpotNetwork(), backend="openvino")


def test_a_damaged_image_is_a_result_with_an_error(tmp_path, caplog):
    damaged = {0, 5, 8, 9, 10, 11, 20}
    good = [make_image((97, 131)), make_image((480, 640))]
    images = [tmp_path / f"{number}.jpg" if number in damaged else good[number % 2] for number in range(21)]
    results = list(spot_predictor(height=64, batch_size=4).stream([*images, None, np.zeros((5, 5))]))
    assert [len(result) for result in results] == [int(number not in damaged) for number in range(21)] + [0, 0]
    for number, result in enumerate(results[:21]):
        assert (result.error is not None) == (number in damaged)
        if number in damaged:
            assert f"{number}.jpg" in str(result.error) and result.path == str(images[number])
    assert all("an image must be" in str(result.error) for result in results[21:])
    assert caplog.text.count("WARNING") == len(damaged) + 2


@pytest.mark.parametrize("x, y", [(129.6, 50.0), (60.0, 95.7)])
def test_keypoints_at_the_right_and_the_bottom_border_are_exact(x, y):
    """The last cell of the image shows one pixel of it; the position needs the next cell too."""

    def network(images):
        height, width = images.shape[1] // 4, images.shape[2] // 4
        maps = np.zeros((len(images), 50, height, width), np.float32)
        rows, columns = np.mgrid[:height, :width] * 4 + 1.5
        maps[:, COCO.num_parts + NOSE] = np.exp(((columns - x) ** 2 + (rows - y) ** 2) / (-2 * 9**2))
        return maps

    [person] = Predictor(network, InferenceConfig(height=97), min_score=0)(np.zeros((97, 131, 3), np.uint8))
    np.testing.assert_allclose(person.keypoints[NOSE, :2], (x, y), atol=0.01)


def test_arrays_that_are_written_to_again_are_not_mixed_up():
    images = [spot_image(192, 256, (40 + 20 * number, 60), (40 + 20 * number, 120), 7) for number in range(6)]
    frame = np.zeros_like(images[0])

    def read_frames():
        for image in images:
            frame[:] = image
            yield frame

    found = Predictor(SpotNetwork(), height=192, batch_size=4).stream(read_frames())
    assert [round(float(person.keypoints[NOSE, 0])) for (person,) in found] == [40 + 20 * number for number in range(6)]


def test_files_in_memory_are_images_alone_and_among_others():
    image = make_image((97, 131))
    data = encode(image, ".png")
    predictor = spot_predictor(height=64)
    expected = predictor(image)
    assert len(expected) == 1 and predictor(data) == expected
    assert list(predictor.stream([data, io.BytesIO(data), np.frombuffer(data, np.uint8)])) == [expected] * 3
    assert list(predictor.stream(data)) == list(predictor.stream(io.BytesIO(data))) == [expected]


def find_people(pickled, image):
    """What a spawned process returns."""
    return pickle.loads(pickled)(image).to_dicts()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["module", "onnxruntime", "openvino", "checkpoint", "converted"])
def test_a_predictor_can_be_sent_to_a_spawned_process(kind, spot_file, tmp_path):
    image = spot_image(97, 131, (40, 20), (90, 60), 4)
    if kind == "module":
        predictor = spot_predictor(height=64)
    elif kind in ("checkpoint", "converted"):
        path = write_checkpoint(tmp_path / "a.pth")
        backend = "onnxruntime" if kind == "converted" else "torch"
        predictor = Predictor(path, height=64, min_score=0, keypoint_threshold=0.01, backend=backend, amp="off")
    else:
        pytest.importorskip(kind)
        predictor = Predictor(spot_file, height=64, min_score=0, backend=kind)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(find_people, pickle.dumps(predictor), image).result(120)
    assert found == predictor(image).to_dicts()
    assert found or kind in ("checkpoint", "converted")


def test_what_is_no_single_image_names_the_stream(tmp_path):
    (tmp_path / "clip.mp4").write_bytes(b"anything")
    write_animation(tmp_path / "several.gif", 3)
    for name in (".", "clip.mp4", "several.gif"):
        with pytest.raises(DataError, match=r"predictor\.stream\("):
            spot_predictor(height=64)(tmp_path / name)
    assert spot_predictor(height=64)(write_animation(tmp_path / "one.gif", 1)).image.shape == (48, 64, 3)
