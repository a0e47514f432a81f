"""From images to people: letterbox, network, average over scales and flip, decoder.

``Predictor.stream_groups`` and the methods that follow it are the steps of one prediction, in order.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar

import numpy as np

from posenet.devices.background import map_in_background
from posenet.images import ChannelOrder, ImageInput, to_bgr
from posenet.inference.backends.backend import Backend, InputBatch, NetworkOutput
from posenet.inference.backends.loading import BackendName, BackendOptions, load_backend, override_settings
from posenet.inference.letterbox import Letterbox
from posenet.inference.person import Person
from posenet.inference.tiling import Tiling, choose_tiling
from posenet.settings import INPUT_MULTIPLE, Config, InferenceConfig
from posenet.skeleton import COCO, Skeleton

if TYPE_CHECKING:
    import torch
    from torch import nn

    from posenet.devices.precision import Amp

Item = TypeVar("Item")

TILE_TOLERANCE = 9.0
"""Pixels of the network input by which two tiles may differ about a keypoint: the sigma of the target maps."""


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
            channels-last memory format if its attribute ``channels_last`` exists and is true. If it has an attribute
            ``parallel_runs`` above 1, that many threads call ``heatmaps`` at the same time. Or a backend, which runs
            a network with settings of its own; then all other arguments are ignored.
        settings: ``inference`` section of the configuration; None uses its defaults.
        skeleton: meaning of the channels.
        device: where the network runs; None is the device of its weights.
        amp: precision of the network; leave it "off" for a ``FusedNetwork``, which sets its precision itself.
        select: where candidates are selected. "device" copies only the candidates to the host, "host" copies the maps.
            None selects the faster one: "host" on a CPU, else "device".

    Attributes:
        backend: runs the network.
    """

    def __init__(
        self,
        network: nn.Module | Backend,
        settings: InferenceConfig | None = None,
        *,
        skeleton: Skeleton = COCO,
        device: torch.device | str | None = None,
        amp: Amp = "off",
        select: Literal["device", "host"] | None = None,
    ) -> None:
        if isinstance(network, Backend):
            self.backend = network
        else:
            from posenet.inference.backends.torch_backend import TorchBackend

            self.backend = TorchBackend(
                network, settings or InferenceConfig(), skeleton=skeleton, device=device, amp=amp, select=select
            )
        self.settings = self.backend.settings
        self.skeleton = self.backend.skeleton

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
        settings = override_settings(config.inference, overrides)
        return cls(network, settings, skeleton=config.model.skeleton, device=device, amp=amp)

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path,
        *,
        config: Config | None = None,
        device: str = "auto",
        amp: Amp | Literal["auto"] = "auto",
        backend: BackendName | None = None,
        threads: int | None = None,
        parallel: bool = False,
        **overrides: Any,
    ) -> Predictor:
        """A predictor that runs the network in a checkpoint, ours or a published one, or in an exported file.

        Args:
            path: a file, or the name of registered weights such as "simplepose", which are downloaded once. A file that
                ends in ``.onnx`` is one that ``posenet export-onnx`` has written; it needs no PyTorch.
            config: replaces the configuration in the checkpoint. An exported file has none.
            device: auto, cpu, cuda, cuda:1, mps and so on.
            amp: precision of the network; "auto" is the fastest one without loss of accuracy on the device.
            backend: the software that runs the network; "auto" is the fastest one that is installed and as accurate.
                None is PyTorch for a checkpoint, and "auto" for an exported file.
            threads: CPU threads of other backends than PyTorch, which has ``torch.set_num_threads``; None for as many
                as OMP_NUM_THREADS or the backend states.
            parallel: run two batches of a stream at the same time, each with half of the threads, where the backend can
                do so (OpenVINO on a CPU). Streams are faster then, and single images slower.
            overrides: keys of the configuration's ``inference`` section.

        Raises:
            CheckpointError: the file is damaged or does not fit the network.
            ConfigError: the device is unknown, a package is missing, the backend cannot run the file, or an override is
                out of range.
        """
        predictor, _ = cls.load(
            path,
            config=config,
            device=device,
            amp=amp,
            backend=backend,
            threads=threads,
            parallel=parallel,
            **overrides,
        )
        return predictor

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        config: Config | None,
        device: str,
        amp: Amp | Literal["auto"],
        backend: BackendName | None = None,
        threads: int | None = None,
        parallel: bool = False,
        **overrides: Any,
    ) -> tuple[Predictor, Config]:
        """The predictor that ``from_checkpoint`` returns, and the configuration of its network."""
        options = BackendOptions(backend, device, amp, threads, parallel)
        loaded, config = load_backend(path, config, options, overrides)
        return cls(loaded), config

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

        # Threads work at the same time: one prepares the next batch, and one decodes the previous batch. The network
        # runs on the caller's thread, or on several others with one batch each.
        with (
            contextlib.closing(map_in_background(self.prepare_inputs, split_into_batches())) as inputs,
            contextlib.closing(self.run_networks(inputs)) as outputs,
            contextlib.closing(map_in_background(self.decode_output, outputs)) as people_of_batches,
        ):
            people_of_pieces: list[list[Person]] = []
            for people_of_batch in people_of_batches:
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
        inputs = []
        for letterboxes_of_scale in letterboxes:
            batch = np.empty((len(images), *letterboxes_of_scale[0].padded, 3), np.uint8)
            for letterbox, image, out in zip(letterboxes_of_scale, images, batch):
                letterbox.apply(image, out)
            inputs.append(batch)
        return InputBatch(image_sizes, letterboxes, inputs)

    def run_networks(self, batches: Iterable[InputBatch]) -> Generator[NetworkOutput, None, None]:
        """Run the network on batches, in order, as many at the same time as the backend can."""
        runs = self.backend.parallel_runs
        if runs == 1:
            yield from map(self.run_network, batches)
        else:
            yield from map_in_background(self.run_network, batches, workers=runs, ahead=runs)

    def run_network(self, batch: InputBatch) -> NetworkOutput:
        """Run the network on a batch. A device may still work on it when this returns."""
        return self.backend.run(batch)

    def decode_output(self, output: NetworkOutput) -> list[list[Person]]:
        """The people of each image, with keypoints in pixels of the image."""
        return [
            letterbox.map_back(decoder_input.decode(self.settings, self.skeleton), image_size)
            for image_size, letterbox, decoder_input in zip(output.image_sizes, output.letterboxes, output.fetch())
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
