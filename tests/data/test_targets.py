"""Target maps: measured ones, a slow reference, batches and unusual input."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from posenet.data.targets import TargetRenderer
from posenet.settings import TargetsConfig, load_config
from posenet.skeleton import COCO

FIXTURES = Path(__file__).parents[1] / "fixtures"
KEYPOINT_SIGMA = 9
PART_SIGMA = 7
MARGIN = 4
THRESHOLD = 0.015
FLOOR = 0.01
STRIDE = 4


@pytest.fixture(autouse=True, params=["lists of cells", "whole maps"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a CPU render with the implementation for accelerators too, in the second run of every test."""
    if request.param == "whole maps":
        monkeypatch.setattr(TargetRenderer, "sparse_parts", TargetRenderer.dense_parts)
        monkeypatch.setattr(TargetRenderer, "sparse_keypoints", TargetRenderer.dense_keypoints)


def render(joints: np.ndarray | Tensor, mask: np.ndarray | Tensor) -> Tensor:
    return TargetRenderer(TargetsConfig(), COCO)(torch.as_tensor(joints), torch.as_tensor(mask))


def keypoint_reference(joints: np.ndarray, height: int, width: int) -> np.ndarray:
    """(18, h, w): the Gaussian of every keypoint, computed cell by cell."""
    maps = np.zeros((18, height, width))
    reach = math.ceil(math.sqrt(-2 * KEYPOINT_SIGMA**2 * math.log(THRESHOLD)) / STRIDE)
    assert reach == 7
    for person in joints:
        for k, (u, v, visibility) in enumerate(person):
            if visibility <= 0:
                continue
            column, row = round(u / STRIDE), round(v / STRIDE)
            for y in range(max(0, row - reach), min(height, row + reach + 1)):
                for x in range(max(0, column - reach), min(width, column + reach + 1)):
                    squared = (4 * x + 1.5 - u) ** 2 + (4 * y + 1.5 - v) ** 2
                    maps[k, y, x] = max(maps[k, y, x], math.exp(-squared / (2 * KEYPOINT_SIGMA**2)))
    return maps


def part_reference(joints: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(30, h, w): the response of every part, computed cell by cell; and whether it lies exactly at the threshold."""
    maps, undecided = np.zeros((30, height, width)), np.zeros((30, height, width), bool)
    for b, (one, other) in enumerate(COCO.part_ends):
        total, covering = np.zeros((height, width)), np.zeros((height, width))
        for person in joints:
            (x1, y1, v1), (x2, y2, v2) = person[one], person[other]
            length = math.hypot(x2 - x1, y2 - y1)
            if min(v1, v2) <= 0 or length == 0:
                continue
            left, right = round((min(x1, x2) - MARGIN) / STRIDE), round((max(x1, x2) + MARGIN) / STRIDE)
            top, bottom = round((min(y1, y2) - MARGIN) / STRIDE), round((max(y1, y2) + MARGIN) / STRIDE)
            for y in range(max(0, top), min(height - 1, bottom) + 1):
                for x in range(max(0, left), min(width - 1, right) + 1):
                    px, py = 4 * x + 1.5, 4 * y + 1.5
                    distance = abs((x2 - x1) * (py - y1) - (y2 - y1) * (px - x1)) / length
                    response = math.exp(-(distance**2) / (2 * PART_SIGMA**2))
                    undecided[b, y, x] |= abs(response - THRESHOLD) < 1e-5
                    total[y, x] += FLOOR if response <= THRESHOLD else response
                    covering[y, x] += 1
        maps[b] = total / np.maximum(covering, 1)
    return maps, undecided


def mask_reference(mask: np.ndarray) -> np.ndarray:
    """(h, w): the smallest value among a cell and its neighbours inside the map."""
    height, width = mask.shape
    return np.array(
        [[mask[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2].min() for x in range(width)] for y in range(height)]
    )


def random_joints(rng: np.random.Generator, people: int, height: int, width: int) -> np.ndarray:
    """(P, 18, 3) float32: a fifth unlabelled, many outside, many at half pixels or half cells."""
    joints = np.zeros((people, 18, 3), np.float32)
    joints[..., 0] = rng.uniform(-0.4 * width, 1.4 * width, (people, 18))
    joints[..., 1] = rng.uniform(-0.4 * height, 1.4 * height, (people, 18))
    halves = rng.random((people, 18)) < 0.4
    joints[halves, :2] = np.round(joints[halves, :2] * 2) / 2
    half_cells = rng.random((people, 18)) < 0.2
    joints[half_cells, :2] = np.round(joints[half_cells, :2] / 4) * 4 + 2
    joints[..., 2] = rng.choice([0, 1, 2], (people, 18), p=[0.2, 0.3, 0.5])
    return joints


def assert_equals_reference(joints: np.ndarray, mask: np.ndarray) -> None:
    maps = render(joints[None], mask[None])[0].numpy()
    height, width = mask.shape
    exact = joints.astype(float)
    keypoints = keypoint_reference(exact, height, width)
    parts, undecided = part_reference(exact, height, width)
    np.testing.assert_allclose(maps[30:48], keypoints, atol=1e-5)
    np.testing.assert_allclose(np.where(undecided, parts, maps[:30]), parts, atol=1e-5)
    np.testing.assert_allclose(maps[48], mask_reference(mask), atol=1e-6)
    np.testing.assert_allclose(maps[49], keypoints.max(0), atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_maps_equal_the_slow_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    height, width = (32, 48) if seed % 2 else (48, 32)
    mask = rng.random((height, width)).astype(np.float32)
    assert_equals_reference(random_joints(rng, 3, 4 * height, 4 * width), mask)


def test_maps_of_crowded_and_coincident_people_equal_the_slow_reference() -> None:
    rng = np.random.default_rng(9)
    joints = random_joints(rng, 5, 128, 128)
    joints[1] = joints[0]
    joints[2, :, :2] = joints[0, :, :2] + 3
    joints[3, 1] = joints[3, 0]  # the part neck-nose has no length
    joints[4, :, :2] = (62, 66)  # half-way cells, and no part has a length
    joints[:, :2, 2] = 2
    assert_equals_reference(joints, np.ones((32, 32), np.float32))


def assert_equals_measured(path: Path) -> None:
    measured = np.load(path)
    maps = render(measured["joints18"][None], measured["person_mask"][None])[0]
    np.testing.assert_allclose(maps.numpy(), measured["maps"].astype(np.float32), atol=5e-4)


def test_maps_equal_the_measured_ones_of_generated_cases() -> None:
    assert_equals_measured(FIXTURES / "targets_generated.npz")


def test_maps_equal_the_measured_ones_of_real_images(parity: Path) -> None:
    for number in range(3):
        assert_equals_measured(parity / f"targets_{number}.npz")


def test_from_config_applies_every_setting() -> None:
    settings = "keypoint_sigma=3 part_sigma=2"
    config = load_config(None, [f"targets.{setting}" for setting in settings.split()])
    renderer = TargetRenderer.from_config(config)
    joints = np.zeros((1, 1, 18, 3), np.float32)
    joints[0, 0, :2] = [[21.5, 29.5, 2], [41.5, 29.5, 2]]  # nose, neck: cells 5 and 10 of row 7
    maps = renderer(torch.from_numpy(joints), torch.ones(1, 16, 16))[0]
    assert maps[30, 7, 6] == pytest.approx(math.exp(-16 / 18))
    assert maps[0, 8, 8] == pytest.approx(math.exp(-16 / 8))


def test_a_batch_equals_its_samples_one_by_one() -> None:
    rng = np.random.default_rng(3)
    joints = np.stack([random_joints(rng, 4, 128, 128) for _ in range(3)])
    masks = rng.random((3, 32, 32)).astype(np.float32)
    batch = render(joints, masks)
    assert batch.shape == (3, 50, 32, 32) and batch.dtype == torch.float32
    for i, maps in enumerate(batch):
        torch.testing.assert_close(render(joints[i : i + 1], masks[i : i + 1])[0], maps, rtol=0, atol=0)


def test_padding_rows_and_which_labelled_keypoints_are_visible_change_nothing() -> None:
    joints = random_joints(np.random.default_rng(4), 2, 128, 128)[None]
    padded = np.concatenate([joints, np.zeros((1, 3, 18, 3), np.float32)], axis=1)
    visible = np.concatenate([joints[..., :2], np.sign(joints[..., 2:])], axis=-1)
    mask = np.ones((1, 32, 32), np.float32)
    for same in (padded, visible):
        torch.testing.assert_close(render(same, mask), render(joints, mask), rtol=0, atol=0)


@pytest.mark.parametrize("far", [1e4, 1e30])
def test_far_away_keypoints_leave_finite_maps(far: float) -> None:
    rng = np.random.default_rng(7)
    joints = random_joints(rng, 4, 128, 128)[None]
    joints[0, 0, ::2, 0] += far
    joints[0, 1, ::2, 0] -= far
    joints[0, 2, :, :2] += far
    joints[0, 3, :, :2] -= far
    maps = render(joints, np.ones((1, 32, 32), np.float32))
    assert torch.isfinite(maps).all() and maps.min() >= 0 and maps.max() <= 1


def test_many_people_are_rendered_in_groups_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    joints = torch.from_numpy(np.stack([random_joints(np.random.default_rng(seed), 5, 128, 128) for seed in range(2)]))
    renderer = TargetRenderer(TargetsConfig(), COCO)
    expected = [renderer.dense_parts(joints, 32, 32), renderer.dense_keypoints(joints, 32, 32)]
    group_sizes = []
    amax = Tensor.amax
    monkeypatch.setattr(Tensor, "amax", lambda maps, axis: group_sizes.append(maps.shape[axis]) or amax(maps, axis))
    monkeypatch.setattr(TargetRenderer, "MAX_CELLS", 2 * 2 * 30 * 32 * 32)  # two people of the 30 parts of both samples
    parts = renderer.dense_parts(joints, 32, 32)
    keypoints = renderer.dense_keypoints(joints, 32, 32)
    assert group_sizes == [3, 2]  # three people of the 18 keypoints fit
    torch.testing.assert_close(parts, expected[0])
    assert torch.equal(keypoints, expected[1])


def test_joints_of_another_skeleton_are_refused() -> None:
    renderer = TargetRenderer.from_config(load_config("tiny"))
    with pytest.raises(ValueError, match=r"\(N, P, 18, 3\), not \(1, 2, 133, 3\)"):
        renderer(torch.zeros(1, 2, 133, 3), torch.zeros(1, 32, 32))
