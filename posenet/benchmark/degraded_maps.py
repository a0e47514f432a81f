"""Maps as an imperfect network would answer: target maps of known people, degraded by a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np
import torch

from posenet.data.targets import TargetRenderer
from posenet.settings import MAP_STRIDE

Box = tuple[slice, slice]
"""Rows and columns of a map."""


@dataclass(frozen=True)
class Degradation:
    """What a network gets wrong, in maps of 0-1; lengths in pixels of the network input.

    Attributes:
        strength: mean response at a keypoint or along a part that was found.
        missing: share of the keypoints, and of the parts, that were not found.
        faded: share of a part's response that is left beside a part of the same kind of someone else.
        jitter: standard deviation of a keypoint's place, as a share of the person's size.
        width: the Gaussians are between 1 / width and width times as wide as they should be.
        ripple: standard deviation of a smooth disturbance of every map.
        confused: share of the left or right keypoints that also answer, weakly, in the other side's map.
        blobs: mean number of weak responses in a keypoint map where nobody is.
    """

    strength: float = 0.7
    missing: float = 0.08
    faded: float = 0.5
    jitter: float = 0.0135
    width: float = 1.25
    ripple: float = 0.03
    confused: float = 0.25
    blobs: float = 0.25


def degraded_maps(
    joints: np.ndarray,
    size: tuple[int, int],
    renderer: TargetRenderer,
    rng: np.random.Generator,
    how: Degradation = Degradation(),
) -> np.ndarray:
    """Render people and degrade the maps.

    Args:
        joints: (P, K, 3) x, y in network-input pixels and visibility.
        size: (h, w) of the maps, in cells.

    Returns:
        (C, h, w) float32 in [0, 1]. The person mask stays empty.
    """
    skeleton = renderer.skeleton
    reach = joints[..., :2].max(1, where=joints[..., 2:] > 0, initial=0) - joints[..., :2].min(
        1, where=joints[..., 2:] > 0, initial=np.inf
    )
    scale = np.where(np.isfinite(reach), reach, 0).max(1)[:, None, None]
    parts = _render(joints + _shake(joints, scale, how.jitter / 2, rng), size, renderer, how, rng)
    maps = _render(joints + _shake(joints, scale, how.jitter, rng), size, renderer, how, rng)
    maps[skeleton.part_channels] = parts[skeleton.part_channels]
    for person in joints:
        _weaken(maps, person, joints, renderer, how, rng)
    keypoints = maps[skeleton.keypoint_channels]
    _confuse(keypoints, joints, renderer, how, rng)
    for channel in keypoints:
        for _ in range(rng.poisson(how.blobs)):
            _add_blob(channel, rng.random(2) * size[::-1], rng.uniform(0.1, 0.4), renderer)
    maps += how.ripple * _smooth_noise((len(maps), *size), rng)
    maps[skeleton.mask_channel] = 0
    maps[skeleton.foreground_channel] = keypoints.max(0)
    return np.clip(maps, 0, 1)


def _shake(joints: np.ndarray, scale: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Shifts of x and y; the third column, visibility, keeps its value."""
    shift = np.zeros_like(joints)
    shift[..., :2] = rng.standard_normal(shift[..., :2].shape) * share * scale
    return shift


def _render(
    joints: np.ndarray, size: tuple[int, int], renderer: TargetRenderer, how: Degradation, rng: np.random.Generator
) -> np.ndarray:
    """Target maps of another width than they should have."""
    factor = how.width ** rng.uniform(-1, 1)
    settings = replace(
        renderer.settings,
        keypoint_sigma=renderer.settings.keypoint_sigma * factor,
        part_sigma=renderer.settings.part_sigma * factor,
    )
    other = TargetRenderer(settings, renderer.skeleton)
    return other(torch.from_numpy(joints.astype(np.float32))[None], torch.zeros(1, *size))[0].numpy()


def _weaken(
    maps: np.ndarray,
    person: np.ndarray,
    everyone: np.ndarray,
    renderer: TargetRenderer,
    how: Degradation,
    rng: np.random.Generator,
) -> None:
    """Scale down the response at each of a person's keypoints and along each part."""
    skeleton, labelled = renderer.skeleton, person[:, 2] > 0
    for k in np.flatnonzero(labelled):
        share = _response(how, rng)
        _scale(
            maps[skeleton.num_parts + k],
            person[k, :2],
            person[k, :2],
            share,
            2 * renderer.settings.keypoint_sigma,
            renderer,
        )
    for channel, (a, b) in zip(maps, skeleton.part_ends):
        if labelled[a] and labelled[b]:
            start, stop = person[a, :2], person[b, :2]
            others = everyone[(everyone[:, [a, b], 2] > 0).all(1)][:, [a, b], :2].mean(1)
            gaps = np.hypot(*(others - (start + stop) / 2).T)
            crowded = (gaps < np.hypot(*(stop - start)) + 2 * renderer.settings.part_sigma).sum() > 1
            share = _response(how, rng) * (how.faded if crowded else 1)
            _scale(channel, start, stop, share, 2 * renderer.settings.part_sigma, renderer)


def _response(how: Degradation, rng: np.random.Generator) -> float:
    if rng.random() < how.missing:
        return rng.uniform(0, 0.15)
    return float(np.clip(rng.normal(how.strength, 0.2), 0.1, 1))


def _scale(
    channel: np.ndarray, start: np.ndarray, stop: np.ndarray, share: float, width: float, renderer: TargetRenderer
) -> None:
    """Multiply a map by ``share`` along a line of (x, y) pixels, and by 1 far from it."""
    box, (x, y) = _around(channel, start, stop, 2 * width, renderer)
    along = stop - start
    place = np.clip(((x - start[0]) * along[0] + (y - start[1]) * along[1]) / max(along @ along, 1e-6), 0, 1)
    square = (x - start[0] - place * along[0]) ** 2 + (y - start[1] - place * along[1]) ** 2
    channel[box] *= 1 - (1 - share) * np.exp(-square / (2 * width**2))


def _confuse(
    keypoints: np.ndarray, joints: np.ndarray, renderer: TargetRenderer, how: Degradation, rng: np.random.Generator
) -> None:
    """Answer in the other side's map too."""
    for person in joints:
        for k, other in enumerate(renderer.skeleton.flip_keypoints):
            if other != k and person[k, 2] > 0 and rng.random() < how.confused:
                _add_blob(keypoints[other], person[k, :2] / MAP_STRIDE, rng.uniform(0.1, 0.4), renderer)


def _add_blob(channel: np.ndarray, cell: np.ndarray, height: float, renderer: TargetRenderer) -> None:
    """Add a keypoint's Gaussian at (x, y) ``cell`` by maximum."""
    middle = cell * MAP_STRIDE + (MAP_STRIDE - 1) / 2
    box, (x, y) = _around(channel, middle, middle, 3 * renderer.settings.keypoint_sigma, renderer)
    square = (x - middle[0]) ** 2 + (y - middle[1]) ** 2
    channel[box] = np.maximum(channel[box], height * np.exp(-square / (2 * renderer.settings.keypoint_sigma**2)))


def _around(
    channel: np.ndarray, start: np.ndarray, stop: np.ndarray, margin: float, renderer: TargetRenderer
) -> tuple[Box, tuple[np.ndarray, np.ndarray]]:
    """The cells within ``margin`` pixels of two points' box, and the x and y of their centres in pixels."""
    low = np.floor((np.minimum(start, stop) - margin) / MAP_STRIDE).clip(0, channel.shape[::-1]).astype(int)
    high = np.ceil((np.maximum(start, stop) + margin) / MAP_STRIDE).clip(0, channel.shape[::-1]).astype(int)
    y, x = np.ogrid[low[1] : high[1], low[0] : high[0]]
    places = tuple(axis * MAP_STRIDE + (MAP_STRIDE - 1) / 2 for axis in (x, y))
    return (slice(low[1], high[1]), slice(low[0], high[0])), places


def _smooth_noise(shape: tuple[int, int, int], rng: np.random.Generator) -> np.ndarray:
    """(C, h, w) of waves some cells long, of unit standard deviation."""
    coarse = rng.standard_normal((shape[0], *(-(-side // 4) + 1 for side in shape[1:]))).astype(np.float32)
    return np.stack([1.3 * cv2.resize(layer, shape[:0:-1], interpolation=cv2.INTER_CUBIC) for layer in coarse])
