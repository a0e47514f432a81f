"""Maps as an imperfect network would predict them: target maps of annotated people, degraded at random."""

from dataclasses import dataclass, replace

import cv2
import numpy as np
import torch

from posenet.data.targets import TargetRenderer
from posenet.settings import MAP_STRIDE

MISSED_RESPONSE = (0.0, 0.15)
"""Range of the response at a keypoint, or along a part, that was not found."""
FALSE_RESPONSE = (0.1, 0.4)
"""Range of the response at a false peak."""


@dataclass(frozen=True)
class Degradation:
    """The errors of a network. Map values are between 0 and 1."""

    strength: float = 0.7
    """Mean response at a keypoint, or along a part, that was found."""
    missing: float = 0.08
    """Share of the keypoints and of the parts that were not found."""
    faded: float = 0.5
    """Factor for the response of a part that is close to the same part of another person."""
    jitter: float = 0.0135
    """Standard deviation of the error of a keypoint's position, as a share of the person's size."""
    width: float = 1.25
    """The Gaussians are between 1 / width and width times as wide as in the targets."""
    ripple: float = 0.03
    """Standard deviation of smooth noise in every map."""
    confused: float = 0.25
    """Share of the left or right keypoints that also cause a false peak in the map of the other side."""
    blobs: float = 0.25
    """Mean number of false peaks in a keypoint map at random positions."""


def degraded_maps(
    joints: np.ndarray,
    size: tuple[int, int],
    renderer: TargetRenderer,
    rng: np.random.Generator,
    degradation: Degradation = Degradation(),
) -> np.ndarray:
    """Render people and degrade the maps. The person mask stays empty.

    Args:
        joints: (P, K, 3) x, y in network-input pixels and visibility.
        size: (h, w) of the maps, in cells. The result is (C, h, w) float32 in [0, 1].
    """
    return _Degrader(renderer, rng, degradation).degrade(joints, size)


class _Degrader:
    """Degrades maps with one sequence of random numbers."""

    def __init__(self, renderer: TargetRenderer, rng: np.random.Generator, degradation: Degradation) -> None:
        self.renderer = renderer
        self.skeleton = renderer.skeleton
        self.keypoint_sigma = renderer.settings.keypoint_sigma
        self.part_sigma = renderer.settings.part_sigma
        self.rng = rng
        self.degradation = degradation

    def degrade(self, joints: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """See ``degraded_maps``."""
        is_labelled = joints[..., 2:] > 0
        high = joints[..., :2].max(1, where=is_labelled, initial=0)
        low = joints[..., :2].min(1, where=is_labelled, initial=np.inf)
        extent = high - low  # -inf where nothing is labelled
        person_size = np.where(np.isfinite(extent), extent, 0).max(1)[:, None, None]
        parts = self.render(joints, person_size, self.degradation.jitter / 2, size)
        maps = self.render(joints, person_size, self.degradation.jitter, size)
        maps[self.skeleton.part_channels] = parts[self.skeleton.part_channels]
        for person in joints:
            self.weaken_responses(maps, person, joints)
        keypoint_maps = maps[self.skeleton.keypoint_channels]
        self.confuse_sides(keypoint_maps, joints)
        for channel in keypoint_maps:
            for _ in range(self.rng.poisson(self.degradation.blobs)):
                self.add_false_peak(channel, self.rng.random(2) * size[::-1])
        maps += self.degradation.ripple * self.smooth_noise((len(maps), *size))
        maps[-2] = 0  # person mask
        maps[-1] = keypoint_maps.max(0)  # keypoint foreground
        return maps.clip(0, 1)

    def render(self, joints: np.ndarray, person_size: np.ndarray, jitter: float, size: tuple[int, int]) -> np.ndarray:
        """Target maps of keypoints at inexact positions, with Gaussians that are too wide or too narrow."""
        joints = joints.astype(np.float32)
        shift = self.rng.standard_normal(joints[..., :2].shape) * jitter * person_size
        joints[..., :2] += shift.astype(np.float32)
        factor = self.degradation.width ** self.rng.uniform(-1, 1)
        settings = replace(
            self.renderer.settings, keypoint_sigma=self.keypoint_sigma * factor, part_sigma=self.part_sigma * factor
        )
        renderer = TargetRenderer(settings, self.skeleton)
        return np.asarray(renderer(torch.from_numpy(joints)[None], torch.zeros(1, *size))[0])

    def weaken_responses(self, maps: np.ndarray, person: np.ndarray, everyone: np.ndarray) -> None:
        """Scale down the response at each keypoint and along each part of one person."""
        is_labelled = person[:, 2] > 0
        for k in np.flatnonzero(is_labelled):
            channel = maps[self.skeleton.num_parts + k]
            _scale_along_line(channel, person[k, :2], person[k, :2], self.random_response(), 2 * self.keypoint_sigma)
        width = 2 * self.part_sigma
        for channel, (a, b) in zip(maps, self.skeleton.part_ends):
            if is_labelled[a] and is_labelled[b]:
                start = person[a, :2]
                stop = person[b, :2]
                has_part = (everyone[:, [a, b], 2] > 0).all(1)
                centres = everyone[has_part][:, [a, b], :2].mean(1)  # of this part of all people
                distances = np.hypot(*(centres - (start + stop) / 2).T)
                is_crowded = (distances < np.hypot(*(stop - start)) + width).sum() > 1  # the person itself is one
                share = self.random_response() * (self.degradation.faded if is_crowded else 1)
                _scale_along_line(channel, start, stop, share, width)

    def random_response(self) -> float:
        """Response, as a share of the target's, at a keypoint or along a part."""
        if self.rng.random() < self.degradation.missing:
            return self.rng.uniform(*MISSED_RESPONSE)
        return float(np.clip(self.rng.normal(self.degradation.strength, 0.2), 0.1, 1))

    def confuse_sides(self, keypoint_maps: np.ndarray, joints: np.ndarray) -> None:
        """Add false peaks in the maps of the other side."""
        for person in joints:
            for k, other in enumerate(self.skeleton.flip_keypoints):
                if other != k and person[k, 2] > 0 and self.rng.random() < self.degradation.confused:
                    self.add_false_peak(keypoint_maps[other], person[k, :2] / MAP_STRIDE)

    def add_false_peak(self, channel: np.ndarray, cell: np.ndarray) -> None:
        """Add a keypoint's Gaussian at (x, y) ``cell``, combined with the map by maximum."""
        height = self.rng.uniform(*FALSE_RESPONSE)
        centre = _cell_centre(cell)
        cells, x, y = _window(channel, centre, centre, 3 * self.keypoint_sigma)
        square_distance = (x - centre[0]) ** 2 + (y - centre[1]) ** 2
        peak = height * np.exp(-square_distance / (2 * self.keypoint_sigma**2))
        channel[cells] = np.maximum(channel[cells], peak)

    def smooth_noise(self, shape: tuple[int, int, int]) -> np.ndarray:
        """(C, h, w) noise with a wavelength of several cells and a standard deviation of about 1."""
        channels, height, width = shape
        coarse = self.rng.standard_normal((channels, -(-height // 4) + 1, -(-width // 4) + 1)).astype(np.float32)
        # Interpolation lowers the standard deviation; 1.3 restores it.
        return np.stack([1.3 * cv2.resize(layer, (width, height), interpolation=cv2.INTER_CUBIC) for layer in coarse])


def _scale_along_line(channel: np.ndarray, start: np.ndarray, stop: np.ndarray, share: float, width: float) -> None:
    """Multiply a map by ``share`` along a line between (x, y) pixels, and by almost 1 farther away than ``width``."""
    cells, x, y = _window(channel, start, stop, 2 * width)
    vector = stop - start
    position = ((x - start[0]) * vector[0] + (y - start[1]) * vector[1]) / max(vector @ vector, 1e-6)
    position = np.clip(position, 0, 1)  # of the nearest point on the line
    square_distance = (x - start[0] - position * vector[0]) ** 2 + (y - start[1] - position * vector[1]) ** 2
    channel[cells] *= 1 - (1 - share) * np.exp(-square_distance / (2 * width**2))


def _window(
    channel: np.ndarray, start: np.ndarray, stop: np.ndarray, margin: float
) -> tuple[tuple[slice, slice], np.ndarray, np.ndarray]:
    """The cells within ``margin`` pixels of the bounding box of two points: slices, and x and y in pixels."""
    low = np.floor((np.minimum(start, stop) - margin) / MAP_STRIDE).clip(0, channel.shape[::-1]).astype(int)
    high = np.ceil((np.maximum(start, stop) + margin) / MAP_STRIDE).clip(0, channel.shape[::-1]).astype(int)
    y, x = np.ogrid[low[1] : high[1], low[0] : high[0]]
    return (slice(low[1], high[1]), slice(low[0], high[0])), _cell_centre(x), _cell_centre(y)


def _cell_centre(cell: np.ndarray) -> np.ndarray:
    """Cells to network-input pixels."""
    return np.asarray(cell * MAP_STRIDE + (MAP_STRIDE - 1) / 2)
