"""From images to people: letterbox, network, average over scales and flip, decoder."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np

from posenet.errors import ConfigError, DataError
from posenet.images import ChannelOrder, ImageInput, to_bgr
from posenet.inference.decoder.decode import decode
from posenet.inference.letterbox import Letterbox, resample_maps
from posenet.inference.networks import BackendName, MapFunction, TorchNetwork, load_network
from posenet.inference.person import Person
from posenet.inference.shares import batched
from posenet.messages import truncate_for_message
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE, Config, ExifFrame, InferenceConfig
from posenet.skeleton import Skeleton
from posenet.threads import map_in_threads

if TYPE_CHECKING:
    import torch
    from torch import nn

    from posenet.devices.precision import Amp


class InputBatch(NamedTuple):
    """N images, resized and padded for the network at each inference scale."""

    image_sizes: list[tuple[int, int]]
    """(height, width) of each image."""
    letterboxes: list[list[Letterbox]]
    """``letterboxes[scale][image]``, without scales that the limits of the size make equal to another one."""
    counts: list[int]
    """How many of the scales each of these stands for."""
    map_letterboxes: list[Letterbox]
    """Those of the largest scale; the maps of all scales are resampled to its cells."""
    inputs: list[np.ndarray]
    """For each of these scales (N, H, W, 3) BGR uint8."""


class BatchMaps(NamedTuple):
    """The maps of N images, and what the decoder needs to map people back; the inputs are no longer in memory."""

    image_sizes: list[tuple[int, int]]
    """(height, width) of each image."""
    letterboxes: list[Letterbox]
    """Those of the scale whose cells the maps have."""
    maps: list[np.ndarray]
    """(C, h, w) float32 of each image."""


class _Group(NamedTuple):
    """Images that may run together."""

    size: int
    """Their number."""
    order: list[int]
    """The places in the group of those that can be read, in the order in which they run."""


class Predictor:
    """Finds people in images with a trained network.

    The network is set to evaluation mode and is not copied, so that a network in training can be evaluated.
    ``FusedNetwork`` is a faster copy of a network that is no longer trained. Several threads may use one predictor at
    the same time. The people found in an image do not depend on the other images of its batch, except for rounding on
    some devices.

    Args:
        network: what finds people. A checkpoint, ours or a published one; an exported file, which ends in ``.onnx`` and
            needs no PyTorch; or the name of registered weights such as "simplepose", which are downloaded once. Or a
            module of PyTorch with a method ``heatmaps``: (N, 3, H, W) float32 BGR 0-1 to (N, C, H/4, W/4); its input
            has the channels-last memory format if its attribute ``channels_last`` exists and is true. Or any function
            that computes the maps of images; see ``posenet.inference.networks.MapFunction``.
        settings: ``inference`` section of the configuration; None is that of ``config``.
        config: replaces the configuration in a checkpoint; an exported file has its own. For a module or a function,
            None is the defaults.
        skeleton: meaning of the channels; None is that of the configuration.
        device: auto, cpu, cuda, cuda:1, mps and so on. For a module, "auto" is the device of its weights.
        amp: precision of the network; "auto" is the fastest one without loss of accuracy on the device. None is "auto"
            for a file and "off" for a module; leave it "off" for a ``FusedNetwork``, which sets its precision itself.
        backend: the software that runs a file; "auto" is the fastest one that is installed and as accurate. None is
            PyTorch for a checkpoint, and "auto" for an exported file.
        min_score: people with a lower score, 0-1, are left out.
        exif_frame: frame in which the network was trained to see images; ``evaluate`` reads images in it. None is that
            of the configuration.
        overrides: keys of the configuration's ``inference`` section, such as ``flip=True``.

    Raises:
        CheckpointError: the file is damaged or does not fit the network.
        ConfigError: the device is unknown, a package is missing, the backend cannot run the file, an override is
            unknown or out of range, or ``network`` is none of the above.
    """

    def __init__(
        self,
        network: str | os.PathLike[str] | nn.Module | MapFunction,
        settings: InferenceConfig | None = None,
        *,
        config: Config | None = None,
        skeleton: Skeleton | None = None,
        device: torch.device | str | None = "auto",
        amp: Amp | Literal["auto"] | None = None,
        backend: BackendName | None = None,
        min_score: float = 0.0,
        exif_frame: ExifFrame | None = None,
        **overrides: Any,
    ) -> None:
        override_settings(InferenceConfig(), overrides)  # a wrong one is reported before a large file is read
        # Nobody has a score of at least NaN.
        if not (isinstance(min_score, (int, float, np.floating)) and 0 <= min_score <= 1):
            raise ConfigError(f"min_score {truncate_for_message(min_score)} is not between 0 and 1; correct it")
        if isinstance(network, (str, os.PathLike)):
            self.network, config = load_network(
                Path(network), config, device=str(device or "auto"), amp=amp or "auto", backend=backend
            )
        else:
            self.network = _network_in_memory(network, device, amp, backend)
        config = config or Config()
        self.settings = override_settings(settings or config.inference, overrides)
        self.skeleton = skeleton or config.model.skeleton
        self.min_score = min_score
        self.exif_frame = exif_frame or config.data.exif_frame

    @classmethod
    def from_checkpoint(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """The same as ``Predictor(path, **options)``."""
        return cls(path, **options)

    def __call__(self, image: ImageInput, channels: ChannelOrder = "bgr") -> list[Person]:
        """The people in an image, highest score first, with keypoints in pixels of the image.

        Args:
            image: the path or the address of an image file, or a PIL image, which are read upright as their EXIF data
                say; or an array: (H, W, 3) uint8, BGR as ``cv2.imread`` returns it. Grey images, images
                with alpha and 16-bit images are converted.
            channels: "rgb" for an array with the colours in that order. Files and PIL images state theirs.

        Raises:
            DataError: the file cannot be read, or the object is not an image; or the network has computed values that
                are NaN or infinite.
        """
        return self.batch([image], channels)[0]

    def batch(self, images: Sequence[ImageInput], channels: ChannelOrder = "bgr") -> list[list[Person]]:
        """The people in each of several images of any sizes. Images with network inputs of equal size run together."""
        _refuse_single_image(images)
        return list(self.stream_groups([images], channels))

    def stream(
        self,
        images: Iterable[ImageInput],
        channels: ChannelOrder = "bgr",
        on_error: Callable[[int, DataError], object] | None = None,
    ) -> Generator[list[Person], None, None]:
        """The people in each of any number of images, in order. Only a few images are in memory at a time.

        Among ``batch_size`` images that follow each other, those with network inputs of equal size run together, so
        images sorted by shape make full batches. An array may be overwritten when the next image is requested, as
        ``cv2.VideoCapture.read`` does with an array that it is given.

        Args:
            on_error: what to do with an image that cannot be read. It is called with the number of the image, from 0,
                and the error, before the result of the image, which is nobody. So ``errors = {}`` and
                ``on_error=errors.__setitem__`` continue, and collect the errors.

        Raises:
            DataError: an image cannot be read, and there is no ``on_error``. The people in the images before it are
                returned first.
        """
        _refuse_single_image(images)
        copies = (image.copy() if isinstance(image, np.ndarray) else image for image in images)
        return self.stream_groups(batched(copies, self.settings.batch_size), channels, on_error)

    def stream_groups(
        self,
        groups: Iterable[Iterable[ImageInput]],
        channels: ChannelOrder = "bgr",
        on_error: Callable[[int, DataError], object] | None = None,
    ) -> Generator[list[Person], None, None]:
        """Like ``stream``, but only images of the same group run together.

        The last bits of the result for an image may depend on the images that it runs together with. If processes
        share out whole groups, they find exactly the people that one process finds.
        """
        counter = itertools.count()
        pending: deque[_Group] = deque()

        def read_images(group: Iterable[ImageInput]) -> Iterator[np.ndarray | None]:
            for image in group:
                number = next(counter)
                try:
                    yield to_bgr(image, channels)
                except DataError as error:
                    if on_error is None:
                        raise
                    on_error(number, error)
                    yield None

        def split_into_batches() -> Iterator[list[np.ndarray]]:
            for group in groups:
                for images in batched(read_images(group), sys.maxsize):  # one list; after an error, what came before it
                    readable = {place: image for place, image in enumerate(images) if image is not None}
                    batches = self._batch_by_input_size(readable)
                    pending.append(_Group(len(images), list(itertools.chain(*batches))))
                    for batch in batches:
                        yield [readable[place] for place in batch]

        people: list[list[Person]] = []

        def finished_groups() -> Iterator[list[Person]]:
            nonlocal people
            # A group of which nothing can be read runs nothing, and results of the next group may have come already.
            while pending and len(people) >= len(pending[0].order):
                group = pending.popleft()
                people_of = dict(zip(group.order, people))
                people = people[len(group.order) :]
                yield from (people_of.get(index, []) for index in range(group.size))

        # Threads work at the same time: one prepares the next batch, and one decodes the previous batch. The network
        # runs on the caller's thread.
        with (
            contextlib.closing(map_in_threads(self.prepare_inputs, split_into_batches())) as inputs,
            contextlib.closing(
                map_in_threads(
                    self._decode_batch,
                    (BatchMaps(batch.image_sizes, batch.map_letterboxes, self.run_network(batch)) for batch in inputs),
                )
            ) as outputs,
        ):
            for people_of_batch in outputs:
                people += people_of_batch
                yield from finished_groups()
        yield from finished_groups()

    def prepare_inputs(self, images: Sequence[np.ndarray]) -> InputBatch:
        """Resize and pad (H, W, 3) BGR uint8 images; their network inputs must have the same size."""
        image_sizes = [(image.shape[0], image.shape[1]) for image in images]
        largest = [self.letterbox(size, max(self.settings.scales)) for size in image_sizes]
        counts = Counter(tuple(self.letterbox(size, scale) for size in image_sizes) for scale in self.settings.scales)
        # The same list as ``largest``, so that its maps are not resampled.
        letterboxes = [largest if list(key) == largest else list(key) for key in counts]
        inputs = []
        for letterboxes_of_scale in letterboxes:
            batch = np.empty((len(images), *letterboxes_of_scale[0].padded, 3), np.uint8)
            for letterbox, image, out in zip(letterboxes_of_scale, images, batch):
                letterbox.apply(image, out)
            inputs.append(batch)
        return InputBatch(image_sizes, letterboxes, list(counts.values()), largest, inputs)

    def run_network(self, batch: InputBatch) -> list[np.ndarray]:
        """(C, h, w) float32 maps of each image, averaged over the scales, in ``decoded_cells`` of the largest one."""
        total: np.ndarray | None = None
        for images, letterboxes, count in zip(batch.inputs, batch.letterboxes, batch.counts):
            maps = resample_maps(self._average_over_flip(images), letterboxes, batch.map_letterboxes)
            if count > 1:
                maps = maps * np.float32(count)
            total = maps if total is None else total + maps
        assert total is not None  # there is a scale
        if sum(batch.counts) > 1:
            total = total / np.float32(sum(batch.counts))
        cells = [letterbox.decoded_cells for letterbox in batch.map_letterboxes]  # the others are padding
        return [maps[:, :rows, :columns] for maps, (rows, columns) in zip(total, cells)]

    def _average_over_flip(self, images: np.ndarray) -> np.ndarray:
        """Maps of (N, H, W, 3) images, averaged with those of the mirrored images if the settings say so."""
        maps = self._compute_maps(images)
        if self.settings.flip:
            # The image is mirrored with its padding. The width is a multiple of the stride, so the cells coincide.
            mirrored = self._compute_maps(np.ascontiguousarray(images[:, :, ::-1]))
            maps = (maps + mirrored[:, self.skeleton.flip_channels, :, ::-1]) / 2
        return maps

    def _compute_maps(self, images: np.ndarray) -> np.ndarray:
        """The maps of (N, H, W, 3) images; ``ValueError`` if their shape is another: people would be misplaced."""
        maps = self.network(images)
        count, height, width = images.shape[:3]
        expected = (count, self.skeleton.num_channels, height // MAP_STRIDE, width // MAP_STRIDE)
        if maps.shape != expected:
            raise ValueError(f"the network must compute maps of shape {expected}, not {maps.shape}")
        return maps

    def _decode_batch(self, batch: BatchMaps) -> list[list[Person]]:
        """The people of each image, with keypoints in its pixels."""
        people_of_images = []
        for image_size, letterbox, maps in zip(batch.image_sizes, batch.letterboxes, batch.maps):
            people = decode(
                maps,
                keypoint_threshold=self.settings.keypoint_threshold,
                part_threshold=self.settings.part_threshold,
                skeleton=self.skeleton,
            )
            kept = [person for person in people if person.score >= self.min_score]
            people_of_images.append(letterbox.map_back(kept, image_size))
        return people_of_images

    def compute_maps(self, image: ImageInput, channels: ChannelOrder = "bgr") -> np.ndarray:
        """(C, h, w) float32 maps of an image without its padding, averaged over scales and flip."""
        batch = self.prepare_inputs([to_bgr(image, channels)])
        rows, columns = batch.map_letterboxes[0].image_cells
        return self.run_network(batch)[0][:, :rows, :columns]

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

    def _batch_by_input_size(self, images: Mapping[int, np.ndarray]) -> list[list[int]]:
        """Keys of images with network inputs of equal size, at most ``batch_size`` together."""
        indices_of: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for index, image in images.items():
            sizes = tuple(self.letterbox(image.shape[:2], scale).padded for scale in self.settings.scales)
            indices_of.setdefault(sizes, []).append(index)
        return [batch for indices in indices_of.values() for batch in batched(indices, self.settings.batch_size)]


def _network_in_memory(
    network: nn.Module | MapFunction,
    device: torch.device | str | None,
    amp: Amp | Literal["auto"] | None,
    backend: BackendName | None,
) -> MapFunction:
    """What computes the maps with a module or a function; ``ConfigError`` if ``network`` is neither."""
    if backend not in (None, "torch"):
        raise ConfigError(f"backend {backend!r} runs files; give the path of the checkpoint instead of the network")
    # A module has ``parameters``; what runs an exported file has not, and must not import PyTorch.
    if not hasattr(network, "parameters"):
        if not callable(network):
            raise ConfigError(
                f"a predictor needs a path, a name of weights, a module or a function, not a {type(network).__name__}"
            )
        return functools.partial(_copy_maps, network)
    if not hasattr(network, "heatmaps"):
        raise ConfigError(
            f"{type(network).__name__} has no method heatmaps(images), which computes the maps; give a PoseNet, or the "
            ".module of one that is wrapped"
        )
    import torch

    from posenet.devices.precision import select_amp

    if device == "auto":
        device = None
    if amp == "auto":
        weight = next(network.parameters(), torch.empty(0))
        amp = select_amp(weight.device if device is None else torch.device(device), "auto")
    return TorchNetwork(network, device, amp or "off")  # type: ignore[arg-type]


def _copy_maps(function: MapFunction, images: np.ndarray) -> np.ndarray:
    """The maps, in an array of their own: a function may write to the same one again while they are decoded."""
    return np.array(function(images))


def _refuse_single_image(images: object) -> None:
    """Raise ``DataError`` for one image instead of several: its rows, or the letters of its path, are no images."""
    if isinstance(images, (str, Path)) or (isinstance(images, np.ndarray) and images.ndim < 4):
        raise DataError("give several images as a list; for a single one, call the predictor itself")


def override_settings(settings: InferenceConfig, overrides: dict[str, Any]) -> InferenceConfig:
    """Settings with other values of some keys; ``ConfigError`` if a key is unknown or a value is out of range."""
    known = [field.name for field in dataclasses.fields(InferenceConfig)]
    for name in overrides:
        if name not in known:
            raise ConfigError(f"unknown setting inference.{name}; known are {', '.join(known)}")
    changes = dict(overrides)
    try:
        if "scales" in changes:
            changes["scales"] = tuple(changes["scales"])  # flags are lists
        changed = dataclasses.replace(settings, **changes)
    except (ValueError, TypeError) as error:  # a TypeError is a text instead of a number, for example
        raise ConfigError(f"inference settings {overrides}: {error}") from error
    if "height" in overrides and changed.height > changed.max_height:
        raise ConfigError(
            f"inference.height {changed.height} is above inference.max_height {changed.max_height}, to which images "
            "are resized at most; choose a smaller height, or raise the limit too"
        )
    return changed


def _round_down(side: int) -> int:
    """The next multiple of ``INPUT_MULTIPLE`` at or below ``side``."""
    return side // INPUT_MULTIPLE * INPUT_MULTIPLE


def _round_up(side: int) -> int:
    """The next multiple of ``INPUT_MULTIPLE`` at or above ``side``."""
    return -(-side // INPUT_MULTIPLE) * INPUT_MULTIPLE
