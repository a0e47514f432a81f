"""From pictures to people: resize, pad, run the network, average over scales and the mirror image, decode."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenet.checkpoint import load_model
from posenet.errors import ConfigError
from posenet.inference.decode import decode
from posenet.inference.images import to_bgr
from posenet.inference.person import Person
from posenet.runtime import Amp, autocast, pick_device
from posenet.settings import STRIDE, Config
from posenet.skeleton import COCO, Skeleton
from posenet.step import prepare

PADDING = 128
MAP_STRIDE = 4


@dataclass(frozen=True)
class Fit:
    """How a picture goes into the network: resized to ``size``, padded right and below to ``canvas``.

    Both are (height, width) in network-input pixels.
    """

    size: tuple[int, int]
    canvas: tuple[int, int]


class Predictor:
    """A network and all it takes to find people in pictures.

    The network is put into evaluation mode. What is found in a picture does not depend on the others of its
    batch.

    Args:
        model: has ``heatmaps``: (N, 3, H, W) float32 BGR 0-1 to (N, C, H/4, W/4).
        height: pictures are resized to this height.
        scales: the maps are averaged over these multiples of ``height``.
        flip: average with the maps of the mirrored picture as well.
        max_height, max_width: the network's input is held below these.
        batch_size: pictures that go through the network together.
        keypoint_threshold, part_threshold: see ``decode``.
        device: where to run; None is where the model is.
        amp: precision of the network.
        skeleton: what the channels mean.
    """

    def __init__(self, model: nn.Module, *, height: int = 512, scales: Sequence[float] = (1.0,), flip: bool = False,
                 max_height: int = 2600, max_width: int = 3800, batch_size: int = 4,
                 keypoint_threshold: float = 0.1, part_threshold: float = 0.1,
                 device: torch.device | str | None = None, amp: Amp = "off", skeleton: Skeleton = COCO) -> None:
        self.device = next((p.device for p in model.parameters()), torch.device("cpu")) \
            if device is None else torch.device(device)
        self.model = model.to(self.device).eval()
        self.height, self.scales, self.flip, self.batch_size = height, tuple(scales), flip, batch_size
        # The padded picture is to stay below the limits too.
        self.limit = tuple(side // STRIDE * STRIDE for side in (max_height, max_width))
        self.keypoint_threshold, self.part_threshold = keypoint_threshold, part_threshold
        self.amp, self.skeleton = amp, skeleton
        self._flip_channels = torch.from_numpy(skeleton.flip_channels).to(self.device)

    @classmethod
    def from_config(cls, model: nn.Module, config: Config, *, device: torch.device | str | None = None,
                    amp: Amp = "off", **overrides: Any) -> Predictor:
        """A predictor as ``config.inference`` says, but for ``overrides``, which are keys of that section.

        Raises:
            ConfigError: an override out of range.
        """
        try:
            settings = dataclasses.replace(config.inference, **overrides)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return cls(model, device=device, amp=amp, skeleton=config.model.skeleton, **dataclasses.asdict(settings))

    @classmethod
    def from_checkpoint(cls, path: str | Path, *, config: Config | None = None, device: str = "auto",
                        amp: Amp = "off", **overrides: Any) -> Predictor:
        """A predictor from a checkpoint, ours or a published one.

        Args:
            config: stands in for the configuration that the checkpoint carries.
            overrides: keys of the configuration's ``inference`` section.

        Raises:
            CheckpointError: a damaged file, or one that does not fit the network.
            ConfigError: an unknown device, or an override out of range.
        """
        model, config = load_model(path, config)
        return cls.from_config(model, config, device=pick_device(device), amp=amp, **overrides)

    def __call__(self, image: np.ndarray) -> list[Person]:
        """People in a picture, by falling score, keypoints in pixels of the picture.

        Args:
            image: (H, W, 3) BGR; grey, BGRA and 16-bit pictures are converted.

        Raises:
            DataError: an array that is not a picture.
        """
        return self.batch([image])[0]

    @torch.inference_mode()
    def batch(self, images: Sequence[np.ndarray]) -> list[list[Person]]:
        """The same for several pictures of any sizes; those that need equal inputs run together."""
        images = [to_bgr(image) for image in images]
        fits = [[self.fit(image.shape[:2], scale) for scale in self.scales] for image in images]
        groups: dict[tuple, list[int]] = {}
        for index, own in enumerate(fits):
            groups.setdefault(tuple(fit.canvas for fit in own), []).append(index)

        people: list[list[Person]] = [[] for _ in images]
        for group in groups.values():
            for start in range(0, len(group), self.batch_size):
                chunk = group[start:start + self.batch_size]
                maps, reference = self._maps([images[i] for i in chunk], [fits[i] for i in chunk])
                for i, own_maps, fit in zip(chunk, maps, reference):
                    people[i] = self._people(own_maps, fit, images[i].shape[:2])
        return people

    def fit(self, shape: tuple[int, int], scale: float = 1.0) -> Fit:
        """The network input for a picture of (height, width) ``shape`` at ``scale`` times the set height."""
        factor = min(self.height * scale / shape[0], *(limit / side for limit, side in zip(self.limit, shape)))
        size = tuple(max(1, round(side * factor)) for side in shape)
        return Fit(size, tuple(-(-side // STRIDE) * STRIDE for side in size))

    def _maps(self, images: list[np.ndarray], fits: list[list[Fit]]) -> tuple[np.ndarray, list[Fit]]:
        """Averaged maps (N, C, h, w) in the geometry of the largest scale, and the fits of that scale."""
        largest = max(range(len(self.scales)), key=self.scales.__getitem__)
        reference = [own[largest] for own in fits]
        total = None
        for i in range(len(self.scales)):
            current = [own[i] for own in fits]
            maps = self._run(np.stack([_place(image, fit) for image, fit in zip(images, current)]))
            if i != largest:
                maps = _align(maps, current, reference)
            total = maps if total is None else total + maps
        return (total / len(self.scales)).cpu().numpy(), reference

    def _run(self, pictures: np.ndarray) -> Tensor:
        """(N, H, W, 3) uint8 pictures to float32 maps, averaged with those of the mirrored pictures if asked."""
        inputs = prepare(torch.from_numpy(pictures).to(self.device))
        with autocast(self.device, self.amp):
            maps = self.model.heatmaps(inputs).float()
            if self.flip:
                # The padded picture is mirrored as a whole: its width is a multiple of the maps' stride.
                mirrored = self.model.heatmaps(inputs.flip(-1)).float()
                maps = (maps + mirrored[:, self._flip_channels].flip(-1)) / 2
        return maps

    def _people(self, maps: np.ndarray, fit: Fit, shape: tuple[int, int]) -> list[Person]:
        """Decode the part of the maps that shows the picture, and go back to its (height, width) ``shape``."""
        rows, columns = (-(-side // MAP_STRIDE) for side in fit.size)
        found = decode(maps[:, :rows, :columns], stride=MAP_STRIDE, keypoint_threshold=self.keypoint_threshold,
                       part_threshold=self.part_threshold, skeleton=self.skeleton)
        sides = np.array(shape[::-1], np.float32)
        zoom = sides / np.array(fit.size[::-1], np.float32)
        for person in found:
            xy = (person.keypoints[:, :2] + 0.5) * zoom - 0.5
            person.keypoints[:, :2] = np.where(person.found[:, None], np.clip(xy, 0, sides - 1), 0)
        return found


def _place(image: np.ndarray, fit: Fit) -> np.ndarray:
    """Resize a picture and pad it right and below."""
    canvas = np.full((*fit.canvas, 3), PADDING, np.uint8)
    rows, columns = fit.size
    shrinks = rows < image.shape[0]
    canvas[:rows, :columns] = cv2.resize(image, (columns, rows),
                                         interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC)
    return canvas


def _align(maps: Tensor, current: list[Fit], reference: list[Fit]) -> Tensor:
    """Resample (N, C, h, w) maps of one scale to the cells of another.

    Resizing maps x to (x + 0.5) s - 0.5, in pixels and, as the stride is the same, in cells. The padding of the
    two scales differs, so that the sizes of the resized pictures, not of the maps, give s.
    """
    (height, width), (rows, columns) = maps.shape[2:], (side // MAP_STRIDE for side in reference[0].canvas)
    matrix = maps.new_zeros(len(maps), 2, 3)
    for i, (own, other) in enumerate(zip(current, reference)):
        matrix[i, 0, 0] = own.size[1] / other.size[1] * columns / width
        matrix[i, 1, 1] = own.size[0] / other.size[0] * rows / height
    # In PyTorch's coordinates, which run from -1 to 1 between the maps' outer edges, the left edges coincide.
    matrix[:, :, 2] = matrix[:, :, :2].sum(2) - 1
    grid = F.affine_grid(matrix, [len(maps), 1, rows, columns], align_corners=False)
    return F.grid_sample(maps, grid, mode="bicubic", padding_mode="border", align_corners=False)
