"""From images to maps: networks in any software, and the average of their maps.

A network is a ``MapFunction``: in PyTorch a ``TorchNetwork``, in OpenVINO and ONNX Runtime one of ``exports``. It sees
an image once for each inference scale, resized and padded (``Letterbox``), and with ``flip`` also mirrored. All maps
are resampled to the cells of the largest scale (``plan_resampling``) and averaged: on a device by PyTorch, elsewhere by
OpenCV, which is faster on a CPU, and there without PyTorch too.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import cv2
import numpy as np

from posenet.checkpoints.named import find_weights
from posenet.errors import ConfigError
from posenet.messages import truncate_for_message
from posenet.person import Person
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE, PADDING, Config, InferenceConfig
from posenet.skeleton import Skeleton

if TYPE_CHECKING:
    import torch
    from torch import nn

    from posenet.devices.precision import Amp

MapFunction = Callable[[np.ndarray], np.ndarray]
"""Computes the maps of images: (N, H, W, 3) uint8 BGR, H and W multiples of 64, to (N, C, H/4, W/4) float32.

Several threads may call it at the same time. Its next call on a thread may write to the array again that it returned
there."""

BackendName = Literal["auto", "torch", "openvino", "onnxruntime"]
BACKENDS: tuple[BackendName, ...] = ("auto", "torch", "openvino", "onnxruntime")
"""Software that runs a network; "auto" is the fastest that is installed and as accurate."""
RUNTIMES = {"openvino": "OpenVINO", "onnxruntime": "ONNX Runtime"}
"""Packages that run ONNX files, and what they are called; the fastest on a CPU first. Each is an extra of posenet."""
EXPORTS = "posenet.inference.exports"
"""A part that can be removed."""
CORNER = 0.001
"""Smallest x, in pixels, of a keypoint with y = 0."""
MAX_WIDTH = 3800
"""Upper limit of the width of the network input: it bounds the memory that a panorama takes."""
MAX_CUBIC_FACTOR = 1.75
"""An image that is more times as large as its network input is halved first. Cubic interpolation alone would give some
of its pixels almost no weight."""

_log = logging.getLogger(__name__)


def is_exported_file(path: str | Path) -> bool:
    """Whether a path names an exported file, by its suffix."""
    return Path(path).suffix.lower() == ".onnx"


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def load_network(
    path: Path,
    config: Config | None,
    *,
    device: str,
    amp: Amp | Literal["auto"],
    backend: BackendName,
    num_images: int | None = None,
) -> tuple[MapFunction, Config]:
    """Load a checkpoint or an exported file; the arguments are those of ``Predictor``.

    A checkpoint becomes a fused copy of the network in PyTorch, or an ONNX file in a runtime, to which it is converted
    once. Return also the configuration; for published weights, which have none, the defaults with the size of their
    network.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend {truncate_for_message(backend)} is unknown; use {', '.join(BACKENDS)}")
    if (is_exported_file(path) or backend in RUNTIMES) and not is_installed(EXPORTS):
        raise ConfigError(f"{path}: nothing here runs exported files; use a checkpoint in PyTorch")
    if is_exported_file(path):
        if config is not None:
            raise ConfigError(f"{path} is an exported file with settings of its own; leave out another configuration")
        from posenet.inference.exports.runtimes import load_exported_file

        return load_exported_file(path, device, amp, backend)
    if not is_installed("torch"):
        raise ConfigError(f"{path} needs PyTorch: pip install torch, or give a file of posenet export-onnx (.onnx)")
    path = find_weights(path)  # a missing file is reported before PyTorch is imported
    import torch

    from posenet.checkpoints.weights import load_model
    from posenet.devices.device import select_device
    from posenet.devices.precision import select_amp
    from posenet.model.fused import FusedNetwork

    # An unknown device is reported before a large file is read. A runtime has names of its own.
    torch_device = torch.device("cpu") if backend in RUNTIMES else select_device(device)
    torch_amp = select_amp(torch_device, amp)
    runtime = _fastest_backend(torch_device, torch_amp) if backend == "auto" else backend
    loaded = None
    if runtime != "torch":
        from posenet.inference.exports.onnx_export import load_converted

        is_requested = backend != "auto"
        loaded = load_converted(path, config, runtime, device, amp, num_images, is_requested=is_requested)
    if backend == "auto":
        _log.info("%s runs with %s on %s", path, RUNTIMES[runtime] if loaded else "PyTorch", torch_device)
    if loaded is not None:
        return loaded
    network, config = load_model(path, config)
    if config.model.network:
        return TorchNetwork(network, torch_device, torch_amp), config
    # The fused network has that precision in itself.
    return TorchNetwork(FusedNetwork(network, torch_amp), torch_device, "off"), config


def _fastest_backend(device: torch.device, amp: Amp) -> BackendName:
    """The fastest installed backend that computes in a precision on a CPU, or PyTorch on another device.

    ONNX Runtime has only float32 on a CPU. Only PyTorch emulates a precision that the CPU does not compute in.
    """
    from posenet.devices.precision import select_amp

    is_native = amp in ("off", select_amp(device, "auto"))
    if device.type != "cpu" or not is_native or not (is_installed(EXPORTS) and is_installed("onnx")):
        return "torch"
    if is_installed("openvino"):
        return "openvino"
    return "onnxruntime" if is_installed("onnxruntime") and amp == "off" else "torch"


def device_of_process(path: str | Path, device: str, backend: BackendName, local_rank: int) -> str:
    """The device of one of several processes on this machine: in PyTorch that of its local rank, else ``device``."""
    if backend not in ("auto", "torch") or is_exported_file(path):
        return device
    from posenet.devices.parallel import device_of_rank

    return str(device_of_rank(device, local_rank))


def wrap_network(
    network: nn.Module | MapFunction,
    device: torch.device | str | None,
    amp: Amp | Literal["auto"] | None,
    backend: BackendName,
) -> MapFunction:
    """A module of PyTorch as a ``MapFunction``; one as it is. ``ConfigError`` if it is neither."""
    if backend not in ("auto", "torch"):
        raise ConfigError(f"backend {backend!r} runs files; give the path of the checkpoint instead of the network")
    is_module = hasattr(network, "parameters")  # what runs an exported file is none, and must not import PyTorch
    if callable(network) and not is_module:
        return network
    if not (is_module and hasattr(network, "heatmaps")):
        raise ConfigError(
            f"a {type(network).__name__} is no network; give a path, a name of weights, a function, or a module with "
            "a method heatmaps(images), such as the .module of a PoseNet that is wrapped"
        )
    import torch

    from posenet.devices.precision import select_amp

    module: Any = network
    weight = next(module.parameters(), torch.empty(0))
    torch_device = weight.device if device is None or device == "auto" else torch.device(device)
    return TorchNetwork(module, torch_device, select_amp(torch_device, amp or "off"))


class TorchNetwork:
    """Runs a network in PyTorch; ``CheckpointError`` if a parameter is not finite."""

    def __init__(self, network: nn.Module, device: torch.device | str, amp: Amp) -> None:
        import torch

        from posenet.checkpoints.weights import require_usable_weights
        from posenet.devices.device import supports_pinned_memory

        # Only parameters, and only numbers: other tensors of a module can have any type and any meaning.
        numbers = {name: value for name, value in network.named_parameters() if value.is_floating_point()}
        require_usable_weights(numbers, "the network")
        self.device = torch.device(device)
        self.amp = amp
        self.network: Any = network.to(self.device).eval()
        self.on_device = self.device.type != "cpu"
        """Whether PyTorch also averages the maps."""
        self.copies_in_background = supports_pinned_memory(self.device)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """See ``MapFunction``."""
        import torch

        return self.compute_maps(torch.from_numpy(images).to(self.device)).float().cpu().numpy()

    def compute_maps(self, images: torch.Tensor) -> torch.Tensor:
        """The maps of (N, H, W, 3) uint8 BGR images on the network's device: there, and in the network's precision."""
        import torch

        from posenet.devices.precision import autocast
        from posenet.model.layers import images_to_input

        with torch.inference_mode(), autocast(self.device, self.amp):
            channels_last = getattr(self.network, "channels_last", False)
            maps: torch.Tensor = self.network.heatmaps(images_to_input(images, channels_last))
            return maps

    def host_tensor(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of the host, without values, which the device copies in the background if it can."""
        import torch

        # Memory is pinned for the current device of the thread, which may be another one.
        with torch.accelerator.device_index(self.device.index if self.copies_in_background else None):
            return torch.empty(*shape, dtype=dtype, pin_memory=self.copies_in_background)


@dataclass(frozen=True)
class Letterbox:
    """Resizes an image, then pads it on the right and below."""

    resized: tuple[int, int]
    """(height, width) of the resized image, in network-input pixels."""
    padded: tuple[int, int]
    """(height, width) of the network input."""

    @classmethod
    def fit(cls, image_size: tuple[int, int], settings: InferenceConfig, scale: float = 1.0) -> Letterbox:
        """Resize an image of (height, width) ``image_size`` to ``scale`` times the configured height, and pad it.

        It is smaller if the padded image would exceed ``inference.max_height`` or ``MAX_WIDTH``.
        """
        height, width = image_size
        zoom = min(
            settings.height * scale / height,
            settings.max_height // INPUT_MULTIPLE * INPUT_MULTIPLE / height,
            MAX_WIDTH // INPUT_MULTIPLE * INPUT_MULTIPLE / width,
        )
        resized = (max(1, round(height * zoom)), max(1, round(width * zoom)))
        rows, columns = (-(-side // INPUT_MULTIPLE) * INPUT_MULTIPLE for side in resized)  # rounded up
        return cls(resized, (rows, columns))

    @property
    def image_cells(self) -> tuple[int, int]:
        """Rows and columns of map cells that show the image."""
        height, width = self.resized
        return -(-height // MAP_STRIDE), -(-width // MAP_STRIDE)  # rounded up

    @property
    def decoded_cells(self) -> tuple[int, int]:
        """Rows and columns of map cells for the decoder: those of the image, and one more of each if there is one.

        The position of a keypoint in the last cell of the image depends on the next cell.
        """
        rows, columns = self.image_cells
        return min(rows + 1, self.padded[0] // MAP_STRIDE), min(columns + 1, self.padded[1] // MAP_STRIDE)

    def apply(self, image: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Resize and pad a (H, W, 3) uint8 image, into ``out`` if it is given: an array of the padded size.

        While it is much larger, it is halved to the means of 2 x 2 pixels. The rest is cubic interpolation, or
        averaging over areas where an odd side prevents halving.
        """
        result = np.empty((*self.padded, 3), np.uint8) if out is None else out
        height, width = self.resized
        result[height:] = PADDING
        result[:height, width:] = PADDING
        rows, columns = image.shape[:2]
        factor = max(rows / height, columns / width)
        while factor > MAX_CUBIC_FACTOR and rows % 2 == 0 and columns % 2 == 0:
            rows, columns, factor = rows // 2, columns // 2, factor / 2
            image = cv2.resize(image, (columns, rows), interpolation=cv2.INTER_AREA)
        interpolation = cv2.INTER_AREA if factor > MAX_CUBIC_FACTOR else cv2.INTER_CUBIC
        cv2.resize(image, (width, height), dst=result[:height, :width], interpolation=interpolation)
        return result

    def map_back(self, people: Iterable[Person], image_size: tuple[int, int]) -> list[Person]:
        """Map keypoints from network-input pixels to pixels of an image of (height, width) ``image_size``.

        They are clipped to the image. In its top left corner, they stay ``CORNER`` away from (0, 0), which means that a
        keypoint was not found.
        """
        size = np.array(image_size[::-1], np.float32)  # width, height: the order of x, y
        zoom = size / np.array(self.resized[::-1], np.float32)

        def map_points(points: np.ndarray, exists: np.ndarray) -> np.ndarray:
            inside = np.clip((points + 0.5) * zoom - 0.5, 0, size - 1)
            inside[(inside == 0).all(axis=1), 0] = CORNER
            return np.where(exists[:, None], inside, 0)

        mapped = []
        for person in people:
            keypoints = person.keypoints.copy()
            keypoints[:, :2] = map_points(keypoints[:, :2], person.found)
            estimates = None if person.estimates is None else map_points(person.estimates, ~person.found)
            mapped.append(dataclasses.replace(person, keypoints=keypoints, estimates=estimates))
        return mapped


class InputBatch(NamedTuple):
    """N images, resized and padded for the network at each inference scale."""

    letterboxes: list[list[Letterbox]]
    """``letterboxes[scale][image]``, largest scale first. The maps of all scales are resampled to its cells."""
    inputs: list[np.ndarray]
    """For each scale (N, H, W, 3) BGR uint8."""


class PendingMaps(NamedTuple):
    """The averaged maps of a batch, which a device may still be computing."""

    batch: InputBatch
    """It stays in memory, because the device may still be copying its inputs."""
    wait: Callable[[], list[np.ndarray]]
    """Wait for the device, on any thread, and return (C, h, w) float32 of each image, in its ``decoded_cells``."""


def prepare_inputs(network: MapFunction, images: Sequence[np.ndarray], settings: InferenceConfig) -> InputBatch:
    """Resize and pad (H, W, 3) BGR uint8 images, whose network inputs have the same size."""
    batch = InputBatch([], [])
    for scale in sorted(settings.scales, reverse=True):
        letterboxes = [Letterbox.fit((image.shape[0], image.shape[1]), settings, scale) for image in images]
        shape = (len(images), *letterboxes[0].padded, 3)
        if isinstance(network, TorchNetwork):
            import torch

            inputs = network.host_tensor(shape, torch.uint8).numpy()
        else:
            inputs = np.empty(shape, np.uint8)
        for letterbox, image, out in zip(letterboxes, images, inputs):
            letterbox.apply(image, out)
        batch.letterboxes.append(letterboxes)
        batch.inputs.append(inputs)
    return batch


def start_network(
    network: MapFunction, batch: InputBatch, skeleton: Skeleton, *, flip: bool, all_channels: bool
) -> PendingMaps:
    """Start to compute the maps of a batch, averaged over its scales and, if ``flip``, over the mirrored images.

    A device averages the maps itself, and this returns without waiting for it. ``all_channels`` adds the maps that
    nobody is decoded from, person mask and keypoint foreground. ``ValueError`` if the network computes maps of another
    shape: people would be misplaced.
    """
    num_channels = skeleton.num_channels if all_channels else skeleton.num_decoded_channels
    if isinstance(network, TorchNetwork) and network.on_device:
        return PendingMaps(batch, _start_on_device(network, batch, skeleton, flip, num_channels))
    maps = _average_on_host(network, batch, skeleton, flip, num_channels)
    return PendingMaps(batch, lambda: maps)


def _run(function: Callable[[Any], Any], images: Any, skeleton: Skeleton) -> Any:
    """The maps of (N, H, W, 3) images, arrays or tensors; ``ValueError`` if they have another shape than expected."""
    maps = function(images)
    count, height, width, _ = images.shape
    expected = (count, skeleton.num_channels, height // MAP_STRIDE, width // MAP_STRIDE)
    if tuple(maps.shape) != expected:
        raise ValueError(f"the network must compute maps of shape {expected}, not {tuple(maps.shape)}")
    return maps


def _average_on_host(
    network: MapFunction, batch: InputBatch, skeleton: Skeleton, flip: bool, num_channels: int
) -> list[np.ndarray]:
    """The averages for each image, whatever runs the network."""

    def compute_maps(images: np.ndarray) -> np.ndarray:
        return np.asarray(network(images), np.float32)  # a function of the user may return a tensor, or other numbers

    weight = 1 / (len(batch.inputs) * (2 if flip else 1))
    averages: list[np.ndarray] = []
    for images, letterboxes in zip(batch.inputs, batch.letterboxes):
        plans = [plan_resampling(*pair) for pair in zip(letterboxes, batch.letterboxes[0])]
        weighed = [np.empty((num_channels, rows.cells, columns.cells), np.float32) for rows, columns in plans]
        # The mirrored maps come first: the network may write to the same array again.
        if flip:
            # The image is mirrored with its padding. The width is a multiple of the stride, so the cells coincide.
            mirrored_images = np.stack([cv2.flip(image, 1) for image in images])
            for maps, out in zip(_run(compute_maps, mirrored_images, skeleton), weighed):
                mirrored = maps[:, : out.shape[1], maps.shape[2] - out.shape[2] :]
                for channel, twin in zip(out, skeleton.flip_channels):
                    cv2.flip(mirrored[twin], 1, dst=channel)
        for maps, out in zip(_run(compute_maps, images, skeleton), weighed):
            channels = maps[:num_channels, : out.shape[1], : out.shape[2]]
            if flip:
                for channel, total in zip(channels, out):
                    cv2.addWeighted(total, weight, channel, weight, 0, dst=total)
            else:
                np.multiply(channels, weight, out=out)
        if not averages:  # the largest scale
            averages = weighed
            continue
        for average, maps, plan in zip(averages, weighed, plans):
            for total, cells in zip(average, maps):
                cv2.add(total, resample_map(cells, *plan)[: total.shape[0], : total.shape[1]], dst=total)
    return averages


def _start_on_device(
    network: TorchNetwork, batch: InputBatch, skeleton: Skeleton, flip: bool, num_channels: int
) -> Callable[[], list[np.ndarray]]:
    """Let the device average, and copy the averages to the host with a single copy; what waits for it."""
    import torch

    sizes = [letterbox.decoded_cells for letterbox in batch.letterboxes[0]]
    rows, columns = (max(sides) for sides in zip(*sizes))
    # Not the inference mode: its tensors may be written within it alone, and copies in the background may end later.
    with torch.no_grad():
        averages = _average_on_device(network, batch, skeleton, flip, num_channels)[:, :, :rows, :columns].contiguous()
        copies = network.host_tensor(averages.shape, averages.dtype)
        copies.copy_(averages, non_blocking=network.copies_in_background)
    copied = torch.Event(network.device, blocking=True) if network.copies_in_background else None
    if copied is not None:
        copied.record(torch.accelerator.current_stream(network.device))

    def wait() -> list[np.ndarray]:
        if copied is not None:
            copied.synchronize()
        return [maps[:, :rows, :columns].float().numpy() for maps, (rows, columns) in zip(copies, sizes)]

    return wait


def _average_on_device(
    network: TorchNetwork, batch: InputBatch, skeleton: Skeleton, flip: bool, num_channels: int
) -> torch.Tensor:
    """(N, C, h, w) averages, correct in the decoded cells of each image.

    They are float32, or in the network's precision if there is only one scale without flip.
    """
    import torch
    from torch.nn import functional as F

    def to_device(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(network.device, non_blocking=network.copies_in_background)

    if len(batch.inputs) == 1 and not flip:
        maps: torch.Tensor = _run(network.compute_maps, to_device(torch.from_numpy(batch.inputs[0])), skeleton)
        return maps[:, :num_channels]
    flip_channels = network.host_tensor([num_channels], torch.int64)
    flip_channels.copy_(torch.from_numpy(skeleton.flip_channels[:num_channels]))
    twins = to_device(flip_channels)
    total = torch.empty(0)
    for inputs, letterboxes in zip(batch.inputs, batch.letterboxes):
        images = to_device(torch.from_numpy(inputs))
        # A copy, because the network may write to the same tensor again.
        sums = _run(network.compute_maps, images, skeleton)[:, :num_channels].to(torch.float32, copy=True)
        if flip:
            mirrored = _run(network.compute_maps, images.flip(2), skeleton)
            sums += mirrored.index_select(1, twins).flip(3)
        if letterboxes is batch.letterboxes[0]:
            total = sums
            continue
        for out, terms, *pair in zip(total, sums, letterboxes, batch.letterboxes[0]):
            rows, columns = plan_resampling(*pair)
            cells = terms[None, :, : rows.cells, : columns.cells]
            cells = F.pad(cells, (0, columns.repeated, 0, rows.repeated), mode="replicate")
            resampled = F.interpolate(cells, scale_factor=(rows.zoom, columns.zoom), mode="bicubic")[0]
            height, width = pair[1].decoded_cells
            out[:, :height, :width] += resampled[:, :height, :width]
    return total.div_(len(batch.inputs) * (2 if flip else 1))


class Resampling(NamedTuple):
    """How the maps of one inference scale are resampled to the decoded cells of a larger one, along one axis.

    Resizing by s maps x to (x + 0.5) s - 0.5, for pixels and for cells. The two scales are padded differently, so s is
    the ratio of the sizes of the resized images, not of the maps.
    """

    zoom: float
    """New cells per cell."""
    cells: int
    """How many cells, counted from the first, the decoded cells depend on."""
    repeated: int
    """How often the last of these is repeated, so that there are enough of them."""


def plan_resampling(source: Letterbox, target: Letterbox) -> tuple[Resampling, Resampling]:
    """Resample the rows and the columns of maps from ``source`` to ``target``, which is at least as large."""
    plans = []
    for old, new, padded, wanted in zip(source.resized, target.resized, source.padded, target.decoded_cells):
        zoom = new / old
        ahead = 0 if zoom == 1 else 2  # cubic interpolation between cells depends on two more
        cells = min(padded // MAP_STRIDE, math.ceil(wanted / zoom) + ahead)
        repeated = 0
        # OpenCV copies an image whose size would stay the same, and ignores the factor.
        while int((cells + repeated) * zoom) < max(wanted, cells + repeated + (zoom > 1)):
            repeated += 1
        plans.append(Resampling(zoom, cells, repeated))
    rows, columns = plans
    return rows, columns


def resample_map(cells: np.ndarray, rows: Resampling, columns: Resampling) -> np.ndarray:
    """Resample (h, w) float32 ``cells`` of a map by cubic convolution; the result begins with the decoded cells."""
    if rows.repeated or columns.repeated:
        cells = cv2.copyMakeBorder(cells, 0, rows.repeated, 0, columns.repeated, cv2.BORDER_REPLICATE)
    # A size instead of the factors would change the ratio, because sizes are whole numbers.
    resampled: np.ndarray = cv2.resize(cells, None, fx=columns.zoom, fy=rows.zoom, interpolation=cv2.INTER_CUBIC)
    return resampled
