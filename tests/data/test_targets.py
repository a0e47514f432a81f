"""Target maps: measured ones, batches and unusual input."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import minimum_filter
from torch import Tensor

from posenet.data.targets import TargetRenderer
from posenet.settings import TargetsConfig, load_config
from posenet.skeleton import COCO
from posenet.training.loss import foreground_of

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(autouse=True, params=["lists of cells", "whole maps"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a CPU render with the implementation for accelerators too, in the second run of every test."""
    if request.param == "whole maps":
        monkeypatch.setattr(TargetRenderer, "sparse_parts", TargetRenderer.dense_parts)
        monkeypatch.setattr(TargetRenderer, "sparse_keypoints", TargetRenderer.dense_keypoints)


def render(joints: np.ndarray | Tensor, mask: np.ndarray | Tensor) -> Tensor:
    return TargetRenderer(TargetsConfig(), COCO)(torch.as_tensor(joints), torch.as_tensor(mask))


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


def assert_equals_measured(path: Path, height: int = 128, width: int = 128) -> None:
    """Cells do not depend on the size of the map, but for the person mask, which is eroded inside it."""
    measured = np.load(path)
    mask = measured["person_mask"][:height, :width] * np.random.default_rng(0).random((height, width), np.float32)
    maps = render(measured["joints18"][None], mask[None])[0]
    expected = measured["maps"][:, :height, :width].astype(np.float32)
    expected[48] = minimum_filter(mask, 3, mode="nearest")
    np.testing.assert_allclose(maps.numpy(), expected, atol=5e-4)


@pytest.mark.parametrize("size", [(128, 128), (90, 128), (128, 70)])
def test_maps_equal_the_measured_ones_of_generated_cases(size: tuple[int, int]) -> None:
    assert_equals_measured(FIXTURES / "targets_generated.npz", *size)


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


def test_people_are_combined_and_a_part_of_no_length_has_no_map() -> None:
    """Keypoints by the maximum, body parts by the mean over those whose rectangle covers the cell."""
    one = random_joints(np.random.default_rng(1), 2, 128, 128)
    point = one[:1].copy()
    point[..., :2] = (62, 66)
    point[..., 2] = 2
    mask = np.ones((1, 32, 32), np.float32)
    first, second, together, alone = (
        render(joints[None], mask)[0] for joints in (one[:1], one[1:], np.concatenate([one, point]), point)
    )
    assert not alone[:30].any() and alone[30:48, 16, 15].min() > 0.99
    torch.testing.assert_close(together[30:48], torch.stack([first, second, alone])[:, 30:48].amax(0))
    count = (first[:30] > 0).int() + (second[:30] > 0)
    torch.testing.assert_close(together[:30], (first + second)[:30] / count.clamp(min=1))


def test_parts_of_a_crowd_stay_foreground_for_the_loss() -> None:
    joints = random_joints(np.random.default_rng(14), 14, 128, 128)
    joints[..., 2] = 2
    parts = render(joints[None], np.zeros((1, 32, 32)))[0, : len(COCO.parts)]
    assert ((parts > 0) == foreground_of(parts).bool()).all()


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
