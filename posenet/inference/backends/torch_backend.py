"""Prediction with PyTorch: maps averaged over scales and flips, and candidates selected on device or host."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenet.devices.device_copy import DeviceCopies
from posenet.devices.host_copy import HostCopy
from posenet.devices.precision import Amp, autocast
from posenet.inference.backends.backend import (
    Backend,
    DecoderInputs,
    DeviceCandidates,
    HostMaps,
    InputBatch,
    NetworkOutput,
)
from posenet.inference.backends.converted_network import ConvertedNetwork
from posenet.inference.decoder.device_candidates import CandidateSelector
from posenet.inference.letterbox import Letterbox
from posenet.inference.onnx_export import digest_of_network
from posenet.model.preprocessing import images_to_input
from posenet.settings import MAP_STRIDE, InferenceConfig
from posenet.skeleton import Skeleton


class TorchBackend(Backend):
    """Runs a network with a method ``heatmaps``. The arguments are those of ``Predictor``."""

    def __init__(
        self,
        network: nn.Module,
        settings: InferenceConfig,
        *,
        skeleton: Skeleton,
        device: torch.device | str | None,
        amp: Amp,
        select: Literal["device", "host"] | None,
    ) -> None:
        self.settings = settings
        self.skeleton = skeleton
        weight = next(network.parameters(), torch.empty(0))
        self.device = weight.device if device is None else torch.device(device)
        self.amp = amp
        self.network = network.to(self.device).eval()
        self._flip_channels = torch.from_numpy(skeleton.flip_channels).to(self.device)
        self._selector: CandidateSelector | None = None
        if select == "device" or (select is None and self.device.type != "cpu"):
            self._selector = CandidateSelector(
                settings.keypoint_threshold, settings.part_threshold, skeleton=skeleton
            ).to(self.device)

    @property
    def parallel_runs(self) -> int:
        """See ``Backend``."""
        return getattr(self.network, "parallel_runs", 1)

    def run(self, batch: InputBatch) -> NetworkOutput:
        """Queue the network, and the copy of its maps or of the candidates selected from them, on the device."""
        scales = self.settings.scales
        letterboxes = batch.letterboxes[scales.index(max(scales))]
        cells = [letterbox.image_cells for letterbox in letterboxes]
        # These tensors must not be of inference mode: they could then not be written by another thread, but a device's
        # memory management may complete a queued copy in the thread that releases memory.
        copies = DeviceCopies([*batch.inputs, np.array(cells)], self.device)
        *inputs, sizes = copies.tensors
        with torch.inference_mode():
            maps = self._average_over_scales(inputs, batch.letterboxes, letterboxes)
            outputs = (maps,) if self._selector is None else self._selector(maps, sizes)
            host_copies = [HostCopy(output) for output in outputs]

        def fetch() -> DecoderInputs:
            arrays = [copy.read().numpy() for copy in host_copies]
            copies.release()
            if self._selector is not None:
                return [DeviceCandidates(*arrays_of_image) for arrays_of_image in zip(*arrays)]
            [host_maps] = arrays
            return [HostMaps(image_maps[:, :rows, :columns]) for image_maps, (rows, columns) in zip(host_maps, cells)]

        return NetworkOutput(batch.image_sizes, letterboxes, fetch)

    @torch.inference_mode()
    def compute_maps(self, images: np.ndarray) -> np.ndarray:
        """See ``Backend``."""
        return self._average_over_flip(torch.from_numpy(images).to(self.device)).cpu().numpy()

    def digest(self) -> str:
        """A digest of all weights and buffers."""
        if isinstance(self.network, ConvertedNetwork):
            return self.network.digest
        return digest_of_network(self.network)

    def _average_over_scales(
        self, inputs: list[Tensor], letterboxes: list[list[Letterbox]], target: list[Letterbox]
    ) -> Tensor:
        """Maps of a batch, (N, C, h, w) on the device, averaged over the scales and resampled to ``target``."""
        maps_of_scales = (
            resample_maps(self._average_over_flip(images), letterboxes_of_scale, target)
            for images, letterboxes_of_scale in zip(inputs, letterboxes)
        )
        total = functools.reduce(operator.add, maps_of_scales)
        return total / len(inputs) if len(inputs) > 1 else total

    def _average_over_flip(self, images: Tensor) -> Tensor:
        """Maps of (N, H, W, 3) BGR uint8 images on the device, (N, C, H/4, W/4) float32; see ``compute_maps``."""
        heatmaps = cast(Callable[[Tensor], Tensor], self.network.heatmaps)
        inputs = images_to_input(images, getattr(self.network, "channels_last", False))
        with autocast(self.device, self.amp):
            maps = heatmaps(inputs).float()
            if self.settings.flip:
                # The image is mirrored with its padding. The width is a multiple of the stride, so the cells coincide.
                mirrored = heatmaps(inputs.flip(-1)).float()
                maps = (maps + mirrored[:, self._flip_channels].flip(-1)) / 2
        return maps


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
