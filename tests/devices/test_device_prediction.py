"""Prediction and evaluation on an accelerator: the people and the AP of the CPU."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import posenet
from posenet.cli.main import run_tool
from posenet.inference.predictor import Predictor
from posenet.person import Person
from posenet.settings import InferenceConfig
from tests.helpers.accelerators import count_host_reads, simulation
from tests.helpers.drawn_data import build_both
from tests.helpers.drawn_people import write_dataset
from tests.helpers.source_files import ROOT
from tests.helpers.spot_networks import LinearSpotNetwork, spot_people_image
from tests.helpers.tiny_training import CPU

HEIGHT = 192
IMAGE_SIZES = [(192, 256), (192, 256), (160, 320), (240, 200), (192, 256)]
FLOAT32_PIXELS = 0.05
REDUCED_PIXELS = 4.0
"""One cell of the maps: bf16 rounds their values to three digits, and a peak's position is interpolated from them."""
AP_TOLERANCE = 0.002
BF16_AP_TOLERANCE = 0.005


@pytest.fixture(scope="module")
def images() -> list[np.ndarray]:
    """Black images with one to three people made of coloured spots."""
    return [spot_people_image(*size, num_people=1 + seed % 3, seed=seed) for seed, size in enumerate(IMAGE_SIZES)]


def make_predictor(device: torch.device, amp: str = "off", **settings: object) -> Predictor:
    """A predictor whose network finds a nose, a neck and a shoulder of each person."""
    options = InferenceConfig(**{"height": HEIGHT, "batch_size": 2} | settings)
    return Predictor(LinearSpotNetwork(), options, device=device, amp=amp, min_score=0)


def assert_same_people(people: list[Person], expected: list[Person], pixels: float) -> None:
    assert len(people) == len(expected)
    for person in people:
        distances = [np.abs(person.keypoints[:, :2] - other.keypoints[:, :2]).max() for other in expected]
        nearest = expected[int(np.argmin(distances))]
        assert min(distances) <= pixels, f"a person is {min(distances):.2f} pixels from all people of the CPU"
        assert (person.found == nearest.found).all()
        assert person.score == pytest.approx(nearest.score, abs=0.02)


@pytest.mark.parametrize("options", [{}, {"scales": (0.75, 1.0), "flip": True}], ids=["plain", "scales and flip"])
def test_a_stream_finds_the_people_that_the_cpu_finds(
    accelerator: torch.device, images: list[np.ndarray], options: dict[str, Any]
) -> None:
    expected = list(make_predictor(CPU, **options).stream(images))
    assert sum(map(len, expected)) == sum(1 + seed % 3 for seed in range(len(images)))
    found = list(make_predictor(accelerator, **options).stream(images))
    for people, expected_people in zip(found, expected, strict=True):
        assert_same_people(people, expected_people, FLOAT32_PIXELS)


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_reduced_precision_finds_a_single_person_where_the_cpu_does(accelerator: torch.device, amp: str) -> None:
    """The spot network has no maps that tell which of several people a keypoint belongs to."""
    image = spot_people_image(192, 256, num_people=1)
    people = make_predictor(accelerator, amp)(image)
    assert_same_people(people, make_predictor(CPU)(image), REDUCED_PIXELS)


def test_a_batch_is_averaged_on_the_device_with_a_single_synchronization(
    accelerator: torch.device, images: list[np.ndarray]
) -> None:
    """Not all images fill the width of the input, and each has another ratio of the scales."""
    settings: dict[str, Any] = {"scales": (0.5, 1.0, 1.5), "flip": True}
    different = [images[0], images[1][:, :250], images[4][:, :230]]
    predictor = make_predictor(accelerator, **settings)
    predictor.start_network(predictor.prepare_inputs(different))()  # the first use of a device may wait for it
    with count_host_reads(accelerator) as launching:
        pending = predictor.start_network(predictor.prepare_inputs(different))
    assert not launching, f"the thread that starts kernels waited: {launching}"
    with count_host_reads(accelerator) as waiting:
        maps = pending()
    assert waiting.total() <= 1, f"the host waited several times: {waiting}"
    cpu = make_predictor(CPU, **settings)
    expected = cpu.start_network(cpu.prepare_inputs(different))()
    for maps_of_image, expected_maps in zip(maps, expected, strict=True):
        np.testing.assert_allclose(maps_of_image, expected_maps, atol=1e-4)


def test_a_module_may_write_to_the_same_tensor_again(accelerator: torch.device, images: list[np.ndarray]) -> None:
    class ReusingNetwork(LinearSpotNetwork):
        def __init__(self) -> None:
            super().__init__()
            self.maps: dict[torch.Size, torch.Tensor] = {}

        def heatmaps(self, images: torch.Tensor) -> torch.Tensor:
            maps = super().heatmaps(images)
            return self.maps.setdefault(maps.shape, maps).copy_(maps)

    predictor = Predictor(ReusingNetwork(), InferenceConfig(height=HEIGHT), device=accelerator)
    expected = make_predictor(CPU)
    pending = [predictor.start_network(predictor.prepare_inputs([image])) for image in images[:2]]
    for maps, image in zip(pending, images[:2], strict=True):
        [maps_of_cpu] = expected.start_network(expected.prepare_inputs([image]))()
        np.testing.assert_allclose(maps()[0], maps_of_cpu, atol=1e-4)


def test_the_ap_of_a_trained_network_is_that_of_the_cpu(accelerator: torch.device, tmp_path: Path) -> None:
    """A simulated accelerator is too slow for a network that finds people; there the test only shows that it runs."""
    is_simulated = simulation() is not None
    num_images, steps = (8, 2) if is_simulated else (400, 800)
    coco = tmp_path / "coco"
    write_dataset(coco, train=num_images, val=num_images // 4, seed=1)
    stores = build_both(coco)
    settings = [f"data.{split}={str(path)!r}" for split, path in stores.items()]
    options = ["--device", str(accelerator), "--max-steps", str(steps), "--checkpoint-path", str(tmp_path / "run")]
    assert run_tool("train", ["--config", str(ROOT / "config" / "demo.toml"), *options, "--set", *settings]) == 0

    def compute_ap(device: torch.device, amp: Literal["off", "bf16"]) -> float:
        annotations = coco / "annotations" / "person_keypoints_val2017.json"
        checkpoint = tmp_path / "run" / "last.pth"
        evaluation = posenet.evaluate(
            checkpoint, coco / "val2017", annotations, device=str(device), amp=amp, progress=False
        )
        return evaluation.metrics["AP"]

    expected = compute_ap(CPU, "off")
    assert is_simulated or expected > 0.1, "the network has not learned to find people: look at the training"
    assert compute_ap(accelerator, "off") == pytest.approx(expected, abs=AP_TOLERANCE)
    assert compute_ap(accelerator, "bf16") == pytest.approx(expected, abs=BF16_AP_TOLERANCE)
