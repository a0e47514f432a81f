"""Maps as an imperfect network would predict them: target maps of known people, degraded at random."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

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
    """The errors of a network. Map values lie between 0 and 1.

    Attributes:
        strength: mean response at a keypoint, or along a part, that was found.
        missing: share of the keypoints and of the parts that were not found.
        faded: factor for the response of a part that is beside a part of the same kind of another person.
        jitter: standard deviation of the error of a keypoint's position, as a share of the person's size.
        width: the Gaussians are between 1 / width and width times as wide as in the targets.
        ripple: standard deviation of smooth noise in every map.
        confused: share of the left or right keypoints that also cause a false peak in the map of the other side.
        blobs: mean number of false peaks in a keypoint map at random positions.
    """

    strength: float = 0.7
    missing: float = 0.08
    faded: float = 0.5
    jitter: float = 0.0135
    width: float = 1.25
    ripple: float = 0.03
    confused: float = 0.25
    blobs: float = 0.25


class Window(NamedTuple):
    """A rectangle of a map.

    Attributes:
        cells: its rows and columns.
        x: (1, w) of the cells' centres, in network-input pixels.
        y: (h, 1) of the cells' centres, in network-input pixels.
    """

    cells: tuple[slice, slice]
    x: np.ndarray
    y: np.ndarray


def degraded_maps(
    joints: np.ndarray,
    size: tuple[int, int],
    renderer: TargetRenderer,
    rng: np.random.Generator,
    degradation: Degradation = Degradation(),
) -> np.ndarray:
    """Render people and degrade the maps.

    Args:
        joints: (P, K, 3) x, y in network-input pixels and visibility.
        size: (h, w) of the maps, in cells.

    Returns:
        (C, h, w) float32 in [0, 1]. The person mask stays empty.
    """
    skeleton = renderer.skeleton
    is_labelled = joints[..., 2:] > 0
    high = joints[..., :2].max(1, where=is_labelled, initial=0)
    low = joints[..., :2].min(1, where=is_labelled, initial=np.inf)
    extent = high - low  # -inf where nothing is labelled
    person_size = np.where(np.isfinite(extent), extent, 0).max(1)[:, None, None]
    parts = _render(
        joints + _jitter(joints, person_size, degradation.jitter / 2, rng), size, renderer, degradation, rng
    )
    maps = _render(joints + _jitter(joints, person_size, degradation.jitter, rng), size, renderer, degradation, rng)
    maps[skeleton.part_channels] = parts[skeleton.part_channels]
    for person in joints:
        _weaken_responses(maps, person, joints, renderer, degradation, rng)
    keypoint_maps = maps[skeleton.keypoint_channels]
    _confuse_sides(keypoint_maps, joints, renderer, degradation, rng)
    for channel in keypoint_maps:
        for _ in range(rng.poisson(degradation.blobs)):
            _add_peak(channel, rng.random(2) * size[::-1], rng.uniform(*FALSE_RESPONSE), renderer)
    maps += degradation.ripple * _smooth_noise((len(maps), *size), rng)
    maps[skeleton.mask_channel] = 0
    maps[skeleton.foreground_channel] = keypoint_maps.max(0)
    return maps.clip(0, 1)


def _jitter(joints: np.ndarray, person_size: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Random shifts of x and y, to be added to joints; the third column is 0."""
    shift = np.zeros_like(joints)
    shift[..., :2] = rng.standard_normal(shift[..., :2].shape) * share * person_size
    return shift


def _render(
    joints: np.ndarray,
    size: tuple[int, int],
    renderer: TargetRenderer,
    degradation: Degradation,
    rng: np.random.Generator,
) -> np.ndarray:
    """Target maps whose Gaussians are too wide or too narrow."""
    factor = degradation.width ** rng.uniform(-1, 1)
    settings = replace(
        renderer.settings,
        keypoint_sigma=renderer.settings.keypoint_sigma * factor,
        part_sigma=renderer.settings.part_sigma * factor,
    )
    other = TargetRenderer(settings, renderer.skeleton)
    maps: np.ndarray = other(torch.from_numpy(joints.astype(np.float32))[None], torch.zeros(1, *size))[0].numpy()
    return maps


def _weaken_responses(
    maps: np.ndarray,
    person: np.ndarray,
    everyone: np.ndarray,
    renderer: TargetRenderer,
    degradation: Degradation,
    rng: np.random.Generator,
) -> None:
    """Scale down the response at each keypoint and along each part of one person."""
    skeleton = renderer.skeleton
    is_labelled = person[:, 2] > 0
    keypoint_width = 2 * renderer.settings.keypoint_sigma
    part_width = 2 * renderer.settings.part_sigma
    for k in np.flatnonzero(is_labelled):
        share = _random_response(degradation, rng)
        _scale_along_line(maps[skeleton.num_parts + k], person[k, :2], person[k, :2], share, keypoint_width)
    for channel, (a, b) in zip(maps, skeleton.part_ends):
        if is_labelled[a] and is_labelled[b]:
            start = person[a, :2]
            stop = person[b, :2]
            has_part = (everyone[:, [a, b], 2] > 0).all(1)
            centres = everyone[has_part][:, [a, b], :2].mean(1)  # of this part of all people
            distances = np.hypot(*(centres - (start + stop) / 2).T)
            is_crowded = (distances < np.hypot(*(stop - start)) + part_width).sum() > 1  # one of them is its own
            share = _random_response(degradation, rng) * (degradation.faded if is_crowded else 1)
            _scale_along_line(channel, start, stop, share, part_width)


def _random_response(degradation: Degradation, rng: np.random.Generator) -> float:
    """Response, as a share of the target's, at a keypoint or along a part."""
    if rng.random() < degradation.missing:
        return rng.uniform(*MISSED_RESPONSE)
    return float(np.clip(rng.normal(degradation.strength, 0.2), 0.1, 1))


def _scale_along_line(channel: np.ndarray, start: np.ndarray, stop: np.ndarray, share: float, width: float) -> None:
    """Multiply a map by ``share`` along a line between (x, y) pixels, and by almost 1 farther away than ``width``."""
    cells, x, y = _window(channel, start, stop, 2 * width)
    vector = stop - start
    position = ((x - start[0]) * vector[0] + (y - start[1]) * vector[1]) / max(vector @ vector, 1e-6)
    position = np.clip(position, 0, 1)  # of the nearest point on the line
    square_distance = (x - start[0] - position * vector[0]) ** 2 + (y - start[1] - position * vector[1]) ** 2
    channel[cells] *= 1 - (1 - share) * np.exp(-square_distance / (2 * width**2))


def _confuse_sides(
    keypoint_maps: np.ndarray,
    joints: np.ndarray,
    renderer: TargetRenderer,
    degradation: Degradation,
    rng: np.random.Generator,
) -> None:
    """Add false peaks in the maps of the other side."""
    for person in joints:
        for k, other in enumerate(renderer.skeleton.flip_keypoints):
            if other != k and person[k, 2] > 0 and rng.random() < degradation.confused:
                _add_peak(keypoint_maps[other], person[k, :2] / MAP_STRIDE, rng.uniform(*FALSE_RESPONSE), renderer)


def _add_peak(channel: np.ndarray, cell: np.ndarray, height: float, renderer: TargetRenderer) -> None:
    """Add a keypoint's Gaussian at (x, y) ``cell``, combined with the map by maximum."""
    centre = _cell_centre(cell)
    cells, x, y = _window(channel, centre, centre, 3 * renderer.settings.keypoint_sigma)
    square_distance = (x - centre[0]) ** 2 + (y - centre[1]) ** 2
    peak = height * np.exp(-square_distance / (2 * renderer.settings.keypoint_sigma**2))
    channel[cells] = np.maximum(channel[cells], peak)


def _window(channel: np.ndarray, start: np.ndarray, stop: np.ndarray, margin: float) -> Window:
    """The cells within ``margin`` pixels of the bounding box of two points."""
    low = np.floor((np.minimum(start, stop) - margin) / MAP_STRIDE).clip(0, channel.shape[::-1]).astype(int)
    high = np.ceil((np.maximum(start, stop) + margin) / MAP_STRIDE).clip(0, channel.shape[::-1]).astype(int)
    y, x = np.ogrid[low[1] : high[1], low[0] : high[0]]
    cells = (slice(low[1], high[1]), slice(low[0], high[0]))
    return Window(cells, _cell_centre(x), _cell_centre(y))


def _cell_centre(cell: np.ndarray) -> np.ndarray:
    """Cells to network-input pixels."""
    centre: np.ndarray = cell * MAP_STRIDE + (MAP_STRIDE - 1) / 2
    return centre


def _smooth_noise(shape: tuple[int, int, int], rng: np.random.Generator) -> np.ndarray:
    """(C, h, w) noise with a wavelength of several cells and a standard deviation of about 1."""
    channels, height, width = shape
    coarse = rng.standard_normal((channels, -(-height // 4) + 1, -(-width // 4) + 1)).astype(np.float32)
    # Interpolation lowers the standard deviation; 1.3 restores it.
    return np.stack([1.3 * cv2.resize(layer, (width, height), interpolation=cv2.INTER_CUBIC) for layer in coarse])
