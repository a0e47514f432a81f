"""The interface between ``Predictor`` and the software that runs the network.

A backend turns a batch of resized and padded images into maps or keypoint candidates on the host. ``TorchBackend`` runs
a network with flip averaging and several scales. ``ExportedBackend`` runs an exported file, without PyTorch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from posenet.inference.decoder.candidates import MAX_PEAKS, KeypointCandidates
from posenet.inference.decoder.decode import decode
from posenet.inference.decoder.host_candidates import find_keypoints
from posenet.inference.decoder.people import decode_candidates, list_candidates
from posenet.inference.letterbox import Letterbox
from posenet.inference.person import Person
from posenet.settings import InferenceConfig
from posenet.skeleton import Skeleton


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

    def candidates(self, settings: InferenceConfig, skeleton: Skeleton) -> KeypointCandidates:
        """The keypoint candidates that ``decode`` groups."""
        return find_keypoints(self.maps[skeleton.keypoint_channels], settings.keypoint_threshold, MAX_PEAKS)


class DeviceCandidates(NamedTuple):
    """The candidates of one image that ``CandidateSelector`` or an exported file has selected."""

    peaks: np.ndarray
    pairs: np.ndarray
    limb_scores: np.ndarray

    def decode(self, settings: InferenceConfig, skeleton: Skeleton) -> list[Person]:
        """The people, with keypoints in network-input pixels."""
        return decode_candidates(self.peaks, self.pairs, self.limb_scores, skeleton=skeleton)

    def candidates(self, settings: InferenceConfig, skeleton: Skeleton) -> KeypointCandidates:
        """The keypoint candidates that ``decode`` groups."""
        return list_candidates(self.peaks)


DecoderInputs = Sequence[HostMaps | DeviceCandidates]
"""The maps or the candidates of each image of a batch."""


class NetworkOutput(NamedTuple):
    """The output of the network for N images, which may still be on its way to the host."""

    image_sizes: list[tuple[int, int]]
    """(height, width) of each image."""
    letterboxes: list[Letterbox]
    """How each image was resized and padded for its maps."""
    fetch: Callable[[], DecoderInputs]
    """Waits until the output is on the host, and returns it."""


class Backend(ABC):
    """Runs a network on batches of images.

    ``parallel_runs`` threads call ``run``, another one ``NetworkOutput.fetch``.

    Attributes:
        settings: the settings that the network runs with.
        skeleton: meaning of the channels.
    """

    settings: InferenceConfig
    skeleton: Skeleton

    @property
    def parallel_runs(self) -> int:
        """The number of threads that should call ``run`` at the same time."""
        return 1

    @abstractmethod
    def run(self, batch: InputBatch) -> NetworkOutput:
        """Run the network on a batch. A device may still work on it when this returns."""

    @abstractmethod
    def compute_maps(self, images: np.ndarray) -> np.ndarray:
        """The maps of images at one scale, averaged with those of the mirrored images if ``settings.flip`` is set.

        Maps (N, H, W, 3) BGR uint8, with H and W multiples of 64, to (N, C, H/4, W/4) float32.

        Raises:
            ConfigError: the network is in a file that does not output maps.
        """

    @abstractmethod
    def digest(self) -> str:
        """A text that differs between networks with different weights."""
