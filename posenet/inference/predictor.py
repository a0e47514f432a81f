"""``Predictor``: from images to people, with one network.

Each stage is ahead of the next: read -> fill batches -> prepare -> network -> decode.
"""

import contextlib
import dataclasses
import logging
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np

from posenet.downloading import is_address
from posenet.errors import ConfigError, DataError
from posenet.images import REDUCTIONS, ChannelOrder, ImageInput, is_encoded, to_bgr
from posenet.inference.averaging import InputBatch, Letterbox, start_network
from posenet.inference.decoder.decode import decode
from posenet.inference.media.frames import (
    IN_MEMORY,
    Frame,
    FrameInput,
    FrameSelection,
    Source,
    file_source,
    read_frames,
)
from posenet.inference.networks import BackendName, MapFunction, TorchNetwork, load_network, wrap_network
from posenet.inference.result import Result
from posenet.messages import truncate_for_message
from posenet.settings import Config, InferenceConfig, config_from_dict
from posenet.settings.sections import MAX_SIDE, advise_on_height
from posenet.skeleton import Skeleton, load_skeleton
from posenet.threads import keep_failure
from posenet.visualization.drawing import MIN_SCORE

if TYPE_CHECKING:
    import torch
    from torch import nn

    from posenet.devices.precision import Amp

WINDOW_BATCHES = 32
"""A batch is filled from a window of images that follow each other: at most from this many times its size."""
WINDOW_BYTES = 96 * 2**20
"""Largest memory of the images in that window."""
RUNNING_BATCHES = 6
"""Batches that are prepared, computed and decoded at the same time."""
RUNNING_BYTES = 48 * 2**20
"""Fewer, if their images take more memory together; a single batch may take more."""
THREADS = 4
"""Threads that prepare batches, and as many that decode them."""

_log = logging.getLogger(__name__)


class Predictor:
    """Finds people in images with a trained network.

    The network is set to evaluation mode and is not copied; ``FusedNetwork`` is a faster copy of one that is no longer
    trained. Several threads may use one predictor at the same time. The people found in an image do not depend on the
    other images of its batch, except for rounding on some devices.

    Args:
        network: what finds people: by default the published weights. A checkpoint, ours or a published one; an exported
            file, which ends in ``.onnx`` and needs no PyTorch; or the name of published weights such as "simplepose",
            which are downloaded once. Or a module of PyTorch with a method ``heatmaps``: (N, 3, H, W) float32 BGR 0-1
            to (N, C, H/4, W/4). Or any function like ``posenet.inference.networks.MapFunction``.
        settings: ``inference`` section of the configuration; None is that of ``config``.
        config: replaces the configuration in a checkpoint; an exported file has its own. For a module or a function,
            None is the defaults.
        skeleton: meaning of the channels, or the path of a skeleton file; None is that of the configuration.
        device: auto, cpu, cuda, cuda:1, mps and so on. For a module, "auto" is the device of its weights.
        amp: precision of the network; "auto" is the fastest one without loss of accuracy on the device. None is "auto"
            for a file and "off" for a module; leave it "off" for a ``FusedNetwork``, which sets its precision itself.
        backend: the software that runs a file; "auto" is the fastest one that is installed and as accurate. OpenVINO
            and ONNX Runtime run an ONNX file, to which a checkpoint is converted once, in the user's cache.
        num_images: how many images the predictor is for, if that is known. For a few, "auto" does not convert a
            checkpoint, because PyTorch would be ready first.
        min_score: people with a lower score, 0-1, are left out; evaluation needs 0.
        keep_maps: whether results have the maps of the network.
        overrides: keys of the configuration's ``inference`` section, such as ``flip=True``.

    Raises:
        CheckpointError: the file is damaged or does not fit the network.
        ConfigError: an argument is none of the above or out of range, or a package is missing.
    """

    def __init__(
        self,
        network: "str | os.PathLike[str] | nn.Module | MapFunction" = "simplepose",
        settings: InferenceConfig | None = None,
        *,
        config: Config | None = None,
        skeleton: Skeleton | str | Path | None = None,
        device: "torch.device | str | None" = "auto",
        amp: 'Amp | Literal["auto"] | None' = None,
        backend: BackendName = "auto",
        num_images: int | None = None,
        min_score: float = MIN_SCORE,
        keep_maps: bool = False,
        **overrides: Any,
    ) -> None:
        # A wrong one is reported before a large file is read, whose own limit of the height may be a higher one.
        known = settings or (config.inference if config else InferenceConfig(max_height=MAX_SIDE))
        override_settings(known, overrides)
        # Nobody has a score of at least NaN.
        if not (isinstance(min_score, (int, float, np.floating)) and 0 <= min_score <= 1):
            raise ConfigError(f"min_score {truncate_for_message(min_score)} is not between 0 and 1; correct it")
        is_file = isinstance(network, (str, os.PathLike))
        if isinstance(network, (str, os.PathLike)):
            self.network, config = load_network(
                Path(network),
                config,
                device=str(device or "auto"),
                amp=amp or "auto",
                backend=backend,
                num_images=num_images,
            )
        else:
            self.network = wrap_network(network, device, amp, backend)
        config = config or Config()
        self.settings = override_settings(settings or config.inference, overrides)
        self.skeleton = config.model.skeleton if skeleton is None else load_skeleton(skeleton)
        if is_file and (difference := self.skeleton.different_channels(config.model.skeleton)):
            raise ConfigError(f"{network} is for another skeleton than the given one, which has {difference}; omit it")
        if self.settings.flip and not self.skeleton.mirror:
            self.settings = dataclasses.replace(self.settings, flip=False)
            if overrides.get("flip"):
                _log.warning("No mirrored images are averaged, because the skeleton has mirror = false")
        # Only the checkpoint of a run says how the network was trained.
        if config.data.train and (advice := advise_on_height(dataclasses.replace(config, inference=self.settings))):
            _log.warning("%s: %s", network, advice)
        self.min_score = min_score
        self.keep_maps = keep_maps
        self.tracking = config.tracking
        self.exif_frame = config.data.exif_frame

    @overload
    def __call__(self, image: ImageInput, channels: ChannelOrder = "bgr") -> Result: ...
    @overload
    def __call__(self, image: list[ImageInput], channels: ChannelOrder = "bgr") -> list[Result]: ...
    def __call__(self, image: ImageInput | list[ImageInput], channels: ChannelOrder = "bgr") -> Result | list[Result]:
        """The people in an image, highest score first, with keypoints in pixels of the image.

        Args:
            image: an image file, as its path, its address (http, https, data), its bytes or an open file, or a PIL
                image, which are read upright; or an array: (H, W, 3) uint8, BGR as ``cv2.imread`` returns it. Grey
                images, images with alpha and 16-bit images are converted. Or a list of them, for a list of results.
            channels: "rgb" for an array with the colours in that order. Files and PIL images state theirs.

        Raises:
            DataError: the single image cannot be read or is none; or the network has computed NaN or infinite values.
        """
        if isinstance(image, (list, tuple)):
            return list(self.stream(image, channels))
        frame = read_single_image(image, channels)
        wait = self.start_network(self.prepare_inputs([frame.image]))  # without the threads of a stream
        return self.decode_batch(wait(), [frame])[0]

    def stream(
        self,
        inputs: FrameInput | Iterable[FrameInput],
        channels: ChannelOrder = "bgr",
        *,
        track: bool = False,
        **selection: Any,
    ) -> Generator[Result, None, None]:
        """The people in any number of images and frames, in order. Only a few of them are in memory at a time.

        Images with network inputs of the same size run together, so results may come some images later; frames of
        cameras and live streams do not wait. An array may be overwritten when the next image is requested.

        Args:
            inputs: images as for ``predictor(image)``, folders, patterns, videos, addresses, numbers of cameras; one,
                or an iterable of several.
            channels: order of the colours of arrays.
            track: give every person of a video an ``id`` that stays. People are left out until they are confirmed.
                Images in memory count as frames of one video, 25 a second; image files are not tracked. The settings of
                the tracker are in ``predictor.tracking``: with ``smooth``, the jitter of keypoints is removed.
            selection: ``start``, ``duration`` and ``stride`` of videos, and ``recursive``; see ``FrameSelection``.

        Returns:
            A result for each image or frame. One that cannot be read has no people and an ``error``, which is also
            logged, so that a damaged file among many does not end the run.

        Raises:
            DataError: the only input does not exist, or has no image.
        """
        frames = read_frames(inputs, channels, FrameSelection(**selection))
        with contextlib.closing(self.find_people(frames, track=track)) as results:
            for result in results:
                if result.error is not None:
                    _log.warning("%s", result.error)
                yield result

    def find_people(
        self, frames: Generator[Frame, None, None], *, track: bool = False
    ) -> Generator[Result, None, None]:
        """The people in frames, in order; nobody in a frame that could not be read. ``track``: see ``stream``.

        Frames whose network inputs have the same size run together, also if others are between them. So there is a
        window of frames that are read, but not predicted, which is bounded in number and in bytes. A live frame is
        predicted before the next one is read: a frame that waits would be out of date. The last bits of the result for
        a frame may depend on those that it runs together with, but batches never reach from one block of sources into
        the next.

        The next frame is taken on the caller's thread; ``read_frames`` reads ahead on threads of its own. An error in
        reading frames is raised after the results of those before.
        """
        with (
            contextlib.closing(frames),
            contextlib.closing(_fill_batches(self, frames)) as batches,
            contextlib.closing(_run_batches(self, batches)) as placed,
        ):
            results = _in_order(placed)
            if not track:
                yield from results
                return
            from posenet.inference.tracking.tracker import track_people  # a part that can be removed

            yield from track_people(results, self.tracking)

    def prepare_inputs(self, images: Sequence[np.ndarray]) -> InputBatch:
        """Resize and pad (H, W, 3) BGR uint8 images; their network inputs must have the same size."""
        batch = InputBatch([], [])
        for scale in sorted(self.settings.scales, reverse=True):
            letterboxes = [Letterbox.fit((image.shape[0], image.shape[1]), self.settings, scale) for image in images]
            inputs = np.stack([letterbox.apply(image) for letterbox, image in zip(letterboxes, images)])
            network = self.network
            batch.letterboxes.append(letterboxes)
            batch.inputs.append(network.pin(inputs).numpy() if isinstance(network, TorchNetwork) else inputs)
        return batch

    def start_network(self, batch: InputBatch) -> Callable[[], list[np.ndarray]]:
        """Start to compute the maps of a batch; what waits for them. With ``keep_maps``, they have all channels."""
        return start_network(self.network, batch, self.skeleton, flip=self.settings.flip, all_channels=self.keep_maps)

    def decode_batch(self, maps_of_images: Sequence[np.ndarray], frames: Sequence[Frame]) -> list[Result]:
        """The people in each frame, with keypoints in its pixels, for the maps of the network."""
        results = []
        largest = max(self.settings.scales)
        for frame, maps in zip(frames, maps_of_images):
            letterbox = Letterbox.fit((frame.image.shape[0], frame.image.shape[1]), self.settings, largest)
            # The decoder's own limit, which is lower, applies before people share keypoints, and so another one would
            # change who gets which.
            people = decode(maps, keypoint_threshold=self.settings.keypoint_threshold, skeleton=self.skeleton)
            kept = [person for person in people if person.score >= self.min_score]
            rows, columns = letterbox.image_cells
            kept_maps = maps[:, :rows, :columns] if self.keep_maps else None
            best_score = people[0].score if people else 0.0
            results.append(Result(frame, letterbox.map_back(kept, frame.size), self.skeleton, kept_maps, best_score))
        return results

    def reduction_of(self, image_size: tuple[int, int]) -> int:
        """How much smaller an image of (height, width) may be read, so that it still is not enlarged for the network.

        One of ``REDUCTIONS`` that divides both, or 1: pixels of the smaller image cover those of the image exactly.
        """
        resized = Letterbox.fit(image_size, self.settings, max(self.settings.scales)).resized
        for reduction in REDUCTIONS:
            if all(side % reduction == 0 and side // reduction >= least for side, least in zip(image_size, resized)):
                return reduction
        return 1


class FrameBatch(NamedTuple):
    """Frames that run together, and their places in the order of all frames."""

    places: list[int]
    frames: list[Frame]
    bytes_before: int = 0
    """Bytes of all frames that were read before the first one."""

    @property
    def size(self) -> int:
        """Bytes of the images."""
        return sum(frame.image.nbytes for frame in self.frames)


def _fill_batches(predictor: Predictor, frames: Iterable[Frame]) -> Generator[FrameBatch, None, None]:
    """Batches of frames with network inputs of the same size. One that could not be read, or is live, is alone."""
    settings = predictor.settings
    waiting: dict[object, FrameBatch] = {}  # by the sizes of their network inputs; the longest waiting comes first
    bytes_read = 0
    group: object = None  # the block of images, or the video, whose frames run together
    failures: list[Exception] = []

    def longest_waiting() -> FrameBatch:
        return next(iter(waiting.values()))

    def take(number: int) -> list[FrameBatch]:
        return [waiting.pop(key) for key in [*waiting][:number]]

    for place, frame in enumerate(keep_failure(frames, failures)):
        if waiting and place - longest_waiting().places[0] >= WINDOW_BATCHES * settings.batch_size:
            yield from take(1)
        if frame.error is not None:
            yield FrameBatch([place], [frame])
            continue
        last_group = group
        group = object() if frame.is_live else (frame.source.block, None if frame.number is None else frame.source)
        if group != last_group:
            yield from take(len(waiting))
        size = frame.image.nbytes
        while waiting and bytes_read + size - longest_waiting().bytes_before > WINDOW_BYTES:
            yield from take(1)
        height, width = frame.image.shape[:2]
        key = tuple(Letterbox.fit((height, width), settings, scale).padded for scale in settings.scales)
        batch = waiting.setdefault(key, FrameBatch([], [], bytes_read))
        batch.places.append(place)
        batch.frames.append(frame)
        bytes_read += size
        if frame.is_live or len(batch.frames) == settings.batch_size:
            yield waiting.pop(key)
    yield from take(len(waiting))
    for failure in failures:
        raise failure


def _run_batches(predictor: Predictor, batches: Iterable[FrameBatch]) -> Generator[tuple[int, Result], None, None]:
    """Results with the places of their frames, in the order of the batches."""
    failures: list[Exception] = []
    running: deque[tuple[FrameBatch, Future[list[Result]]]] = deque()

    # Each stage waits for the one before. The batches pass every stage in their order.

    def compute(prepared: Future[InputBatch]) -> Callable[[], list[np.ndarray]]:
        return predictor.start_network(prepared.result())

    def decode(started: Future[Callable[[], list[np.ndarray]]], frames: Sequence[Frame]) -> list[Result]:
        wait = started.result()
        return predictor.decode_batch(wait(), frames)

    def finish_first() -> Iterator[tuple[int, Result]]:
        batch, results = running.popleft()
        yield from zip(batch.places, results.result())

    def is_room_for(batch: FrameBatch) -> bool:
        total = sum(other.size for other, _ in running) + batch.size
        return not running or (len(running) < RUNNING_BATCHES and total <= RUNNING_BYTES)

    # At an early end, the last context drops its work first. Threads that decode wait for the network: if they were
    # last, they would wait for batches whose results nobody takes.
    with _threads(THREADS) as decoding, _threads(THREADS) as preparing, _threads(1) as computing:
        for batch in keep_failure(batches, failures):
            [first, *_] = batch.frames
            if first.error is not None:
                yield batch.places[0], Result(first, [], predictor.skeleton)
            else:
                while not is_room_for(batch):
                    yield from finish_first()
                inputs = preparing.submit(predictor.prepare_inputs, [frame.image for frame in batch.frames])
                maps = computing.submit(compute, inputs)
                running.append((batch, decoding.submit(decode, maps, batch.frames)))
            while running and (first.is_live or running[0][1].done()):
                yield from finish_first()
        while running:
            yield from finish_first()
        for failure in failures:
            raise failure


def _in_order(placed: Iterable[tuple[int, Result]]) -> Iterator[Result]:
    """Results, each with its place, in the order of the places, which count from 0."""
    early: dict[int, Result] = {}
    next_place = 0
    for place, result in placed:
        early[place] = result
        while next_place in early:
            yield early.pop(next_place)
            next_place += 1


@contextlib.contextmanager
def _threads(number: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that drop what they have not begun when the context ends."""
    with ThreadPoolExecutor(number) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def read_single_image(image: ImageInput, channels: ChannelOrder) -> Frame:
    """The frame of one image; ``DataError`` if it is something else, or a file of several images."""
    if not isinstance(image, (str, os.PathLike)) or is_encoded(image):
        return Frame(IN_MEMORY, to_bgr(image, channels))
    name = os.fspath(image)
    source = Source("image", name) if is_address(name) else file_source(Path(name))
    if source.kind != "image" or os.path.isdir(name):
        raise DataError(
            f"{name} is not a single image; use predictor.stream({name!r}), which returns a result for each"
        )
    return Frame(source, to_bgr(name, channels))


def override_settings(settings: InferenceConfig, overrides: dict[str, Any]) -> InferenceConfig:
    """Settings with other values of some keys; ``ConfigError`` if a key is unknown or a value is out of range."""
    of_numpy = (np.generic, np.ndarray)
    plain = {key: value.tolist() if isinstance(value, of_numpy) else value for key, value in overrides.items()}
    tables = {"inference": dataclasses.asdict(settings) | plain}
    changed = config_from_dict(tables, "inference settings (beside min_score, device, amp and backend)").inference
    if "height" in overrides and changed.height > changed.max_height:
        raise ConfigError(
            f"inference.height {changed.height} is above inference.max_height {changed.max_height}, to which images "
            "are resized at most; choose a smaller height, or raise the limit too"
        )
    return changed
