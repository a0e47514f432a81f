"""From images to people: letterbox, network, average over scales and flip, decoder.

``Predictor.stream_groups`` and the methods that follow it are the steps of one prediction, in order.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenet.checkpoints.weights import load_model
from posenet.devices.background import map_in_background
from posenet.devices.device import select_device
from posenet.devices.precision import Amp, autocast, select_amp
from posenet.errors import ConfigError
from posenet.images.image_files import ChannelOrder, ImageInput, to_bgr
from posenet.inference.decoder.decode import decode
from posenet.inference.decoder.device_candidates import CandidateSelector
from posenet.inference.decoder.people import decode_candidates
from posenet.inference.letterbox import Letterbox
from posenet.inference.person import Person
from posenet.inference.tiling import Tiling, choose_tiling
from posenet.model.fused import FusedNetwork
from posenet.model.preprocessing import images_to_input
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE, Config, InferenceConfig
from posenet.skeleton import COCO, Skeleton

Item = TypeVar("Item")

TILE_TOLERANCE = 9.0
"""Pixels of the network input by which two tiles may differ about a keypoint: the sigma of the target maps."""


class InputBatch(NamedTuple):
    """N images, resized and padded for the network at each inference scale."""

    image_sizes: list[tuple[int, int]]
    """(height, width) of each image."""
    letterboxes: list[list[Letterbox]]
    """``letterboxes[scale][image]``."""
    inputs: list[np.ndarray]
    """For each scale (N, H, W, 3) BGR uint8."""


class HostMaps(NamedTuple):
    """The maps of one image on the host, from which its candidates are selected there."""

    maps: np.ndarray
    """(C, h, w) float32: the cells that show the image."""

    def decode(self, settings: InferenceConfig, skeleton: Skeleton) -> list[Person]:
        """The people, with keypoints in network-input pixels."""
        return decode(
            self.maps,
            keypoint_threshold=settings.keypoint_threshold,
            part_threshold=settings.part_threshold,
            skeleton=skeleton,
        )


class DeviceCandidates(NamedTuple):
    """The candidates of one image that ``CandidateSelector`` has selected on the device."""

    peaks: np.ndarray
    pairs: np.ndarray
    limb_scores: np.ndarray

    def decode(self, settings: InferenceConfig, skeleton: Skeleton) -> list[Person]:
        """The people, with keypoints in network-input pixels."""
        return decode_candidates(self.peaks, self.pairs, self.limb_scores, skeleton=skeleton)


class NetworkOutput(NamedTuple):
    """The output of the network for N images, copied to the host."""

    image_sizes: list[tuple[int, int]]
    """(height, width) of each image."""
    letterboxes: list[Letterbox]
    """How each image was resized and padded for its maps."""
    decoder_inputs: Sequence[HostMaps | DeviceCandidates]
    """The maps or the candidates of each image."""


class _GroupLayout(NamedTuple):
    """Where the results of a group of images belong: an image is one piece, or as many as it has tiles."""

    tilings: list[Tiling | None]
    """How each image is cut; None for an image in one piece."""
    order: list[int]
    """The order in which the pieces run."""

    def arrange(self, people_of_pieces: Sequence[list[Person]]) -> Iterator[list[Person]]:
        """The people of each image, from those of each piece in the order in which they ran."""
        people_of = dict(zip(self.order, people_of_pieces))
        start = 0
        for tiling in self.tilings:
            if tiling is None:
                yield people_of[start]
                start += 1
            else:
                stop = start + len(tiling.starts)
                yield tiling.join([people_of[index] for index in range(start, stop)])
                start = stop


class Predictor:
    """Finds people in images with a trained network.

    The network is set to evaluation mode and is not copied, so that a network in training can be evaluated.
    ``FusedNetwork`` is a faster copy of a network that is no longer trained. The people found in an image do not depend
    on the other images of its batch, except for rounding on some devices.

    Args:
        network: has a method ``heatmaps``: (N, 3, H, W) float32 BGR 0-1 to (N, C, H/4, W/4). Its input has the
            channels-last memory format if its attribute ``channels_last`` exists and is true.
        settings: ``inference`` section of the configuration; None uses its defaults.
        skeleton: meaning of the channels.
        device: where the network runs; None is the device of its weights.
        amp: precision of the network; leave it "off" for a ``FusedNetwork``, which sets its precision itself.
        select: where candidates are selected. "device" copies only the candidates to the host, "host" copies the maps.
            None selects the faster one: "host" on a CPU, else "device".
    """

    def __init__(
        self,
        network: nn.Module,
        settings: InferenceConfig | None = None,
        *,
        skeleton: Skeleton = COCO,
        device: torch.device | str | None = None,
        amp: Amp = "off",
        select: Literal["device", "host"] | None = None,
    ) -> None:
        self.settings = InferenceConfig() if settings is None else settings
        self.skeleton = skeleton
        weight = next(network.parameters(), torch.empty(0))
        self.device = weight.device if device is None else torch.device(device)
        self.amp = amp
        self.network = network.to(self.device).eval()
        self._flip_channels = torch.from_numpy(skeleton.flip_channels).to(self.device)
        self._selector: CandidateSelector | None = None
        if select == "device" or (select is None and self.device.type != "cpu"):
            self._selector = CandidateSelector(
                self.settings.keypoint_threshold, self.settings.part_threshold, skeleton=skeleton
            ).to(self.device)

    @classmethod
    def from_config(
        cls,
        network: nn.Module,
        config: Config,
        *,
        device: torch.device | str | None = None,
        amp: Amp = "off",
        **overrides: Any,
    ) -> Self:
        """A predictor with the settings of ``config.inference``, except for keys of that section in ``overrides``."""
        try:
            settings = dataclasses.replace(config.inference, **overrides)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return cls(network, settings, skeleton=config.model.skeleton, device=device, amp=amp)

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path,
        *,
        config: Config | None = None,
        device: str = "auto",
        amp: Amp | Literal["auto"] = "auto",
        **overrides: Any,
    ) -> Predictor:
        """A predictor that runs a fused copy of the network in a checkpoint, ours or a published one.

        Args:
            path: a file, or the name of registered weights such as "simplepose", which are downloaded once.
            config: replaces the configuration in the checkpoint.
            amp: precision of the network; "auto" is the fastest one without loss of accuracy on the device.
            overrides: keys of the configuration's ``inference`` section.

        Raises:
            CheckpointError: the file is damaged or does not fit the network.
            ConfigError: the device is unknown, or an override is out of range.
        """
        predictor, _ = cls.load(path, config=config, device=device, amp=amp, **overrides)
        return predictor

    @classmethod
    def load(
        cls, path: str | Path, *, config: Config | None, device: str, amp: Amp | Literal["auto"], **overrides: Any
    ) -> tuple[Predictor, Config]:
        """The predictor that ``from_checkpoint`` returns, and the configuration of its network."""
        selected = select_device(device)
        network, config = load_model(path, config)
        fused = FusedNetwork(network, select_amp(selected, amp))
        return cls.from_config(fused, config, device=selected, **overrides), config

    def __call__(self, image: ImageInput, channels: ChannelOrder = "bgr") -> list[Person]:
        """The people in an image, highest score first, with keypoints in pixels of the image.

        Very wide and very tall images are cut into tiles; see ``posenet.inference.tiling``.

        Args:
            image: the path of an image file, as text or ``Path``, which is read upright as its EXIF data say; a PIL
                image, as it is; or an array: (H, W, 3) uint8, BGR as ``cv2.imread`` returns it. Grey images, images
                with alpha and 16-bit images are converted.
            channels: "rgb" for an array with the colours in that order. Files and PIL images state theirs.

        Raises:
            DataError: the file cannot be read, or the object is not an image.
        """
        return self.batch([image], channels)[0]

    def batch(self, images: Sequence[ImageInput], channels: ChannelOrder = "bgr") -> list[list[Person]]:
        """The people in each of several images of any sizes. Images with network inputs of equal size run together.

        The images are those that a call accepts.
        """
        return list(self.stream_groups([images], channels))

    def stream(
        self, images: Iterable[ImageInput], channels: ChannelOrder = "bgr"
    ) -> Generator[list[Person], None, None]:
        """The people in each of any number of images, in order. Only a few images are in memory at a time.

        The images are those that a call accepts. Among ``batch_size`` images that follow each other, those with network
        inputs of equal size run together, so images sorted by shape make full batches.
        """
        return self.stream_groups(_batched(images, self.settings.batch_size), channels)

    def stream_groups(
        self, groups: Iterable[Iterable[ImageInput]], channels: ChannelOrder = "bgr"
    ) -> Generator[list[Person], None, None]:
        """Like ``stream``, but only images of the same group run together.

        The last bits of the result for an image may depend on the images that it runs together with. Processes that
        predict some groups each therefore find exactly the same people as one process that predicts all groups.
        """
        layouts: deque[_GroupLayout] = deque()

        def split_into_batches() -> Iterator[list[np.ndarray]]:
            for group in groups:
                arrays = [to_bgr(image, channels) for image in group]
                tilings = [self._choose_tiling(array) for array in arrays]
                pieces = [
                    piece
                    for array, tiling in zip(arrays, tilings)
                    for piece in (tiling.cut(array) if tiling else [array])
                ]
                batches = self._batch_by_input_size(pieces)
                if batches:
                    layouts.append(_GroupLayout(tilings, list(itertools.chain.from_iterable(batches))))
                for batch in batches:
                    yield [pieces[index] for index in batch]

        # Three threads work at the same time: one prepares the next batch, the caller's thread runs the network on this
        # batch, and one decodes the previous batch.
        inputs = map_in_background(self.prepare_inputs, split_into_batches())
        outputs = map(self.run_network, inputs)
        people_of_pieces: list[list[Person]] = []
        for people_of_batch in map_in_background(self.decode_output, outputs):
            people_of_pieces += people_of_batch
            if len(people_of_pieces) == len(layouts[0].order):
                yield from layouts.popleft().arrange(people_of_pieces)
                people_of_pieces = []

    def _choose_tiling(self, image: np.ndarray) -> Tiling | None:
        """How an image is cut into tiles; None for one that goes through the network in one piece."""
        height, width = image.shape[:2]
        input_height = min(self.settings.height, _round_down(self.settings.max_height))
        input_width = input_height / height * width
        fits = INPUT_MULTIPLE <= input_width <= _round_down(self.settings.max_width)
        return choose_tiling((height, width), fits=fits, tolerance=TILE_TOLERANCE / input_height)

    def prepare_inputs(self, images: Sequence[np.ndarray]) -> InputBatch:
        """Resize and pad (H, W, 3) BGR uint8 images; their network inputs must have the same size."""
        image_sizes = [(image.shape[0], image.shape[1]) for image in images]
        letterboxes = [[self.letterbox(size, scale) for size in image_sizes] for scale in self.settings.scales]
        inputs = [
            np.stack([letterbox.apply(image) for letterbox, image in zip(letterboxes_of_scale, images)])
            for letterboxes_of_scale in letterboxes
        ]
        return InputBatch(image_sizes, letterboxes, inputs)

    @torch.inference_mode()
    def run_network(self, batch: InputBatch) -> NetworkOutput:
        """Run the network on a batch and copy its maps, or the candidates selected from them, to the host."""
        largest = self.settings.scales.index(max(self.settings.scales))
        letterboxes = batch.letterboxes[largest]
        maps = self.average_over_scales(batch, letterboxes)
        sizes = [letterbox.image_cells for letterbox in letterboxes]
        decoder_inputs: Sequence[HostMaps | DeviceCandidates]
        if self._selector is None:
            host_maps = zip(maps.cpu().numpy(), sizes)
            decoder_inputs = [HostMaps(image_maps[:, :rows, :columns]) for image_maps, (rows, columns) in host_maps]
        else:
            peaks, pairs, limb_scores = self._selector(maps, torch.tensor(sizes, device=self.device))
            arrays = zip(peaks.cpu().numpy(), pairs.cpu().numpy(), limb_scores.cpu().numpy())
            decoder_inputs = [DeviceCandidates(*arrays_of_image) for arrays_of_image in arrays]
        return NetworkOutput(batch.image_sizes, letterboxes, decoder_inputs)

    def average_over_scales(self, batch: InputBatch, target: list[Letterbox]) -> Tensor:
        """Maps of a batch, (N, C, h, w) on the device, averaged over the scales and resampled to ``target``."""
        maps_of_scales = (
            resample_maps(self.average_over_flip(inputs), letterboxes, target)
            for inputs, letterboxes in zip(batch.inputs, batch.letterboxes)
        )
        total = functools.reduce(operator.add, maps_of_scales)
        return total / len(batch.inputs) if len(batch.inputs) > 1 else total

    @torch.inference_mode()
    def average_over_flip(self, inputs: np.ndarray) -> Tensor:
        """Maps of images at one scale, averaged with those of the mirrored images if ``flip`` is set.

        Maps (N, H, W, 3) BGR uint8, with H and W multiples of 64, to (N, C, H/4, W/4) float32 on the device.
        """
        heatmaps = cast(Callable[[Tensor], Tensor], self.network.heatmaps)
        images = images_to_input(
            torch.from_numpy(inputs).to(self.device), getattr(self.network, "channels_last", False)
        )
        with autocast(self.device, self.amp):
            maps = heatmaps(images).float()
            if self.settings.flip:
                # The image is mirrored with its padding. The width is a multiple of the stride, so the cells coincide.
                mirrored = heatmaps(images.flip(-1)).float()
                maps = (maps + mirrored[:, self._flip_channels].flip(-1)) / 2
        return maps

    def decode_output(self, output: NetworkOutput) -> list[list[Person]]:
        """The people of each image, with keypoints in pixels of the image."""
        return [
            letterbox.map_back(decoder_input.decode(self.settings, self.skeleton), image_size)
            for image_size, letterbox, decoder_input in zip(*output)
        ]

    def letterbox(self, image_size: tuple[int, int], scale: float = 1.0) -> Letterbox:
        """How an image of (height, width) ``image_size`` is resized and padded.

        It is resized to ``scale`` times the configured height, or less if the padded image would exceed the configured
        limits, and padded to multiples of 64.
        """
        height, width = image_size
        zoom = min(
            self.settings.height * scale / height,
            _round_down(self.settings.max_height) / height,
            _round_down(self.settings.max_width) / width,
        )
        resized = (max(1, round(height * zoom)), max(1, round(width * zoom)))
        return Letterbox(resized, (_round_up(resized[0]), _round_up(resized[1])))

    def _batch_by_input_size(self, images: Sequence[np.ndarray]) -> list[list[int]]:
        """Indices of images with network inputs of equal size, at most ``batch_size`` together."""
        indices_of: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for index, image in enumerate(images):
            indices_of.setdefault(self._input_sizes(image), []).append(index)
        size = self.settings.batch_size
        return [batch for indices in indices_of.values() for batch in _batched(indices, size)]

    def _input_sizes(self, image: np.ndarray) -> tuple[tuple[int, int], ...]:
        """(height, width) of the network input at every scale."""
        return tuple(self.letterbox(image.shape[:2], scale).padded for scale in self.settings.scales)


def resample_maps(maps: Tensor, letterboxes: list[Letterbox], target: list[Letterbox]) -> Tensor:
    """Resample (N, C, h, w) maps of one inference scale to the cells of another, (N, C, h', w').

    Resizing by s maps x to (x + 0.5) s - 0.5, for pixels and also for cells, because the stride is the same. The two
    scales are padded differently, so s is the ratio of the sizes of the resized images, not of the maps.

    ``letterboxes`` describe how the images were resized for ``maps``, ``target`` how for the result. If ``target`` is
    ``letterboxes`` itself, the maps are returned unchanged.
    """
    if letterboxes is target:
        return maps
    height, width = maps.shape[2:]
    rows, columns = (side // MAP_STRIDE for side in target[0].padded)
    # F.affine_grid has coordinates from -1 to 1 between the outer edges of the maps.
    matrix = maps.new_zeros(len(maps), 2, 3)
    for i, (source, other) in enumerate(zip(letterboxes, target)):
        matrix[i, 0, 0] = source.resized[1] / other.resized[1] * columns / width
        matrix[i, 1, 1] = source.resized[0] / other.resized[0] * rows / height
    matrix[:, :, 2] = matrix[:, :, :2].sum(2) - 1  # -1 is mapped to -1: the left and upper edges coincide
    grid = F.affine_grid(matrix, [len(maps), 1, rows, columns], align_corners=False)
    return F.grid_sample(maps, grid, mode="bicubic", padding_mode="border", align_corners=False)


def _batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of up to ``size`` items that follow each other."""
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def _round_down(side: int) -> int:
    """The next multiple of ``INPUT_MULTIPLE`` at or below ``side``."""
    return side // INPUT_MULTIPLE * INPUT_MULTIPLE


def _round_up(side: int) -> int:
    """The next multiple of ``INPUT_MULTIPLE`` at or above ``side``."""
    return -(-side // INPUT_MULTIPLE) * INPUT_MULTIPLE
